"""Committed offsets that are lowered for another broker (`Groups.LowerOffsets`), whatever its request names."""

from __future__ import annotations

from pathlib import Path

from grpc_api.contract.groups import LostEnd, LowerOffsets
from grpc_api.contract.transactions import AddOffsets
from grpc_api.messages.log import MAX_PARTITIONS
from service.broker.coordinators.recovered_offsets import RecoveredOffsets
from service.broker.partition.record_loss import RecoveredEnd
from service.coordination.coordinator_runtime import partition_of
from service.coordination.groups.shard import GroupShard
from service.coordination.runtime import ShardHost
from storage_tiers.errors import NotEnoughReplicas
from storage_tiers.types import TopicPartition
from tests.service.broker.coordinators.test_groups import CALLER, SETTINGS, coordinated, has_offsets
from tests.service.broker.coordinators.test_groups_restored import commit_in_transaction
from tests.service.broker.coordinators.transactional import Client
from tests.service.broker.support import Running, once_loaded, running

BROKER = {**SETTINGS, "transaction.state.log.num.partitions": "2"}
MINE = partition_of("g", 2)


async def opened(node: Running) -> Client:
    """A client with an open transaction that has offset 4 of partition 0 in two topics."""
    for topic in ("t", "u"):
        await node.create(topic)
    groups, client = await coordinated(node, "g"), await Client(node).begin()
    asked = AddOffsets("x", client.producer, "g")
    assert (await once_loaded(lambda: client.transactions.add_offsets(asked, CALLER))).error is None
    await commit_in_transaction(groups, client, "t", "u")
    return client


def lowering_of(node: Running) -> RecoveredOffsets:
    return node.node.broker.coordinators.recovered_offsets


async def test_only_ends_of_a_groups_open_transactions_are_kept(tmp_path: Path) -> None:
    """Otherwise each request could add MAX_PARTITIONS ends."""
    async with running(tmp_path / "data", broker=BROKER, store_url="none") as node:
        client, lowering = await opened(node), lowering_of(node)
        for first, topic in enumerate(("t", "u")):
            unknown = (TopicPartition(f"unknown-{first}", number) for number in range(MAX_PARTITIONS - 1))
            ends = {**dict.fromkeys(unknown, LostEnd(0, 9)), TopicPartition(topic, 0): LostEnd(2, 9)}
            assert await lowering.lower(LowerOffsets({MINE}, ends)) == {MINE}
        (kept,) = lowering._pending.values()
        assert {*kept.ends} == {*kept.epochs} == {TopicPartition("t", 0), TopicPartition("u", 0)}
        await client.end(commit=True)
        await client.reaches("CompleteCommit")
        await lowering.tick()
        await has_offsets(await coordinated(node, "g"), {"t": [2], "u": [2]})


async def test_losses_here_and_elsewhere_wait_for_the_same_transaction(tmp_path: Path) -> None:
    """For a loss of another broker, leader epochs decide which offsets are lowered; for a loss of this broker, the
    coordinator's load does."""
    async with running(tmp_path / "data", broker=BROKER, store_url="none") as node:
        client, lowering = await opened(node), lowering_of(node)
        runtime = node.node.broker.coordinators.shards.groups
        runtime.gained(MINE, runtime.host(MINE)._log)
        await coordinated(node, "g")
        node.node.broker.partitions.get(TopicPartition("t", 0)).recovered_end = RecoveredEnd(2)
        await lowering.tick()
        await lowering.lower(LowerOffsets({MINE}, {TopicPartition("u", 0): LostEnd(3, 9)}))
        assert len(lowering._pending) == 2
        await client.end(commit=True)
        await client.reaches("CompleteCommit")
        await lowering.tick()
        await has_offsets(await coordinated(node, "g"), {"t": [2], "u": [3]})


async def test_a_shard_that_was_loaded_again_is_not_visited_in_place_of_the_dropped_one(tmp_path: Path) -> None:
    """The shard may have newer offsets after the load."""
    async with running(tmp_path / "data", broker=BROKER, store_url="none") as node:
        client, lowering = await opened(node), lowering_of(node)
        host = node.node.broker.coordinators.shards.groups.host(MINE)
        await lowering.lower(LowerOffsets({MINE}, {TopicPartition("t", 0): LostEnd(2, 9)}))
        assert lowering._pending
        host._fail(NotEnoughReplicas("a write failed"))
        await coordinated(node, "g")
        await once_loaded(lambda: _looked(host))
        await lowering.tick()
        assert not lowering._pending
        await client.end(commit=True)
        await client.reaches("CompleteCommit")
        await has_offsets(await coordinated(node, "g"), {"t": [4], "u": [4]})


async def _looked(host: ShardHost[GroupShard]) -> GroupShard:
    return host.look(lambda shard: shard)
