"""Walks over all partitions of a node leave the event loop to others: counted in turns, for thousands of partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from grpc_api.contract.groups import OffsetFetch
from grpc_api.contract.topics import AlterOp, ConfigAlteration, Resource, ResourceKind
from service.broker.background.maintenance import PRODUCERS_A_PARTITION, PRODUCERS_A_TURN
from service.broker.background.turns import GLANCES_A_TURN, LOOKS_A_TURN, slices
from service.broker.partition.partition import Partition
from service.broker.partition.partitions import Partitions
from storage_tiers.hot.checkpoints import HIGH_WATERMARKS, LOG_STARTS, read_offsets
from storage_tiers.hot.producer_state import ProducerEntry
from storage_tiers.turns import TurnScheduler
from storage_tiers.types import TopicPartition
from tests.service.broker.coordinators.test_groups import CALLER, commit, coordinated, offsets
from tests.service.broker.support import Running, filled, running, until

MANY = 5000

WALKS: dict[str, tuple[Callable[[Running], Awaitable[None]], int]] = {
    "flush by time": (lambda node: node.node.broker.maintenance.flush_by_time(), GLANCES_A_TURN),
    "tiering": (lambda node: node.node.broker.maintenance.tier(), GLANCES_A_TURN),
    "tiering, everything due": (lambda node: looked(node), LOOKS_A_TURN),
    "producer expiry": (
        lambda node: node.node.broker.maintenance._expire_producers(),
        PRODUCERS_A_TURN // PRODUCERS_A_PARTITION,
    ),
    "retention": (lambda node: node.node.broker.retention.tick(), LOOKS_A_TURN),
    "sweeping": (lambda node: node.node.broker.sweeping._sweep_removed(), LOOKS_A_TURN),
    "lost manifests": (lambda node: looked_for(node), GLANCES_A_TURN),
    "kicks": (lambda node: node.node.work.tiering.kick_all(node.node.broker.partitions), LOOKS_A_TURN),
}


async def looked(node: Running) -> None:
    partition(node).tier_due_ms = 0
    await node.node.broker.maintenance.tier()


async def looked_for(node: Running) -> None:
    sweeping = node.node.broker.sweeping
    sweeping._shown.add(partition(node))  # otherwise each look asks the store
    await sweeping._look_for_lost_manifests()


def partition(node: Running) -> Partition:
    return node.node.broker.partitions.get(TopicPartition("t", 0))


async def turns_of(walk: Awaitable[None]) -> int:
    """The number of times that another task has its turn before the walk ends."""
    walking, turns = asyncio.ensure_future(walk), 0
    while not walking.done():
        await asyncio.sleep(0)
        turns += 1
    await walking
    return turns


@pytest.mark.parametrize("name", WALKS)
async def test_a_walk_ends_its_turn_after_a_few_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    walk, a_turn = WALKS[name]
    async with running(tmp_path / "data") as node:
        await filled(node, 3)
        await node.seal("t")
        led = partition(node)

        def many(_: Partitions) -> Iterator[Partition]:
            return iter((led,) * MANY)

        few = await turns_of(walk(node))
        monkeypatch.setattr(Partitions, "__iter__", many)
        turns = await turns_of(walk(node))
        monkeypatch.undo()
    assert turns - few >= MANY // a_turn - 1


async def test_a_partition_with_many_producers_has_a_turn_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path / "data") as node:
        await filled(node, 1)
        led = partition(node)
        for producer_id in range(PRODUCERS_A_TURN):
            led.log.hot.end.producers.producers[producer_id] = ProducerEntry(0, node.node.ground.host.clock.steady_ms())
        monkeypatch.setattr(Partitions, "__iter__", lambda _: iter((led,) * 20))
        assert await turns_of(node.node.broker.maintenance._expire_producers()) >= 20
        monkeypatch.undo()


class RestlessNodeScheduler(TurnScheduler):
    """A scheduler whose turns are over at once. It counts the rests, which end only while `open` is set."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(self._seconds)
        self.rests = 0
        self.open = asyncio.Event()
        self.open.set()

    def _seconds(self) -> float:
        self.now += 1
        return self.now

    async def rest(self) -> None:
        self.rests += 1
        await self.open.wait()
        await super().rest()


async def test_checkpoints_are_gathered_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path / "data") as node:
        await node.create("t", partitions=20)
        partitions = node.node.broker.partitions
        for number in range(20):
            await node.append("t", b"a", partition=number)
        scheduler = RestlessNodeScheduler()
        monkeypatch.setattr(partitions, "_scheduler", scheduler)
        await partitions.checkpoint()
        assert scheduler.rests >= 4 * 20  # three checkpoints and the directories' identities
        raising = dict.fromkeys(partitions, 1)
        scheduler.rests = 0
        await partitions.raise_log_starts(raising)
        assert scheduler.rests >= 20
    for name in (HIGH_WATERMARKS, LOG_STARTS):
        assert set(read_offsets(str(tmp_path / "data" / name)).values()) == {1}


async def test_a_partition_that_is_deleted_or_made_during_a_checkpoint_is_as_it_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path / "data") as node:
        await node.create("old", partitions=2)
        partitions, scheduler = node.node.broker.partitions, RestlessNodeScheduler()
        await node.append("old", b"a", partition=1)
        monkeypatch.setattr(partitions, "_scheduler", scheduler)
        scheduler.open.clear()
        writing = asyncio.ensure_future(partitions.checkpoint())
        await until(lambda: scheduler.rests > 0)
        await node.core.topics.delete(["old"])
        making = asyncio.ensure_future(node.create("old", partitions=2))
        scheduler.open.set()
        await writing
        await making
        await partitions.checkpoint()
        assert await node.end("old", 1) == 0
    assert not any(read_offsets(str(tmp_path / "data" / HIGH_WATERMARKS)).values())


async def test_a_changed_broker_config_reaches_all_partitions_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path / "data") as node:
        await node.create("t", partitions=20)
        assignment, scheduler = node.node.broker.assignment, RestlessNodeScheduler()
        monkeypatch.setattr(assignment, "_scheduler", scheduler)

        def sizes() -> set[int]:
            return {each.log.hot.settings.max_message_bytes for each in node.node.broker.partitions}

        async def change(value: str) -> None:
            change = ConfigAlteration("message.max.bytes", AlterOp.SET, value)
            await node.core.configs.alter_configs(Resource(ResourceKind.BROKER, ""), [change])

        scheduler.open.clear()
        await change("2000000")
        assert len(sizes()) == 2, "the first slice"
        await change("3000000")  # while the first change is under way
        await node.create("new")
        scheduler.open.set()
        await until(lambda: sizes() == {3_000_000})
        assert scheduler.rests >= 20


async def test_offsets_of_a_deleted_topic_go_in_slices_and_those_of_a_new_one_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path / "data", broker={"offsets.topic.num.partitions": "1"}) as node:
        await node.create("t")
        names = [f"g{number}" for number in range(20)]
        groups = await coordinated(node, "g0")
        for name in names:
            await commit(groups, 5, group=name)
        scheduler = RestlessNodeScheduler()
        monkeypatch.setattr(node.node.broker.coordinators.offset_expiry, "_scheduler", scheduler)
        scheduler.open.clear()
        await node.core.topics.delete(["t"])
        await until(lambda: scheduler.rests > 0)
        await node.create("t")
        await commit(groups, 7, group=names[-1])
        scheduler.open.set()

        async def kept() -> list[dict[str, list[int]]]:
            return [offsets(await groups.fetch_offsets(OffsetFetch(name, None), CALLER)) for name in names]

        async with asyncio.timeout(60):
            while await kept() != [{}] * 19 + [{"t": [7]}]:
                await asyncio.sleep(0.005)
        assert scheduler.rests >= 20


async def test_slices_hold_every_item_once_and_in_order() -> None:
    assert [part async for part in slices(range(7), 3)] == [(0, 1, 2), (3, 4, 5), (6,)]
    assert [part async for part in slices(range(6), 3)] == [(0, 1, 2), (3, 4, 5)]
    assert not [part async for part in slices(list[int](), 3)]
