"""The memory that one group and all groups of a node may keep: bounds that hold for any sequence of requests."""

from __future__ import annotations

import asyncio
import gc
import sys
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from grpc_api.contract.coordinator_errors import (
    CoordinatorNotAvailable,
    GroupMaxSizeReached,
    GroupMetadataTooLarge,
    InconsistentGroupProtocol,
    OffsetMetadataTooLarge,
)
from grpc_api.contract.groups import (
    DeleteGroup,
    GroupDeleted,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    MemberProtocol,
    OffsetCommit,
    OffsetDelete,
    PartitionCommit,
    SyncGroup,
    TopicCommit,
    TopicPartitionIndexes,
    TxnOffsetCommit,
)
from grpc_api.contract.transactions import ProducerTransaction
from service.coordination.answer_queue import ANSWERS_A_COLLECTION, ANSWERS_A_TURN, YOUNG, AnswerQueue
from service.coordination.groups import rebalancing
from service.coordination.groups.classic_group import GroupState
from service.coordination.groups.classic_groups import MAX_PROTOCOLS
from service.coordination.groups.group_offsets import OffsetSettings
from service.coordination.groups.member_memory import (
    GROUP_BYTES,
    GROUPS_BYTES,
    MEMBERS_BYTES,
    GroupMemory,
    group_bytes,
)
from service.coordination.groups.rebalancing import GroupSettings, Rebalancing
from service.coordination.groups.recorded_group import group_value
from service.coordination.groups.shard import AT_ONCE_MS, TIMERS_A_TICK, GroupShard
from service.coordination.groups.unfinished import Steps
from service.coordination.kept_memory import KeptMemory
from service.coordination.outcome import CoordinatorRecord
from tests.service.coordination.groups.driver import CALLER, Driver
from tests.service.coordination.groups.shard_driver import expired
from tests.service.coordination.whole_values import finish
from tests.support.clock import SeededRng


def of_size(size: int) -> tuple[MemberProtocol, ...]:
    return (MemberProtocol("range", bytes(size)),)


def shard(memory: KeptMemory | None = None, groups: KeptMemory | None = None) -> GroupShard:
    """A shard; `memory` bounds the members, `groups` the groups themselves."""
    both = GroupMemory(memory or KeptMemory(MEMBERS_BYTES), groups or KeptMemory(GROUPS_BYTES))
    return GroupShard(SeededRng(1), GroupSettings(), OffsetSettings(), both)


def join(to: GroupShard, group: str, size: int = 0) -> list[Any]:
    request = JoinGroup(group, "", None, "consumer", of_size(size), 30_000, 60_000, needs_member_id=False)
    return [answer for _, answer in to.handle(request, CALLER, object(), 0).answers]


# --- one group --------------------------------------------------------------------------------------------------------
def test_a_member_of_fewer_protocols_joins() -> None:
    driver = Driver()
    protocols = [MemberProtocol(f"p{number}", b"") for number in range(MAX_PROTOCOLS + 1)]
    driver.join("many", protocols=protocols)
    assert driver.error("many") is InconsistentGroupProtocol
    driver.join("fewer", protocols=protocols[1:])
    driver.wait(6_000)
    assert driver.error("fewer") is None


@pytest.mark.parametrize("is_raised", [True, False])
def test_subscriptions_that_cannot_be_recorded_are_refused_until_the_bound_is_raised_or_a_member_leaves(
    is_raised: bool,
) -> None:
    driver = Driver(max_record_bytes=1_000)
    first, _ = driver.stable("a", "b", protocols=of_size(300))
    driver.join("c", protocols=of_size(400))
    assert driver.error("c") is GroupMaxSizeReached
    assert driver.group.state.value == "Stable"
    if is_raised:
        driver.groups.rebalancing.settings = GroupSettings(max_record_bytes=2_000)
    else:
        driver.leave(LeavingMember(first))
    driver.join("c again", protocols=of_size(400))
    assert "c again" not in driver.answers and driver.group.state.value == "PreparingRebalance"


def test_a_static_member_does_not_return_with_a_subscription_that_cannot_be_recorded() -> None:
    """The log would refuse the member's record, and so the shard would be dropped: any client could end the waits of
    all its groups."""
    driver = Driver(max_record_bytes=1_000)
    (member,) = driver.stable("a", instance=True)
    records = len(driver.records)
    driver.join("returned", instance="a", protocols=of_size(1_000))
    assert driver.error("returned") is GroupMetadataTooLarge
    assert (list(driver.group.members), len(driver.records)) == ([member], records)
    assert driver.heartbeat(member, 1, "a") is None
    driver.join("returned smaller", instance="a", protocols=of_size(100))
    assert driver.error("returned smaller") is None
    driver.join("returned larger", instance="a", protocols=of_size(800))
    assert driver.error("returned larger") is GroupMetadataTooLarge


def test_the_group_id_counts_in_the_size_of_its_record() -> None:
    driver = Driver(max_record_bytes=40_000)
    driver.join("a", group="g" * 30_000, protocols=of_size(9_900))
    group = driver.groups.groups["g" * 30_000]
    group.protocol = "range"
    value_bytes = len(group_value(group))
    assert value_bytes < 12_000
    assert driver.groups.rebalancing.too_large(group, value_bytes) is not None


def test_the_oldest_of_too_many_unused_ids_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebalancing, "PENDING_IDS", 3)
    driver = Driver()
    for number in range(5):
        driver.join(str(number), needs_id=True)
    ids = [driver.joined(str(number)).member_id for number in range(5)]
    assert list(driver.group.pending_joins) == ids[2:]
    driver.join("oldest", ids[0])
    driver.join("newest", ids[4])
    driver.wait(20_000)
    assert driver.error("oldest") is not None and driver.error("newest") is None


# --- all groups of a node ---------------------------------------------------------------------------------------------
def test_members_of_all_shards_share_one_memory_and_give_it_back() -> None:
    memory = KeptMemory(50_000)
    first, second = shard(memory), shard(memory)
    assert join(first, "a", 30_000) == []
    (refused,) = join(second, "b", 30_000)
    assert isinstance(refused.error, CoordinatorNotAvailable)
    used = memory.used_bytes
    assert 30_000 < used < 33_000
    member = next(iter(first._groups.groups["a"].members))
    first.handle(LeaveGroup("a", [LeavingMember(member)]), CALLER, object(), 0)
    assert memory.used_bytes == 0
    assert join(second, "b", 30_000) == []
    assert memory.used_bytes == used
    del second  # as after a failed write or the loss of the partition
    assert memory.used_bytes == 0


@pytest.mark.parametrize("letter", ["c", "ü", "\N{SNOWMAN}", "\N{MUSICAL SYMBOL G CLEF}"])
@pytest.mark.parametrize("needs_id", [True, False])
def test_long_names_of_members_and_of_unused_ids_are_counted(letter: str, needs_id: bool) -> None:
    caller = CALLER._replace(client_id=letter * 8_000)
    memory = KeptMemory(100 * sys.getsizeof(caller.client_id))
    one = shard(memory)
    request = JoinGroup("", "", None, "consumer", of_size(0), 30_000, 60_000, needs_member_id=needs_id)
    refused = 0
    answer: Any
    for number in range(200):
        outcome = one.handle(request._replace(group=f"g-{number}"), caller, object(), 0)
        for _, answer in outcome.answers:
            refused += isinstance(answer.error, CoordinatorNotAvailable)
    # A member keeps its client id and its member id, which begins with the client id.
    assert refused > (200 - 100 if needs_id else 200 - 25)
    assert memory.used_bytes > 90 * sys.getsizeof(caller.client_id)
    now = 0
    while (due := one.next_deadline_ms()) is not None and memory.used_bytes:
        now = max(now, due)
        one.tick(now)
    assert memory.used_bytes == 0


def test_assignments_count_and_are_refused_where_there_is_no_room() -> None:
    memory = KeptMemory(50_000)
    one = shard(memory)
    join(one, "a")
    while (due := one.next_deadline_ms()) is not None and one._groups.groups[
        "a"
    ].state is not GroupState.COMPLETING_REBALANCE:
        one.tick(due)
    (member,), used = one._groups.groups["a"].members, memory.used_bytes

    def assigned(size: int) -> Any:
        request = SyncGroup("a", 1, member, None, [(member, bytes(size))])
        ((_, answer),) = one.handle(
            request, CALLER, object(), due or 0
        ).answers  # a refused request is answered at once
        return answer.error  # type: ignore[attr-defined]

    assert isinstance(assigned(50_000), CoordinatorNotAvailable)
    assert memory.used_bytes == used
    assert assigned(30_000) is None
    assert memory.used_bytes == used + 30_000
    one.handle(LeaveGroup("a", [LeavingMember(member)]), CALLER, object(), due or 0)
    assert memory.used_bytes == 0


def test_a_static_member_that_returns_under_a_longer_id_is_counted() -> None:
    driver = Driver()
    (member,) = driver.stable("a", instance=True)
    group = driver.group
    group.replace_static(member, member + "x" * 1_000)
    assert group.kept_bytes == group.members[member + "x" * 1_000].kept_bytes
    group.remove(member + "x" * 1_000)
    assert group.kept_bytes == 0


def test_member_memory_is_released_when_sessions_end_and_is_counted_after_a_load() -> None:
    memory = KeptMemory(MEMBERS_BYTES)
    one = shard(memory)
    join(one, "a", 1_000)
    now = 0
    while (due := one.next_deadline_ms()) is not None and memory.used_bytes:
        now = max(now, due)
        one.tick(now)
    assert not memory.used_bytes and not one._groups.groups["a"].members
    driver = Driver()
    driver.stable("a", protocols=of_size(500))
    tombstone = CoordinatorRecord(driver.records[-1].key, None)
    for records, is_kept in ((driver.records, True), ([*driver.records, tombstone], False)):
        loaded = shard(memory)
        for record in records:
            loaded.load(record.key, record.value, now)
        finish(loaded.loaded(now))
        assert (memory.used_bytes > 500) is is_kept
        del loaded
    assert memory.used_bytes == 0


def commit(to: GroupShard, group: str, metadata: str = "") -> Any:
    request = OffsetCommit(group, -1, "", None, [TopicCommit("t", [PartitionCommit(0, 1, -1, metadata)])])
    answer: Any
    ((_, answer),) = to.handle(request, CALLER, object(), 0).answers
    return answer.topics[0].partitions[0].error


@pytest.mark.parametrize("needs_id", [True, False])
def test_groups_without_offsets_have_a_bound_and_are_counted_until_they_are_removed(needs_id: bool) -> None:
    groups = KeptMemory(100_000)
    one = shard(groups=groups)
    request = JoinGroup("", "", None, "consumer", of_size(0), 30_000, 60_000, needs_member_id=needs_id)
    refused = 0
    answer: Any
    for number in range(10):
        outcome = one.handle(request._replace(group=f"{number}-{'n' * 20_000}"), CALLER, object(), 0)
        for _, answer in outcome.answers:
            refused += isinstance(answer.error, CoordinatorNotAvailable)
    assert refused == 6
    assert len(one._groups.groups) == 4 and 80_000 < groups.used_bytes <= 100_000
    now = 0
    while (due := one.next_deadline_ms()) is not None and any(
        each.members or each.pending_joins for each in one._groups
    ):
        now = max(now, due)
        one.tick(now)
    used = groups.used_bytes
    for name in one.group_ids():
        expired(one, name, now)
    assert (used > 80_000, groups.used_bytes) == (True, 0)


def test_a_group_with_an_offset_counts_no_more_than_its_long_name() -> None:
    groups = KeptMemory(100_000)
    one = shard(groups=groups)
    join(one, "short")
    join(one, "n" * 20_000)
    both = groups.used_bytes
    assert commit(one, "other") is None
    assert groups.used_bytes == both
    request = TxnOffsetCommit("other-2", ProducerTransaction("x", 0), 1, 0, -1, "", None, [])
    one.handle(request._replace(topics=[TopicCommit("t", [PartitionCommit(0, 1, -1, "")])]), CALLER, object(), 0)
    assert groups.used_bytes == both
    for number in range(10):
        error = commit(one, f"{number}-{'n' * 20_000}")
        assert isinstance(error, CoordinatorNotAvailable) is (number >= 3)
    assert groups.used_bytes <= 100_000
    del one
    assert groups.used_bytes == 0


def test_a_group_whose_commits_are_refused_is_one_without_offsets() -> None:
    groups = KeptMemory(100_000)
    one = shard(groups=groups)
    for number in range(3):
        assert isinstance(commit(one, f"g{number}", metadata="m" * 5_000), OffsetMetadataTooLarge)
    assert groups.used_bytes > 3 * GROUP_BYTES
    assert commit(one, "g0") is None
    assert 2 * GROUP_BYTES < groups.used_bytes < 3 * GROUP_BYTES


@pytest.mark.parametrize("commit", [False, True])
def test_a_group_whose_transaction_is_aborted_is_one_without_offsets(commit: bool) -> None:
    groups = KeptMemory(100_000)
    one = shard(groups=groups)
    request = TxnOffsetCommit("g", ProducerTransaction("x", 0), 1, 0, -1, "", None, [])
    one.handle(request._replace(topics=[TopicCommit("t", [PartitionCommit(0, 1, -1, "")])]), CALLER, object(), 0)
    assert groups.used_bytes == 0
    one.end_transaction(1, commit=commit)
    assert groups.used_bytes == (0 if commit else group_bytes("g", has_offsets=False))


def test_groups_count_as_before_after_a_load() -> None:
    groups = KeptMemory(100_000)
    one = shard(groups=groups)
    records: list[CoordinatorRecord] = []
    for name in ("bare", "with an offset", "b" * 20_000):
        request = JoinGroup(name, "", None, "consumer", of_size(0), 30_000, 60_000, needs_member_id=True)
        records += one.handle(request, CALLER, object(), 0).records
    commits = OffsetCommit("with an offset", -1, "", None, [TopicCommit("t", [PartitionCommit(0, 1, -1, "")])])
    records += one.handle(commits, CALLER, object(), 0).records
    used = groups.used_bytes
    del one
    assert groups.used_bytes == 0
    loaded = shard(groups=groups)
    for record in records:
        loaded.load(record.key, record.value, 0)
    finish(loaded.loaded(0))
    assert groups.used_bytes == used > GROUP_BYTES + 20_000
    (answer,) = loaded.handle(DeleteGroup("bare"), CALLER, object(), 0).answers
    assert answer.answer == GroupDeleted("bare", None)
    assert groups.used_bytes < used - GROUP_BYTES


# --- one turn of the loop ---------------------------------------------------------------------------------------------
def test_sessions_that_end_together_end_in_shares() -> None:
    one, count = shard(), 3 * TIMERS_A_TICK
    for _ in range(count):
        join(one, "g")
    group, now = one._groups.groups["g"], 0
    while group.state is GroupState.PREPARING_REBALANCE:
        now = one.next_deadline_ms() or 0
        one.tick(now)
    while one.next_deadline_ms() == AT_ONCE_MS:  # the end of the rebalance
        one.tick(now)
    members, due = group.members, now + 30_000
    one.tick(due)  # the group's own timer may be among the first share
    assert count - TIMERS_A_TICK <= len(members) < count
    assert (one.next_deadline_ms() or due + 1) <= due
    for _ in range(4):
        one.tick(due)
    assert not members


async def test_a_request_that_was_cancelled_keeps_no_other_from_its_answer() -> None:
    loop = asyncio.get_running_loop()
    for count in (2, 3 * ANSWERS_A_TURN):
        waiters: list[asyncio.Future[int]] = [loop.create_future() for _ in range(count)]
        waiters[0].cancel()
        AnswerQueue(loop).answers([(each, number) for number, each in enumerate(waiters)])
        async with asyncio.timeout(60):
            assert await asyncio.gather(*waiters[1:]) == list(range(1, count))


async def test_thousands_of_answers_are_given_in_shares_and_a_few_pass_them() -> None:
    loop = asyncio.get_running_loop()
    release = AnswerQueue(loop)
    waiters = [loop.create_future() for _ in range(3 * ANSWERS_A_TURN)]
    waiters[1].cancel()
    release.answers([(waiter, "joined") for waiter in waiters])
    seen = [sum(each.done() for each in waiters)]
    heartbeat = loop.create_future()
    release.answers([(heartbeat, "beat")])
    assert heartbeat.done()
    while seen[-1] < len(waiters):
        await asyncio.sleep(0)
        seen.append(sum(each.done() for each in waiters))
    assert max(after - before for before, after in pairwise(seen)) <= ANSWERS_A_TURN
    assert [each.result() for each in waiters if not each.cancelled()] == ["joined"] * (len(waiters) - 1)


async def test_the_collector_examines_new_objects_while_answers_create_as_many_as_they_free() -> None:
    """The collector counts new objects minus freed ones: it would count few, and later examine all new objects at
    once."""
    loop, examined = asyncio.get_running_loop(), list[int]()
    kept: list[list[list[int]]] = [[[] for _ in range(20)] for _ in range(10 * ANSWERS_A_COLLECTION)]
    gc.collect()

    def answered(at: int, _: object) -> None:
        kept[at] = [[] for _ in range(20)]

    waiters = [loop.create_future() for _ in kept]
    for at, waiter in enumerate(waiters):
        waiter.add_done_callback(partial(answered, at))

    def look(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            examined.append(info["generation"])

    gc.callbacks.append(look)
    try:
        AnswerQueue(loop).answers([(waiter, "joined") for waiter in waiters])
        await waiters[-1]
    finally:
        gc.callbacks.remove(look)
    assert examined.count(YOUNG) >= len(waiters) // ANSWERS_A_COLLECTION


def test_a_rebalance_ends_and_is_assigned_with_few_calls_for_each_member() -> None:
    """Both happen in one turn of the loop: with thousands of members, all other requests would wait."""
    driver, members = Driver(), 500
    for number in range(members):
        driver.join(f"j{number}", protocols=of_size(10), session=60_000)
    driver.wait(GroupSettings().initial_rebalance_delay_ms * 2)
    ids = list(driver.group.members)
    calls = 0

    def count(frame: Any, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    assert driver.group.state.name == "COMPLETING_REBALANCE"
    for number, member_id in enumerate(ids[:-1]):
        driver.join(f"again{number}", member_id, protocols=of_size(11), session=60_000)
    sys.setprofile(count)
    driver.join("again", ids[-1], protocols=of_size(11), session=60_000)
    sys.setprofile(None)
    assert driver.group.state.name == "COMPLETING_REBALANCE"
    assert calls < 3 * members
    for member_id in ids[1:]:
        driver.sync(f"sync {member_id}", member_id, driver.group.generation)
    given, calls = [(each, b"part") for each in ids], 0
    sys.setprofile(count)
    driver.sync("leader", ids[0], driver.group.generation, given)
    sys.setprofile(None)
    assert driver.group.state.name == "STABLE"
    assert calls < 3 * members


def test_a_shard_that_is_dropped_within_a_change_of_steps_gives_its_memory_back() -> None:
    """The memory returns without a garbage collection: the oldest objects are not collected for hours."""
    memory, groups = KeptMemory(MEMBERS_BYTES), KeptMemory(GROUPS_BYTES)
    dropped = shard(memory, groups)
    assert join(dropped, "g" * 30_000, 1_000) == []
    assert memory.used_bytes > 1_000 and groups.used_bytes > 30_000

    def steps(of: Rebalancing) -> Steps:
        yield
        yield
        assert of.settings

    dropped._unfinished.begin("g", steps(dropped._groups.rebalancing))
    gc.disable()
    try:
        del dropped
        assert (memory.used_bytes, groups.used_bytes) == (0, 0)
    finally:
        gc.enable()


def test_a_group_whose_offsets_are_deleted_counts_as_one_without() -> None:
    groups = KeptMemory(GROUPS_BYTES)
    of = shard(groups=groups)
    commit = OffsetCommit("g", -1, "", None, [TopicCommit("t", [PartitionCommit(0, 5), PartitionCommit(1, 5)])])
    of.handle(commit, CALLER, object(), 0)
    assert groups.used_bytes == 0
    of.handle(OffsetDelete("g", [TopicPartitionIndexes("t", [0])]), CALLER, object(), 0)
    assert groups.used_bytes == 0
    of.handle(OffsetDelete("g", [TopicPartitionIndexes("t", [1])]), CALLER, object(), 0)
    assert groups.used_bytes > 0
