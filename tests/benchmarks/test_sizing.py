"""The sizing table of docs/production.md agrees with the benchmark results that are kept; a new run shows stale figures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.table import JUDGED

PAGE = (Path(__file__).parents[2] / "docs" / "production.md").read_text()
#: Figures of the page are rounded.
TOLERANCE = 0.08

#: Each entry: the page's row, the figure in that row, and the part and the row of the results.
FIGURES = [
    (
        "processor, produce",
        r"([\d.]+) s a GB of large",
        "beside",
        "sustained produce, segments of 64 MiB roll: broker processor",
    ),
    (
        "processor, produce",
        r"([\d.]+) s a GB if",
        "fleet",
        "4 connections, requests of 16 partitions x 200 B: broker processor",
    ),
    ("processor, cold reads", r"([\d.]+) MB/s", "cold", "cold consume"),
    ("processor, cold reads", r"([\d.]+) beside a producer", "cold", "cold consume beside produce"),
    ("both cores, groups", r"([\d,]+) offset commits/s", "groups", "offset commits, 50 connections of 50 groups"),
    ("both cores, groups", r"([\d,]+) heartbeats/s", "groups", "heartbeats, 50 connections"),
    ("both cores, transactions", r"([\d,]+) a second", "transactions", "transactions of 10 records, one producer"),
    (
        "both cores, transactions",
        r"([\d,]+) records/s copied",
        "transactions",
        "consume-transform-produce loop, 100 records a transaction",
    ),
    (
        "processor, compaction",
        r"([\d.]+) s a GB",
        "compaction",
        "compaction of 1 KiB records, a tenth stays: broker processor",
    ),
    ("processor, compaction", r"([\d.]+) MB/s", "compaction", "compaction of 1 KiB records, a tenth stays"),
    ("memory, broker", r"([\d.]+) MB idle", "requests", "resident memory of an idle node"),
    (
        "memory, broker",
        r"([\d.]+) MB with 10,000 partitions",
        "partitions",
        "10,000 partitions: resident memory afterwards",
    ),
    (
        "memory, committed offsets",
        r"([\d.]+) MB for a million",
        "coordinators",
        "1,000,000 committed offsets: memory they add",
    ),
    (
        "start after a crash",
        r"([\d.]+) s with 10,000",
        "partitions",
        "10,000 partitions: restart after kill -9 until ten accept",
    ),
    (
        "start with a million",
        r"([\d.]+) s until",
        "coordinators",
        "1,000,000 committed offsets: start until all groups answer",
    ),
]


@pytest.mark.parametrize(
    ("what", "figure", "part", "name"), FIGURES, ids=[f"{what}: {name}" for what, _, _, name in FIGURES]
)
def test_a_figure_of_the_sizing_page_is_the_measured_one(what: str, figure: str, part: str, name: str) -> None:
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {what}")]
    found = re.search(figure, line)
    assert found is not None, line
    (row,) = [row for row in report.read()[part].rows if row.name == name]
    assert float(found[1].replace(",", "")) == pytest.approx(row.medians[JUDGED], rel=TOLERANCE)
    assert part in line.split("|")[3]
