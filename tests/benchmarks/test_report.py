"""Benchmark tables are written into the pages that show them, and nothing else on those pages changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.table import CHOSEN, Table

ROW = "produce 16 KiB batches"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    page = tmp_path / "page.md"
    page.write_text(
        "before\n<!-- benchmarks: requests -->\nstale\n<!-- end -->\nbetween\n<!-- benchmarks: cold -->\nkept\n<!-- end -->\n"
    )
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(report, "PAGES", (page,))
    monkeypatch.setattr(report, "PLOT", tmp_path / "img" / "speed.png")
    return page


def measured(*, cut_short: str = "") -> report.Kept:
    table = Table()
    table.add("kafka", ROW, "MB/s", 100.0)
    table.add("tidelog", ROW, "MB/s", 150.0)
    return report.described("requests", table, rounds=1, cut_short=cut_short)


def test_tables_are_written_between_their_marks_and_nowhere_else(page: Path) -> None:
    report.keep(measured())
    report.write()
    text = page.read_text()
    assert "| produce 16 KiB batches | MB/s | 100 | 150 | 1.50 | ≥ 1.3 × kafka | met |" in text
    assert "stale" not in text
    assert text.startswith("before\n<!-- benchmarks: requests -->\n")
    assert text.endswith("between\n<!-- benchmarks: cold -->\nkept\n<!-- end -->\n")
    assert report.PLOT.read_bytes().startswith(b"\x89PNG")
    assert report.read()["requests"].rows[0].rounds == {"kafka": [100.0], "tidelog": [150.0]}


def test_an_interrupted_part_is_marked(page: Path) -> None:
    report.keep(measured(cut_short="LoadFailed: no leader"))
    report.write()
    assert "Cut short: LoadFailed: no leader." in page.read_text()


def test_the_summary_says_how_old_its_rows_are(page: Path) -> None:
    page.write_text("<!-- benchmarks: summary -->\n<!-- end -->\n")
    first = measured()
    report.keep(replace(first, date="2020-01-01 00:00 UTC", commit="0ld"))
    report.keep(replace(first, part="cold", date="2021-01-01 00:00 UTC", commit="new"))
    report.write()
    assert (
        "From runs between 2020-01-01 00:00 UTC (commit 0ld) and 2021-01-01 00:00 UTC (commit new)." in page.read_text()
    )


def test_the_chosen_rows_are_there_and_no_others(page: Path) -> None:
    page.write_text("<!-- benchmarks: chosen -->\n<!-- end -->\n")
    table = Table()
    for row in (*CHOSEN, ROW):
        for name in ("kafka", "tidelog", "ranged GETs"):
            table.add(name, row, "MB/s", 100.0)
    report.keep(report.described("requests", table, rounds=1))
    report.write()
    rows = [line.split(" | ")[0] for line in page.read_text().splitlines() if line.startswith("| ")]
    assert rows == ["| row", *(f"| {row}" for row in CHOSEN)]


def test_writing_twice_changes_nothing(page: Path) -> None:
    report.keep(measured())
    report.write()
    once = page.read_text()
    report.write()
    assert page.read_text() == once
