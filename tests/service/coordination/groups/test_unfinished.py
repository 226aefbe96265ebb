"""Rebalances that end in steps: requests between two steps get the same answers and records as without steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from grpc_api.contract.groups import (
    DescribeGroup,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    MemberProtocol,
    OffsetCommit,
    PartitionCommit,
    SyncGroup,
    TopicCommit,
    TxnOffsetCommit,
)
from grpc_api.contract.transactions import ProducerTransaction
from service.coordination.groups import rebalancing, unfinished
from service.coordination.groups.classic_group import Member, MemberRow, member_rows
from service.coordination.groups.classic_groups import REASONS_SHOWN
from service.coordination.groups.group_offsets import OffsetSettings
from service.coordination.groups.rebalancing import ASSIGNMENTS_A_STEP, GroupSettings
from service.coordination.groups.recorded_group import group_value
from service.coordination.groups.shard import AT_ONCE_MS, GroupEvent, GroupShard
from service.coordination.groups.unfinished import MEMBERS_A_STEP, REQUESTS_A_TICK
from service.coordination.outcome import CoordinatorNote, CoordinatorRecord, Outcome
from tests.service.coordination.groups.driver import CALLER
from tests.support.clock import SeededRng

MEMBERS = 6
PROTOCOLS = ([MemberProtocol("range", b"1")], [MemberProtocol("range", b"2"), MemberProtocol("sticky", b"3")])


class Log:
    """A shard, its records, and its answers by their waiters."""

    def __init__(self) -> None:
        self.now = 1_000_000
        self.asked = 0
        self.records: list[CoordinatorRecord] = []
        self.answers: dict[object, Any] = {}
        self.notes: list[CoordinatorNote] = []
        self.shard = GroupShard(SeededRng(1), GroupSettings(initial_rebalance_delay_ms=1), OffsetSettings())

    def ask(self, event: GroupEvent, waiter: object) -> None:
        self.asked += 1
        if isinstance(event, Heartbeat):  # a heartbeat waits for no step: its answer may be older
            outcome = self.shard.handle(event, CALLER, waiter, self.now)
            assert len(outcome.answers) == 1 and not outcome.records
            waiter = f"{waiter} beat"
            self.answers[waiter] = outcome.answers[0].answer
            return
        self.keep(self.shard.handle(event, CALLER, waiter, self.now))

    def tick(self) -> None:
        self.keep(self.shard.tick(self.now))

    def keep(self, outcome: Outcome) -> None:
        self.records += outcome.records
        self.notes += outcome.notes
        self.shard.committed(self.shard.written)
        for waiter, answer in outcome.answers:
            assert waiter not in self.answers
            self.answers[waiter] = answer

    def settle(self) -> None:
        while (due := self.shard.next_deadline_ms()) is not None and due <= self.now:
            self.tick()

    def wait(self, ms: int) -> None:
        self.settle()
        self.now += ms
        self.settle()

    @property
    def shown(self) -> list[str]:
        """The answers, with errors as their texts."""
        answers = {each: answer for each, answer in self.answers.items() if not str(each).endswith("beat")}
        return [repr(answers[each]) for each in sorted(answers, key=str)]


steps = st.lists(
    st.tuples(
        st.sampled_from(
            (
                *("join", "all join", "all join", "sync", "all sync", "all sync", "heartbeat"),
                *("leave", "all leave", "commit", "wait"),
            )
        ),
        st.integers(0, MEMBERS - 1),
        st.integers(0, 1),
        st.integers(0, 3),
    ),
    max_size=60,
)


def events_of(log: Log, choices: list[tuple[str, int, int, int]]) -> Iterator[tuple[GroupEvent | int, int]]:
    """The members' requests, which depend on the answers so far, or waits in ms; each with the number of ticks that may
    follow."""
    ids = [""] * MEMBERS
    asked: dict[int, int] = {}
    begun = [("join", member, 0, 0) for member in range(MEMBERS - 1)] + [("wait", 0, 0, 0)] * 3
    for what, member, choice, ticks in begun + choices:
        for waiter, process in asked.items():
            if waiter in log.answers:
                ids[process] = log.answers[waiter].member_id
        groups = log.shard._groups.groups
        generation = groups["g"].generation if "g" in groups else 0
        members = list(groups["g"].members) if "g" in groups else []
        instance = "static" if member == MEMBERS - 1 else None
        given = [(each, b"%d" % log.asked) for each in members]
        if what == "join":
            asked[log.asked] = member
            yield joins(ids[member], choice, instance), ticks
        elif what == "all join":
            for each in members:
                yield joins(each, choice, log.shard._groups.groups["g"].members[each].group_instance_id), ticks
        elif what == "all sync":
            for each in reversed(members):
                yield SyncGroup("g", generation, each, None, given, None, None), ticks
        elif what == "sync":
            yield SyncGroup("g", generation, ids[member], instance, given, None, None), ticks
        elif what == "heartbeat":
            yield Heartbeat("g", generation, ids[member], instance), ticks
        elif what == "leave":
            yield LeaveGroup("g", [LeavingMember(ids[member], instance)]), ticks
        elif what == "all leave":
            yield LeaveGroup("g", [LeavingMember(each, None) for each in members[choice:]]), ticks
        elif what == "commit":
            topics = [TopicCommit("t", [PartitionCommit(0, log.asked, 3, "")])]
            yield OffsetCommit("g", generation, ids[member], instance, topics), ticks
        else:
            yield (1, 3_000, 9_000, 20_000)[ticks], 0


def joins(member_id: str, choice: int, instance: str | None = None) -> JoinGroup:
    return JoinGroup("g", member_id, instance, "consumer", PROTOCOLS[choice], 10_000, 60_000, needs_member_id=False)


def commits(generation: int, member_id: str, partition: int = 0) -> OffsetCommit:
    topics = [TopicCommit("t", [PartitionCommit(partition, 7, 3, "")])]
    return OffsetCommit("g", generation, member_id, None, topics)


@contextmanager
def of_size(members: int, requests: int) -> Iterator[None]:
    with (
        mock.patch.object(unfinished, "MEMBERS_A_STEP", members),
        mock.patch.object(rebalancing, "ASSIGNMENTS_A_STEP", members),
        mock.patch.object(unfinished, "REQUESTS_A_TICK", requests),
    ):
        yield


@settings(max_examples=150, deadline=None)
@given(steps, st.integers(1, 3), st.integers(1, 3))
def test_steps_change_no_answer_and_no_record(
    choices: list[tuple[str, int, int, int]], members: int, requests: int
) -> None:
    whole, sliced = Log(), Log()
    asked: list[tuple[GroupEvent | int, int]] = []
    with of_size(1_000, 1_000):
        for event, ticks in events_of(whole, choices):
            if isinstance(event, int):
                whole.wait(event)
            else:
                whole.ask(event, whole.asked)
            asked.append((event, ticks))
        whole.wait(0)
    with of_size(members, requests):
        for event, ticks in asked:
            if isinstance(event, int):
                sliced.wait(event)
                continue
            sliced.ask(event, sliced.asked)
            for _ in range(ticks):
                sliced.tick()
        sliced.wait(0)
    assert sliced.shown == whole.shown
    assert sliced.records == whole.records
    for each in (sliced.shard, whole.shard):
        assert each._memory._used_bytes == sum(group.kept_bytes for group in each._groups)
    assert not sliced.shard._groups.rebalancing.unfinished.groups


def large(log: Log, members: int) -> list[str]:
    """A group whose members have all joined; all but the last have joined a second time."""
    for number in range(members):
        log.ask(
            JoinGroup("g", "", None, "consumer", PROTOCOLS[0], 60_000, 60_000, needs_member_id=False), f"join {number}"
        )
    log.wait(2)
    log.wait(2)  # the delay was extended because members joined
    ids = list(log.shard._groups.groups["g"].members)
    for number, member_id in enumerate(ids):
        log.ask(
            JoinGroup("g", member_id, None, "consumer", PROTOCOLS[1], 60_000, 60_000, needs_member_id=False),
            f"again {number}",
        )
    return ids


def test_a_step_answers_a_bounded_number_of_members_and_no_request_of_the_group_passes_the_last_step() -> None:
    log, members = Log(), 3 * MEMBERS_A_STEP + 1
    ids = large(log, members)
    assert not any(f"again {number}" in log.answers for number in range(members))
    log.ask(commits(1, ids[0]), "commit")
    in_ticks = []
    while log.shard.next_deadline_ms() == AT_ONCE_MS:
        before = len(log.answers)
        log.tick()
        in_ticks.append(len(log.answers) - before)
    assert max(in_ticks) == MEMBERS_A_STEP
    assert sum(in_ticks) == members + 1
    assert log.answers["commit"].topics[0].partitions[0].error is not None  # the commit's generation is over
    assert {log.answers[f"again {number}"].generation for number in range(members)} == {2}


def test_readers_and_transactions_do_not_wait_for_the_last_step() -> None:
    log = Log()
    ids = large(log, 3 * MEMBERS_A_STEP)
    log.settle()
    log.ask(SyncGroup("g", 2, ids[0], None, [(each, b"part") for each in ids], None, None), "sync")
    assert log.shard.describe(DescribeGroup("g")).state == "CompletingRebalance"
    topics = [TopicCommit("t", [PartitionCommit(0, 7, 3, "")])]
    log.ask(TxnOffsetCommit("g", ProducerTransaction("t"), 1, 0, 2, ids[1], None, topics), "in transaction")
    assert log.answers["in transaction"].topics[0].partitions[0].error is None
    log.settle()
    shown = log.shard.describe(DescribeGroup("g"))
    assert (shown.state, {each.assignment for each in shown.members}) == ("Stable", {b"part"})
    assert log.answers["sync"].assignment == b"part"


def test_a_session_that_is_over_ends_after_the_last_step() -> None:
    log = Log()
    ids = large(log, 3 * MEMBERS_A_STEP)
    log.settle()
    log.ask(SyncGroup("g", 2, ids[0], None, [(each, b"part") for each in ids], None, None), "sync")
    log.now += 60_000
    log.tick()
    assert log.shard.describe(DescribeGroup("g")).state == "CompletingRebalance"
    log.settle()
    assert log.answers["sync"].assignment == b"part"
    log.wait(60_000)
    assert log.shard.describe(DescribeGroup("g")).state == "Empty"


def test_sessions_begin_with_the_answers_of_each_step() -> None:
    """The process may have been stopped between two steps, or the disk full, for longer than a session."""
    log = Log()
    ids = large(log, 3 * MEMBERS_A_STEP)
    log.tick()
    log.now += 100_000
    log.settle()
    log.ask(SyncGroup("g", 2, ids[0], None, [(each, b"part") for each in ids], None, None), "sync")
    log.tick()
    log.now += 50_000
    log.settle()
    for number, member_id in enumerate(ids):
        log.ask(SyncGroup("g", 2, member_id, None, (), None, None), f"sync {number}")
    assert [log.answers[f"sync {number}"].error for number in range(len(ids))] == [None] * len(ids)
    shown = log.shard.describe(DescribeGroup("g"))
    assert (shown.state, len(shown.members)) == ("Stable", len(ids))


def test_sessions_of_members_that_waited_begin_with_their_assignment() -> None:
    log = Log()
    leader, *others = large(log, 3)
    log.settle()
    for member_id in others:
        log.ask(SyncGroup("g", 2, member_id, None, (), None, None), member_id)
    log.wait(50_000)
    log.ask(SyncGroup("g", 2, leader, None, [(each, b"part") for each in (leader, *others)], None, None), leader)
    log.wait(59_999)
    shown = log.shard.describe(DescribeGroup("g"))
    assert (shown.state, len(shown.members)) == ("Stable", 3)
    log.wait(1)
    assert log.shard.describe(DescribeGroup("g")).state == "Empty"


def test_the_record_of_an_assignment_says_what_the_group_is_after_its_last_step() -> None:
    """The record also says when the group became stable: its offsets expire by that time after a load."""
    log = Log()
    ids = large(log, 3 * MEMBERS_A_STEP)
    log.settle()
    log.ask(SyncGroup("g", 2, ids[0], None, [(each, b"part") for each in ids], None, None), "sync")
    while log.shard.next_deadline_ms() == AT_ONCE_MS:
        log.now += 1_000
        log.tick()
    assert log.records[-1].value == group_value(log.shard._groups.groups["g"])


def test_a_tick_makes_one_answer_with_all_members() -> None:
    """A leader may ask for that answer in many requests while a step is pending."""
    log = Log()
    ids = large(log, 3 * MEMBERS_A_STEP)
    for number in range(5):
        log.ask(joins(ids[0], 1), f"leader {number}")
    in_ticks = []
    while log.shard.next_deadline_ms() == AT_ONCE_MS:
        before = len(log.answers)
        log.tick()
        in_ticks.append(len([each for each in log.answers if str(each).startswith("leader")]))
        assert len(log.answers) - before <= MEMBERS_A_STEP + 1
    assert [after - before for before, after in pairwise(in_ticks) if after > before] == [1, 1, 1, 1, 1]
    assert len(log.answers["leader 4"].members) == len(ids)


def assigning(log: Log) -> list[str]:
    """A group whose leader's assignment is recorded in steps."""
    ids = large(log, 3 * MEMBERS_A_STEP)
    log.settle()
    log.ask(SyncGroup("g", 2, ids[0], None, [(each, b"part") for each in ids], None, None), "sync")
    assert log.shard.next_deadline_ms() == AT_ONCE_MS
    return ids


def test_a_heartbeat_waits_for_no_step() -> None:
    """A heartbeat needs no record: it is answered even on a full disk, where steps wait."""
    log = Log()
    ids = assigning(log)
    for number, member_id in enumerate(ids):
        answer: Any = log.shard.handle(Heartbeat("g", 2, member_id, None), CALLER, number, log.now).answers[0].answer
        assert answer.error is None
    assert log.shard.next_deadline_ms() == AT_ONCE_MS


def test_a_session_ends_though_requests_of_its_group_never_cease_to_wait() -> None:
    log = Log()
    ids = assigning(log)
    log.now += 60_000  # all sessions are over, except that of the committing member
    asked = 0
    for _ in range(100):
        for _ in range(REQUESTS_A_TICK):
            log.ask(commits(2, ids[1], asked), f"commit {asked}")
            asked += 1
        log.tick()
        if len(log.shard._groups.groups["g"].members) < len(ids):
            break
    assert len(log.shard._groups.groups["g"].members) < len(ids)


def test_a_request_that_came_before_the_end_of_its_members_session_keeps_it() -> None:
    log = Log()
    ids = assigning(log)
    for member_id in ids[1:]:
        log.ask(SyncGroup("g", 2, member_id, None, (), None, None), f"sync {member_id}")
    log.settle()
    log.ask(LeaveGroup("g", [LeavingMember(f"nobody {each}", None) for each in ids]), "leave")
    log.now += 60_000
    log.ask(commits(2, ids[1]), "in time")
    log.settle()
    assert log.answers["in time"].topics[0].partitions[0].error is None
    log.wait(60_000 - 1)
    assert list(log.shard._groups.groups["g"].members) == [ids[1]]


def test_a_step_of_an_assignment_copies_a_bounded_number_of_members() -> None:
    log, copied = Log(), list[int]()

    def counted(members: Sequence[Member]) -> list[MemberRow]:
        copied.append(len(members))
        return member_rows(members)

    with mock.patch.object(rebalancing, "member_rows", counted):
        assigning(log)
        log.settle()
    assert copied == [MEMBERS_A_STEP] * 3
    shown = log.shard.describe(DescribeGroup("g"))
    assert {each.assignment for each in shown.members} == {b"part"}


def test_assignments_of_others_than_members_are_read_in_steps() -> None:
    """A leader may send as many assignments as a request holds."""
    log = Log()
    (member,) = large(log, 1)
    log.settle()
    others = [(f"nobody {number}", b"") for number in range(3 * ASSIGNMENTS_A_STEP)]
    log.ask(SyncGroup("g", 2, member, None, [*others, (member, b"part")], None, None), "sync")
    ticks = 0
    while log.shard.next_deadline_ms() == AT_ONCE_MS:
        log.tick()
        ticks += 1
    assert ticks == 4
    assert log.answers["sync"].assignment == b"part"


def test_thousands_of_members_leave_in_steps() -> None:
    log = Log()
    ids = assigning(log)
    log.settle()
    group = log.shard._groups.groups["g"]
    gone = [LeavingMember(each, None, f"reason {each}") for each in ids[1:]]
    before = len(log.notes)
    log.ask(LeaveGroup("g", [*gone, LeavingMember("nobody", None)]), "leave")
    log.ask(commits(2, ids[1]), "commit")
    sizes = [len(group.members)]
    while log.shard.next_deadline_ms() == AT_ONCE_MS:
        log.tick()
        sizes.append(len(group.members))
    assert sizes[0] == len(ids) - MEMBERS_A_STEP
    assert max(before - after for before, after in pairwise(sizes)) == MEMBERS_A_STEP
    assert [each.member_id for each in log.answers["leave"].members] == [*ids[1:], "nobody"]
    assert [each.error is None for each in log.answers["leave"].members] == [True] * len(gone) + [False]
    assert log.answers["commit"].topics[0].partitions[0].error is not None  # it came after LeaveGroup
    (note,) = [each for each in log.notes[before:] if each.event == "group.rebalances"]
    assert str(note.fields["reason"]).count("reason ") == REASONS_SHOWN
    assert list(group.members) == ids[:1]


def test_a_leave_of_thousands_of_a_group_that_is_not_there_takes_steps_too() -> None:
    log = Log()
    log.ask(LeaveGroup("none", [LeavingMember(str(number), None) for number in range(3 * MEMBERS_A_STEP)]), "leave")
    assert "leave" not in log.answers
    log.settle()
    assert len(log.answers["leave"].members) == 3 * MEMBERS_A_STEP
    assert not log.shard._unfinished.groups


def test_members_that_do_not_join_again_are_removed_in_steps() -> None:
    log = Log()
    ids = assigning(log)
    log.settle()
    group = log.shard._groups.groups["g"]
    for member_id in ids[:2]:
        log.ask(joins(member_id, 0), f"late {member_id}")
    log.now += 60_000 - 1
    for member_id in ids:
        log.shard.handle(Heartbeat("g", 2, member_id, None), CALLER, None, log.now)
    log.now += 1  # the rebalance's time is over
    sizes = [len(group.members)]
    while (due := log.shard.next_deadline_ms()) is not None and due <= log.now:
        log.tick()
        sizes.append(len(group.members))
    assert max(before - after for before, after in pairwise(sizes)) == MEMBERS_A_STEP
    assert list(group.members) == ids[:2]
    assert {log.answers[f"late {each}"].generation for each in ids[:2]} == {3}


def test_members_that_do_not_ask_for_their_assignment_are_removed_in_steps() -> None:
    log = Log()
    ids = assigning(log)
    log.settle()
    group = log.shard._groups.groups["g"]
    log.now += 60_000 - 1
    for member_id in ids:
        log.shard.handle(Heartbeat("g", 2, member_id, None), CALLER, None, log.now)
    log.now += 1
    sizes = [len(group.members)]
    while (due := log.shard.next_deadline_ms()) is not None and due <= log.now:
        log.tick()
        sizes.append(len(group.members))
    assert max(before - after for before, after in pairwise(sizes)) == MEMBERS_A_STEP
    assert list(group.members) == ids[:1]
