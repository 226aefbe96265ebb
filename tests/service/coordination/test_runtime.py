"""The coordinators' runtime over partitions of a real node: batches, answers, failures, loading, and the loss of leadership.

`flush.messages` of 1 holds every commit back until the flush is done, which the tests decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import chain
from pathlib import Path

import pytest
import uvloop

from grpc_api.contract.coordinator_errors import CoordinatorLoading, NotCoordinator, UnknownMemberId
from grpc_api.contract.groups import (
    Heartbeat,
    JoinGroup,
    ListGroups,
    MemberProtocol,
    SyncGroup,
)
from grpc_api.contract.log import Appended
from grpc_api.contract.transactions import Markers, ProducerIdAndEpoch
from service.broker.coordinators.coordinator_log import PartitionLog
from service.broker.coordinators.leadership import Coordinators
from service.coordination import runtime
from service.coordination.coordinator_runtime import partition_of
from service.coordination.groups.group_offsets import OffsetSettings
from service.coordination.groups.rebalancing import GroupSettings
from service.coordination.groups.shard import GroupShard
from service.coordination.outcome import CoordinatorRecord, Outcome
from service.coordination.ports import PLAIN
from service.coordination.record_batches import in_batches
from service.coordination.runtime import ShardHost
from service.coordination.shard_state import ShardState
from service.coordination.turn_writes import MOST_AT_ONCE, TurnWrites
from storage_tiers.backoff import Backoff, BackoffSettings
from storage_tiers.clock import SystemClock, SystemRng
from storage_tiers.errors import LeaderNotAvailable, LogError, StorageError
from storage_tiers.records.batch import headers
from storage_tiers.turns import SLICE_S, TurnScheduler
from storage_tiers.types import TopicPartition
from tests.service.broker.support import until
from tests.service.coordination.held import CALLER, Held, coordinated, join_request, release, turn
from tests.support.clock import ManualClock, SeededRng


# --- writing ----------------------------------------------------------------------------------------------------------
async def test_the_records_of_one_turn_are_one_batch(coordinator: Held) -> None:
    answers = [coordinator.commit(number, f"g{number}") for number in range(50)]
    await asyncio.gather(*answers)
    held = [batch async for batch in PartitionLog(coordinator.partition).read()]
    assert coordinator.partition.log.end_offset == 50
    assert [header.count for piece in held for _, header in headers(memoryview(piece))] == [50]


async def test_an_answer_waits_until_its_record_is_committed_and_so_do_later_answers(held: Held) -> None:
    commit = held.commit(5)
    await turn()
    unknown = held.host.ask(Heartbeat("g", 1, "nobody", None), CALLER)
    await turn()
    assert (commit.done(), unknown.done(), held.fetched()) == (False, False, [])
    release(held)
    assert (await commit).topics[0].partitions[0].error is None
    assert isinstance((await unknown).error, UnknownMemberId)
    assert held.fetched() == [5]


async def test_a_shard_is_settled_once_all_that_was_decided_is_committed(held: Held) -> None:
    assert held.host.settled().done()
    held.commit(5)
    settled = held.host.settled()
    await asyncio.sleep(0)
    assert not settled.done()
    release(held)
    await settled
    commit, settled = held.commit(6), held.host.settled()
    held.partition.fail(StorageError("the disk refuses"))
    for answer in (commit, settled):
        with pytest.raises(NotCoordinator, match="the disk refuses"):
            await answer


async def test_a_marker_is_written_behind_what_was_decided_before_it(coordinator: Held) -> None:
    """The commit of the marker would otherwise answer requests whose records are not in the log yet."""
    decided, partition = coordinator.commit(5), coordinator.partition
    markers = Markers("x", ProducerIdAndEpoch(7, 0), True, [partition.partition], 0)
    coordinator.host.end_transaction(lambda: partition.append_marker(markers, 0), 7, commit=True)
    await decided
    pieces = [piece async for piece in PartitionLog(partition).read()]
    assert [header.control for piece in pieces for _, header in headers(memoryview(piece))] == [False, True]


async def test_answers_leave_at_once_while_nothing_is_written(held: Held) -> None:
    assert held.host.ask(Heartbeat("g", 1, "nobody", None), CALLER).done()


async def test_batches_of_several_turns_are_answered_in_order(held: Held) -> None:
    first = held.commit(1)
    await turn()
    after_first = held.partition.log.end_offset
    second = held.commit(2)
    await turn()
    held.partition.flushed(after_first)
    await first
    assert (second.done(), held.fetched()) == (False, [1])
    release(held)
    await second
    assert held.fetched() == [2]


async def test_the_first_commit_of_a_callers_turn_is_written_and_answered_at_once(coordinator: Held) -> None:
    coordinator.writes.begin()
    commit = coordinator.commit(2)
    assert commit.result().topics[0].partitions[0].error is None
    assert (coordinator.partition.log.end_offset, coordinator.fetched()) == (1, [2])
    coordinator.writes.end()


async def test_the_records_of_turns_that_bring_many_are_gathered(coordinator: Held) -> None:
    """The runtime gathers records after the first MOST_AT_ONCE requests of a turn, until a turn brings no more than
    that."""
    at_once, few, many = [], [True] * MOST_AT_ONCE, MOST_AT_ONCE + 1
    for requests in (MOST_AT_ONCE, many, many, MOST_AT_ONCE, MOST_AT_ONCE):
        coordinator.writes.begin()
        commits = [coordinator.commit(number, f"g{number}") for number in range(requests)]
        at_once.append([each.done() for each in commits])
        coordinator.writes.end()
        assert [each.done() for each in commits] == [True] * requests
    assert at_once == [few, [*few, False], [False] * many, [False] * MOST_AT_ONCE, few]
    held = [batch async for batch in PartitionLog(coordinator.partition).read()]
    counts = [header.count for piece in held for _, header in headers(memoryview(piece))]
    assert counts == [*[1] * (MOST_AT_ONCE + many), many, MOST_AT_ONCE, *[1] * MOST_AT_ONCE]


async def test_an_answer_of_a_callers_turn_waits_until_its_record_is_committed(held: Held) -> None:
    held.writes.begin()
    commit = held.commit(5)
    held.writes.end()
    assert (held.partition.log.end_offset, commit.done(), held.fetched()) == (1, False, [])
    release(held)
    await commit
    assert held.fetched() == [5]


def test_records_beyond_a_batch_make_another() -> None:
    records = [CoordinatorRecord(b"k" * 10, b"v" * size) for size in (100, 100, 900, 5_000, 10)]
    assert [[len(each.value or b"") for each in some] for some in in_batches(records, 1_000)] == [
        [100, 100],
        [900],
        [5_000],
        [10],
    ]


# --- failures ---------------------------------------------------------------------------------------------------------
async def test_a_write_that_fails_at_once_ends_its_request_and_those_that_wait(
    coordinator: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator.writes.begin()
    join = coordinator.host.ask(join_request(needs_member_id=False), CALLER)
    monkeypatch.setattr(PartitionLog, "append", _refuse)
    commit = coordinator.commit(6, "other")
    coordinator.writes.end()
    for answer in (commit, join):
        assert isinstance(answer.exception(), NotCoordinator)
    monkeypatch.undo()
    await coordinator.loaded()
    assert coordinator.fetched("other") == []


async def test_a_failed_write_drops_the_shard_and_loads_the_log(
    coordinator: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    await coordinator.commit(5)
    join = coordinator.host.ask(join_request(needs_member_id=False), CALLER)
    monkeypatch.setattr(PartitionLog, "append", _refuse)
    commit = coordinator.commit(6, "other")
    for answer in (commit, join):
        with pytest.raises(NotCoordinator, match="the disk refuses"):
            await answer
    with pytest.raises(CoordinatorLoading):
        coordinator.commit(7)
    monkeypatch.undo()
    await coordinator.loaded()
    assert coordinator.fetched() == [5]
    assert coordinator.fetched("other") == []
    await coordinator.commit(8)
    assert coordinator.fetched() == [8]


async def test_a_flush_that_fails_drops_the_shard(held: Held) -> None:
    commit = held.commit(5)
    await turn()
    held.partition.fail(StorageError("the disk refuses"))
    with pytest.raises(NotCoordinator, match="the disk refuses"):
        await commit
    await held.loaded()
    with pytest.raises(NotCoordinator):
        await held.commit(6)


async def test_a_partition_that_cannot_be_read_says_so_and_is_tried_again(tmp_path: Path) -> None:
    log = Unreadable()
    host = ShardHost(
        TopicPartition("offsets", 0),
        log,
        lambda: GroupShard(SeededRng(1), GroupSettings(), OffsetSettings()),
        clock=SystemClock(),
        scheduler=TurnScheduler(),
        backoff=lambda: Backoff(BackoffSettings(0.01, 0.02), SystemRng()),
        writes=TurnWrites(),
    )
    await until(lambda: host.state is ShardState.UNREADABLE)
    with pytest.raises(NotCoordinator, match="damaged"):
        host.look(lambda shard: shard.group_ids())
    log.is_damaged = False
    await until(lambda: host.state is ShardState.ACTIVE)
    assert host.look(lambda shard: shard.group_ids()) == []
    await host.close(NotCoordinator("the test is over"))


# --- loading and losing -----------------------------------------------------------------------------------------------
async def test_groups_and_offsets_are_loaded_from_the_partition(coordinator: Held) -> None:
    await asyncio.gather(*(coordinator.commit(number, f"g{number}") for number in range(300)))
    joined = await coordinator.host.ask(join_request(needs_member_id=False), CALLER)
    synced = await coordinator.host.ask(
        SyncGroup("g", joined.generation, joined.member_id, None, [(joined.member_id, b"all")]), CALLER
    )
    assert synced.assignment == b"all"
    await coordinator.reload()
    assert coordinator.fetched("g299") == [299]
    listed = coordinator.host.look(lambda shard: list(chain(*shard.list(ListGroups(frozenset({"stable"}))))))
    assert [each.group for each in listed] == ["g"]
    assert (await coordinator.host.ask(Heartbeat("g", 1, joined.member_id, None), CALLER)).error is None


async def test_requests_that_wait_end_when_the_node_loses_the_partition(held: Held) -> None:
    commit = held.commit(5)
    host = held.host
    await turn()
    held.runtime.lost(0)
    with pytest.raises(NotCoordinator):
        held.runtime.host(0)
    with pytest.raises(NotCoordinator, match="find the coordinator again"):
        await commit
    with pytest.raises(NotCoordinator):
        host.look(lambda shard: shard.group_ids())
    await held.reload()
    assert held.fetched() == []
    release(held)
    await held.host.settled()
    assert held.fetched() == [5]  # the commit was written, though its client got no answer


async def test_a_load_ends_when_the_node_loses_the_partition(coordinator: Held) -> None:
    coordinator.runtime.gained(0, PartitionLog(coordinator.partition))
    host = coordinator.host
    with pytest.raises(CoordinatorLoading):
        coordinator.commit(5)
    coordinator.runtime.lost(0)
    await coordinator.runtime.close()
    assert host.state is ShardState.CLOSED


async def test_a_coordinator_reloads_a_log_replaced_by_the_buckets(coordinator: Held) -> None:
    await coordinator.commit(5)
    partition, before = coordinator.partition, coordinator.host
    coordinators = Coordinators({"offsets": coordinator.runtime})
    coordinators.gained(partition, 0)
    await coordinator.loaded()
    loaded = coordinator.host
    coordinators.gained(partition, 1)  # the log continues under a later epoch
    assert (loaded is before, coordinator.host is loaded, coordinator.fetched()) == (False, True, [5])
    partition.recover(LeaderNotAvailable("may lack records"))
    partition.log.hot.truncate_fully_and_start_at(9)
    partition.begin_at(9)
    partition.reconciled()
    await coordinator.loaded()
    assert coordinator.fetched() == []
    coordinators.lost(partition, 1)
    with pytest.raises(NotCoordinator):
        coordinator.runtime.host(0)


# --- time -------------------------------------------------------------------------------------------------------------
async def test_a_session_ends_by_the_clock_and_empties_the_group(coordinator: Held) -> None:
    joined = await coordinator.host.ask(join_request(needs_member_id=False, session=200), CALLER)
    await coordinator.host.ask(SyncGroup("g", 1, joined.member_id, None, []), CALLER)

    def is_empty() -> bool:
        return coordinator.host.look(lambda shard: any(shard.list(ListGroups(frozenset({"empty"})))))

    assert not is_empty()
    await until(is_empty)


async def test_timers_of_shards_that_are_due_together_share_a_slice_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, now = ManualClock(), 0.0
    scheduler = TurnScheduler(lambda: now)
    turns, ticks, turn_number = list[int](), GroupShard.tick, 0

    def tick(shard: GroupShard, now_ms: int) -> Outcome:
        nonlocal now
        turns.append(turn_number)
        now += SLICE_S
        return ticks(shard, now_ms)

    monkeypatch.setattr(GroupShard, "tick", tick)
    settings = GroupSettings(min_session_timeout_ms=1, initial_rebalance_delay_ms=0)
    hosts = []
    for number in range(5):
        log = Unreadable()
        log.is_damaged = False
        hosts.append(
            ShardHost(
                TopicPartition("offsets", number),
                log,
                lambda: GroupShard(SeededRng(1), settings, OffsetSettings()),
                clock=clock,
                scheduler=scheduler,
                backoff=lambda: Backoff(BackoffSettings(0.01, 0.02), SystemRng()),
                writes=TurnWrites(),
            )
        )
    await until(lambda: all(host.state is ShardState.ACTIVE for host in hosts))
    turns.clear()
    for host in hosts:
        host.ask(join_request(needs_member_id=True), CALLER)
    for host in hosts:
        host._fired(clock.steady_ms())
    while len(turns) < len(hosts):
        await asyncio.sleep(0)
        turn_number += 1
    assert len(set(turns)) == len(hosts)
    for host in hosts:
        await host.close(NotCoordinator("the test is over"))


async def alone(clock: ManualClock) -> ShardHost[GroupShard]:
    log = Unreadable()
    log.is_damaged = False
    settings = GroupSettings(min_session_timeout_ms=1, initial_rebalance_delay_ms=0)
    host = ShardHost(
        TopicPartition("offsets", 0),
        log,
        lambda: GroupShard(SeededRng(1), settings, OffsetSettings()),
        clock=clock,
        scheduler=TurnScheduler(),
        backoff=lambda: Backoff(BackoffSettings(0.01, 0.02), SystemRng()),
        writes=TurnWrites(),
    )
    await until(lambda: host.state is ShardState.ACTIVE)
    return host


async def test_after_a_pause_requests_in_the_sockets_are_served_before_sessions_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The test fires the timers itself, and the grace after a pause outlasts the test: a stall of the machine would
    fire all timers at once."""
    grace_ms = 600_000
    monkeypatch.setattr(runtime, "AFTER_PAUSE_MS", grace_ms)
    clock = ManualClock()
    host = await alone(clock)
    joined = await host.ask(join_request(needs_member_id=False, session=2 * grace_ms), CALLER)
    await host.ask(SyncGroup("g", 1, joined.member_id, None, []), CALLER)
    beat, planned_ms = Heartbeat("g", 1, joined.member_id, None), host._planned_ms
    clock.advance(3 * grace_ms / 1000)
    host._fired(planned_ms)
    await until(lambda: host._resumes_s > 0)
    assert host.ask(beat, CALLER).result().error is None
    clock.advance(grace_ms / 1000)
    fired = host._timer
    host._fired(clock.steady_ms())
    await until(lambda: host._timer is not fired)
    assert host.ask(beat, CALLER).result().error is None
    await host.close(NotCoordinator("the test is over"))


async def test_the_session_of_a_silent_member_ends_beside_requests_of_others() -> None:
    clock = ManualClock()
    host = await alone(clock)
    joined = await host.ask(join_request(needs_member_id=False, session=300), CALLER)
    await host.ask(SyncGroup("g", 1, joined.member_id, None, []), CALLER)
    clock.advance(20)

    def is_empty() -> bool:
        host.ask(Heartbeat("other", 1, "nobody", None), CALLER)
        return host.look(lambda shard: any(shard.list(ListGroups(frozenset({"empty"})))))

    await until(is_empty)
    await host.close(NotCoordinator("the test is over"))


# --- names ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("", 0),
        ("test-group", 12),
        ("a", 47),
        ("Ünïcödé", 31),
        ("polygenelubricants", 0),
        ("orders", 31),
        ("my-group", 12),
        ("consumer-7", 0),
    ],
)
def test_a_group_is_kept_where_kafka_keeps_it(name: str, code: int) -> None:
    """Kafka 4.2.1 uses `Utils.abs(name.hashCode()) % 50`; the hash codes of the last four are negative."""
    assert partition_of(name, 50) == code


@pytest.mark.parametrize("length", [1, 2, 255, 256, 257, 511, 512, 5_000])
def test_a_name_of_any_length_has_javas_hash_code(length: int) -> None:
    name = "".join(chr(97 + number * number % 4_000) for number in range(length - 1)) + "\N{MUSICAL SYMBOL G CLEF}"
    code = 0
    raw = name.encode("utf-16-be")
    for at in range(0, len(raw), 2):
        code = (31 * code + int.from_bytes(raw[at : at + 2], "big")) % (1 << 32)
    assert partition_of(name, 1_000_003) == min(code, (1 << 32) - code) % 1_000_003


class Unreadable:
    """A log that is damaged until it is repaired, and keeps nothing."""

    max_batch_bytes = 1 << 20
    writing = PLAIN
    no_room: LogError | None = None
    #: All records of the log are committed.
    high_watermark = 1 << 62

    def __init__(self) -> None:
        self.is_damaged = True
        self.end = 0

    def append(self, batch: bytes) -> Appended:
        assert not self.is_damaged
        self.end += 1
        return Appended(self.end, 0, -1, 0)

    def check_transaction(self, producer_id: int, epoch: int) -> None:
        """Every producer may write."""

    def until_committed(self, end: int) -> None:
        """Returns at once, because every record is committed when it is appended."""

    async def read(self, before_wait: Callable[[], None]) -> AsyncIterator[bytes]:
        if self.is_damaged:
            raise StorageError("the log is damaged")
        pieces: tuple[bytes, ...] = ()
        for piece in pieces:
            yield piece


def _refuse(*_: object, **__: object) -> Iterator[LogError]:
    raise StorageError("the disk refuses")


def test_members_that_join_in_one_turn_of_uvloop_are_all_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a delay of 0 the rebalance is due at once, and uvloop's handle of such a call does not hold its time."""

    async def join() -> None:
        async with coordinated(tmp_path / "data", monkeypatch) as held:
            protocols = [MemberProtocol("range", b"")]
            one, other = (
                held.host.ask(JoinGroup("g", "", name, "consumer", protocols, 30_000, 30_000, False), CALLER)
                for name in ("a", "b")
            )
            assert {(await one).generation, (await other).generation} == {1}

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(join())
