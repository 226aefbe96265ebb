"""Walks over all partitions of a node leave the event loop to others: counted in turns, for thousands of partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from service.broker.background.maintenance import PRODUCERS_A_PARTITION, PRODUCERS_A_TURN
from service.broker.background.turns import GLANCES_A_TURN, LOOKS_A_TURN, slices
from service.broker.partition.partition import Partition
from service.broker.partition.partitions import Partitions
from storage_tiers.hot.producer_state import ProducerEntry
from storage_tiers.types import TopicPartition
from tests.service.broker.support import Running, filled, running

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
    sweeping._shown.add(partition(node))  # else each look asks the store
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


async def test_slices_hold_every_item_once_and_in_order() -> None:
    assert [part async for part in slices(range(7), 3)] == [(0, 1, 2), (3, 4, 5), (6,)]
    assert [part async for part in slices(range(6), 3)] == [(0, 1, 2), (3, 4, 5)]
    assert not [part async for part in slices(list[int](), 3)]
