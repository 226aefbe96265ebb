"""The coordinators' runtime over a log in memory: its writes, its loads, and how failures end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import chain
from typing import Any

import pytest

from grpc_api.contract.caller import Caller
from grpc_api.contract.coordinator_errors import (
    CoordinatorNotAvailable,
    CoordinatorRecordTooLarge,
    NotCoordinator,
    UnknownMemberId,
)
from grpc_api.contract.groups import (
    DescribeGroup,
    Heartbeat,
    JoinGroup,
    ListGroups,
    MemberProtocol,
    OffsetCommit,
    OffsetFetch,
    PartitionCommit,
    TopicCommit,
    TxnOffsetCommit,
)
from grpc_api.contract.log import Appended
from grpc_api.contract.transactions import ProducerIdAndEpoch, ProducerTransaction
from service.coordination import runtime, uncommitted_batches
from service.coordination.coordinator_runtime import CoordinatorRuntime
from service.coordination.groups.group_offsets import OffsetSettings
from service.coordination.groups.rebalancing import GroupSettings
from service.coordination.groups.shard import GroupShard
from service.coordination.outcome import CoordinatorRecord, Outcome
from service.coordination.ports import PLAIN, WriteSettings
from service.coordination.record_batches import in_batches
from service.coordination.runtime import ShardHost
from service.coordination.shard_state import ShardState
from service.coordination.turn_writes import TurnWrites
from storage_tiers.backoff import Backoff, BackoffSettings
from storage_tiers.clock import SystemClock, SystemRng
from storage_tiers.errors import (
    InvalidProducerEpoch,
    LogError,
    NotEnoughReplicas,
    RecordTooLarge,
    RequestTimedOut,
    StorageError,
    UnknownTopicOrPartition,
)
from storage_tiers.records.batch import headers, read_header
from storage_tiers.records.builder import ControlKind, NewRecord, build_batch, build_control_batch
from storage_tiers.records.codecs import Codec
from storage_tiers.turns import TurnScheduler
from storage_tiers.types import TopicPartition
from tests.service.broker.support import until
from tests.service.coordination.groups.shard_driver import expired
from tests.service.coordination.whole_values import finish
from tests.support.clock import SeededRng

CALLER = Caller("User:ANONYMOUS", "app", "/127.0.0.1")
PRODUCER = ProducerIdAndEpoch(7, 3)


class MemoryLog:
    """`pending` holds the answers to the next appends: a future, or None if the batch is committed at once. A read
    fails after `fails_after` batches. Records above the high watermark are committed when `flushed` is done."""

    max_batch_bytes = 1 << 20
    writing = PLAIN
    no_room: LogError | None = None
    #: All records of the log are committed.
    high_watermark = 1 << 62

    def __init__(self, *batches: bytes) -> None:
        self.batches: list[bytes] = []
        self.end = 0
        for batch in batches:
            self._add(batch)
        self.flushed: asyncio.Future[None] | None = None
        self.pending: list[asyncio.Future[None] | None] = []
        self.refusal: LogError | None = None
        self.fails_after: int | None = None
        self.refused_producer = -1

    def append(self, batch: bytes) -> Appended:
        if self.refusal is not None:
            raise self.refusal
        self._add(batch)
        return Appended(len(self.batches), 0, -1, 0, self.pending.pop(0) if self.pending else None)

    def _add(self, batch: bytes) -> None:
        self.batches.append(self.end.to_bytes(8, "big") + batch[8:])
        self.end += read_header(batch).count

    def check_transaction(self, producer_id: int, epoch: int) -> None:
        if self.refused_producer == producer_id:
            raise InvalidProducerEpoch("a newer instance writes")

    def until_committed(self, end: int) -> asyncio.Future[None] | None:
        assert end == self.end
        return self.flushed

    async def read(self, before_wait: Callable[[], None]) -> AsyncIterator[bytes]:
        for number, batch in enumerate(tuple(self.batches)):
            if number == self.fails_after:
                raise StorageError("the log is damaged")
            yield batch

    @property
    def producers(self) -> list[tuple[int, int, bool, int]]:
        """The producer id, producer epoch, transactional flag and record count of each batch."""
        found = [header for batch in self.batches for _, header in headers(memoryview(batch))]
        return [(each.producer_id, each.producer_epoch, each.transactional, each.count) for each in found]


class RestlessScheduler(TurnScheduler):
    """A scheduler whose turns are over at once; it counts the rests."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(self._seconds)
        self.rests = 0

    def _seconds(self) -> float:
        self.now += 1
        return self.now

    async def rest(self) -> None:
        self.rests += 1
        await super().rest()


def shard(settings: GroupSettings | None = None) -> GroupShard:
    return GroupShard(SeededRng(1), settings or GroupSettings(), OffsetSettings())


def retries() -> Backoff:
    return Backoff(BackoffSettings(0.01, 0.02), SystemRng())


def hosted(
    log: MemoryLog, scheduler: TurnScheduler | None = None, new: Callable[[], GroupShard] = shard
) -> ShardHost[GroupShard]:
    at = TopicPartition("offsets", 0)
    return ShardHost(
        at, log, new, clock=SystemClock(), scheduler=scheduler or TurnScheduler(), backoff=retries, writes=TurnWrites()
    )


async def active(
    log: MemoryLog, scheduler: TurnScheduler | None = None, new: Callable[[], GroupShard] = shard
) -> ShardHost[GroupShard]:
    host = hosted(log, scheduler, new)
    await until(lambda: host.state is ShardState.ACTIVE)
    return host


async def end(host: ShardHost[GroupShard]) -> None:
    await host.close(NotCoordinator("the test is over"))


def commit(host: ShardHost[GroupShard], offset: int, group: str = "g") -> asyncio.Future[Any]:
    return host.ask(OffsetCommit(group, -1, "", None, [TopicCommit("t", [PartitionCommit(0, offset)])]), CALLER)


def commit_in_transaction(host: ShardHost[GroupShard], offset: int, group: str = "g") -> asyncio.Future[Any]:
    topics = [TopicCommit("t", [PartitionCommit(0, offset)])]
    return host.ask(
        TxnOffsetCommit(group, ProducerTransaction("tx"), *PRODUCER, -1, "", None, topics), CALLER, PRODUCER
    )


def fetched(host: ShardHost[GroupShard], *, stable: bool = False) -> list[tuple[int, bool]]:
    """The offsets of group g, and whether each has an error."""
    found = finish(host.look(lambda known: known.fetch_offsets(OffsetFetch("g", None, require_stable=stable))))
    return [(each.offset, each.error is not None) for topic in found.topics for each in topic.partitions]


async def recorded(*, in_transaction: bool, offset: int = 5) -> bytes:
    """The batch that one commit writes."""
    log = MemoryLog()
    host = await active(log)
    await (commit_in_transaction if in_transaction else commit)(host, offset)
    await end(host)
    return log.batches[0]


def marker(kind: ControlKind) -> bytes:
    return build_control_batch(kind, producer_id=7, producer_epoch=3, coordinator_epoch=0, timestamp=1)


# --- writing ----------------------------------------------------------------------------------------------------------
async def test_a_batch_has_the_records_of_one_producer() -> None:
    log = MemoryLog()
    host = await active(log)
    await asyncio.gather(
        commit(host, 1, "a"), commit(host, 2, "b"), commit_in_transaction(host, 3), commit(host, 4, "c")
    )
    assert log.producers == [(-1, -1, False, 2), (7, 3, True, 1), (-1, -1, False, 1)]
    await end(host)


@pytest.mark.parametrize("codec", list(Codec))
async def test_batches_have_the_codec_and_are_loaded_again(codec: Codec) -> None:
    log = MemoryLog()
    log.writing = WriteSettings(codec)
    host = await active(log)
    await asyncio.gather(*(commit(host, number, f"group-{number}") for number in range(100)))
    await commit(host, 5)
    await commit_in_transaction(host, 6)
    await end(host)
    codecs = [header.attributes & 7 for batch in log.batches for _, header in headers(memoryview(batch))]
    # A batch of one small record does not become smaller.
    assert codecs[0] == codec and set(codecs[1:]) <= {Codec.NONE, codec}
    again = await active(log)
    assert len(again.look(lambda known: list(chain(*known.list(ListGroups()))))) == 101
    assert fetched(again) == [(5, False)]
    await end(again)


async def test_answers_wait_for_their_records_no_longer_than_the_timeout() -> None:
    log = MemoryLog()
    log.writing = WriteSettings(timeout_ms=20)
    host = await active(log)
    never, late = (asyncio.get_running_loop().create_future() for _ in range(2))
    log.pending = [late, never, None]
    first = commit(host, 1)
    await until(lambda: len(log.batches) == 1)
    second = commit(host, 2, "h")
    for waiting in (first, second):
        with pytest.raises(CoordinatorNotAvailable, match="not committed after 20 ms; retry"):
            await waiting
    # The shard continues: later commits count.
    assert (host.state, fetched(host)) == (ShardState.ACTIVE, [])
    late.set_result(None)
    await until(lambda: fetched(host) == [(1, False)])
    never.set_result(None)
    await commit(host, 3)
    await end(host)


async def test_without_a_timeout_answers_wait_until_their_records_are_committed() -> None:
    log = MemoryLog()
    host = await active(log)
    late = asyncio.get_running_loop().create_future()
    log.pending = [late]
    first = commit(host, 1)
    await until(lambda: len(log.batches) == 1)
    await asyncio.sleep(0)
    assert not first.done() and fetched(host) == []
    late.set_result(None)
    await first
    assert fetched(host) == [(1, False)]
    await end(host)


async def test_commits_of_one_moment_are_reported_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a stall of the disk or a load, a hundred thousand records may be committed at one moment."""
    monkeypatch.setattr(uncommitted_batches, "COMMITTED_AT_ONCE", 2)
    log = MemoryLog()
    host = await active(log, RestlessScheduler())
    late = asyncio.get_running_loop().create_future()
    log.pending = [late, late]
    partitions = [PartitionCommit(each, each) for each in range(5)]
    first = host.ask(OffsetCommit("g", -1, "", None, [TopicCommit("t", partitions)]), CALLER)
    await until(lambda: len(log.batches) == 1)
    second = commit(host, 9, "h")
    await until(lambda: len(log.batches) == 2)
    late.set_result(None)
    assert await seen_over(lambda: (len(fetched(host)), first.done(), second.done())) == [
        (0, False, False),
        (2, False, False),
        (4, False, False),
        (5, True, False),
        (5, True, True),
    ]
    await end(host)
    log.flushed, log.high_watermark = asyncio.get_running_loop().create_future(), 0
    again = await active(log, RestlessScheduler())
    log.flushed.set_result(None)
    assert await seen_over(lambda: len(fetched(again))) == [0, 2, 4, 5]
    await end(again)
    log.flushed = None  # the whole log was committed while it was read
    reported: list[int] = []
    monkeypatch.setattr(GroupShard, "committed", lambda _, written: reported.append(written))
    third = await active(log, RestlessScheduler())
    await until(lambda: reported[-1] == 6)
    assert reported == [0, 2, 4, 6]
    await end(third)


async def seen_over(look: Callable[[], object]) -> list[object]:
    """The values of `look` over the next turns of the loop, without repetitions."""
    seen = [look()]
    for _ in range(12):
        await asyncio.sleep(0)
        if look() != seen[-1]:
            seen.append(look())
    return seen


async def test_a_batch_that_is_committed_at_once_waits_for_those_before_it() -> None:
    log = MemoryLog()
    host = await active(log)
    held = asyncio.get_running_loop().create_future()
    log.pending = [held, None]
    first = commit(host, 1)
    await until(lambda: len(log.batches) == 1)
    second = commit(host, 2)
    await until(lambda: len(log.batches) == 2)
    assert (first.done(), second.done(), fetched(host)) == (False, False, [])
    held.set_result(None)
    await asyncio.gather(first, second)
    assert fetched(host) == [(2, False)]
    await end(host)


@pytest.mark.parametrize("most", [1_000, 1_001, 1_014, 1_015, 1_060, 1_061])
def test_no_batch_of_several_records_is_larger_than_the_bound(most: int) -> None:
    records = [CoordinatorRecord(b"k" * 10, b"v" * size) for size in (458, 458, 1, 0, 300, 300, 250, 458, 458)]
    rows = [[NewRecord(each.key, each.value, (), 1) for each in some] for some in in_batches(records, most)]
    assert [row for some in rows for row in some] == [NewRecord(each.key, each.value, (), 1) for each in records]
    assert [len(build_batch(some)) for some in rows if len(some) > 1 and len(build_batch(some)) > most] == []


@pytest.mark.parametrize(
    ("refusal", "answer"),
    [
        (NotEnoughReplicas("too few replicas"), CoordinatorNotAvailable),
        (RequestTimedOut("too late"), CoordinatorNotAvailable),
        (UnknownTopicOrPartition("the topic is deleted"), CoordinatorNotAvailable),
        (RecordTooLarge("too large"), CoordinatorRecordTooLarge),
        (StorageError("the disk refuses"), NotCoordinator),
    ],
)
async def test_a_record_that_is_not_written_is_answered_as_kafka_answers_it(
    refusal: LogError, answer: type[LogError]
) -> None:
    log = MemoryLog()
    host = await active(log)
    log.refusal = refusal
    with pytest.raises(answer, match=str(refusal)):
        await commit(host, 1)
    log.refusal = None
    await end(host)


async def test_without_room_nothing_is_decided_and_the_shard_stays() -> None:
    log = MemoryLog()
    host = await active(log)
    await commit(host, 1)
    log.no_room = CoordinatorNotAvailable("the disk is full")
    for decide in (
        lambda: commit(host, 2),
        lambda: commit_in_transaction(host, 2),
        lambda: host.change(lambda known, now_ms: expired(known, "g", now_ms)),
    ):
        with pytest.raises(CoordinatorNotAvailable, match="the disk is full"):
            decide()
    beats = await host.ask(Heartbeat("other", 1, "m", None), CALLER)
    assert isinstance(beats.error, UnknownMemberId), "a heartbeat needs no record"
    log.no_room = None
    assert host.state is ShardState.ACTIVE
    assert host.look(lambda known: (known.group_ids(), known.written)) == (["g"], 1)
    await commit(host, 3)
    assert (fetched(host), len(log.batches)) == ([(3, False)], 2)
    await end(host)


async def test_no_session_ends_while_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shard would write the group as empty, and the write would fail."""
    monkeypatch.setattr(runtime, "AFTER_PAUSE_MS", 1)
    log = MemoryLog()
    host = await active(log, new=lambda: shard(GroupSettings(min_session_timeout_ms=1, initial_rebalance_delay_ms=0)))
    protocols = [MemberProtocol("range", b"")]
    joined = await host.ask(JoinGroup("g", "", None, "consumer", protocols, 20, 20, False), CALLER)
    log.no_room = CoordinatorNotAvailable("the disk is full")
    ticks = 0

    def tick(known: GroupShard, now_ms: int) -> Outcome:
        nonlocal ticks
        ticks += 1
        assert log.no_room is None
        return whole(known, now_ms)

    whole = GroupShard.tick
    monkeypatch.setattr(GroupShard, "tick", tick)
    clock = SystemClock()
    due_ms = host.look(lambda known: known.next_deadline_ms())
    assert due_ms is not None
    await until(lambda: clock.steady_ms() > due_ms + 20)
    assert [each.member_id for each in host.look(lambda known: known.describe(DescribeGroup("g"))).members] == [
        joined.member_id
    ]
    log.no_room = None
    await until(lambda: ticks > 0)
    await until(lambda: not host.look(lambda known: known.describe(DescribeGroup("g"))).members)
    await end(host)


async def test_a_shard_whose_write_failed_forgets_unwritten_records() -> None:
    log = MemoryLog()
    host = await active(log)
    await commit(host, 1)
    log.refusal = StorageError("the disk refuses")
    with pytest.raises(NotCoordinator):
        await commit(host, 2, "other")
    log.refusal = None
    await until(lambda: host.state is ShardState.ACTIVE)
    assert host.look(lambda known: (known.group_ids(), known.written)) == (["g"], 1)
    await end(host)


# --- loading ----------------------------------------------------------------------------------------------------------
async def test_a_load_that_failed_half_way_begins_with_an_empty_shard() -> None:
    log = MemoryLog(await recorded(in_transaction=False), await recorded(in_transaction=False, offset=6))
    log.fails_after = 1
    host = hosted(log)
    await until(lambda: host.state is ShardState.UNREADABLE)
    log.fails_after = None
    await until(lambda: host.state is ShardState.ACTIVE)
    assert (host.look(lambda known: known.written), fetched(host)) == (2, [(6, False)])
    await end(host)


async def test_an_offset_of_a_transaction_that_is_open_on_disk_is_pending_after_a_load() -> None:
    log = MemoryLog(await recorded(in_transaction=False, offset=4), await recorded(in_transaction=True))
    host = await active(log)
    assert (fetched(host), fetched(host, stable=True)) == ([(4, False)], [(-1, True)])
    await end(host)


@pytest.mark.parametrize(("kind", "offset"), [(ControlKind.COMMIT, 5), (ControlKind.ABORT, 4)])
async def test_a_marker_on_disk_decides_the_offsets_of_its_transaction(kind: ControlKind, offset: int) -> None:
    log = MemoryLog(await recorded(in_transaction=False, offset=4), await recorded(in_transaction=True), marker(kind))
    host = await active(log)
    assert fetched(host, stable=True) == [(offset, False)]
    await end(host)


async def test_a_marker_above_the_high_watermark_decides_nothing_yet() -> None:
    log = MemoryLog(
        await recorded(in_transaction=False, offset=4),
        await recorded(in_transaction=True),
        marker(ControlKind.COMMIT),
    )
    log.high_watermark, log.flushed = 2, asyncio.get_running_loop().create_future()
    host = await active(log)
    assert fetched(host) == [(4, False)]
    log.flushed.set_result(None)
    await host.settled()
    assert fetched(host) == [(5, False)]
    await end(host)


async def test_an_offset_is_unstable_until_its_marker_is_committed() -> None:
    host = await active(MemoryLog())
    await commit(host, 4)
    await commit_in_transaction(host, 5)
    held = asyncio.get_running_loop().create_future()
    host.end_transaction(lambda: Appended(9, 0, -1, 0, held), PRODUCER.id, commit=True)
    assert (fetched(host), fetched(host, stable=True)) == ([(4, False)], [(-1, True)])
    held.set_result(None)
    await until(lambda: fetched(host, stable=True) == [(5, False)])
    await end(host)


async def test_loading_rests_whenever_its_turn_is_over() -> None:
    scheduler = RestlessScheduler()
    host = await active(MemoryLog(*[await recorded(in_transaction=False)] * 3), scheduler)
    assert scheduler.rests == 5  # after each batch, and at the group that has these offsets
    await end(host)


# --- the loss of leadership -------------------------------------------------------------------------------------------
async def test_requests_end_when_their_partition_is_gained_again() -> None:
    log = MemoryLog()
    coordinators = CoordinatorRuntime(
        "offsets", shard, clock=SystemClock(), scheduler=TurnScheduler(), backoff=retries, writes=TurnWrites()
    )
    coordinators.gained(0, log)
    await until(lambda: coordinators.host(0).state is ShardState.ACTIVE)
    before = coordinators.host(0)
    log.pending = [asyncio.get_running_loop().create_future()]
    waiting = commit(before, 1)
    await until(lambda: len(log.batches) == 1)
    coordinators.gained(0, log)
    with pytest.raises(NotCoordinator):
        await waiting
    assert (before.state, coordinators.host(0) is before) == (ShardState.CLOSED, False)
    await coordinators.close()
