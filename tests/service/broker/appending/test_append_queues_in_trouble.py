"""If a batch fails in a validating or writing thread, the batches behind it continue, and half a batch never enters the log."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable

import pytest

from grpc_api.contract.log import Append, Appended
from service.broker.appending.append_queues import AppendQueues
from service.broker.partition.partition import WRITTEN_BY_THREAD, Partition
from service.broker.partition.validating import INFLATED_AT_ONCE
from service.lifecycle.lease import FOREVER, Lease
from storage_tiers.errors import LeaderNotAvailable, LogError, NotLeader, RequestTimedOut, StorageError
from storage_tiers.hot.appending import Appender
from storage_tiers.hot.batch_write import BatchWrite
from storage_tiers.records.batch import BatchHeader
from storage_tiers.records.builder import NewRecord, build_batch
from storage_tiers.records.codecs import Codec
from storage_tiers.types import NO_PRODUCER_ID, TopicPartition
from tests.service.broker.appending.test_append_queues import (
    LARGER,
    PLAIN,
    T0,
    gate,
    held,
    hot_of,
    node,
    plain_values,
    send,
    slow,
)
from tests.service.broker.support import Running, batch, until
from tests.support.thread_gates import ThreadGate

__all__ = ["gate", "held", "node", "slow"]


def halted(condition: Callable[[], bool]) -> None:
    """Blocks the event loop until threads have made `condition` true."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def queues_of(node: Running) -> AppendQueues:
    return node.node.broker.append_queues


async def test_a_batch_joins_the_log_only_when_it_is_written(node: Running, gate: ThreadGate, held: ThreadGate) -> None:
    """Two batches are validated before the loop looks: the news that the second one is valid does not mean it is written."""
    ready = queues_of(node)._ready
    first, second = send(node, b"1", b"2"), send(node, LARGER)
    halted(lambda: len(ready) == 1)
    gate.open.set()
    halted(lambda: len(ready) == 2)
    assert isinstance((await first)[0], Appended)
    await until(lambda: held.waiting == 1)
    assert not second.done()
    assert hot_of(node, T0).end_offset == 2
    held.open.set()
    assert (await second)[0].base_offset == 2  # type: ignore[union-attr]
    assert [record.value for record in await node.read_all("t")] == [b"1", b"2", LARGER]


@pytest.mark.parametrize("why", [StorageError("fsync failed"), LeaderNotAvailable("not compared yet")])
async def test_a_partition_that_refuses_appends_queues_none_beyond_the_bound(
    node: Running, held: ThreadGate, monkeypatch: pytest.MonkeyPatch, why: LogError
) -> None:
    monkeypatch.setattr("service.broker.appending.append_queues.WRITING_BYTES", 2 * len(LARGER))
    partition, sent = node.node.broker.partitions.get(PLAIN), [send(node, LARGER, topic="plain")]
    await until(lambda: held.waiting == 1)
    sent.append(send(node, b"2", topic="plain"))
    if isinstance(why, LeaderNotAvailable):
        partition.recover(why)
    else:
        partition.fail(why)
    threading.Timer(0.02, held.open.set).start()
    (refused,) = node.log.append([Append(PLAIN, memoryview(batch(LARGER)))])
    assert type(refused) is type(why)
    assert [type((await each)[0]) for each in sent] == [type(why)] * 2
    hot = partition.log.hot
    assert hot.end_offset == 0
    assert hot.appender._write is None, "the batch is cancelled"
    assert os.path.getsize(hot.segments()[-1].path) == 0
    assert queues_of(node).held_bytes == queues_of(node).writing_bytes == 0


async def test_a_batch_refused_by_the_full_queue_is_not_written_by_the_loop(
    node: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop cannot write the refused batch directly: it would overtake the others."""
    goes_on, validate = threading.Event(), Partition.validate

    def waits(self: Partition, batch: memoryview, *, at_once: bool = False) -> tuple[memoryview, BatchHeader, int]:
        assert at_once or goes_on.wait(30)
        return validate(self, batch, at_once=at_once)

    monkeypatch.setattr(Partition, "validate", waits)
    bomb = build_batch([NewRecord(b"k", bytes(INFLATED_AT_ONCE))], codec=Codec.GZIP)
    one = batch(bytes(1000))
    monkeypatch.setattr("service.broker.appending.append_queues.MAX_HELD_BYTES", len(bomb) + 2 * len(one))
    sent = [node.log.append([Append(PLAIN, memoryview(each))]) for each in (bomb, one, one)]
    (refused,) = node.log.append([Append(PLAIN, memoryview(one))])
    assert isinstance(refused, RequestTimedOut)
    goes_on.set()
    assert [(await each)[0].base_offset for each in sent] == [0, 1, 2]  # type: ignore[misc]


FAILING: dict[str, tuple[object, str]] = {
    "validating": (Partition, "validate"),
    "beginning to write": (Appender, "begin_write"),
    "writing": (BatchWrite, "_write"),
    "finishing": (Appender, "finish_write"),
}


@pytest.mark.parametrize("where", FAILING)
async def test_a_defect_refuses_its_batch_and_delays_no_other(
    node: Running, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """There are as many defects as threads, so that none would be left if a defect ended its thread."""
    owner, name = FAILING[where]
    method, left = getattr(owner, name), [2]

    def fails(*args: object, **named: object) -> object:
        if left[0]:
            left[0] -= 1
            raise MemoryError(where)
        return method(*args, **named)

    monkeypatch.setattr(owner, name, fails)
    values = [os.urandom(WRITTEN_BY_THREAD) for _ in range(4)]
    answers = [(await each)[0] for each in [send(node, value) for value in values]]
    assert [isinstance(answer, LogError) for answer in answers] == [True, True, False, False]
    assert [record.value for record in await node.read_all("t")] == values[2:]
    assert queues_of(node).held_bytes == queues_of(node).writing_bytes == 0


async def test_without_a_free_thread_the_loop_writes(
    node: Running, slow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuses)
        sent = [send(node, LARGER, topic="plain") for _ in range(2)]
        assert [(await each)[0].base_offset for each in sent] == [0, 1]  # type: ignore[union-attr]
    assert (await send(node, LARGER, topic="plain"))[0].base_offset == 2  # type: ignore[union-attr]
    assert await plain_values(node) == [LARGER] * 3
    assert queues_of(node).writing_bytes == 0


async def test_a_batch_that_was_validated_behind_another_is_appended_after_it_though_the_queue_is_full(
    node: Running, held: ThreadGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop learns that the batch is valid while another batch is still ahead of it."""
    queues, bomb = queues_of(node), build_batch([NewRecord(b"k", bytes(INFLATED_AT_ONCE))], codec=Codec.GZIP)
    sent = [send(node, LARGER, topic="plain")]
    await until(lambda: held.waiting == 1)
    sent.append(node.log.append([Append(PLAIN, memoryview(bomb))]))  # type: ignore[arg-type]
    validated = queues._queues[node.node.broker.partitions.get(PLAIN)].of_producer[NO_PRODUCER_ID][1]
    await until(lambda: validated.found is not None)
    monkeypatch.setattr("service.broker.appending.append_queues.WRITING_BYTES", 0)
    threading.Timer(0.02, held.open.set).start()
    third = node.log.append([Append(PLAIN, memoryview(batch(b"3")))])
    assert type(third) is list and third[0].base_offset == 2
    assert [(await each)[0].base_offset for each in sent] == [0, 1]  # type: ignore[union-attr]


async def test_the_bound_is_for_all_partitions(
    node: Running, held: ThreadGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.create("other")
    monkeypatch.setattr("service.broker.appending.append_queues.WRITING_BYTES", len(batch(LARGER)))
    waiting = send(node, LARGER, topic="plain")
    other = [Append(TopicPartition("other", 0), memoryview(batch(LARGER)))]
    assert type(node.log.append(other)) is list, "the loop writes the batch"
    held.open.set()
    await waiting


async def test_a_request_is_answered_when_the_last_of_its_batches_is(
    node: Running, gate: ThreadGate, slow: None
) -> None:
    places = [Append(PLAIN, memoryview(batch(LARGER))), Append(T0, memoryview(batch(b"1")))]
    answering = node.log.append(places)
    assert isinstance(answering, asyncio.Future)
    await until(lambda: gate.waiting == 1 and hot_of(node).end_offset == 1)
    assert not answering.done()
    gate.open.set()
    assert [type(answer) for answer in await answering] == [Appended, Appended]


def lease_of(node: Running) -> Lease:
    return node.node.broker.partitions.get(PLAIN)._lease


async def test_no_batch_of_any_size_is_appended_after_the_lease(node: Running, slow: None) -> None:
    """A thread would write the larger batch."""
    lease_of(node).until_ms = 0
    for value in (b"small", LARGER):
        answered = node.log.append([Append(PLAIN, memoryview(batch(value)))])
        (refused,) = answered if isinstance(answered, list) else await answered  # type: ignore[misc]
        assert isinstance(refused, NotLeader)
    hot = hot_of(node)
    assert (hot.end_offset, os.path.getsize(hot.segments()[-1].path)) == (0, 0)


async def test_a_batch_is_refused_if_the_lease_ends_while_it_is_written(node: Running, held: ThreadGate) -> None:
    sent = [send(node, LARGER, topic="plain") for _ in range(2)]
    await until(lambda: held.waiting == 1)
    lease_of(node).until_ms = 0
    held.open.set()
    assert [type((await each)[0]) for each in sent] == [NotLeader] * 2
    hot = hot_of(node)
    assert hot.appender._write is None, "the batch is cancelled"
    assert (hot.end_offset, os.path.getsize(hot.segments()[-1].path)) == (0, 0)
    lease_of(node).until_ms = FOREVER
    assert (await send(node, LARGER, topic="plain"))[0].base_offset == 0  # type: ignore[union-attr]
    assert await plain_values(node) == [LARGER]
