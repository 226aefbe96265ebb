"""Transactions on a whole node: decisions become markers in every partition, whatever happens between the steps."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from grpc_api.contract.coordinator_errors import (
    CoordinatorNotAvailable,
    NotCoordinator,
    OperationNotAttempted,
    ProducerFenced,
)
from grpc_api.contract.groups import OffsetFetch, PartitionCommit, TopicCommit, TxnOffsetCommit
from grpc_api.contract.log import Appended, Isolation
from grpc_api.contract.transactions import (
    AddOffsets,
    AddPartitions,
    InitProducer,
    ListTransactions,
    Markers,
    ProducerIdAndEpoch,
    ProducerTransaction,
)
from service.broker.coordinators.transaction_markers import MARKERS_A_TURN, TransactionMarkers
from service.broker.partition.partition import Partition
from service.coordination.transactions.transaction import LAST_EPOCH
from storage_tiers.errors import InvalidProducerEpoch, LogError, TransactionCoordinatorFenced, UnknownTopicOrPartition
from storage_tiers.records.builder import ControlKind
from storage_tiers.types import TopicPartition
from tests.service.broker.coordinators.transactional import (
    CALLER,
    MINUTE,
    SETTINGS,
    T0,
    T1,
    Client,
    led,
    markers_in,
    write,
)
from tests.service.broker.support import once_loaded, running, until


async def test_a_commit_writes_its_marker_into_every_partition(tmp_path: Path) -> None:
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        await node.create("t", partitions=2)
        client = await Client(node).begin()
        await client.add(T0, T1)
        write(node, T0, client.producer)
        assert led(node, T0).readable_end(Isolation.READ_COMMITTED) == 0
        assert await client.end(commit=True) is None
        await client.reaches("CompleteCommit")
        for partition in (T0, T1):
            assert await markers_in(node, partition) == [(ControlKind.COMMIT, *client.producer)]
        assert led(node, T0).readable_end(Isolation.READ_COMMITTED) == 2


async def test_the_next_transaction_waits_for_the_markers_of_the_previous_one(tmp_path: Path) -> None:
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        await node.create("t")
        client = await Client(node).begin()
        for commit in (True, False, True):
            await client.add(T0)
            assert await client.end(commit=commit) is None
        await client.reaches("CompleteCommit")
        kinds = [kind for kind, _, _ in await markers_in(node, T0)]
        assert kinds == [ControlKind.COMMIT, ControlKind.ABORT, ControlKind.COMMIT]


async def test_with_version_2_every_transaction_has_an_epoch_and_ids_follow_each_other(tmp_path: Path) -> None:
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        await node.create("t")
        client = await Client(node).begin()
        first = client.producer
        await client.add(T0)
        assert await client.end(commit=True, version=2) is None
        assert client.producer == (first.id, first.epoch + 1)
        await client.reaches("CompleteCommit")
        # A producer whose epochs have run out continues under an id that was never used.
        (host,) = [
            each
            for each in node.node.broker.coordinators.led._runtimes["__transaction_state"].hosts.values()
            if each.look(lambda shard: shard._transactions)
        ]
        client.producer = client.producer._replace(epoch=LAST_EPOCH)
        host.look(lambda shard: setattr(shard._transactions["x"], "producer", client.producer))
        await client.add(T0)
        assert await client.end(commit=True, version=2) is None
        assert client.producer.epoch == 0 and client.producer.id > first.id


async def test_offsets_become_visible_with_the_transaction_that_commits_them(tmp_path: Path) -> None:
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        await node.create("t")
        client, groups = await Client(node).begin(), node.node.broker.core.groups
        fetch = OffsetFetch("g", None)

        async def committed() -> list[int]:
            found = await groups.fetch_offsets(fetch, CALLER)
            return [each.offset for topic in found.topics for each in topic.partitions]

        async def in_transaction(offset: int, *, commit: bool) -> None:
            added = await once_loaded(
                lambda: client.transactions.add_offsets(AddOffsets("x", client.producer, "g"), CALLER)
            )
            assert added.error is None
            await once_loaded(lambda: groups.fetch_offsets(fetch, CALLER))
            offsets = [TopicCommit("t", [PartitionCommit(0, offset)])]
            request = TxnOffsetCommit("g", ProducerTransaction("x"), *client.producer, -1, "", None, offsets)
            answer = await groups.commit_offsets_in_transaction(request, CALLER)
            assert answer.topics[0].partitions[0].error is None
            assert offset not in await committed()
            assert await client.end(commit=commit) is None
            await client.reaches("CompleteCommit" if commit else "CompleteAbort")

        await in_transaction(5, commit=True)
        assert await committed() == [5]
        await in_transaction(9, commit=False)
        assert await committed() == [5]
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        groups = node.node.broker.core.groups
        found = await once_loaded(lambda: groups.fetch_offsets(fetch, CALLER))
        assert [each.offset for topic in found.topics for each in topic.partitions] == [5]


async def test_a_decision_outlives_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        await node.create("t")
        client = await Client(node).begin()
        producer = client.producer
        await client.add(T0)
        write(node, T0, producer)
        with monkeypatch.context() as patched:
            patched.setattr(TransactionMarkers, "_begin", lambda *_: None)  # the node dies before it writes markers
            assert await client.end(commit=False) is None
        assert await client.state() == "PrepareAbort" and await markers_in(node, T0) == []
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        await Client(node).reaches("CompleteAbort")
        assert await markers_in(node, T0) == [(ControlKind.ABORT, *producer)]
        assert led(node, T0).readable_end(Isolation.READ_COMMITTED) == 2


async def test_a_new_producer_of_the_id_aborts_and_fences_the_old_one(tmp_path: Path) -> None:
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        await node.create("t")
        old = await Client(node).begin()
        await old.add(T0)
        new = await Client(node).begin()
        assert new.producer.id == old.producer.id and new.producer.epoch > old.producer.epoch
        assert [kind for kind, _, _ in await markers_in(node, T0)] == [ControlKind.ABORT]
        assert isinstance(await old.end(commit=True), ProducerFenced)
        marker = Markers("x", old.producer, True, (T0,), 0)
        with pytest.raises(InvalidProducerEpoch):
            led(node, T0).append_marker(marker, 0)


async def test_a_transaction_that_is_open_too_long_is_aborted(tmp_path: Path) -> None:
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        await node.create("t")
        client = await Client(node).begin(timeout_ms=1)
        await client.add(T0)
        await client.reaches("CompleteAbort")
        assert [kind for kind, _, _ in await markers_in(node, T0)] == [ControlKind.ABORT]


async def test_deleted_partitions_need_no_marker(tmp_path: Path) -> None:
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        await node.create("t")
        await node.create("gone")
        client = await Client(node).begin()
        await client.add(T0, TopicPartition("gone", 0))
        await node.core.topics.delete(["gone"])
        assert await client.end(commit=True) is None
        await client.reaches("CompleteCommit")
        assert [kind for kind, _, _ in await markers_in(node, T0)] == [ControlKind.COMMIT]


async def test_a_marker_that_a_partition_refuses_for_now_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        await node.create("t", partitions=2)
        client = await Client(node).begin()
        await client.add(T0, T1)
        whole = Partition.append_marker
        tried: list[TopicPartition] = []

        def refuses(self: Partition, markers: Markers, epoch: int) -> object:
            if self.partition == T1 and len(tried) < 3:
                tried.append(self.partition)
                raise CoordinatorNotAvailable("not now")
            return whole(self, markers, epoch)

        monkeypatch.setattr(Partition, "append_marker", refuses)
        assert await client.end(commit=True) is None
        await client.reaches("CompleteCommit")
        assert tried == [T1] * 3
        assert len(await markers_in(node, T0)) == len(await markers_in(node, T1)) == 1


async def test_a_marker_of_version_2_has_a_later_epoch_than_its_transaction(tmp_path: Path) -> None:
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        await node.create("t")
        client = await Client(node).begin()
        await client.add(T0)
        write(node, T0, client.producer)
        producer, later = client.producer, client.producer._replace(epoch=client.producer.epoch + 1)

        async def marked(epoch_of: ProducerIdAndEpoch) -> list[type[LogError]]:
            markers = Markers("", epoch_of, False, [T0], 2)
            return [type(error) for _, error in await client.transactions.write_markers(markers, 0, CALLER)]

        assert await marked(producer) == [InvalidProducerEpoch]
        assert led(node, T0).readable_end(Isolation.READ_COMMITTED) == 0
        assert await marked(later) == []
        assert await marked(later) == []  # repeated, since its answer may be lost
        assert [epoch for _, _, epoch in await markers_in(node, T0)] == [later.epoch] * 2


async def test_an_outdated_coordinator_stops(tmp_path: Path) -> None:
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        await node.create("t")
        client = await Client(node).begin()
        await client.add(T0)
        led(node, T0).append_marker(Markers("x", client.producer, True, (T0,), 0), 99)
        markers = node.node.broker.coordinators.markers
        assert await client.end(commit=True) is None
        await until(lambda: not markers._writing)
        assert await client.state() == "PrepareCommit"
        with pytest.raises(TransactionCoordinatorFenced):
            led(node, T0).append_marker(Markers("x", client.producer, True, (T0,), 0), 98)


async def test_partitions_that_do_not_exist_keep_the_others_out(tmp_path: Path) -> None:
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        await node.create("t")
        client = await Client(node).begin()
        request = AddPartitions("x", client.producer, (T0, TopicPartition("t", 7)))
        added = await client.transactions.add_partitions(request, CALLER)
        assert [type(error) for _, error in added.errors] == [OperationNotAttempted, UnknownTopicOrPartition]
        assert await client.state() == "Empty"


async def test_an_id_without_a_coordinator_is_sent_to_find_one(tmp_path: Path) -> None:
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        transactions = node.node.broker.core.transactions
        with pytest.raises(NotCoordinator):
            await transactions.init_producer(InitProducer("x", MINUTE), CALLER)
        with pytest.raises(NotCoordinator):
            await transactions.describe("x", CALLER)
        await Client(node, "a").begin()
        await Client(node, "b").begin()
        listed = await transactions.list(ListTransactions(), CALLER)
        assert sorted((each.transactional_id, each.state) for each in listed.transactions) == [
            ("a", "Empty"),
            ("b", "Empty"),
        ]


async def test_markers_of_many_partitions_leave_the_loop_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition that a request names many times takes one marker."""
    append, in_turns = TransactionMarkers._append, [0]

    def next_turn() -> None:
        in_turns.append(0)
        asyncio.get_running_loop().call_soon(next_turn)

    def counted(self: TransactionMarkers, partition: TopicPartition, markers: Markers, epoch: int) -> Appended:
        in_turns[-1] += 1
        return append(self, partition, markers, epoch)

    async with running(tmp_path / "data", broker=SETTINGS) as node:
        await node.create("t", partitions=50)
        many = [TopicPartition("t", number) for number in range(50)]
        client = await Client(node).begin()
        await client.add(*many)
        monkeypatch.setattr(TransactionMarkers, "_append", counted)
        next_turn()
        assert await client.end(commit=True) is None
        await client.reaches("CompleteCommit")
        assert (sum(in_turns), max(in_turns)) == (50, MARKERS_A_TURN)
        markers = Markers("", client.producer, False, many * 100, 0)
        in_turns[:] = [0]  # the turn that ends the first request's markers may begin the second's
        assert await client.transactions.write_markers(markers, 1, CALLER) == []
        assert (sum(in_turns), max(in_turns)) == (50, MARKERS_A_TURN)
