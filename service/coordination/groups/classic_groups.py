"""The requests of the classic group protocol: JoinGroup, SyncGroup, Heartbeat and LeaveGroup, and the members' timeouts.

Pure: it turns requests, times in ms and a source of member ids into records and answers (`Outcome`). Answers, errors and order
of checks are those of Kafka 4.2.1's GroupMetadataManager for classic groups.

Invariants: every request is answered once, either at once or by the outcome of a later event. An issued member id is refused or
admitted, never mistaken for another member's. A client's death is noticed only when its session ends.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING

from grpc_api.contract.caller import Caller
from grpc_api.contract.coordinator_errors import (
    CoordinatorNotAvailable,
    FencedInstanceId,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidGroupId,
    InvalidSessionTimeout,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
)
from grpc_api.contract.groups import (
    UNKNOWN_MEMBER,
    Heartbeat,
    HeartbeatAnswer,
    Joined,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    Left,
    LeftMember,
    Synced,
    SyncGroup,
)
from service.coordination.counts import GroupCounts
from service.coordination.deadlines import Deadlines
from service.coordination.groups.classic_group import (
    ClassicGroup,
    GroupState,
    JoinWait,
    Member,
    Session,
    SyncWait,
)
from service.coordination.groups.member_memory import GroupMemory, group_bytes, kept_bytes, smallest_subscription
from service.coordination.groups.rebalancing import NEW_MEMBER_JOIN_TIMEOUT_MS, GroupSettings, Rebalancing, synced
from service.coordination.groups.unfinished import Steps, shares
from service.coordination.outcome import Outcome
from storage_tiers.errors import LogError
from storage_tiers.uuids import random_dashed_uuid

if TYPE_CHECKING:
    from storage_tiers.clock import Rng


_WELL = HeartbeatAnswer(None)
# Looking up an enum member takes 0.1 µs in Python 3.11.
_EMPTY, _PREPARING_REBALANCE = GroupState.EMPTY, GroupState.PREPARING_REBALANCE
#: The maximum number of different reasons that the node's log shows for members that leave together.
REASONS_SHOWN = 10
#: The maximum number of protocols of one member, because every rebalance counts every member's votes. Kafka has no bound;
#: clients have two or three.
MAX_PROTOCOLS = 64


class ClassicGroups:
    """The groups of one shard, by id."""

    def __init__(
        self, deadlines: Deadlines, rng: Rng, settings: GroupSettings, memory: GroupMemory, counts: GroupCounts
    ) -> None:
        self._groups: dict[str, ClassicGroup] = {}
        self._read_only = MappingProxyType(self._groups)
        self._deadlines = deadlines
        self._rng = rng
        #: The memory of members, which the shard counts, and the memory of the groups themselves.
        self.memory, self._own = memory.members.shard(), memory.groups.shard()
        self.rebalancing = Rebalancing(deadlines, settings, self.memory, counts)

    @property
    def groups(self) -> Mapping[str, ClassicGroup]:
        return self._read_only

    def __iter__(self) -> Iterator[ClassicGroup]:
        return iter(tuple(self._groups.values()))

    # --- JoinGroup ----------------------------------------------------------------------------------------------------
    def join(self, request: JoinGroup, caller: Caller, waiter: object, now_ms: int, outcome: Outcome) -> None:
        """Handles a JoinGroup. It is answered when the group's members have joined, or at once with an error."""
        error = self._join_error(request)
        if error is not None:
            outcome.answer(waiter, Joined(error, request.member_id))
            return
        group = self._groups.get(request.group)
        if group is None:
            if request.member_id != UNKNOWN_MEMBER:
                outcome.answer(waiter, Joined(_unknown(request.group, request.member_id), request.member_id))
                return
            if (error := self.no_room_for(request.group, has_offsets=False)) is not None:
                outcome.answer(waiter, Joined(error, request.member_id))
                return
            group = ClassicGroup(request.group, now_ms)
            # As in Kafka, a new group is recorded, so that its id is known after a crash.
            if (too_large := self.rebalancing.write(group, outcome)) is not None:
                outcome.answer(waiter, Joined(too_large, request.member_id))
                return
            self.put(group, has_offsets=False)
        if not self._has_room(group, request.member_id):
            self.rebalancing.drop(group, request.member_id, outcome)
            outcome.answer(waiter, Joined(self._full(group), UNKNOWN_MEMBER))
            self.rebalancing.go_on(group, now_ms, outcome)
        elif (error := self._no_room(group, request, caller)) is not None:
            outcome.answer(waiter, Joined(error, request.member_id))
        elif request.member_id == UNKNOWN_MEMBER:
            self._join_new(group, request, caller, waiter, now_ms, outcome)
        else:
            self._join_existing(group, request, caller, waiter, now_ms, outcome)

    def _join_error(self, request: JoinGroup) -> LogError | None:
        settings = self.rebalancing.settings
        if not request.group:
            return InvalidGroupId("the group id is empty; set group.id")
        least, most = settings.min_session_timeout_ms, settings.max_session_timeout_ms
        if not least <= request.session_timeout_ms <= most:
            return InvalidSessionTimeout(
                f"group {request.group}: session.timeout.ms is {request.session_timeout_ms}; set it to {least} to {most}, or "
                "change group.min.session.timeout.ms and group.max.session.timeout.ms of the broker"
            )
        if len(request.protocols) > MAX_PROTOCOLS:
            return InconsistentGroupProtocol(
                f"group {request.group}: the member lists {len(request.protocols)} protocols, and at most "
                f"{MAX_PROTOCOLS} are allowed; set partition.assignment.strategy to fewer"
            )
        return None

    def _no_room(self, group: ClassicGroup, request: JoinGroup, caller: Caller) -> LogError | None:
        """The error if there is no memory for a member with this request's protocols and names."""
        member = group.members.get(group.static.get(request.group_instance_id or "", request.member_id))
        before = 0 if member is None else member.kept_bytes - len(member.assignment)
        instance = request.group_instance_id
        # The member's id, or the longest part of the id that it will get.
        named = request.member_id or instance or caller.client_id
        names = (named, instance, caller.client_id, caller.host)
        if not self.memory.has_room(kept_bytes(request.protocols, *names) - before):
            return CoordinatorNotAvailable(
                f"group {group.group_id}: the members of this broker's groups use all memory reserved for them; retry"
            )
        least = smallest_subscription(request.protocols)
        most = self.rebalancing.settings.max_record_bytes
        if member is None and group.members and group.record_bytes + least > most:
            return GroupMaxSizeReached(
                f"group {group.group_id}: the subscriptions of {len(group.members)} members fill the record of the group, "
                f"{most} bytes; start fewer, or raise max.message.bytes of __consumer_offsets"
            )
        return None

    def _has_room(self, group: ClassicGroup, member_id: str) -> bool:
        most = self.rebalancing.settings.max_size
        member = group.members.get(member_id)
        if group.state is GroupState.EMPTY:
            return True
        if group.state is GroupState.PREPARING_REBALANCE:
            # Only waiting members count, so that after `group.max.size` was lowered the first members to rejoin stay.
            return (member is not None and member.join_waiter is not None) or group.joining < most
        return member is not None or len(group.members) < most

    def _full(self, group: ClassicGroup) -> GroupMaxSizeReached:
        most = self.rebalancing.settings.max_size
        return GroupMaxSizeReached(f"group {group.group_id} has {most} members; raise group.max.size or start fewer")

    def _join_new(
        self, group: ClassicGroup, request: JoinGroup, caller: Caller, waiter: object, now_ms: int, outcome: Outcome
    ) -> None:
        if not group.supports(request.protocol_type, request.protocols):
            outcome.answer(waiter, Joined(_inconsistent(group, request), UNKNOWN_MEMBER))
            return
        instance = request.group_instance_id
        name = caller.client_id if instance is None else instance
        member_id = f"{name}-{random_dashed_uuid(self._rng)}"
        if instance is not None and instance in group.static:
            self._return_static(group, request, member_id, waiter, now_ms, outcome)
        elif instance is None and request.needs_member_id:
            self.rebalancing.expect_join(group, member_id, request.session_timeout_ms, now_ms)
            error = MemberIdRequired(f"group {group.group_id}: join again as {member_id!r}")
            outcome.answer(waiter, Joined(error, member_id))
        else:
            self._add(group, member_id, request, caller, waiter, now_ms, outcome)

    def _join_existing(
        self, group: ClassicGroup, request: JoinGroup, caller: Caller, waiter: object, now_ms: int, outcome: Outcome
    ) -> None:
        member_id = request.member_id
        if not group.supports(request.protocol_type, request.protocols):
            outcome.answer(waiter, Joined(_inconsistent(group, request), member_id))
            return
        if member_id in group.pending_joins and request.group_instance_id is None:
            self._deadlines.clear(group.pending_joins[member_id])
            self._add(group, member_id, request, caller, waiter, now_ms, outcome)
            return
        error = group.check_member(member_id, request.group_instance_id)
        if error is not None:
            outcome.answer(waiter, Joined(error, member_id))
            return
        member = group.members[member_id]
        is_same = member.protocols == tuple(request.protocols)
        # A stable group's leader joins again to request a rebalance. Any other member that joins unchanged lost an answer.
        if is_same and (
            group.state is GroupState.COMPLETING_REBALANCE
            or (group.state is GroupState.STABLE and group.leader != member_id)
        ):
            outcome.answer(waiter, group.joined(member_id))
        elif group.state is GroupState.EMPTY:
            outcome.answer(waiter, Joined(_unknown(group.group_id, member_id), member_id))
        else:
            self._update(group, member, request, waiter, outcome)
            reason = f"member {member_id} joined again: {request.reason or 'no reason given'}"
            self.rebalancing.members_changed(group, reason, now_ms, outcome)

    def _add(
        self,
        group: ClassicGroup,
        member_id: str,
        request: JoinGroup,
        caller: Caller,
        waiter: object,
        now_ms: int,
        outcome: Outcome,
    ) -> None:
        member = Member(
            member_id,
            request.group_instance_id,
            client_id=caller.client_id,
            client_host=caller.host,
            protocols=request.protocols,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=_rebalance_timeout(request),
        )
        member.is_new = True
        if group.state is GroupState.PREPARING_REBALANCE and group.previous_state is GroupState.EMPTY:
            group.new_member_added = True
        group.add(member, request.protocol_type, waiter)
        # The member cannot send heartbeats yet, since it learns its id with the answer.
        self.rebalancing.expect(group, member, NEW_MEMBER_JOIN_TIMEOUT_MS, now_ms)
        reason = f"member {member_id} joined: {request.reason or 'no reason given'}"
        self.rebalancing.members_changed(group, reason, now_ms, outcome)

    def _update(
        self, group: ClassicGroup, member: Member, request: JoinGroup, waiter: object, outcome: Outcome
    ) -> None:
        group.update(
            member,
            request.protocols,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=_rebalance_timeout(request),
        )
        replaced = group.wait_for_join(member, waiter)
        if replaced is not None:
            error = RebalanceInProgress(f"group {group.group_id}: {member.member_id!r} has sent JoinGroup again")
            outcome.answer(replaced, Joined(error, member.member_id))

    def _return_static(
        self, group: ClassicGroup, request: JoinGroup, new_id: str, waiter: object, now_ms: int, outcome: Outcome
    ) -> None:
        """A static member returns under a new id, which replaces the old one. There is no rebalance if nothing else changes."""
        old_id = group.static[str(request.group_instance_id)]
        member, old_leader = group.members[old_id], group.leader
        too_large = self._too_large_for_return(group, member, request)
        if too_large is not None:
            outcome.note("group.too_large", group=group.group_id, error=too_large)
            outcome.answer(waiter, Joined(too_large, UNKNOWN_MEMBER))
            return
        fenced = FencedInstanceId(
            f"group {group.group_id}: another member has joined as {request.group_instance_id!r} since; give each process its "
            "own group.instance.id"
        )
        before = group.view() if group.state is GroupState.STABLE else None
        self.rebalancing.end_waits(group, member, outcome, fenced)
        if member.session is not None:
            self._deadlines.clear(member.session)
            member.session = None
        group.replace_static(old_id, new_id)
        self._update(group, member, request, waiter, outcome)
        self.rebalancing.heard(group, member, now_ms)
        reason = f"static member {request.group_instance_id} returned as {new_id}"
        if group.state is GroupState.STABLE and group.selected_protocol() == group.protocol:
            group.wait_for_join(member, None)
            outcome.replace(group.group_id, before)
            self.rebalancing.write(group, outcome)
            if request.may_skip_assignment:
                is_leader = group.leader == new_id
                outcome.answer(waiter, group.joined(new_id, skip_assignment=is_leader))
            else:
                # A member that sees another leader only fetches its assignment, and computes none.
                outcome.answer(waiter, group.joined(new_id, leader=old_leader))
        elif group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            # The leader may be computing an assignment for the old id right now.
            self.rebalancing.begin(group, reason, now_ms, outcome)
        else:
            self.rebalancing.go_on(group, now_ms, outcome)

    def _too_large_for_return(self, group: ClassicGroup, member: Member, request: JoinGroup) -> LogError | None:
        """The error if the group's record would be too large with this static member's new subscription."""
        given = next((each.metadata for each in request.protocols if each.name == group.protocol), None)
        if group.state is not GroupState.STABLE or group.protocol is None or given is None:
            return None  # nothing is recorded before the next assignment
        more = len(given) - len(member.metadata(group.protocol))
        return self.rebalancing.too_large(group, group.recorded_bytes + more)

    # --- SyncGroup ----------------------------------------------------------------------------------------------------
    def sync(self, request: SyncGroup, waiter: object, now_ms: int, outcome: Outcome) -> None:
        """Handles a SyncGroup. It is answered once the leader has sent the assignments, or at once with an error."""
        group = self._groups.get(request.group)
        error = _sync_error(group, request)
        if group is None or error is not None:
            outcome.answer(waiter, Synced(error))
            return
        member = group.members[request.member_id]
        self.rebalancing.has_synced(group, request.member_id)
        if group.state is GroupState.STABLE:
            outcome.answer(waiter, synced(group, member))
            return
        if member.sync_waiter is not None:
            again = RebalanceInProgress(f"group {group.group_id}: {member.member_id!r} has sent SyncGroup again")
            outcome.answer(member.sync_waiter, Synced(again))
        member.sync_waiter = waiter
        if group.leader == request.member_id:
            self.rebalancing.assign(group, request.assignments, now_ms, outcome)

    # --- Heartbeat ----------------------------------------------------------------------------------------------------
    def heartbeat(self, request: Heartbeat, now_ms: int) -> HeartbeatAnswer:
        group = self._groups.get(request.group)
        if not request.group:
            return HeartbeatAnswer(InvalidGroupId("the group id is empty; set group.id"))
        error = _member_error(group, request.group, request.member_id, request.group_instance_id, request.generation)
        if group is None or error is not None:
            return HeartbeatAnswer(error)
        if group.state is _EMPTY:
            return HeartbeatAnswer(_unknown(request.group, request.member_id))
        self.rebalancing.heard(group, group.members[request.member_id], now_ms)
        if group.state is _PREPARING_REBALANCE:
            return HeartbeatAnswer(RebalanceInProgress(f"group {request.group} is rebalancing; join again"))
        return _WELL

    # --- LeaveGroup ---------------------------------------------------------------------------------------------------
    def leave(self, request: LeaveGroup, waiter: object, now_ms: int, outcome: Outcome) -> None:
        """Handles a LeaveGroup, in steps if it names thousands of members. It is answered once all of them have left."""
        if not request.group:
            outcome.answer(waiter, Left(InvalidGroupId("the group id is empty; set group.id")))
            return
        self.rebalancing.unfinished.begin(request.group, self._leave_all(request, waiter, now_ms, outcome))

    def _leave_all(self, request: LeaveGroup, waiter: object, now_ms: int, outcome: Outcome) -> Steps:
        group = self._groups.get(request.group)
        left: list[LeftMember] = []
        reasons: dict[str, None] = {}
        count = 0
        for members in shares(request.members):
            if left:
                outcome, now_ms = yield
            if group is None:
                gone = UnknownMemberId(f"there is no group {request.group!r}; nothing to leave")
                left += [LeftMember(each.member_id, each.group_instance_id, gone) for each in members]
                continue
            some = [self._leave(group, each, outcome) for each in members]
            count += sum(1 for each in some if each.error is None)
            if len(reasons) < REASONS_SHOWN:
                reasons |= dict.fromkeys(each.reason for each in members if each.reason)
            left += some
        if count and group is not None and group.state is not GroupState.EMPTY:
            why = ", ".join(islice(reasons, REASONS_SHOWN)) or "no reason given"
            # This comes last, because it may complete a rebalance, whose steps then replace those of this request.
            self.rebalancing.members_changed(group, f"{count} members left: {why}", now_ms, outcome)
        outcome.answer(waiter, Left(None, left))

    def _leave(self, group: ClassicGroup, each: LeavingMember, outcome: Outcome) -> LeftMember:
        member_id, instance = each.member_id, each.group_instance_id
        error: LogError | None = None
        if member_id == UNKNOWN_MEMBER:
            # An administrator names the member by its instance id alone.
            member_id = group.static.get(instance, UNKNOWN_MEMBER) if instance is not None else UNKNOWN_MEMBER
            if member_id == UNKNOWN_MEMBER:
                error = _unknown(group.group_id, each.member_id)
        elif member_id not in group.pending_joins:
            error = group.check_member(member_id, instance)
        if error is None:
            self.rebalancing.drop(group, member_id, outcome)
        return LeftMember(each.member_id, instance, error)

    # --- timeouts -----------------------------------------------------------------------------------------------------
    def due(self, owner: object, now_ms: int, outcome: Outcome) -> None:
        """Handles a due timer with this owner."""
        if isinstance(owner, JoinWait):
            self.rebalancing.waited(owner.group, now_ms, outcome)
        elif isinstance(owner, SyncWait):
            self.rebalancing.sync_waited(owner.group, now_ms, outcome)
        elif isinstance(owner, Session):
            self._session_ended(owner.group, owner.member_id, now_ms, outcome)

    def _session_ended(self, group: ClassicGroup, member_id: str, now_ms: int, outcome: Outcome) -> None:
        if member_id in group.pending_joins:
            self.rebalancing.drop(group, member_id, outcome)
            if group.state is GroupState.PREPARING_REBALANCE:
                self.rebalancing.expired(group, f"{member_id} never joined", now_ms, outcome)
            return
        member = group.members.get(member_id)
        if member is None:
            return
        if not member.is_new and (member.join_waiter is not None or member.sync_waiter is not None):
            return  # a request of the member waits here: its session restarts with the answer
        outcome.note(
            "group.member_expired", group=group.group_id, member=member_id, timeout_ms=member.session_timeout_ms
        )
        self.rebalancing.drop(group, member_id, outcome)
        self.rebalancing.expired(group, f"member {member_id} sent no heartbeat", now_ms, outcome)

    # --- loading and removal ------------------------------------------------------------------------------------------
    def put(self, group: ClassicGroup, *, has_offsets: bool) -> None:
        """Adds a group that is new, or read from its record. No other group has its id."""
        self._groups[group.group_id] = group
        self.count(group, has_offsets=has_offsets)

    def count(self, group: ClassicGroup, *, has_offsets: bool) -> None:
        """Updates the memory counted for the group itself."""
        before, group.own_bytes = group.own_bytes, group_bytes(group.group_id, has_offsets=has_offsets)
        self._own.add(group.own_bytes - before)

    def no_room_for(self, group_id: str, *, has_offsets: bool) -> LogError | None:
        """The error if there is no memory for another group with that name."""
        if self._own.has_room(group_bytes(group_id, has_offsets=has_offsets)):
            return None
        return CoordinatorNotAvailable(
            f"group {group_id}: groups without offsets, or with long names, use all memory reserved for them; retry"
        )

    def remove(self, group_id: str) -> None:
        """Removes a group that has no members and no offsets, or whose record was removed."""
        if (group := self._groups.pop(group_id, None)) is not None:
            self._own.add(-group.own_bytes)

    def loaded(self, now_ms: int, outcome: Outcome) -> Generator[None, None, None]:
        """Called after all records are read. Every member's session begins now. Each group and each member is a step."""
        for group in self:
            for member in group.members.values():
                self.rebalancing.heard(group, member, now_ms)
                yield
            yield
            if len(group.members) > self.rebalancing.settings.max_size:
                self.rebalancing.begin(group, "the group is larger than group.max.size", now_ms, outcome)


def _rebalance_timeout(request: JoinGroup) -> int:
    return request.session_timeout_ms if request.rebalance_timeout_ms < 0 else request.rebalance_timeout_ms


def _unknown(group: str, member_id: str) -> UnknownMemberId:
    return UnknownMemberId(f"group {group} has no member {member_id!r}; join again without a member id")


def _inconsistent(group: ClassicGroup, request: JoinGroup) -> InconsistentGroupProtocol:
    names = ", ".join(each.name for each in request.protocols) or "none"
    known = ", ".join(sorted(name for name, count in group.supported.items() if count == len(group.members))) or "none"
    return InconsistentGroupProtocol(
        f"group {group.group_id}: the member's type is {request.protocol_type!r} with the protocols {names}; the group's is "
        f"{group.protocol_type!r} with {known}. Set partition.assignment.strategy to one that all members have"
    )


def _member_error(
    group: ClassicGroup | None, group_id: str, member_id: str, instance: str | None, generation: int
) -> LogError | None:
    if group is None:
        return _unknown(group_id, member_id)
    error = group.check_member(member_id, instance)
    if error is None and generation != group.generation:
        error = IllegalGeneration(f"group {group_id} is at generation {group.generation}, not {generation}; join again")
    return error


def _sync_error(group: ClassicGroup | None, request: SyncGroup) -> LogError | None:
    if not request.group:
        return InvalidGroupId("the group id is empty; set group.id")
    error = _member_error(group, request.group, request.member_id, request.group_instance_id, request.generation)
    if group is None or error is not None:
        return error
    for given, known in ((request.protocol_type, group.protocol_type), (request.protocol, group.protocol)):
        if given is not None and known is not None and given != known:
            return InconsistentGroupProtocol(f"group {request.group} has chosen {known!r}, not {given!r}; join again")
    if group.state is GroupState.EMPTY:
        return _unknown(request.group, request.member_id)
    if group.state is GroupState.PREPARING_REBALANCE:
        return RebalanceInProgress(f"group {request.group} is rebalancing; join again")
    return None
