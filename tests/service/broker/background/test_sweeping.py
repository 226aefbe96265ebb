"""Sweeping: the objects that it deletes from the bucket, the requests that it makes, and one partition's failure, which stops
no other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.broker.partition.partition import Partition
from storage_tiers.clock import SystemClock
from storage_tiers.cold.manifest.model import Ids
from storage_tiers.cold.process.operations import ListKeys
from storage_tiers.cold.process.question import Question
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.errors import TierUnavailable
from storage_tiers.types import TopicPartition
from tests.service.broker.support import TIERED, Running, manifest_of, running, until
from tests.support.faulty_store import FaultyStore

GRACE = {"tidelog.tier.delete.grace.ms": "1"}
#: A grace so long that no round starts on its own during a test.
CALM = {"tidelog.tier.delete.grace.ms": "3600000"}


async def tiered(node: Running, *topics: str) -> list[Partition]:
    for topic in topics:
        await node.create(topic, configs=TIERED)
        for i in range(20):
            await node.append(topic, b"%03d" % i * 50)
        await node.seal(topic)
    return [node.node.broker.partitions.get(TopicPartition(topic, 0)) for topic in topics]


def orphan(node: Running, led: Partition) -> str:
    ids: Ids = led.ids
    return ids.segment_key(7, 1, "f" * 32)


def requests(node: Running) -> list[tuple[str, str]]:
    found, node.store.calls[:] = list(node.store.calls), []
    return found


def is_there(node: Running, key: str) -> Callable[[], bool]:
    store = node.store.store
    assert isinstance(store, MemoryStore)
    return lambda: key in {info.key for info in store.blocking().list(key)}


async def round_of(node: Running) -> list[tuple[str, str]]:
    """Runs one whole round with its listing, and returns the requests that it made."""
    node.node.broker.sweeping._listed_at = None
    requests(node)
    await node.node.broker.sweeping.tick()
    return requests(node)


async def test_an_idle_cluster_costs_one_listing_and_nothing_between(tmp_path: Path) -> None:
    async with running(tmp_path / "data", broker=CALM) as node:
        await tiered(node, "a", "b", "c")
        for _ in range(3):  # new objects are examined until one round has listed everything older
            await round_of(node)
        made = await round_of(node)
        assert [operation for operation, _ in made] == ["unfinished_uploads", "list"]
        requests(node)
        for _ in range(3):
            await node.node.broker.sweeping.tick()
        assert requests(node) == []


async def test_only_orphans_are_swept(tmp_path: Path) -> None:
    async with running(tmp_path / "data", broker=GRACE) as node:
        (led,) = await tiered(node, "a")
        key = orphan(node, led)
        await node.store.put(key, b"left behind")

        async def swept() -> bool:
            await round_of(node)
            return not is_there(node, key)()

        while not await swept():
            pass
        assert [record.offset for record in await node.read_all("a")] == list(range(20))
        assert led.counts.deletes == 1


async def test_young_objects_are_checked_in_a_later_round(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore(SystemClock()))
    async with running(tmp_path / "data", store, CALM) as node:
        (led,) = await tiered(node, "a")
        key = orphan(node, led)
        await node.store.put(key, b"left behind")
        for _ in range(4):
            await round_of(node)
        assert is_there(node, key)()
        node.node.broker.sweeping._grace_ms = lambda: 1
        await round_of(node)
        assert not is_there(node, key)()


async def test_a_partition_that_fails_holds_no_other_one_up(tmp_path: Path) -> None:
    """Its manifest cannot be read. The orphans of the other partitions are deleted, and its own once the store answers."""
    async with running(tmp_path / "data", broker=CALM) as node:
        node.node.broker.sweeping._grace_ms = lambda: 1
        first, *others = await tiered(node, "a", "b", "c")
        orphans = [orphan(node, led) for led in (first, *others)]
        for key in orphans:
            await node.store.put(key, b"left behind")
        node.store.fail(1, "get", first.ids.manifest_key, TierUnavailable("slow"))
        for _ in range(40):
            node.store.fail(1, "get", first.ids.manifest_key, TierUnavailable("slow"))
        for _ in range(4):
            await round_of(node)
            if not any(is_there(node, key)() for key in orphans[1:]):
                break
        assert not any(is_there(node, key)() for key in orphans[1:])
        while is_there(node, orphans[0])():
            await round_of(node)


async def test_an_interrupted_listing_resumes_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage_tiers.cold.process.operations.LISTED_KEYS", 3)
    async with running(tmp_path / "data", broker=CALM) as node:
        await tiered(node, "a", "b")
        node.node.broker.sweeping._listed_at = None
        client = node.tier.client
        assert client is not None
        asked: list[str] = []
        ask = client.ask

        async def listing(question: Question[Any]) -> Any:
            if isinstance(question, ListKeys):
                asked.append(question.after)
                if len(asked) == 3:
                    raise TierUnavailable("away")
            return await ask(question)

        client.ask = listing  # type: ignore[method-assign]
        await node.node.broker.sweeping.tick()
        assert len(asked) == 3
        await node.node.broker.sweeping.tick()
        assert asked[3] == asked[2], "not from the beginning"
        assert sorted(set(asked)) == asked[:3] + asked[4:], "each part of the listing once"


async def test_objects_written_behind_a_listing_are_checked_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listing has already passed the key, and ends with a newer object."""
    monkeypatch.setattr("storage_tiers.cold.process.operations.LISTED_KEYS", 3)
    async with running(tmp_path / "data", broker=CALM) as node:
        first, last = await tiered(node, "a", "z")
        for _ in range(3):
            await round_of(node)
        node.node.broker.sweeping._grace_ms = lambda: 1
        client, key = node.tier.client, orphan(node, first)
        assert client is not None
        ask, passed = client.ask, list[str]()

        async def listing(question: Question[Any]) -> Any:
            if isinstance(question, ListKeys) and question.after > key and not passed:
                passed.append(question.after)
                await node.store.put(key, b"left behind")
                await node.store.put(orphan(node, last), b"newer")
            return await ask(question)

        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(client, "ask", listing)
            await round_of(node)
        assert passed and is_there(node, key)()
        for _ in range(6):
            await round_of(node)
        assert not is_there(node, key)()


async def test_a_lost_manifest_is_reported_at_the_next_listing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path / "data", broker=CALM) as node:
        (led,) = await tiered(node, "a")
        for _ in range(3):
            await round_of(node)
        await node.store.delete([led.ids.manifest_key])
        await round_of(node)
        assert "no manifest" in caplog.text


async def test_removed_segments_are_swept_without_a_listing(tmp_path: Path) -> None:
    async with running(tmp_path / "data", broker=CALM) as node:
        (led,) = await tiered(node, "a")
        await round_of(node)
        await node.log.delete_records(led.partition, 15)
        manifest = await manifest_of(led)
        gone = [key for item in manifest.removed for key in item.keys]
        assert gone
        node.node.broker.sweeping._grace_ms = lambda: 1
        node.node.broker.sweeping._listed_at = node.node.ground.host.clock.monotonic() + 3600
        requests(node)
        await until(lambda: manifest.removed[-1].at.time_ms + 1 < node.node.ground.host.clock.unix_ms())
        await node.node.broker.sweeping.tick()
        made = requests(node)
        assert not any(is_there(node, key)() for key in gone if key.endswith(".log"))
        assert "list" not in {operation for operation, _ in made}


async def test_backlogged_partitions_take_turns(tmp_path: Path) -> None:
    """Four partitions have many segments to offload. Then a fifth has some too, and waits for at most one segment of each."""
    async with running(tmp_path / "data") as node:
        busy = ["a", "b", "c", "d"]
        gates = [node.store.hold(number, "put", "segments/") for number in range(1, 5)]
        for topic in busy:
            await node.create(topic, configs=TIERED)
            for i in range(200):
                await node.append(topic, b"%03d" % i * 50)
        for gate in gates:
            await gate.reached.wait()  # every offload slot is taken
        await node.create("late", configs=TIERED)
        for i in range(20):
            await node.append("late", b"%03d" % i * 50)
        late = node.node.broker.partitions.get(TopicPartition("late", 0))
        closed = late.log.hot.active_start_offset
        for gate in gates:
            gate.open()
        await until(lambda: late.log.tiered_end >= closed)
        ends = [node.node.broker.partitions.get(TopicPartition(topic, 0)) for topic in busy]
        assert all(led.log.tiered_end < led.log.hot.active_start_offset for led in ends)
