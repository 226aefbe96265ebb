"""Work that waits for threads is bounded, whatever it waits behind; it leaves nothing in memory, and the loop stays free."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from grpc_api.contract.log import Append, Appended
from service.broker.appending.append_queues import WriteCost
from service.broker.partition.partition import WRITTEN_BY_THREAD, Partition
from service.broker.partition.validating import INFLATED_AT_ONCE
from storage_tiers.errors import LogError, RequestTimedOut, StorageError
from storage_tiers.hot.batch_write import BatchWrite
from storage_tiers.hot.settings import LARGE_BATCH_BYTES
from storage_tiers.records.batch import BatchHeader
from storage_tiers.records.builder import NewRecord, build_batch
from storage_tiers.records.codecs import Codec
from storage_tiers.types import TopicPartition
from tests.service.broker.support import Running, batch, running, until
from tests.support.thread_gates import ThreadGate

PLAIN = TopicPartition("plain", 0)
MODULE = "service.broker.appending.append_queues."
#: A batch that takes long to validate.
INFLATES = build_batch([NewRecord(b"k", bytes(INFLATED_AT_ONCE))], codec=Codec.GZIP)
LARGER = os.urandom(WRITTEN_BY_THREAD)
LARGE = os.urandom(LARGE_BATCH_BYTES + 1)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path / "data") as started:
        await started.create("plain", configs={"max.message.bytes": str(16 << 20)})
        await started.create("grown", configs={"compression.type": "uncompressed"})
        yield started


@pytest.fixture
def validating(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadGate]:
    """Holds the threads that validate until the gate opens."""
    gate, validated = ThreadGate(), Partition.validate

    def waits(self: Partition, batch: memoryview, *, at_once: bool = False) -> tuple[memoryview, BatchHeader, int]:
        if not at_once:
            gate.wait()
        return validated(self, batch, at_once=at_once)

    monkeypatch.setattr(Partition, "validate", waits)
    yield gate
    gate.open.set()


@pytest.fixture
def writing(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadGate]:
    """Makes threads write, and holds them until the gate opens."""
    gate, write = ThreadGate(), BatchWrite._write

    def waits(self: BatchWrite) -> None:
        gate.wait()
        write(self)

    monkeypatch.setattr(WriteCost, "for_thread", lambda _: True)
    monkeypatch.setattr(BatchWrite, "_write", waits)
    yield gate
    gate.open.set()


def send(node: Running, sent: bytes, partition: TopicPartition = PLAIN) -> asyncio.Future[list[Appended | LogError]]:
    answer = node.log.append([Append(partition, memoryview(sent))])
    assert isinstance(answer, asyncio.Future)
    return answer  # type: ignore[return-value]


async def offsets(sent: list[asyncio.Future[list[Appended | LogError]]]) -> list[int | type]:
    answers = [(await each)[0] for each in sent]
    return [each.base_offset if isinstance(each, Appended) else type(each) for each in answers]


async def test_the_queue_behind_a_batch_under_validation_is_bounded(
    node: Running, validating: ThreadGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = batch(b"small")
    monkeypatch.setattr(MODULE + "MAX_HELD_BYTES", len(INFLATES) + len(small))
    sent = [send(node, INFLATES), send(node, small)]
    (refused,) = node.log.append([Append(PLAIN, memoryview(small))])
    assert isinstance(refused, RequestTimedOut)
    validating.open.set()
    assert await offsets(sent) == [0, 1]
    assert (await node.append("plain", b"again")).base_offset == 2


async def test_batches_behind_a_large_one_wait_for_its_thread(
    node: Running, writing: ThreadGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MODULE + "WRITING_BYTES", 0)
    sent = [send(node, batch(LARGE))]
    await until(lambda: writing.waiting == 1)
    sent += [send(node, batch(b"small")) for _ in range(3)]
    hot = node.node.broker.partitions.get(PLAIN).log.hot
    assert hot.end_offset == 0
    assert os.path.getsize(hot.segments()[-1].path) == 0
    writing.open.set()
    assert await offsets(sent) == [0, 1, 2, 3]
    assert writing.waiting == 1


async def test_queued_batches_are_appended_in_turns_of_the_loop(
    node: Running, validating: ThreadGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MODULE + "SLICE_S", 0.0)
    sent = [send(node, INFLATES), *(send(node, batch(b"small")) for _ in range(20))]
    hot, ends = node.node.broker.partitions.get(PLAIN).log.hot, [0]
    validating.open.set()
    while ends[-1] < len(sent):
        await asyncio.sleep(0)
        ends.append(hot.end_offset)
    assert max(after - before for before, after in itertools.pairwise(ends)) == 1
    assert await offsets(sent) == list(range(len(sent)))


async def test_the_loop_writes_nothing_for_a_partition_that_has_failed(
    node: Running, writing: ThreadGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MODULE + "WRITING_BYTES", 2 * len(LARGER))
    sent = [send(node, batch(LARGER)), send(node, batch(b"2"))]
    await until(lambda: writing.waiting == 1)
    partition = node.node.broker.partitions.get(PLAIN)
    partition.fail(StorageError("fsync failed"))
    threading.Timer(0.02, writing.open.set).start()
    (refused,) = node.log.append([Append(PLAIN, memoryview(batch(LARGER)))])
    assert isinstance(refused, StorageError)
    assert await offsets(sent) == [StorageError, StorageError]
    assert partition.log.hot.end_offset == 0


@pytest.mark.parametrize("make", [lambda: batch(LARGE), lambda: batch(LARGE)[:-1] + b"?"], ids=["good", "damaged"])
async def test_appended_batches_leave_nothing_for_the_collector(node: Running, make: Callable[[], bytes]) -> None:
    gc.disable()
    try:
        sent = memoryview(make())
        kept = weakref.ref(sent)
        answering = node.log.append([Append(PLAIN, sent)])
        del sent
        assert isinstance(answering, asyncio.Future)
        await answering
        await until(lambda: kept() is None)
    finally:
        gc.enable()


async def test_the_growth_of_queued_batches_is_bounded(
    node: Running, writing: ThreadGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of 2 kB may be repacked to as much as max.message.bytes, faster than the disk writes it."""
    monkeypatch.setattr(MODULE + "VALIDATED_BYTES", 0)
    grown: list[int] = []
    validated = Partition.validate

    def counted(self: Partition, batch: memoryview) -> tuple[memoryview, BatchHeader, int]:
        found = validated(self, batch)
        grown.append(len(found[0]))
        return found

    monkeypatch.setattr(Partition, "validate", counted)
    sent = [send(node, INFLATES, TopicPartition("grown", 0)) for _ in range(20)]
    queues = node.node.broker.append_queues
    await until(lambda: writing.waiting == 1 and queues.validated_bytes >= sum(grown) > INFLATED_AT_ONCE)
    await node.append("plain", b"meanwhile")
    await until(lambda: not queues._given)
    assert len(grown) < 8
    writing.open.set()
    assert await offsets(sent) == list(range(20))
    assert queues.validated_bytes == queues.held_bytes == queues.writing_bytes == 0


async def test_a_defect_while_one_is_examined_holds_no_other_up(node: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Partition, batch: memoryview, *, at_once: bool = False) -> tuple[memoryview, BatchHeader, int]:
        raise ValueError("a defect")

    sent = []
    with monkeypatch.context() as patch:
        patch.setattr(Partition, "validate", fails)
        sent.append(send(node, INFLATES, TopicPartition("grown", 0)))
        refused = (await sent[0])[0]
    assert isinstance(refused, LogError)
    assert "a defect" in str(refused)
    assert await offsets([send(node, INFLATES, TopicPartition("grown", 0))]) == [0]
