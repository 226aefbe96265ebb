"""The native buffer does what its plain source does, call by call, and keeps its bounds."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpc_api.sdk import record_buffer
from storage_tiers.records.builder import NewRecord, build_batch, build_written_batch
from storage_tiers.records.record_writer import NO_HEADERS, encode_headers
from tests.storage_tiers.records.twins import source_of, twins_of

TWINS = twins_of(record_buffer)
each_twin = pytest.mark.parametrize("module", TWINS.values(), ids=TWINS)
FIELD = st.none() | st.binary(max_size=300)
HEADERS = st.lists(st.tuples(st.text(max_size=10), FIELD), max_size=2)


def test_this_run_has_a_compiled_buffer() -> None:
    if (record_buffer.__file__ or "").endswith(".py"):
        pytest.skip("the buffer is not compiled here: run hatch_build.py")
    assert [module.__file__ == source_of(record_buffer) for module in TWINS.values()] == [False, True, True]


@dataclass(frozen=True)
class Step:
    """A record for partition 0 or 1 of a topic; or, with `take`, the end of the oldest batch of that partition."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp: int
    take: bool


STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from("ab"),
        st.integers(0, 1),
        FIELD,
        FIELD,
        HEADERS,
        st.integers(0, (1 << 63) - 1),
        st.sampled_from([False, False, False, True]),
    ),
    max_size=40,
)


def begin(module: ModuleType, buffer: Any, topic: str, partition: int) -> None:
    buffer.queues.setdefault(topic, {}).setdefault(partition, deque()).append(module.OpenBatch())


def replay(module: ModuleType, steps: list[Step]) -> list[Any]:
    """The state that a producer sees after each step."""
    buffer = module.RecordBuffer(3000, 700)
    seen: list[Any] = []
    numbers = iter(range(1000))
    for step in steps:
        if step.take:
            queue = buffer.queues.get(step.topic, {}).get(step.partition)
            if queue:
                buffer.held_bytes -= queue.popleft().held
            continue
        headers = encode_headers(step.headers)
        record = (step.topic, step.partition, step.key, step.value, headers, step.timestamp, numbers.__next__)
        room = buffer.has_room(module.record_bytes(step.key, step.value, headers))
        waiter = buffer.add(*record)
        if waiter is None and room:
            begin(module, buffer, step.topic, step.partition)
            waiter = buffer.add(*record)
            assert waiter is not None
        assert (waiter is None) == (not room)
        batches = [batch for lanes in buffer.queues.values() for queue in lanes.values() for batch in queue]
        assert buffer.held_bytes == sum(batch.held for batch in batches)
        seen.append((room, waiter, buffer.filled, buffer.held_bytes, [buffer.is_full(batch) for batch in batches]))
        seen.append([(batch.records.payload(), list(batch.waiters), batch.held) for batch in batches])
    return seen


@settings(deadline=None, max_examples=200)
@given(STEPS)
def test_native_and_plain_agree_on_every_step(steps: list[Step]) -> None:
    built, *plain = (replay(module, steps) for module in TWINS.values())
    assert all(each == built for each in plain)


@each_twin
def test_the_bytes_are_the_builders(module: ModuleType) -> None:
    records = [NewRecord(b"k%d" % at, b"v" * at, [("h", None)] * (at % 3), 1_000 + at) for at in range(100)]
    buffer = module.RecordBuffer(1 << 20, 1 << 20)
    begin(module, buffer, "t", 0)
    for at, record in enumerate(records):
        headers = encode_headers(record.headers)
        assert buffer.add("t", 0, record.key, record.value, headers, record.timestamp, lambda at=at: at) == at
    (batch,) = buffer.queues["t"][0]
    assert build_written_batch(batch.records) == build_batch(records)
    assert batch.waiters == list(range(100))


@each_twin
def test_without_an_open_batch_with_room_nothing_is_added(module: ModuleType) -> None:
    buffer = module.RecordBuffer(10_000, 400)
    record = (None, b"x" * 100, NO_HEADERS, 5, object)
    assert buffer.add("t", 0, *record) is None
    begin(module, buffer, "t", 1)
    assert buffer.add("t", 0, *record) is None
    assert buffer.add("u", 1, *record) is None
    assert [buffer.add("t", 1, *record) is None for _ in range(4)] == [False, False, True, True]
    (batch,) = buffer.queues["t"][1]
    assert (batch.records.count, len(batch.waiters), buffer.held_bytes) == (2, 2, batch.held)
    buffer.queues["t"][1].clear()
    assert buffer.add("t", 1, *record) is None


@each_twin
def test_a_record_larger_than_all_bounds_is_sent_alone(module: ModuleType) -> None:
    buffer = module.RecordBuffer(500, 400)
    large = (None, b"x" * 5000, NO_HEADERS, 5, object)
    begin(module, buffer, "t", 0)
    assert buffer.add("t", 0, *large) is not None
    assert buffer.filled
    begin(module, buffer, "t", 0)
    assert buffer.add("t", 0, *large) is None
    assert not buffer.has_room(1)


@each_twin
def test_a_record_that_fails_leaves_nothing(module: ModuleType) -> None:
    def broken() -> None:
        raise RuntimeError("no waiter")

    buffer = module.RecordBuffer(10_000, 400)
    begin(module, buffer, "t", 0)
    with pytest.raises(RuntimeError, match="no waiter"):
        buffer.add("t", 0, None, b"x", NO_HEADERS, 5, broken)
    wrong: Any = "text"
    with pytest.raises(TypeError):
        buffer.add("t", 0, None, wrong, NO_HEADERS, 5, object)
    (batch,) = buffer.queues["t"][0]
    assert (batch.records.count, batch.waiters, batch.held, buffer.held_bytes) == (0, [], 0, 0)
