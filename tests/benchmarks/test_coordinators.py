"""The rows of many groups, large groups, and the log cleaner: each gives a figure on a running node."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import compaction, coordinators
from benchmarks.brokers import Tidelog, wait_for_port
from benchmarks.load import LoadFailed
from benchmarks.table import WANTED, Table


def test_every_row_of_groups_gives_a_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinators, "MEMBERS", 5)
    monkeypatch.setattr(coordinators, "LATENCY_S", 0.2)
    monkeypatch.setattr(coordinators, "BEAT_S", 0.1)
    monkeypatch.setattr(coordinators, "OFFSETS", (20, 10))
    monkeypatch.setattr(coordinators, "GROUPS", (5, 3))
    broker, table = Tidelog(tmp_path, coordinators.SETTINGS), Table()
    broker.spawn()
    try:
        wait_for_port(broker.address)
        rows = [*coordinators.one_round(broker, "t", table), *coordinators.offsets(broker)]
        with pytest.raises(LoadFailed, match="has no offset"):
            monkeypatch.setattr(coordinators, "LIMIT_S", 0.0)
            coordinators.until_answered(broker.address, "nobody", 1, "of-10")
    finally:
        broker.stop()
    judged = {name for name, _, value in rows if value is not None and name in WANTED}
    assert len(judged) == 5
    assert list(table.rows) == [(coordinators.P99, "ms")]


def test_the_cleaners_row_gives_a_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SEGMENT_BYTES", 1 << 20)
    broker, table = Tidelog(tmp_path, compaction.SETTINGS), Table()
    broker.spawn()
    try:
        wait_for_port(broker.address)
        rows = list(compaction.one_round(broker, "t", 0.008, table))
    finally:
        broker.stop()
    assert [name for name, _, value in rows if value] == [compaction.ROW, f"{compaction.ROW}: broker processor"]
    assert table.rows
