"""A loss of records that one coordinator cannot settle: the others, which have settled it, fence no producer for it again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from grpc_api.contract.coordinator_errors import ProducerFenced
from service.broker.partition.append_origin import AppendOrigin
from service.broker.partition.recovered_end import read_recovered_end
from service.coordination.coordinator_runtime import partition_of
from service.coordination.shard_state import ShardState
from storage_tiers.hot.checkpoints import CLEAN_SHUTDOWN, HIGH_WATERMARKS, RECOVERY_POINTS
from storage_tiers.records.batch import read_header
from storage_tiers.records.builder import NewRecord, build_batch
from storage_tiers.types import TopicPartition
from tests.service.broker.coordinators.test_transactions_restored import transaction
from tests.service.broker.coordinators.transactional import SETTINGS, T0, Client, led, write
from tests.service.broker.support import Running, once_loaded, running, until

MINE = partition_of("x", 2)
STATE, UNREADABLE = TopicPartition("__transaction_state", MINE), TopicPartition("__transaction_state", 1 - MINE)
#: A key of a transactional id, and a value that it cannot have.
KEY, VALUE = b"\0\0\0\1g", b"\0\3"


def damage(node: Running) -> None:
    batch = build_batch([NewRecord(KEY, VALUE)])
    led(node, UNREADABLE).append_validated(memoryview(batch), read_header(batch), origin=AppendOrigin.COORDINATOR)


async def has_settled(node: Running, *lost: TopicPartition) -> None:
    """Returns once the notes of the losses say that the readable shard has settled them."""

    def is_noted(partition: TopicPartition) -> bool:
        noted = read_recovered_end(led(node, partition))
        return noted is not None and noted.settled_in == frozenset({MINE})

    await until(lambda: all(is_noted(each) for each in lost))
    host = node.node.broker.coordinators.shards.transactions.host(UNREADABLE.partition)
    await until(lambda: host.state is ShardState.UNREADABLE)


async def begin_writing(node: Running, client: Client) -> None:
    await client.add(T0)
    write(node, T0, client.producer)


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("lost", [T0, STATE])
async def test_a_producer_is_fenced_once_while_another_coordinator_is_unreadable(
    tmp_path: Path, lost: TopicPartition, is_killed: bool
) -> None:
    """The lost partition belongs to the producer's transaction or to its coordinator. A killed node has old checkpoints."""
    data = tmp_path / "data"
    async with running(data, broker=SETTINGS, store_url="none") as node:
        await node.create("t")
        client = await Client(node).begin()
        await transaction(node, client, T0)
        await until(lambda: node.node.broker.partitions.find(UNREADABLE) is not None)
        damage(node)
    shutil.copytree(data / str(lost), tmp_path / "copy")
    async with running(data, broker=SETTINGS, store_url="none") as node:
        client = await Client(node).begin()
        for _ in range(10):  # more than is written later, so that an old checkpoint shows the loss again
            await transaction(node, client, T0)
        await begin_writing(node, client)
    shutil.rmtree(data / str(lost))
    shutil.copytree(tmp_path / "copy", data / str(lost))
    (data / CLEAN_SHUTDOWN).unlink()
    async with running(data, broker=SETTINGS, store_url="none") as node:
        fenced = Client(node)
        fenced.producer = client.producer
        assert isinstance(await once_loaded(lambda: fenced.end(commit=True, version=2)), ProducerFenced)
        await has_settled(node, lost)
        checkpoints = {name: (data / name).read_bytes() for name in (HIGH_WATERMARKS, RECOVERY_POINTS)}
        after = await Client(node).begin()
        await begin_writing(node, after)
    for _ in range(2):
        if is_killed:
            (data / CLEAN_SHUTDOWN).unlink()
            for name, content in checkpoints.items():
                (data / name).write_bytes(content)
        async with running(data, broker=SETTINGS, store_url="none") as node:
            again = Client(node)
            again.producer = after.producer
            assert await once_loaded(lambda: again.end(commit=True, version=2)) is None  # noqa: B023
            await again.reaches("CompleteCommit")
            await has_settled(node, lost)
            checkpoints = {name: (data / name).read_bytes() for name in checkpoints}
            await begin_writing(node, again)
            after = again


async def test_a_note_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """Such a note has one line, and lacks the coordinators that have settled the loss."""
    async with running(tmp_path / "data", broker=SETTINGS, store_url="none") as node:
        await node.create("t")
        (tmp_path / "data" / "t-0" / "recovered-end").write_text("7 0 3\n")
        noted = read_recovered_end(led(node, T0))
        assert noted is not None
        assert (noted.offset, noted.lowered_in, noted.settled_in) == (7, frozenset({0, 3}), frozenset())
