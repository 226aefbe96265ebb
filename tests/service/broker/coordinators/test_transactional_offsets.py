"""Offsets that a transaction commits: when they may be written, and what a refused commit leaves behind."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from grpc_api.contract.caller import Caller
from grpc_api.contract.coordinator_errors import CoordinatorLoading, CoordinatorNotAvailable, NotCoordinator
from grpc_api.contract.groups import (
    OffsetCommit,
    OffsetFetch,
    OffsetsCommitted,
    PartitionCommit,
    TopicCommit,
    TxnOffsetCommit,
)
from grpc_api.contract.log import Isolation
from grpc_api.contract.transactions import AddOffsets, AddPartitions, Markers, PartitionsAdded, ProducerTransaction
from service.broker.api.transaction_service import TransactionService
from service.coordination.shard_state import ShardState
from storage_tiers.errors import InvalidTransactionState, LogError, NotLeader, UnknownTopicOrPartition
from storage_tiers.types import TopicPartition
from tests.service.broker.coordinators.transactional import CALLER, SETTINGS, Client, led
from tests.service.broker.support import Running, once_loaded, running, until

OFFSETS = TopicPartition("__consumer_offsets", 0)


async def with_groups(node: Running) -> Client:
    """A producer on a node whose group coordinator is loaded."""
    client = await Client(node).begin()
    await once_loaded(lambda: node.core.groups.coordinator("g", CALLER))
    await once_loaded(lambda: node.core.groups.fetch_offsets(OffsetFetch("g", None), CALLER))
    return client


def of(client: Client, topic: str, version: int = 0) -> TxnOffsetCommit:
    """A commit of one offset of a topic, by a client that is no member of the group."""
    rows = [TopicCommit(topic, [PartitionCommit(0, 5)])]
    return TxnOffsetCommit("g", ProducerTransaction(client.name, version), *client.producer, -1, "", None, rows)


async def committed(node: Running, commit: TxnOffsetCommit | OffsetCommit) -> type[LogError] | None:
    groups = node.core.groups
    if isinstance(commit, OffsetCommit):
        answer = await groups.commit_offsets(commit, CALLER)
    else:
        answer = await groups.commit_offsets_in_transaction(commit, CALLER)
    error = answer.topics[0].partitions[0].error
    return None if error is None else type(error)


@pytest.mark.parametrize("version", [0, 2])
async def test_a_commit_of_unknown_topics_alone_opens_no_transaction(tmp_path: Path, version: int) -> None:
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        client = await with_groups(node)
        assert await committed(node, of(client, "nowhere", version)) is UnknownTopicOrPartition
        assert await client.state() == "Empty"
        client.producer = client.producer._replace(epoch=7)
        assert await committed(node, of(client, "nowhere", version)) is UnknownTopicOrPartition


async def test_refusals_of_the_coordinator_leave_unknown_partitions_unknown(tmp_path: Path) -> None:
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        await node.create("t")
        client = await with_groups(node)
        rows = [TopicCommit("t", [PartitionCommit(number, 5) for number in (7, 0)])]
        commit = of(client, "t")._replace(topics=rows)

        def errors(answer: OffsetsCommitted) -> list[type | None]:
            return [None if error is None else type(error) for topic in answer.topics for _, error in topic.partitions]

        refused = await node.core.groups.commit_offsets_in_transaction(commit, CALLER)
        assert errors(refused) == [UnknownTopicOrPartition, InvalidTransactionState]
        node.node.broker.coordinators.shards.groups.lost(0)
        elsewhere = await node.core.groups.commit_offsets(OffsetCommit("g", -1, "", None, rows), CALLER)
        assert errors(elsewhere) == [UnknownTopicOrPartition, NotCoordinator]


async def test_a_commit_of_unknown_topics_alone_makes_no_group(tmp_path: Path) -> None:
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        client = await with_groups(node)
        topics = of(client, "nowhere").topics
        assert await committed(node, of(client, "nowhere")) is UnknownTopicOrPartition
        assert await committed(node, OffsetCommit("g", -1, "", None, topics)) is UnknownTopicOrPartition
        (host,) = node.node.broker.coordinators.shards.groups.hosts.values()
        assert host.look(lambda shard: shard.group_ids()) == []


@pytest.mark.parametrize("error", [CoordinatorLoading, CoordinatorNotAvailable, NotCoordinator])
async def test_a_marker_whose_group_coordinator_does_not_answer_is_refused_as_by_a_broker_that_does_not_lead(
    tmp_path: Path, error: type[LogError]
) -> None:
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        client = await with_groups(node)
        (host,) = node.node.broker.coordinators.shards.groups.hosts.values()
        host.state, host._why = ShardState.LOADING, error("not now")
        refused = await client.transactions.write_markers(Markers("", client.producer, False, [OFFSETS], 0), 0, CALLER)
        assert [(partition, type(why)) for partition, why in refused] == [(OFFSETS, NotLeader)]
        host.state = ShardState.ACTIVE


async def test_offsets_that_were_verified_before_an_abort_are_not_written_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would open a transaction that never ends."""
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        await node.create("t")
        client = await with_groups(node)
        added = await client.transactions.add_offsets(AddOffsets("x", client.producer, "g"), CALLER)
        assert added.error is None
        verified: list[PartitionsAdded] = []
        aborted, whole = asyncio.Event(), TransactionService.add_partitions

        def held(self: TransactionService, request: AddPartitions, caller: Caller) -> asyncio.Future[Any]:
            async def late() -> PartitionsAdded:
                verified.append(await whole(self, request, caller))
                await aborted.wait()
                return verified[-1]

            return asyncio.ensure_future(late())

        monkeypatch.setattr(TransactionService, "add_partitions", held)
        commit = asyncio.ensure_future(committed(node, of(client, "t")))
        await until(lambda: bool(verified))
        assert (verified[0].error, list(verified[0].errors)) == (None, [])
        assert await client.end(commit=False) is None
        await client.reaches("CompleteAbort")
        aborted.set()
        with pytest.raises(InvalidTransactionState):
            await commit
        partition = led(node, OFFSETS)
        assert partition.readable_end(Isolation.READ_COMMITTED) == partition.readable_end(Isolation.READ_UNCOMMITTED)
