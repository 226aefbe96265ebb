"""Batches that threads validate or write do not block other partitions, and each partition keeps its order."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from grpc_api.contract.log import Append, Appended
from grpc_api.contract.topics import AlterOp, ConfigAlteration, Resource, ResourceKind
from service.broker.appending.append_queues import FAST_S_PER_GB, PROBED, SLOW_S_PER_GB, WRITING_THREADS, WriteCost
from service.broker.partition.partition import WRITTEN_BY_THREAD, Partition
from service.broker.partition.phase import Use
from service.broker.partition.validating import INFLATED_AT_ONCE
from storage_tiers.errors import (
    InvalidRecord,
    InvalidTimestamp,
    LogError,
    RequestTimedOut,
    StorageError,
    UnknownTopicOrPartition,
)
from storage_tiers.hot.batch_write import BatchWrite
from storage_tiers.hot.log import HotLog
from storage_tiers.records.builder import NewRecord, build_batch
from storage_tiers.records.codecs import Codec
from storage_tiers.records.recompress import recompress
from storage_tiers.records.record_errors import MAX_NAMED
from storage_tiers.types import TopicPartition
from tests.service.broker.support import Running, batch, running, until
from tests.support.thread_gates import ThreadGate

T0 = TopicPartition("t", 0)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadGate]:
    held, pack = ThreadGate(), recompress

    def slow(data: memoryview, header: object, wanted: object) -> bytearray | None:
        if header.count == 1:  # type: ignore[attr-defined]
            held.wait()
        return pack(data, header, wanted)  # type: ignore[arg-type]

    monkeypatch.setattr("service.broker.partition.validating.recompress", slow)
    yield held
    held.open.set()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path / "data") as started:
        await started.create("t", configs={"compression.type": "gzip"})
        await started.create("plain")
        yield started


def send(node: Running, *values: bytes, topic: str = "t") -> asyncio.Future[list[Appended | LogError]]:
    answer = node.log.append([Append(TopicPartition(topic, 0), memoryview(batch(*values)))])
    assert isinstance(answer, asyncio.Future)
    return answer  # type: ignore[return-value]


async def values(node: Running) -> list[bytes | None]:
    return [record.value for record in await node.read_all("t")]


async def test_other_partitions_continue_and_the_order_is_kept(node: Running, gate: ThreadGate) -> None:
    first, second = send(node, b"1"), send(node, b"2", b"3")
    await until(lambda: gate.waiting == 1)
    await node.append("plain", b"meanwhile")
    assert not first.done() and not second.done()
    gate.open.set()
    answers = [(await each)[0] for each in (first, second)]
    assert [answer.base_offset for answer in answers if isinstance(answer, Appended)] == [0, 1]
    assert await values(node) == [b"1", b"2", b"3"]


async def test_a_batch_that_needs_no_packing_overtakes_none_that_waits(node: Running, gate: ThreadGate) -> None:
    first = send(node, b"1")
    await until(lambda: gate.waiting == 1)
    back = [ConfigAlteration("compression.type", AlterOp.DELETE, None)]
    await node.core.configs.alter_configs(Resource(ResourceKind.TOPIC, "t"), back)
    second = send(node, b"2")
    gate.open.set()
    await asyncio.wait({first, second})
    assert await values(node) == [b"1", b"2"]
    await node.append("t", b"3")
    assert node.log.append([Append(T0, memoryview(batch(b"4")))]).__class__ is list
    assert await values(node) == [b"1", b"2", b"3", b"4"]


async def test_a_request_is_answered_whole_and_each_partition_for_itself(node: Running) -> None:
    good, bad = batch(b"v"), bytearray(build_batch([NewRecord(b"k", b"v")]))
    bad[-1] ^= 1
    places = [Append(T0, memoryview(good)), Append(TopicPartition("none", 0), memoryview(good))]
    places += [Append(TopicPartition("plain", 0), memoryview(good)), Append(T0, memoryview(bad))]
    answers = await node.log.append(places)  # type: ignore[misc]
    assert [type(answer).__name__ for answer in answers] == [
        "Appended",
        "UnknownTopicOrPartition",
        "Appended",
        "CorruptRecord",
    ]


async def test_a_client_that_leaves_cancels_no_other_batch(node: Running, gate: ThreadGate) -> None:
    first, second = send(node, b"1"), send(node, b"2", b"3")
    await until(lambda: gate.waiting == 1)
    first.cancel()
    gate.open.set()
    await second
    assert await values(node) == [b"1", b"2", b"3"]


async def test_queued_batches_do_not_change_when_their_buffer_is_reused(node: Running, gate: ThreadGate) -> None:
    """A connection receives its next request into the same buffer."""
    sent = bytearray(batch(b"1"))
    waiting = node.log.append([Append(T0, memoryview(sent))])
    assert isinstance(waiting, asyncio.Future)
    await until(lambda: gate.waiting == 1)
    sent[:] = batch(b"2")
    gate.open.set()
    assert isinstance((await waiting)[0], Appended)
    assert await values(node) == [b"1"]


async def test_the_queue_is_bounded(node: Running, gate: ThreadGate, monkeypatch: pytest.MonkeyPatch) -> None:
    one = len(batch(b"1"))
    monkeypatch.setattr("service.broker.appending.append_queues.MAX_HELD_BYTES", one)
    first = send(node, b"1")
    (refused,) = node.log.append([Append(T0, memoryview(batch(b"2")))])
    assert isinstance(refused, RequestTimedOut)
    gate.open.set()
    await first
    assert isinstance((await send(node, b"3"))[0], Appended)
    assert await values(node) == [b"1", b"3"]


async def test_a_topic_deleted_meanwhile_refuses_queued_batches(node: Running, gate: ThreadGate) -> None:
    first = send(node, b"1")
    await until(lambda: gate.waiting == 1)
    await node.core.topics.delete(["t"])
    gate.open.set()
    assert isinstance((await first)[0], UnknownTopicOrPartition)


async def test_a_closing_node_finishes_its_queued_batches(tmp_path: Path, gate: ThreadGate) -> None:
    async with running(tmp_path / "data") as node:
        await node.create("t", configs={"compression.type": "lz4"})
        first = send(node, b"1")
        await until(lambda: gate.waiting == 1)
        gate.open.set()
    assert isinstance((await first)[0], Appended)
    async with running(tmp_path / "data") as node:
        assert await values(node) == [b"1"]


async def test_a_refusal_is_a_result_with_the_log_start(node: Running) -> None:
    await node.append("t", b"1", b"2")
    await node.core.log.delete_records(T0, 1)
    bad = build_batch([NewRecord(b"k", b"v", (), 1_700_000_000_000)], base_offset=5)
    (answer,) = await node.log.append([Append(T0, memoryview(bad))])  # type: ignore[misc]
    assert isinstance(answer, InvalidRecord)
    assert answer.log_start_offset == 1


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
async def test_a_batch_that_inflates_to_many_bytes_is_validated_in_a_thread(node: Running, codec: Codec) -> None:
    """Such a batch of 2 kB can take the loop for 60 ms, and a request may hold a thousand of them."""
    plain = TopicPartition("plain", 0)
    large = build_batch([NewRecord(b"k", bytes(INFLATED_AT_ONCE))], codec=codec)
    small = build_batch([NewRecord(b"k", bytes(100))], codec=codec)
    assert type(node.log.append([Append(plain, memoryview(small))])) is list
    first = node.log.append([Append(plain, memoryview(large))])
    second = node.log.append([Append(plain, memoryview(small))])
    assert isinstance(first, asyncio.Future) and isinstance(second, asyncio.Future), "later batches wait for it"
    answers = [(await each)[0] for each in (first, second)]
    assert [answer.base_offset for answer in answers if isinstance(answer, Appended)] == [1, 2]
    assert type(node.log.append([Append(plain, memoryview(small))])) is list


async def test_faulty_records_are_searched_in_a_thread_and_few_are_named(node: Running) -> None:
    """Naming every record in the answer to a 12 MB request would make that answer 200 MB long."""
    late = [NewRecord(b"k", b"v", (), 1 << 50)] * (MAX_NAMED + 50)
    refusing = node.log.append([Append(TopicPartition("plain", 0), memoryview(build_batch(late)))])
    assert isinstance(refusing, asyncio.Future)
    (refused,) = await refusing
    assert isinstance(refused, InvalidTimestamp)
    assert [fault.batch_index for fault in refused.faults] == list(range(MAX_NAMED))
    assert (await node.append("plain", b"next")).base_offset == 0


async def test_a_large_batch_is_written_in_pieces_and_overtaken_by_none_of_its_partition(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as node:
        await node.create("large", configs={"max.message.bytes": str(64 << 20)})
        await node.create("plain")
        large = os.urandom(40 << 20)
        first, second = send(node, large, topic="large"), send(node, b"2", topic="large")
        partition = partition_of(node)
        await until(lambda: partition.log.hot.segments()[-1].size_bytes < os.path.getsize(active(partition)))
        await node.append("plain", b"meanwhile")
        assert not first.done() and not second.done()
        assert [each.base_offset for (each,) in (await first, await second) if isinstance(each, Appended)] == [0, 1]
        assert [record.value for record in await node.read_all("large")] == [large, b"2"]
        await node.append("large", b"3")
        assert partition.log.hot.end_offset == 3


async def test_a_large_batch_that_is_sent_twice_or_damaged_leaves_nothing_behind(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as node:
        await node.create("large", configs={"max.message.bytes": str(64 << 20)})
        partition = partition_of(node)
        good = build_batch([NewRecord(None, os.urandom(6 << 20))], producer_id=5, producer_epoch=0, base_sequence=0)
        bad = bytearray(good)
        bad[-1] ^= 1
        kinds = []
        for each in (good, good, bad):
            (answer,) = await node.log.append([Append(TopicPartition("large", 0), memoryview(each))])  # type: ignore[misc]
            kinds.append(answer.base_offset if isinstance(answer, Appended) else type(answer).__name__)
        assert kinds == [0, 0, "CorruptRecord"]
        assert os.path.getsize(active(partition)) == partition.log.hot.segments()[-1].size_bytes == len(good)


def partition_of(node: Running) -> Partition:
    return node.node.broker.partitions.get(TopicPartition("large", 0))


def active(partition: Partition) -> str:
    return partition.log.hot.segments()[-1].path


# --- written by threads -----------------------------------------------------------------------------------------------
PLAIN = TopicPartition("plain", 0)
LARGER = os.urandom(WRITTEN_BY_THREAD)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes writing look expensive, so that threads do it."""
    monkeypatch.setattr(WriteCost, "for_thread", lambda _: True)


@pytest.fixture
def held(slow: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadGate]:
    """Holds the threads that write until the gate opens."""
    gate, write = ThreadGate(), BatchWrite._write

    def waits(self: BatchWrite) -> None:
        gate.waiting += 1
        assert gate.open.wait(30)
        write(self)

    monkeypatch.setattr(BatchWrite, "_write", waits)
    yield gate
    gate.open.set()


def hot_of(node: Running, partition: TopicPartition = PLAIN) -> HotLog:
    return node.node.broker.partitions.get(partition).log.hot


async def plain_values(node: Running) -> list[bytes | None]:
    return [record.value for record in await node.read_all("plain")]


async def test_larger_batches_are_written_by_threads_where_writing_is_slow(node: Running, held: ThreadGate) -> None:
    first, second, third = (
        send(node, LARGER, topic="plain"),
        send(node, b"2", topic="plain"),
        send(node, LARGER, topic="plain"),
    )
    await until(lambda: held.waiting == 1)
    await node.append("t", b"meanwhile")
    assert not first.done() and not second.done()
    assert hot_of(node).end_offset == 0
    held.open.set()
    answers = [(await each)[0] for each in (first, second, third)]
    assert [answer.base_offset for answer in answers if isinstance(answer, Appended)] == [0, 1, 2]
    assert await plain_values(node) == [LARGER, b"2", LARGER]
    assert held.waiting == 2
    assert type(node.log.append([Append(PLAIN, memoryview(batch(b"small")))])) is list, "the queue is empty"


async def test_the_loop_writes_where_that_costs_little(node: Running) -> None:
    assert type(node.log.append([Append(PLAIN, memoryview(batch(LARGER)))])) is list


async def test_partitions_do_not_wait_for_each_other(node: Running, held: ThreadGate) -> None:
    await node.create("other")
    await node.create("third")
    sent = [send(node, LARGER, topic=topic) for topic in ("plain", "other", "third")]
    await until(lambda: held.waiting == WRITING_THREADS)
    held.open.set()
    assert [each.base_offset for (each,) in [await one for one in sent] if isinstance(each, Appended)] == [0, 0, 0]


async def test_a_batch_that_is_sent_twice_is_written_once(node: Running, slow: None) -> None:
    once = build_batch([NewRecord(None, LARGER)], producer_id=5, producer_epoch=0, base_sequence=0)
    answers = [node.log.append([Append(PLAIN, memoryview(once))]) for _ in range(2)]
    assert [(await each)[0].base_offset for each in answers] == [0, 0]  # type: ignore[misc]
    assert hot_of(node).end_offset == 1
    assert os.path.getsize(hot_of(node).segments()[-1].path) == len(once)


def open_when(held: ThreadGate, has_begun: Callable[[], bool]) -> None:
    ended = time.monotonic() + 60
    while not has_begun() and time.monotonic() < ended:
        time.sleep(0.001)
    held.open.set()


@pytest.mark.parametrize("change", ["a seal", "a deleted topic", "a failed disk"])
async def test_the_partition_changes_while_a_batch_is_queued(node: Running, held: ThreadGate, change: str) -> None:
    waiting, behind = send(node, LARGER, topic="plain"), send(node, b"2", topic="plain")
    partition = node.node.broker.partitions.get(PLAIN)
    await until(lambda: held.waiting == 1)
    # A caller that needs the file waits for the thread, which continues once the change has begun.
    has_begun = {
        "a seal": lambda: True,
        "a deleted topic": lambda: partition.deleted,
        "a failed disk": lambda: partition.life.refusal(Use.WRITE) is not None,
    }[change]
    opener = threading.Thread(target=open_when, args=(held, has_begun))
    opener.start()
    if change == "a seal":
        await node.append("t", b"x")
        partition.log.hot.roll()
        answers = [(await each)[0] for each in (waiting, behind)]
        assert [answer.base_offset for answer in answers if isinstance(answer, Appended)] == [0, 1]
        assert await plain_values(node) == [LARGER, b"2"]
    elif change == "a deleted topic":
        await node.core.topics.delete(["plain"])
        assert {type((await each)[0]) for each in (waiting, behind)} == {UnknownTopicOrPartition}
    else:
        partition.fail(StorageError("fsync failed"))
        assert {type((await each)[0]) for each in (waiting, behind)} == {StorageError}
        assert partition.log.hot.end_offset == 0
        assert os.path.getsize(partition.log.hot.segments()[-1].path) == 0
    opener.join()


async def test_a_disk_that_refuses_a_thread_refuses_the_batch_alone(
    node: Running, slow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(_: BatchWrite) -> None:
        monkeypatch.undo()
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(WriteCost, "for_thread", lambda _: True)
    monkeypatch.setattr(BatchWrite, "_write", refuses)
    first, second = send(node, LARGER, topic="plain"), send(node, LARGER, topic="plain")
    assert isinstance((await first)[0], StorageError)
    assert (await second)[0].base_offset == 0  # type: ignore[union-attr]
    assert await plain_values(node) == [LARGER]


async def test_beyond_a_bound_the_loop_writes_itself(
    node: Running, held: ThreadGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer that keeps sending without awaiting answers is slowed, not refused."""
    monkeypatch.setattr("service.broker.appending.append_queues.WRITING_BYTES", 2 * len(LARGER))
    sent = [send(node, LARGER, topic="plain")]
    await until(lambda: held.waiting == 1)
    sent.append(send(node, b"2", topic="plain"))
    threading.Timer(0.02, held.open.set).start()
    answer = node.log.append([Append(PLAIN, memoryview(batch(LARGER)))])
    assert type(answer) is list and answer[0].base_offset == 2, "all earlier batches are appended too"
    assert [(await each)[0].base_offset for each in sent] == [0, 1]  # type: ignore[union-attr]
    assert await plain_values(node) == [LARGER, b"2", LARGER]
    assert node.node.broker.append_queues.held_bytes == 0


async def test_a_closing_node_finishes_the_writes_of_threads(tmp_path: Path, held: ThreadGate) -> None:
    async with running(tmp_path / "data") as node:
        await node.create("plain")
        sent = [send(node, LARGER, topic="plain") for _ in range(3)]
        await until(lambda: held.waiting == 1)
        held.open.set()
    assert [(await each)[0].base_offset for each in sent] == [0, 1, 2]  # type: ignore[union-attr]
    async with running(tmp_path / "data") as node:
        assert await plain_values(node) == [LARGER] * 3


async def test_a_queue_that_is_never_empty_returns_to_the_loop(
    node: Running, held: ThreadGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One producer with several requests in flight never finds its partition idle."""
    sent = [send(node, LARGER, topic="plain") for _ in range(5)]
    await until(lambda: held.waiting == 1)
    monkeypatch.setattr(WriteCost, "for_thread", lambda _: False)
    held.open.set()
    assert [(await each)[0].base_offset for each in sent] == [0, 1, 2, 3, 4]  # type: ignore[union-attr]
    assert held.waiting == 1
    assert node.node.broker.append_queues.cost.s_per_gb > 0
    assert await plain_values(node) == [LARGER] * 5


def test_threads_write_from_where_writing_is_slow_until_it_is_fast() -> None:
    cost, size = WriteCost(), 64 << 10
    between = (SLOW_S_PER_GB + FAST_S_PER_GB) / 2 * size / 1e9

    def after(seconds: float, times: int) -> bool:
        for _ in range(times):
            cost.took(size, seconds)
        return cost.is_slow

    assert not after(between, 1000)
    cost.took(size, 10.0)  # one outlier may only have waited for the processor
    assert cost.s_per_gb < 2 * SLOW_S_PER_GB
    assert not after(0, 100)
    assert after(2 * SLOW_S_PER_GB * size / 1e9, 100)
    assert after(between, 1000)
    asked = [cost.for_thread() for _ in range(3 * PROBED)]
    assert asked.count(False) == 3, "the loop continues to measure the cost of writing"
    assert not after(0, 100)
    assert not cost.for_thread()
