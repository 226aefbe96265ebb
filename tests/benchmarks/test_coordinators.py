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
    monkeypatch.setattr(coordinators, "DELAYED", ((1, 1), (3, 2)))
    monkeypatch.setattr(coordinators, "OFFSETS", (20, 10))
    monkeypatch.setattr(coordinators, "GROUPS", (5, 3))
    broker, table = Tidelog(tmp_path, coordinators.SETTINGS), Table()
    broker.spawn()
    try:
        wait_for_port(broker.address)
        assert not list(coordinators.warm(broker.address, "t"))
        rows = [*coordinators.one_round(broker, "t", table), *coordinators.fresh(broker, "t", table)]
        with pytest.raises(LoadFailed, match="has no offset"):
            monkeypatch.setattr(coordinators, "LIMIT_S", 0.0)
            coordinators.wait_until_answered(broker.address, "nobody", 1, "of-10")
    finally:
        broker.stop()
    judged = {name for name, _, value in rows if value is not None and name in WANTED}
    assert len(judged) == 6
    assert list(table.rows)[:2] == [(coordinators.P99, "ms"), (coordinators.STALL, "ms")]
    assert all("delay + 100 ms" in row.rounds for row in [*table.rows.values()][2:])


def test_the_cleaners_row_gives_a_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SEGMENT_BYTES", 1 << 20)
    monkeypatch.setattr(compaction, "SHORT_SEGMENT_BYTES", 1 << 20)
    broker, table = Tidelog(tmp_path, compaction.SETTINGS), Table()
    broker.spawn()
    try:
        wait_for_port(broker.address)
        rows = list(compaction.one_round(broker, "t", 0.008, table))
    finally:
        broker.stop()
    named = [f"{row}{figure}" for row in (compaction.ROW, compaction.LZ4) for figure in ("", ": broker processor")]
    assert [name for name, _, _ in rows] == named and all(value for name, _, value in rows if name in WANTED)
    assert set(table.rows[compaction.FULL, "MB"].rounds) == {"tidelog", "dedupe buffer"}
