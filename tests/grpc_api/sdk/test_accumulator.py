"""When a producer's records become a batch, and in which order batches are sent."""

from __future__ import annotations

from asyncio import Future

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpc_api.sdk.accumulator import Accumulator
from grpc_api.sdk.record_buffer import RECORD_OVERHEAD, record_bytes
from grpc_api.sdk.values import ProducerOptions, Sent
from storage_tiers.errors import RequestTimedOut
from storage_tiers.records.builder import NewRecord, build_batch
from storage_tiers.records.record_writer import NO_HEADERS, encode_headers
from storage_tiers.types import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
VALUE = b"x" * 1000
#: The bound of a record's size in bytes, and its size in the batch.
SIZE = record_bytes(None, VALUE, NO_HEADERS)
WRITTEN = 1009


def options(**fields: object) -> ProducerOptions:
    chosen = {
        "linger_s": 1.0,
        "batch_bytes": 3 * WRITTEN + RECORD_OVERHEAD - 1,
        "buffer_bytes": 10 * SIZE,
        "delivery_timeout_s": 10.0,
        **fields,
    }
    return ProducerOptions(**chosen)


def add(held: Accumulator, count: int = 1, partition: TopicPartition = T0, now: float = 0.0) -> list[Future[Sent]]:
    waiters: list[Future[Sent]] = []
    for _ in range(count):
        waiter = held.buffer.add(*partition, None, VALUE, NO_HEADERS, 0, Future)
        if waiter is None:
            held.begin_batch(*partition, now)
            waiter = held.buffer.add(*partition, None, VALUE, NO_HEADERS, 0, Future)
        waiters.append(waiter)
    return waiters


@pytest.fixture
async def held() -> Accumulator:
    return Accumulator(options())


async def test_a_batch_is_due_when_it_is_full_or_has_lingered(held: Accumulator) -> None:
    add(held, 2)
    assert held.take_due(0.5) == []
    assert held.next_due() == 1.0
    add(held, 1, now=0.5)
    ((_, batch),) = held.take_due(0.5)
    assert batch.records.count == 3
    add(held, 1, T1, now=0.6)
    assert held.take_due(1.5) == []
    ((_, other),) = held.take_due(1.6)
    assert other.partition == T1


async def test_one_batch_of_a_partition_flies_at_a_time(held: Accumulator) -> None:
    add(held, 7)
    ((queue, first),) = held.take_due(0.0)
    assert held.take_due(5.0) == []
    held.landed(queue)
    ((_, second),) = held.take_due(0.0)
    assert [first.records.count, second.records.count] == [3, 3]


async def test_a_flush_waits_for_no_linger(held: Accumulator) -> None:
    add(held, 1)
    held.flushing += 1
    assert len(held.take_due(0.0)) == 1


async def test_a_retried_batch_is_sent_unchanged_at_its_time(held: Accumulator) -> None:
    add(held, 3)
    ((queue, batch),) = held.take_due(0.0)
    batch.encoded = b"bytes"
    queue.resume_at = 2.0
    assert held.take_due(1.9) == []
    assert held.next_due() == 2.0
    assert held.take_due(2.0, only_again=True) == [(queue, batch)]
    assert batch.encoded == b"bytes"


async def test_memory_is_returned_however_a_batch_ends(held: Accumulator) -> None:
    add(held, 9)
    assert held.buffer.has_room(SIZE)
    add(held, 1)
    assert not held.buffer.has_room(1)
    ((queue, _),) = held.take_due(0.0)
    held.landed(queue)
    assert held.buffer.held_bytes == 7 * SIZE
    assert [flew for _, flew in held.take_expired(10.0)] == [False, False, False]
    assert (held.buffer.held_bytes, held.empty) == (0, True)
    assert held.buffer.has_room(1000 * SIZE)


async def test_time_runs_out_in_flight_too(held: Accumulator) -> None:
    waiters = add(held, 4)
    held.take_due(0.0)
    assert held.next_deadline() == 10.0
    expired = list(held.take_expired(10.0))
    assert [flew for _, flew in expired] == [True, False]
    for batch, _ in expired:
        batch.fail(RequestTimedOut("late"))
    assert all(isinstance(waiter.exception(), RequestTimedOut) for waiter in waiters)


async def test_halves_keep_records_order_and_waiters(held: Accumulator) -> None:
    waiters = add(held, 3)
    ((queue, _),) = held.take_due(0.0)
    held.split(queue)
    before = held.buffer.held_bytes
    ((_, first),) = held.take_due(0.0)
    held.landed(queue).succeed(5)
    ((_, second),) = held.take_due(0.0)
    held.landed(queue).succeed(6)
    assert (first.records.count, second.records.count) == (1, 2)
    assert [waiter.result().offset for waiter in waiters] == [5, 6, 7]
    assert (before, held.buffer.held_bytes) == (3 * SIZE, 0)


async def test_unknown_offsets_are_minus_one_and_cancelled_waiters_are_ignored(held: Accumulator) -> None:
    gone, there = add(held, 2)
    gone.cancel()
    held.flushing += 1
    ((queue, _),) = held.take_due(0.0)
    held.landed(queue).succeed(-1)
    assert there.result() == Sent("t", 0, -1)


async def test_a_flush_ends_when_all_batches_that_were_held_are_over(held: Accumulator) -> None:
    add(held, 4)
    add(held, 1, T1)
    last = held.last_batches()
    assert [(batch.partition, batch.records.count) for batch in last] == [(T0, 1), (T1, 1)]
    held.flushing += 1
    for queue, _ in held.take_due(0.0):
        held.landed(queue).succeed(0)
    assert [batch.is_over for batch in last] == [False, True]
    ((queue, _),) = held.take_due(0.0)
    held.landed(queue).succeed(3)
    assert all(batch.is_over for batch in last)


async def test_a_split_batch_is_complete_with_its_second_half(held: Accumulator) -> None:
    add(held, 3)
    (last,) = held.last_batches()
    ((queue, _),) = held.take_due(0.0)
    held.split(queue)
    ended = []
    while due := held.take_due(0.0):
        held.landed(due[0][0]).succeed(0)
        ended.append(last.is_over)
    assert ended == [False, True]


FIELD = st.none() | st.binary(max_size=300)


@given(FIELD, FIELD, st.lists(st.tuples(st.text(max_size=40), FIELD), max_size=5))
def test_a_record_is_never_larger_than_it_was_counted(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    batch = build_batch([NewRecord(key, value, headers, 0)])
    assert len(batch) - 61 <= record_bytes(key, value, encode_headers(headers))
