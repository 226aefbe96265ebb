"""Transactions after a disk has lost records: no client commits records that are gone, and every id can have a new producer."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from grpc_api.contract.coordinator_errors import CoordinatorNotAvailable, InvalidProducerIdMapping, ProducerFenced
from grpc_api.contract.log import Append, Appended, Fetch, FetchPartition, Isolation
from grpc_api.contract.ready import settled
from grpc_api.contract.transactions import Markers, ProducerTransaction
from service.broker.partition.partition import Partition
from service.coordination.coordinator_runtime import partition_of
from service.fsck.bucket import FsckScope, check_bucket
from storage_tiers.clock import SystemClock
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.hot.checkpoints import CLEAN_SHUTDOWN
from storage_tiers.records.builder import ControlKind
from storage_tiers.types import TopicPartition
from tests.service.broker.coordinators.transactional import SETTINGS, T0, T1, Client, led, markers_in, write
from tests.service.broker.support import Running, once_loaded, running, until
from tests.storage_tiers.hot.support import batch_of
from tests.support.faulty_store import FaultyStore

STATE = f"__transaction_state-{partition_of('x', 2)}"
LOG = "00000000000000000000.log"


def refused(_: Partition, markers: Markers, epoch: int) -> Appended:
    raise CoordinatorNotAvailable("not now")


async def transaction(node: Running, client: Client, *partitions: TopicPartition) -> None:
    """Commits a transaction with a record in each partition; the client's next one has the next epoch."""
    await client.add(*partitions)
    for partition in partitions:
        write(node, partition, client.producer)
    assert await client.end(commit=True, version=2) is None
    await client.reaches("CompleteCommit")


async def produces(node: Running, client: Client) -> None:
    """Commits a transaction whose batch passes the log's checks and the coordinator's verification."""
    await client.add(T0)
    await until(lambda: not led(node, T0).is_recovering)
    appends = [Append(T0, memoryview(batch_of(1, producer=(*client.producer, 0), transactional=True)))]
    (answer,) = await settled(node.log.append(appends, transaction=ProducerTransaction(client.name)))
    assert isinstance(answer, Appended), answer
    assert await client.end(commit=True, version=2) is None
    await client.reaches("CompleteCommit")


def all_is_stable(node: Running, *partitions: TopicPartition) -> bool:
    return all(
        led(node, each).readable_end(Isolation.READ_COMMITTED) == led(node, each).log.end_offset for each in partitions
    )


@pytest.mark.parametrize("state", ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit"])
async def test_after_a_take_over_every_id_has_producers_though_partitions_know_later_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """The bucket has the coordinator's records of some minutes ago, and newer ones of the topic."""
    store = FaultyStore(MemoryStore(SystemClock()))
    async with running(tmp_path / "data", store, SETTINGS) as node:
        await node.create("t", partitions=2)
        client = await Client(node).begin()
        with monkeypatch.context() as patched:
            if state == "PrepareCommit":
                patched.setattr(Partition, "append_marker", refused)
            if state != "Empty":
                await client.add(T0)
                write(node, T0, client.producer)
            if state in ("PrepareCommit", "CompleteCommit"):
                assert await client.end(commit=True, version=2) is None
            await client.reaches(state)
            await node.seal("__transaction_state")
        if state == "Ongoing":
            assert await client.end(commit=True, version=2) is None
        if state != "Empty":
            await client.reaches("CompleteCommit")
        for _ in range(3):
            await transaction(node, client, T0, T1)
        await node.seal("t")
        cluster, before = node.node.cluster_id, client.producer
        store.down = True
    store.down = False
    async with running(tmp_path / "new", store, SETTINGS, take_over=cluster) as node:
        client = await Client(node).begin()
        assert client.producer.id != before.id
        await produces(node, client)
        assert all_is_stable(node, T0, T1)
        assert led(node, T0).log.end_offset > 4
        await until(lambda: all(led(node, each).recovered_end is None for each in (T0, T1)))
    async with running(tmp_path / "new", store, SETTINGS) as node:
        client = await Client(node).begin()
        assert client.producer.id != before.id
        await produces(node, client)


async def test_after_a_take_over_no_client_commits_a_transaction_with_lost_records(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore(SystemClock()))
    async with running(tmp_path / "data", store, SETTINGS) as node:
        await node.create("t", partitions=2)
        client = await Client(node).begin()
        await transaction(node, client, T0)
        await node.seal("t")
        await client.add(T0, T1)
        for partition in (T0, T1):
            write(node, partition, client.producer)  # an open transaction is never in the bucket
        await node.seal("__transaction_state")
        cluster, producer = node.node.cluster_id, client.producer
        store.down = True
    store.down = False
    async with running(tmp_path / "new", store, SETTINGS, take_over=cluster) as node:
        client = Client(node)
        client.producer = producer
        assert isinstance(await once_loaded(lambda: client.end(commit=True, version=2)), ProducerFenced)
        await client.reaches("CompleteAbort")
        kinds = [kind for kind, id_, _ in await markers_in(node, T0) if id_ == producer.id]
        assert kinds[-1] is ControlKind.ABORT
        assert all_is_stable(node, T0, T1)


@pytest.mark.parametrize("begins_at_once", [False, True])
@pytest.mark.parametrize("written", [0, 1])
async def test_a_coordinators_partition_that_is_put_back_ends_transactions_that_it_does_not_know(
    tmp_path: Path, written: int, begins_at_once: bool
) -> None:
    """An older copy of one partition's directory is put back, without a bucket; a producer has a transaction that the copy
    lacks."""
    data = tmp_path / "data"
    async with running(data, broker=SETTINGS, store_url="none") as node:
        await node.create("t", partitions=2)
        client = await Client(node).begin()
        for _ in range(written):
            await transaction(node, client, T0)
    shutil.copytree(data / STATE, tmp_path / "copy")
    async with running(data, broker=SETTINGS, store_url="none") as node:
        after = Client(node)
        after.producer = client.producer
        await once_loaded(after.state)
        for _ in range(3):
            await transaction(node, after, T0)
        await after.add(T0, T1)
        for partition in (T0, T1):
            write(node, partition, after.producer)
    shutil.rmtree(data / STATE)
    shutil.copytree(tmp_path / "copy", data / STATE)
    (data / CLEAN_SHUTDOWN).unlink()
    async with running(data, broker=SETTINGS, store_url="none") as node:
        if begins_at_once:
            client = await Client(node).begin()
        zombie = Client(node)
        zombie.producer = after.producer
        error = await once_loaded(lambda: zombie.end(commit=True, version=2))
        assert isinstance(error, ProducerFenced | InvalidProducerIdMapping)
        await until(lambda: all_is_stable(node, T0, T1))
        for partition in (T0, T1):
            assert (await markers_in(node, partition))[-1][0] is ControlKind.ABORT
        client = await Client(node).begin()
        assert client.producer.id != after.producer.id
        await produces(node, client)


async def test_ids_have_producers_in_a_directory_that_is_older_than_the_bucket(tmp_path: Path) -> None:
    """Nothing of the coordinator was offloaded since the copy was made, but newer records of the topic were."""
    data, store = tmp_path / "data", FaultyStore(MemoryStore(SystemClock()))
    async with running(data, store, SETTINGS) as node:
        await node.create("t", partitions=2)
        client = await Client(node).begin()
        await transaction(node, client, T0)
        await node.node.work.topic_files.tick()
        shutil.copytree(data, tmp_path / "copy", ignore=shutil.ignore_patterns("*.tmp"))
        for _ in range(3):
            await transaction(node, client, T0, T1)
        await node.seal("t")
        store.down = True
    shutil.rmtree(data)
    shutil.move(tmp_path / "copy", data)
    store.down = False
    async with running(data, store, SETTINGS) as node:
        await until(lambda: not led(node, T0).is_recovering and led(node, T0).recovered_end is None)
        after = await Client(node).begin()
        assert after.producer.id != client.producer.id
        await produces(node, after)
        assert all_is_stable(node, T0, T1)


async def test_a_transaction_of_which_a_disk_lost_records_is_aborted(tmp_path: Path) -> None:
    """The coordinator has lost nothing; one of the transaction's partitions has."""
    data = tmp_path / "data"
    async with running(data, broker=SETTINGS, store_url="none") as node:
        await node.create("t", partitions=2)
        await node.append("t", b"0")
    kept = (data / "t-0" / LOG).read_bytes()
    async with running(data, broker=SETTINGS, store_url="none") as node:
        client, other = await Client(node).begin(), await Client(node, "y").begin()
        await client.add(T0, T1)
        await other.add(T1)
        for partition in (T0, T1):
            write(node, partition, client.producer)
        write(node, T1, other.producer)
    (data / "t-0" / LOG).write_bytes(kept)
    (data / CLEAN_SHUTDOWN).unlink()
    async with running(data, broker=SETTINGS, store_url="none") as node:
        after, unharmed = Client(node), Client(node, "y")
        after.producer, unharmed.producer = client.producer, other.producer
        assert isinstance(await once_loaded(lambda: after.end(commit=True, version=2)), ProducerFenced)
        await after.reaches("CompleteAbort")
        assert await once_loaded(lambda: unharmed.end(commit=True, version=2)) is None
        await unharmed.reaches("CompleteCommit")
        assert all_is_stable(node, T0, T1)
        await produces(node, await Client(node).begin())


@pytest.mark.parametrize("commit", [True, False])
async def test_a_transaction_whose_marker_is_lost_has_ended(tmp_path: Path, commit: bool) -> None:
    """The bucket has the transaction's records, which are offloaded only after its end; the marker was in the next segment."""
    store = FaultyStore(memory := MemoryStore(SystemClock()))
    async with running(tmp_path / "data", store, SETTINGS) as node:
        await node.create("t")
        client = await Client(node).begin()
        await client.add(T0)
        write(node, T0, client.producer)
        led(node, T0).log.hot.roll()
        assert await client.end(commit=commit) is None
        await client.reaches("CompleteCommit" if commit else "CompleteAbort")
        await node.node.work.flusher.flush(led(node, T0))
        await until(lambda: led(node, T0).log.tiered_end == 1)
        cluster = node.node.cluster_id
        store.down = True
    store.down = False
    async with running(tmp_path / "new", store, SETTINGS, take_over=cluster) as node:
        await until(lambda: not led(node, T0).is_recovering)
        assert led(node, T0).log.hot.end_offset == 1
        assert all_is_stable(node, T0)
        wanted = FetchPartition(T0, 0, 1 << 20)
        (answer,) = await settled(node.log.fetch(Fetch([wanted], 20_000, 1, 1 << 20, Isolation.READ_COMMITTED)))
        answer.release_all()
        assert [each.first_offset for each in answer.aborted or ()] == ([] if commit else [0])
        await node.append("t", b"next")
        other = await Client(node, "y").begin()
        await other.add(T0)
        write(node, T0, other.producer)
        assert await other.end(commit=False) is None
        await other.reaches("CompleteAbort")
        await node.seal("t")
    async with running(tmp_path / "new", store, SETTINGS) as node:
        assert all_is_stable(node, T0)
    report = check_bucket(memory.blocking(), FsckScope(), now_ms=SystemClock().unix_ms())
    assert [finding for finding in report.findings if finding.damage] == []
