"""A disk has lost the marker of a transaction that its coordinator has completed: the transaction still ends as decided."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpc_api.contract.coordinator_errors import CoordinatorNotAvailable, ProducerFenced
from grpc_api.contract.log import Append, Appended
from grpc_api.contract.ready import settled
from grpc_api.contract.transactions import AddPartitions, EndTransaction, Markers, ProducerTransaction
from service.broker.coordinators.lost_markers import LostMarkers
from service.broker.partition.partition import Partition
from service.coordination.coordinator_runtime import CoordinatorRuntime
from service.coordination.transactions.shard import TransactionShard
from service.coordination.transactions.transaction import OpenTransactions
from storage_tiers.errors import NotEnoughReplicas
from storage_tiers.hot.checkpoints import CLEAN_SHUTDOWN
from storage_tiers.records.batch import headers
from storage_tiers.records.builder import ControlKind
from storage_tiers.types import TopicPartition
from tests.service.broker.coordinators.test_transactional_offsets import OFFSETS, committed, of, with_groups
from tests.service.broker.coordinators.test_transactions_restored import LOG, all_is_stable
from tests.service.broker.coordinators.transactional import CALLER, SETTINGS, T0, T1, Client, led, markers_in, write
from tests.service.broker.support import Running, once_loaded, running, until
from tests.storage_tiers.hot.support import batch_of


def kind(*, commit: bool) -> ControlKind:
    return ControlKind.COMMIT if commit else ControlKind.ABORT


async def add(client: Client, *partitions: TopicPartition) -> None:
    """Adds the partitions to the transaction as their leaders do for a client of version 2."""
    request = AddPartitions(client.name, client.producer, partitions, client_version=2)
    assert (await client.transactions.add_partitions(request, CALLER)).error is None


async def ended_and_cut_off(data: Path, *, commit: bool, version: int = 2) -> Client:
    """The producer whose transaction has ended in both partitions; the first of them has lost its marker with its tail."""
    async with running(data, broker=SETTINGS, store_url="none") as node:
        await node.create("t", partitions=2)
        client = await Client(node).begin()
        await (add(client, T0, T1) if version >= 2 else client.add(T0, T1))
        for partition in (T0, T1):
            write(node, partition, client.producer)
        old = client.producer
        assert await client.end(commit=commit, version=version) is None
        await client.reaches("CompleteCommit" if commit else "CompleteAbort")
        assert client.producer == old._replace(epoch=old.epoch + (version >= 2))
    for newer in (data / "t-0").glob("0*1.*"):  # the segment of the marker
        newer.unlink()
    for snapshot in (data / "t-0").glob("*.snapshot"):
        snapshot.unlink()
    (last,) = [header for _, header in headers(memoryview((data / "t-0" / LOG).read_bytes()))]
    assert last.transactional and not last.control
    (data / CLEAN_SHUTDOWN).unlink()
    return client


def at(node: Running, before: Client) -> Client:
    client = Client(node)
    client.producer = before.producer
    return client


async def produce(node: Running, client: Client) -> object:
    """Sends a batch of a client of version 2, which adds the partition to the transaction; returns the answer."""
    appends = [Append(T0, memoryview(batch_of(1, producer=(*client.producer, 0), transactional=True)))]
    (answer,) = await settled(node.log.append(appends, transaction=ProducerTransaction(client.name, 2)))
    return answer


async def later(_: LostMarkers, runtime: CoordinatorRuntime[TransactionShard]) -> None:
    """Stands for `LostMarkers.tick`, and does nothing."""


def unwritten(partition: Partition, markers: Markers, epoch: int) -> Appended:
    """Stands for a disk that acknowledges the marker and loses it."""
    return Appended(partition.log.end_offset, 0, -1, 0)


@pytest.mark.parametrize("begins_anew", [False, True])
@pytest.mark.parametrize("commit", [True, False])
async def test_the_next_transaction_does_not_decide_one_whose_marker_is_lost(
    tmp_path: Path, commit: bool, begins_anew: bool
) -> None:
    """The next transaction ends the other way: aborted after a commit, committed after an abort."""
    before = await ended_and_cut_off(tmp_path / "data", commit=commit)
    async with running(tmp_path / "data", broker=SETTINGS, store_url="none") as node:
        client = at(node, before)
        await once_loaded(client.state)
        if begins_anew:
            await client.begin()
        await until(lambda: all_is_stable(node, T0))
        assert [each for each, *_ in await markers_in(node, T0)] == [kind(commit=commit)]
        assert isinstance(answer := await produce(node, client), Appended), answer
        assert await client.end(commit=not commit, version=2) is None
        await client.reaches("CompleteAbort" if commit else "CompleteCommit")
        assert [each for each, *_ in await markers_in(node, T0)] == [kind(commit=commit), kind(commit=not commit)]


@pytest.mark.parametrize("commit", [True, False])
async def test_until_its_marker_is_back_no_later_transaction_joins_or_decides_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit: bool
) -> None:
    before = await ended_and_cut_off(tmp_path / "data", commit=commit)

    monkeypatch.setattr(LostMarkers, "tick", later)
    async with running(tmp_path / "data", broker=SETTINGS, store_url="none") as node:
        client = at(node, before)
        await once_loaded(client.state)
        assert isinstance(await produce(node, client), NotEnoughReplicas)
        assert (
            list((await client.transactions.describe("x", CALLER)).partitions) == []
        )  # otherwise it would not count as hanging
        await add(client, T0, T1)  # a transaction whose own records in t-0 are lost, too
        write(node, T1, client.producer)
        ended = await client.transactions.end(EndTransaction(client.name, client.producer, not commit, 2), CALLER)
        assert ended.error is None
        await client.reaches("CompleteAbort" if commit else "CompleteCommit")
        assert await markers_in(node, T0) == []
        assert led(node, T0).is_in_transaction(before.producer.id, before.producer.epoch - 1)


async def test_a_transaction_that_ends_while_a_round_looks_has_lost_no_marker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise busy producers would get second markers, and each second the node would log that a disk has lost markers."""
    async with running(tmp_path / "data", broker=SETTINGS, store_url="none") as node:
        await node.create("t", partitions=2)
        client = await Client(node).begin()
        await add(client, T0)
        write(node, T0, client.producer)
        look, seen = LostMarkers._open, list[OpenTransactions]()

        async def look_then_end(self: LostMarkers) -> OpenTransactions:
            opened = await look(self)
            if not seen:
                seen.append(opened)
                assert await client.end(commit=True, version=2) is None
                await client.reaches("CompleteCommit")
            return opened

        monkeypatch.setattr(LostMarkers, "_open", look_then_end)
        coordinators = node.node.broker.coordinators
        await coordinators.lost_markers.tick(coordinators.shards.transactions)
        assert [list(each.values()) for each in seen] == [[[T0]]]
        assert [each for each, *_ in await markers_in(node, T0)] == [kind(commit=True)]


async def test_no_offsets_join_a_transaction_whose_marker_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next transaction's marker would decide both. All clients retry the error of such a commit."""
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        await node.create("t")
        client = await with_groups(node)
        assert await committed(node, of(client, "t", 2)) is None
        old, round_of_markers = client.producer, LostMarkers.tick
        monkeypatch.setattr(LostMarkers, "tick", later)
        with monkeypatch.context() as patch:
            patch.setattr(Partition, "append_marker", unwritten)
            assert await client.end(commit=True, version=2) is None
            await client.reaches("CompleteCommit")
        with pytest.raises(CoordinatorNotAvailable, match="has lost its marker"):
            await committed(node, of(client, "t", 2))
        assert led(node, OFFSETS).is_in_transaction(*old)
        monkeypatch.setattr(LostMarkers, "tick", round_of_markers)
        await until(lambda: not led(node, OFFSETS).is_in_transaction(*old))
        assert await committed(node, of(client, "t", 2)) is None
        assert [each for each, *_ in await markers_in(node, OFFSETS)] == [kind(commit=True)]


@pytest.mark.parametrize("commit", [True, False])
async def test_before_version_2_the_next_transaction_does_not_decide_one_whose_marker_is_lost(
    tmp_path: Path, commit: bool
) -> None:
    """Both have the same epoch, so the partition cannot tell them apart: the producer is fenced, and the next one has another
    id."""
    before = await ended_and_cut_off(tmp_path / "data", commit=commit, version=0)
    async with running(tmp_path / "data", broker=SETTINGS, store_url="none") as node:
        request = AddPartitions("x", before.producer, (T0,))
        refused = await once_loaded(lambda: at(node, before).transactions.add_partitions(request, CALLER))
        assert isinstance(refused.error, ProducerFenced)
        client = await Client(node).begin()
        assert client.producer.id != before.producer.id
    for _ in range(2):
        async with running(tmp_path / "data", broker=SETTINGS, store_url="none") as node:
            client = at(node, client)
            await once_loaded(client.state)
            await client.add(T0, T1)
            for partition in (T0, T1):
                write(node, partition, client.producer)
            assert await client.end(commit=not commit) is None
            await client.reaches("CompleteAbort" if commit else "CompleteCommit")
            assert led(node, T0).is_in_transaction(*before.producer)
            markers = {each[:2] for each in await markers_in(node, T0)}
            assert markers == {(kind(commit=not commit), client.producer.id)}
