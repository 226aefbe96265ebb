"""Rebalances of classic groups: their start, the wait for members, and their completion.

Pure: every function takes the group, the time in ms and the outcome to add to. The rules are those of Kafka 4.2.1's
GroupMetadataManager. A first rebalance waits `group.initial.rebalance.delay.ms`, and is extended while members join, up to the
members' rebalance timeout. A later rebalance waits until all members have rejoined, for at most that timeout. Then dynamic
members that have not rejoined are removed; static members stay until their session ends.

Invariants: a waiting JoinGroup or SyncGroup is answered exactly once. The record of a generation's assignment is in an outcome
before, or with, the first answer that contains the assignment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from grpc_api.contract.coordinator_errors import (
    CoordinatorNotAvailable,
    GroupMetadataTooLarge,
    RebalanceInProgress,
    UnknownMemberId,
)
from grpc_api.contract.groups import UNKNOWN_MEMBER, Joined, JoinedMember, Synced
from service.coordination.counts import GroupCounts
from service.coordination.deadlines import Deadlines, Timer
from service.coordination.group_records import GroupKey, encode_key
from service.coordination.groups.classic_group import (
    REBALANCES_FROM,
    ClassicGroup,
    GroupState,
    GroupView,
    Member,
    MemberRow,
    Session,
    member_rows,
)
from service.coordination.groups.recorded_group import group_value, value_head, value_part
from service.coordination.groups.unfinished import Steps, UnfinishedChanges, shares
from service.coordination.kept_memory import ShardMemory
from service.coordination.outcome import CoordinatorAnswer, Outcome
from storage_tiers.errors import LogError

#: Session timeout of a new member until its first JoinGroup is answered, because it cannot send heartbeats before that (Kafka's
#: constant).
NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000
#: The maximum number of unused member ids of a group. Beyond that the oldest is forgotten, and its client rejoins.
PENDING_IDS = 10_000
#: The maximum number of a leader's assignments that one step reads. A leader may send more than its group has members.
ASSIGNMENTS_A_STEP = 1_000
#: The maximum number of bytes that a batch with one record takes besides the record's key and value.
BATCH_BYTES = 100

_new_tuple = tuple.__new__


class GroupSettings(NamedTuple):
    """The configs `group.*` that the classic protocol reads, by their names with underscores."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = (1 << 31) - 1
    #: The maximum number of bytes of a group's record, which is that of a batch of `__consumer_offsets`.
    max_record_bytes: int = 1 << 20


class Rebalancing:
    """`settings` may be replaced at any time."""

    def __init__(self, deadlines: Deadlines, settings: GroupSettings, memory: ShardMemory, counts: GroupCounts) -> None:
        self.settings = settings
        self._memory = memory
        self._counts = counts
        self._deadlines = deadlines
        #: Changes to groups that take several steps. The shard runs the steps, and lets other requests for those groups wait
        #: meanwhile.
        self.unfinished: UnfinishedChanges[Any] = UnfinishedChanges()

    # --- sessions -----------------------------------------------------------------------------------------------------
    def expect(self, group: ClassicGroup, member: Member, within_ms: int, now_ms: int) -> None:
        """Ends the member's session in `within_ms` unless it sends a heartbeat."""
        if member.session is None:
            member.session = Timer(Session(group, member.member_id))
        self._deadlines.set(member.session, now_ms + within_ms)

    def heard(self, group: ClassicGroup, member: Member, now_ms: int) -> None:
        if member.session is None:
            self.expect(group, member, member.session_timeout_ms, now_ms)
        else:
            self._deadlines.set(member.session, now_ms + member.session_timeout_ms)

    def heard_again(self, member: Member, now_ms: int) -> bool:
        """Does the same as `heard`. Returns False without a change if the member has no deadline yet, or if the change may make
        the next deadline earlier."""
        session = member.session
        return session is not None and self._deadlines.postpone(session, now_ms + member.session_timeout_ms)

    def _all_heard(self, group: ClassicGroup, members: Iterable[Member], now_ms: int) -> None:
        """Does the same as `heard` for each member, in half the time, because there may be thousands in one turn of the
        loop."""
        set_deadline = self._deadlines.set
        for member in members:
            if member.session is None:
                self.heard(group, member, now_ms)
            else:
                set_deadline(member.session, now_ms + member.session_timeout_ms)

    def expect_join(self, group: ClassicGroup, member_id: str, within_ms: int, now_ms: int) -> None:
        """Awaits the JoinGroup of a member that has been given this id. If it does not come in time, the id is forgotten
        (KIP-394)."""
        if len(group.pending_joins) >= PENDING_IDS:
            oldest = group.pop_pending(next(iter(group.pending_joins)))
            assert oldest is not None
            self._deadlines.clear(oldest)
        timer = Timer(Session(group, member_id))
        group.add_pending(member_id, timer)
        self._deadlines.set(timer, now_ms + within_ms)

    def drop(self, group: ClassicGroup, member_id: str, outcome: Outcome, why: LogError | None = None) -> None:
        """Removes a member, or an unused member id. Its waiting requests get the error `why`, or UnknownMemberId without
        one."""
        member = group.members.get(member_id)
        if member is not None:
            if member.session is not None:
                self._deadlines.clear(member.session)
                member.session = None
            if member.join_waiter is not None or member.sync_waiter is not None:
                self.end_waits(group, member, outcome, why or _removed(group, member_id))
        group.remove(member_id)

    def end_waits(self, group: ClassicGroup, member: Member, outcome: Outcome, error: LogError) -> None:
        """Answers the member's waiting requests with an error."""
        waiter = group.wait_for_join(member, None)
        if waiter is not None:
            is_unknown = isinstance(error, UnknownMemberId)
            outcome.answer(waiter, Joined(error, UNKNOWN_MEMBER if is_unknown else member.member_id))
        if member.sync_waiter is not None:
            outcome.answer(member.sync_waiter, Synced(error))
            member.sync_waiter = None

    # --- beginning ----------------------------------------------------------------------------------------------------
    def members_changed(self, group: ClassicGroup, reason: str, now_ms: int, outcome: Outcome) -> None:
        """Called after a member has joined, left or changed its protocols. Begins a rebalance, or completes the current one if
        no other member is awaited."""
        if group.state in REBALANCES_FROM:
            self.begin(group, reason, now_ms, outcome)
        else:
            self.go_on(group, now_ms, outcome)

    def begin(self, group: ClassicGroup, reason: str, now_ms: int, outcome: Outcome) -> None:
        if group.state is GroupState.COMPLETING_REBALANCE:
            self._withdraw_assignment(group, now_ms, outcome)
        is_first = group.state is GroupState.EMPTY
        group.enter(GroupState.PREPARING_REBALANCE, now_ms)
        outcome.note(
            "group.rebalances",
            group=group.group_id,
            generation=group.generation,
            members=len(group.members),
            reason=reason,
        )
        if is_first:
            delay = self.settings.initial_rebalance_delay_ms
            group.new_member_added = False
            group.initial_remaining_ms = max(group.rebalance_timeout_ms - delay, 0)
            self._deadlines.set(group.join, now_ms + delay)
        elif group.has_all_joined:
            self.complete(group, now_ms, outcome)
        else:
            self._deadlines.set(group.join, now_ms + group.rebalance_timeout_ms)

    def go_on(self, group: ClassicGroup, now_ms: int, outcome: Outcome) -> None:
        """Completes the rebalance if every awaited member has joined. A first rebalance still waits for its delay."""
        if group.previous_state is not GroupState.EMPTY:
            self._end_if_all_joined(group, now_ms, outcome)

    def expired(self, group: ClassicGroup, reason: str, now_ms: int, outcome: Outcome) -> None:
        """Called after a member's session, or an unused member id, has expired. Does the same as `members_changed`. As in
        Kafka, it also completes a first rebalance that waited only for this member."""
        if group.state in REBALANCES_FROM:
            self.begin(group, reason, now_ms, outcome)
        else:
            self._end_if_all_joined(group, now_ms, outcome)

    def _end_if_all_joined(self, group: ClassicGroup, now_ms: int, outcome: Outcome) -> None:
        if group.state is GroupState.PREPARING_REBALANCE and group.has_all_joined:
            self.complete(group, now_ms, outcome)

    def _withdraw_assignment(self, group: ClassicGroup, now_ms: int, outcome: Outcome) -> None:
        """Removes the members' assignments, and fails waiting SyncGroups with RebalanceInProgress."""
        error = RebalanceInProgress(f"group {group.group_id} is rebalancing; join again")
        group.assign([b""] * len(group.members))
        for member in group.members.values():
            if member.sync_waiter is not None:
                outcome.answer(member.sync_waiter, Synced(error))
                member.sync_waiter = None
                self.heard(group, member, now_ms)

    # --- ending -------------------------------------------------------------------------------------------------------
    def waited(self, group: ClassicGroup, now_ms: int, outcome: Outcome) -> None:
        """Called when the join timer is due. Extends a first rebalance if members have joined since the last extension, and
        otherwise completes the rebalance."""
        if group.state is not GroupState.PREPARING_REBALANCE:
            return
        if group.new_member_added and group.initial_remaining_ms > 0:
            group.new_member_added = False
            delay = min(self.settings.initial_rebalance_delay_ms, group.initial_remaining_ms)
            group.initial_remaining_ms -= delay
            self._deadlines.set(group.join, now_ms + delay)
        else:
            self.complete(group, now_ms, outcome)

    def complete(self, group: ClassicGroup, now_ms: int, outcome: Outcome) -> None:
        """Removes the dynamic members that have not joined and begins the next generation. Waits again if no member has joined.
        This may take several steps, so the caller must not change the group after the call."""
        self.unfinished.begin(group.group_id, self._complete(group, now_ms, outcome))

    def _complete(self, group: ClassicGroup, now_ms: int, outcome: Outcome) -> Steps:
        if not group.has_all_joined:
            members = group.members.values()
            late = [each for each in members if each.join_waiter is None and each.group_instance_id is None]
            for some in shares(late):
                for member in some:
                    self.drop(group, member.member_id, outcome)
                if len(late) > len(some):
                    outcome, now_ms = yield
        if group.members and not group.elect_joined_leader():
            # Only static members are left, and all are absent: the end of their sessions decides.
            self._deadlines.set(group.join, now_ms + group.rebalance_timeout_ms)
            return
        before = None if group.members else group.view()
        group.begin_generation(now_ms)
        if before is not None:
            outcome.note("group.empty", group=group.group_id, generation=group.generation)
            error = self.write(group, outcome, before)
            if error is not None:  # after a crash the members of its last record are back, until their sessions end
                outcome.note("group.too_large", group=group.group_id, error=error)
            return
        yield from self._answer_joins(group, now_ms, outcome)

    def _answer_joins(self, group: ClassicGroup, now_ms: int, outcome: Outcome) -> Steps:
        shown: list[JoinedMember] = []
        parts = shares(list(group.members.values()))
        for members in parts:
            shown += group.joined_members(members)
            if len(parts) > 1:
                outcome, now_ms = yield
        self._deadlines.set(group.sync, now_ms + group.rebalance_timeout_ms)
        for members in parts:
            if members is not parts[0]:
                outcome, now_ms = yield
            outcome.answers += group.end_joins(members, shown)
            self._all_heard(group, members, now_ms)

    def write(
        self, group: ClassicGroup, outcome: Outcome, before: GroupView | None = None
    ) -> GroupMetadataTooLarge | None:
        """Adds the group's record, which replaces `before` if that is given. Returns an error if no batch can hold the
        record."""
        value = group_value(group)
        error = self.too_large(group, len(value))
        if error is None:
            if before is not None:
                outcome.replace(group.group_id, before)
            self._write(group, value, outcome)
        return error

    def _write(self, group: ClassicGroup, value: bytes, outcome: Outcome) -> None:
        group.recorded_bytes = len(value)
        outcome.write(encode_key(GroupKey(group.group_id)), value)

    # --- assignment ---------------------------------------------------------------------------------------------------
    def assign(self, group: ClassicGroup, given: Sequence[tuple[str, bytes]], now_ms: int, outcome: Outcome) -> None:
        """Records the leader's assignments, given by member id, and answers every member that waits for its assignment."""
        self.unfinished.begin(group.group_id, self._assign(group, given, now_ms, outcome))

    def _assign(self, group: ClassicGroup, given: Sequence[tuple[str, bytes]], now_ms: int, outcome: Outcome) -> Steps:
        parts, entered_ms = shares(list(group.members.values())), now_ms
        of_member: dict[str, bytes] = {}
        for at in range(0, len(given), ASSIGNMENTS_A_STEP):
            of_member.update(given[at : at + ASSIGNMENTS_A_STEP])
            if len(given) > ASSIGNMENTS_A_STEP:
                outcome, now_ms = yield
        # The record and the readers' rows are made part by part, because there may be thousands of members.
        encoded, rows, assignments = [value_head(group, entered_ms)], list[MemberRow](), list[bytes]()
        for members in parts:
            theirs = [of_member.get(each.member_id, b"") for each in members]
            encoded.append(value_part(group, members, theirs))
            rows += member_rows(members)
            assignments += theirs
            if len(parts) > 1:
                outcome, now_ms = yield
        if not self._memory.has_room(sum(map(len, assignments)) - group.assigned_bytes):
            self._refuse_leader(group, outcome)
            return
        value = b"".join(encoded)
        error = self.too_large(group, len(value))
        if error is not None:
            self._refuse_assignment(group, error, now_ms, outcome)
            return
        before = group.view(rows)
        group.assign(assignments)
        group.enter(GroupState.STABLE, entered_ms)
        self._counts.rebalances += 1
        outcome.replace(group.group_id, before)
        self._write(group, value, outcome)
        outcome.note("group.stable", group=group.group_id, generation=group.generation, members=len(group.members))
        for members in parts:
            if len(parts) > 1:
                outcome, now_ms = yield
            waiting = [member for member in members if member.sync_waiter is not None]
            outcome.answers += _end_syncs(group, waiting)
            self._all_heard(group, waiting, now_ms)

    def too_large(self, group: ClassicGroup, value_bytes: int) -> GroupMetadataTooLarge | None:
        """The error if the group's record, with a value of that size, cannot be written. A record that the log refuses would
        drop the shard, with all its groups."""
        size = BATCH_BYTES + len(encode_key(GroupKey(group.group_id))) + value_bytes
        if size <= self.settings.max_record_bytes:
            return None
        return GroupMetadataTooLarge(
            f"group {group.group_id}: its {len(group.members)} members make a record of {size} bytes, more than "
            f"{self.settings.max_record_bytes}; start fewer members, or raise max.message.bytes of __consumer_offsets"
        )

    def _refuse_leader(self, group: ClassicGroup, outcome: Outcome) -> None:
        """Answers the leader's SyncGroup with an error, because its assignments do not fit the memory of members. The other
        members continue to wait, since the leader may send its assignments again."""
        assert group.leader is not None
        leader = group.members[group.leader]
        error = CoordinatorNotAvailable(
            f"group {group.group_id}: the members of this broker's groups use all memory reserved for them; retry"
        )
        outcome.answer(leader.sync_waiter, Synced(error))
        leader.sync_waiter = None

    def _refuse_assignment(
        self, group: ClassicGroup, error: GroupMetadataTooLarge, now_ms: int, outcome: Outcome
    ) -> None:
        """As in Kafka, the members get an error and rebalance. The node's log has the reason."""
        outcome.note("group.too_large", group=group.group_id, error=error)
        for member in group.members.values():
            if member.sync_waiter is not None:
                outcome.answer(member.sync_waiter, Synced(error))
                member.sync_waiter = None
                self.heard(group, member, now_ms)
        self.begin(group, "its assignment could not be recorded", now_ms, outcome)

    def has_synced(self, group: ClassicGroup, member_id: str) -> None:
        """Called when the member has sent its SyncGroup."""
        group.pending_syncs.pop(member_id, None)

    def sync_waited(self, group: ClassicGroup, now_ms: int, outcome: Outcome) -> None:
        """Called when the timer of SyncGroup is due. Removes the members that have not sent it."""
        late = list(group.pending_syncs)
        if group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE) and late:
            self.unfinished.begin(group.group_id, self._drop_late(group, late, now_ms, outcome))

    def _drop_late(self, group: ClassicGroup, late: Sequence[str], now_ms: int, outcome: Outcome) -> Steps:
        for some in shares(late):
            for member_id in some:
                self.drop(group, member_id, outcome)
            if len(late) > len(some):
                outcome, now_ms = yield
        reason = f"{len(late)} members did not send SyncGroup within the rebalance timeout"
        self.begin(group, reason, now_ms, outcome)


def synced(group: ClassicGroup, member: Member) -> Synced:
    return Synced(None, group.protocol_type, group.protocol, member.assignment)


def _end_syncs(group: ClassicGroup, waiting: Sequence[Member]) -> list[CoordinatorAnswer]:
    """Returns the answers to the waiting SyncGroups of these members. These answers equal those of `synced`, and take half the
    time."""
    kind, protocol = group.protocol_type, group.protocol
    answers = []
    for member in waiting:
        answer = _new_tuple(Synced, (None, kind, protocol, member.assignment))
        answers.append(_new_tuple(CoordinatorAnswer, (member.sync_waiter, answer)))
        member.sync_waiter = None
    return answers


def _removed(group: ClassicGroup, member_id: str) -> UnknownMemberId:
    return UnknownMemberId(f"group {group.group_id} has removed {member_id!r}; join again without a member id")
