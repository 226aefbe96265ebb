"""The benchmark load: an error response never counts as a figure."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks import background, beside, burner, fleet, load
from benchmarks.brokers import proportional_megabytes, stored_bytes
from benchmarks.burner import Burn, Used
from benchmarks.processor import processor_seconds
from tests.support.node import Node


class Counted:
    """The benchmark's broker interface over a test node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.address = node.kafka

    def spawn(self) -> None: ...

    @property
    def pid(self) -> int | None:
        return self._node.pid

    def kill(self) -> None: ...

    def stop(self) -> None: ...

    def resident_megabytes(self, *, children: bool = True) -> float | None:
        return None

    def proportional_megabytes(self) -> float | None:
        return proportional_megabytes(self._node.pid)

    def processor_seconds(self) -> float | None:
        return processor_seconds(self._node.pid)

    def stored_bytes(self) -> float | None:
        return stored_bytes(self._node)

    def partition_dir(self, topic: str) -> Path | None:
        return self._node.partition_dir(topic)


@pytest.mark.parametrize("partitions", [1, 3, 16])
def test_an_answer_with_one_error_is_found(tmp_path: Path, partitions: int) -> None:
    with Node(tmp_path) as node:
        load.create_topic(node.kafka, "t", partitions)
        batch = load.record_batch(2, 10)
        c = load.Connection(node.kafka)
        c.send(load.produce_frame("t", batch, partitions=range(partitions)))
        load.check_produced(c.receive(), "t", partitions)
        broken = bytearray(batch)
        broken[-1] ^= 1
        c.send(load.produce_frame("t", bytes(broken), partitions=range(partitions)))
        with pytest.raises(load.LoadFailed, match="produce to t"):
            load.check_produced(c.receive(), "t", partitions)
        c.send(load.produce_frame("t", batch, partitions=[*range(partitions - 1), 99]))
        with pytest.raises(load.LoadFailed, match="produce to t"):
            load.check_produced(c.receive(), "t", partitions)
        c.close()


def test_every_row_of_the_fleet_and_of_background_load_gives_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "TAIL_S", 0.2)
    monkeypatch.setattr(beside, "READERS", (1, 3))
    monkeypatch.setattr(beside, "SUSTAINED_S", 0.2)
    monkeypatch.setattr(beside, "LATENCY_S", 0.2)
    with Node(tmp_path) as node:
        broker = Counted(node)
        rows = [
            *fleet.one_round(broker, "x", 0.1, ""),
            *beside.sustained(broker, "x", ""),
            *beside.tailing(broker, "x", ""),
        ]
        used = broker.proportional_megabytes()
        left = [path.name for path in node.data_dir.iterdir() if path.name.startswith("fleet-")]
    assert [name for name in left if not name.endswith("-delete")] == []
    assert len({name for name, _, _ in rows}) == len(rows) == 4 * len(fleet.FLEETS) + 6 + 6
    assert used is not None
    assert 20 < used < 1000, "MB of a node and its tier process"
    assert all(value is not None and value >= 0 for _, _, value in rows)
    assert all(value for _, unit, value in rows if unit in ("MB/s", "ms"))


def test_a_background_load_that_fails_gives_no_figure(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        load.create_topic(node.kafka, "t")
        with background.produced(node.kafka, "t", 1 << 20):
            pass
        assert load.high_watermark(node.kafka, "t") >= background.BATCH[0]
        node.kill()
        with pytest.raises(load.LoadFailed, match="in the background"), background.produced(node.kafka, "t", 1 << 20):
            raise AssertionError("nothing can be produced")


def test_burners_use_the_given_share_and_end() -> None:
    """The burner uses a quarter of a core in bursts of 2 ms, with at most two sleeps per burst, so CPU time has grown after 50
    sleeps."""
    others = children(os.getpid())
    with burner.burning([Burn(0.25, 2.0), Burn(0.0, 2.0)]):
        (pid,) = set(children(os.getpid())) - set(others)
        before = Used.by(pid)
        while (now := Used.by(pid)).sleeps < before.sleeps + 50:
            pass
        assert now.seconds > before.seconds
    assert pid not in children(os.getpid())


def test_processor_use_is_given_as_a_share_and_the_length_of_a_burst() -> None:
    before, after = Used(1.0, 100), Used(2.0, 600)
    assert Burn.between(before, after, 4.0) == Burn(0.25, 2.0)
    assert Burn.between(before, after, 4.0, less=0.1).share == pytest.approx(0.15)
    assert Burn.between(before, before, 4.0) == Burn(0.0, burner.LEAST_BURST_MS)


def children(pid: int) -> list[int]:
    listed = (task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/children"))
    return [int(child) for found in listed for child in found.split()]
