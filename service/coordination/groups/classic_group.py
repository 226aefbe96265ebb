"""One consumer group of the classic protocol: its members, generation, leader and state.

    empty ──▶ preparing_rebalance ──▶ completing_rebalance ──▶ stable
      ▲               │  ▲                      │                │
      └───────────────┘  └──────────────────────┴────────────────┘

Pure. It has no clock: `rebalancing.py` makes all decisions about time. The rules are those of Kafka 4.2.1's ClassicGroup.

Invariants: `TRANSITIONS` has every change of state; any other is a defect. The leader, if any, is a member. All members of a
generation support its protocol. A static member's instance id names exactly one member.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Generator, Iterable, Mapping, Sequence
from enum import Enum
from operator import attrgetter
from typing import NamedTuple

from grpc_api.contract.coordinator_errors import FencedInstanceId, UnknownMemberId
from grpc_api.contract.groups import (
    UNKNOWN_MEMBER,
    DescribedGroup,
    DescribedMember,
    Joined,
    JoinedMember,
    MemberProtocol,
)
from service.coordination.deadlines import Timer
from service.coordination.group_records import GroupMetadata, encode_names
from service.coordination.groups.member_memory import kept_bytes, pending_bytes, smallest_subscription
from service.coordination.outcome import CoordinatorAnswer
from storage_tiers.errors import LogError


class GroupState(Enum):
    """The states, with the names that ListGroups and DescribeGroups show."""

    EMPTY = "Empty"
    #: Waits until its members have rejoined.
    PREPARING_REBALANCE = "PreparingRebalance"
    #: Waits for the leader's assignment.
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"


#: The state that DescribeGroups shows for a group that does not exist.
DEAD = "Dead"

#: The states that may follow a state.
TRANSITIONS: Mapping[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.PREPARING_REBALANCE: frozenset({GroupState.COMPLETING_REBALANCE, GroupState.EMPTY}),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.STABLE, GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.PREPARING_REBALANCE}),
}

#: States in which a change of the members begins a rebalance.
REBALANCES_FROM = frozenset({GroupState.EMPTY, GroupState.STABLE, GroupState.COMPLETING_REBALANCE})


class UnexpectedTransition(Exception):
    """A change of state that cannot happen: a defect of the caller."""


class Member:
    """One member. `protocols` are in its order of preference; `assignment` is the one that the leader made in this generation.
    `join_waiter` and `sync_waiter` are the waiters of its JoinGroup and SyncGroup, None while it has none. `is_new` is True
    until it has received its id."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "group_instance_id",
        "is_new",
        "join_waiter",
        "member_id",
        "names",
        "protocols",
        "rebalance_timeout_ms",
        "session",
        "session_timeout_ms",
        "sync_waiter",
    )

    def __init__(
        self,
        member_id: str,
        group_instance_id: str | None,
        *,
        client_id: str,
        client_host: str,
        protocols: Sequence[MemberProtocol],
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
    ) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = client_id
        self.client_host = client_host
        #: The member's two ids, its client's id and host, encoded once, since records of large groups are written often.
        self.names = encode_names(member_id, group_instance_id, client_id, client_host)
        self.protocols = tuple(protocols)
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.assignment = b""
        self.is_new = False
        self.join_waiter: object | None = None
        self.sync_waiter: object | None = None
        #: The timer that removes the member unless it sends a heartbeat; `Rebalancing` sets it.
        self.session: Timer | None = None

    def rename(self, member_id: str) -> None:
        self.member_id = member_id
        self.names = encode_names(member_id, self.group_instance_id, self.client_id, self.client_host)

    @property
    def record_bytes(self) -> int:
        """Lower bound of the member's share of the group's record, in bytes: its names and its smallest subscription."""
        names = len(self.member_id) + len(self.client_id) + len(self.client_host)
        return names + smallest_subscription(self.protocols)

    @property
    def kept_bytes(self) -> int:
        names = (self.member_id, self.group_instance_id, self.client_id, self.client_host)
        return kept_bytes(self.protocols, *names) + len(self.assignment)

    def metadata(self, protocol: str) -> bytes:
        """The member's subscription under a protocol that it supports."""
        return subscription_of(self.protocols, protocol)

    def vote(self, candidates: frozenset[str]) -> str:
        """The first of its protocols among `candidates`, which contains at least one of them."""
        return next(each.name for each in self.protocols if each.name in candidates)


def subscription_of(protocols: Sequence[MemberProtocol], name: str) -> bytes:
    first = protocols[0]
    if first.name == name:  # the common case; a large group calls this thousands of times
        return first.metadata
    return next(each.metadata for each in protocols if each.name == name)


class Session(NamedTuple):
    """The owner of the timer of a member, or of an unused member id."""

    group: ClassicGroup
    member_id: str


class JoinWait(NamedTuple):
    """The owner of the timer that ends the wait for members to join."""

    group: ClassicGroup


class SyncWait(NamedTuple):
    """The owner of the timer that ends the wait for SyncGroup requests."""

    group: ClassicGroup


#: A member as readers see it: its ids, its client's id and host, its protocols and its assignment.
MemberRow = tuple[str, str | None, str, str, tuple[MemberProtocol, ...], bytes]
_MEMBER_ROW = attrgetter("member_id", "group_instance_id", "client_id", "client_host", "protocols", "assignment")
#: A named tuple's own constructor takes twice as long, and a rebalance makes thousands of tuples.
_new_tuple = tuple.__new__


def member_rows(members: Iterable[Member]) -> list[MemberRow]:
    return list(map(_MEMBER_ROW, members))


class GroupView(NamedTuple):
    """A group as readers see it at one time. The copy of a group of thousands of members takes a fraction of a millisecond."""

    state: GroupState
    protocol_type: str | None
    protocol: str | None
    members: Sequence[MemberRow]

    def described(self, group_id: str) -> DescribedGroup:
        protocol = self.protocol if self.state is GroupState.STABLE else None
        return DescribedGroup(
            None,
            group_id,
            self.state.value,
            self.protocol_type or "",
            protocol or "",
            [
                DescribedMember(
                    *(member_id, instance, client_id, host),
                    b"" if protocol is None else subscription_of(protocols, protocol),
                    assignment,
                )
                for member_id, instance, client_id, host, protocols, assignment in self.members
            ],
        )


class ClassicGroup:
    """`members` is in the order of joining; `static` maps instance ids to member ids. `pending_joins` are ids given to members
    that have not joined with them yet, `pending_syncs` members that have not sent SyncGroup. `state_timestamp` is the time in
    ms of the last change of state."""

    __slots__ = (
        "assigned_bytes",
        "generation",
        "group_id",
        "initial_remaining_ms",
        "join",
        "joining",
        "kept_bytes",
        "leader",
        "members",
        "new_member_added",
        "own_bytes",
        "pending_joins",
        "pending_syncs",
        "previous_state",
        "protocol",
        "protocol_type",
        "record_bytes",
        "recorded_bytes",
        "state",
        "state_timestamp",
        "static",
        "supported",
        "sync",
    )

    def __init__(self, group_id: str, now_ms: int) -> None:
        self.group_id = group_id
        self.state = self.previous_state = GroupState.EMPTY
        self.state_timestamp = now_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        #: An OrderedDict, because a dict's search for the first member passes the slots of all members that have left.
        self.members: OrderedDict[str, Member] = OrderedDict()
        self.static: dict[str, str] = {}
        self.pending_joins: OrderedDict[str, Timer] = OrderedDict()
        self.pending_syncs: dict[str, None] = {}
        #: Members whose JoinGroup waits.
        self.joining = 0
        #: Memory of members and pending ids, in bytes; a lower bound of the members' part of the record, without assignments.
        self.kept_bytes = self.record_bytes = 0
        #: Bytes of its members' assignments, included in `kept_bytes`, and bytes of the group itself.
        self.assigned_bytes = self.own_bytes = 0
        #: Bytes of the value of its newest record.
        self.recorded_bytes = 0
        #: Members that support each protocol.
        self.supported: Counter[str] = Counter()
        #: The deadlines of the waits for members and for SyncGroups.
        self.join, self.sync = Timer(JoinWait(self)), Timer(SyncWait(self))
        #: First rebalance only: whether a member joined since the last extension, and the time left for extensions.
        self.new_member_added = False
        self.initial_remaining_ms = 0

    # --- its state ----------------------------------------------------------------------------------------------------
    def enter(self, state: GroupState, now_ms: int) -> None:
        """Changes the state. Raises UnexpectedTransition if `TRANSITIONS` does not have the change."""
        if state not in TRANSITIONS[self.state]:
            raise UnexpectedTransition(f"group {self.group_id}: no transition from {self.state.value} to {state.value}")
        self.previous_state, self.state, self.state_timestamp = self.state, state, now_ms

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of its members."""
        return max([member.rebalance_timeout_ms for member in self.members.values()], default=0)

    @property
    def has_all_joined(self) -> bool:
        return self.joining == len(self.members) and not self.pending_joins

    def begin_generation(self, now_ms: int) -> None:
        """Begins the next generation with the present members; without members the group becomes empty."""
        self.generation += 1
        if self.members:
            self.protocol = self.selected_protocol()
            self.enter(GroupState.COMPLETING_REBALANCE, now_ms)
        else:
            self.protocol = None
            self.enter(GroupState.EMPTY, now_ms)

    # --- its members --------------------------------------------------------------------------------------------------
    def add_pending(self, member_id: str, timer: Timer) -> None:
        self.pending_joins[member_id] = timer
        self.kept_bytes += pending_bytes(member_id)

    def pop_pending(self, member_id: str) -> Timer | None:
        timer = self.pending_joins.pop(member_id, None)
        self.kept_bytes -= pending_bytes(member_id) if timer is not None else 0
        return timer

    def add(self, member: Member, protocol_type: str, waiter: object | None) -> None:
        """Adds a member that joins. The first member of an empty group sets its protocol type and leads it."""
        if not self.members:
            self.protocol_type = protocol_type
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self.static[member.group_instance_id] = member.member_id
        self.pop_pending(member.member_id)
        self._count_protocols(member, 1)
        if self.leader is None:
            self.leader = member.member_id
        self.wait_for_join(member, waiter)

    def remove(self, member_id: str) -> Member | None:
        """Removes a member that has no waiting request, or an unused member id."""
        self.pop_pending(member_id)
        self.pending_syncs.pop(member_id, None)
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        self._count_protocols(member, -1)
        if member.group_instance_id is not None:
            self.static.pop(member.group_instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def update(
        self,
        member: Member,
        protocols: Sequence[MemberProtocol],
        *,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
    ) -> None:
        """Updates a member that rejoins, perhaps with other protocols and timeouts."""
        self._count_protocols(member, -1)
        member.protocols = tuple(protocols)
        self._count_protocols(member, 1)
        member.session_timeout_ms = session_timeout_ms
        member.rebalance_timeout_ms = rebalance_timeout_ms

    def replace_static(self, old_id: str, new_id: str) -> Member:
        """Renames a returning static member. Everything else stays, even the leadership. The old id is no longer a member."""
        member = self.members.pop(old_id)
        before = member.kept_bytes
        member.rename(new_id)
        self.kept_bytes += member.kept_bytes - before
        self.members[new_id] = member
        if member.group_instance_id is not None:
            self.static[member.group_instance_id] = new_id
        if self.pending_syncs.pop(old_id, self) is None:
            self.pending_syncs[new_id] = None
        if self.leader == old_id:
            self.leader = new_id
        return member

    def wait_for_join(self, member: Member, waiter: object | None) -> object | None:
        """Sets the waiter of the member's JoinGroup, or None to end the wait. Returns the previous waiter."""
        before = member.join_waiter
        member.join_waiter = waiter
        self.joining += (waiter is not None) - (before is not None)
        return before

    def end_joins(self, members: Sequence[Member], shown: Sequence[JoinedMember]) -> list[CoordinatorAnswer]:
        """Answers the JoinGroups of these members, the leader's with `shown`, and awaits the SyncGroups of all."""
        kind, protocol, generation = self.protocol_type, self.protocol, self.generation
        leader = self.leader or UNKNOWN_MEMBER
        answers = []
        for member in members:
            member.is_new = False
            member_id = member.member_id
            self.pending_syncs[member_id] = None
            waiter = member.join_waiter
            if waiter is not None:
                member.join_waiter = None
                seen = shown if member_id == leader else ()
                joined = _new_tuple(Joined, (None, member_id, generation, kind, protocol, leader, seen, False))
                answers.append(_new_tuple(CoordinatorAnswer, (waiter, joined)))
        self.joining -= len(answers)
        return answers

    def assign(self, assignments: Sequence[bytes]) -> None:
        """Sets every member's assignment, in the order of `members`."""
        for member, assignment in zip(self.members.values(), assignments, strict=True):
            member.assignment = assignment
        total = sum(map(len, assignments))
        self.kept_bytes += total - self.assigned_bytes
        self.assigned_bytes = total

    def _count_protocols(self, member: Member, step: int) -> None:
        self.kept_bytes += step * member.kept_bytes
        self.assigned_bytes += step * len(member.assignment)
        self.record_bytes += step * member.record_bytes
        supported = self.supported
        for name in {each.name for each in member.protocols}:
            members = supported[name] + step
            if members:
                supported[name] = members
            else:
                del supported[name]

    def elect_joined_leader(self) -> bool:
        """If the leader has not joined, makes the first member that has joined the leader. False if no member has joined."""
        if self.leader is not None and self.members[self.leader].join_waiter is not None:
            return True
        for member in self.members.values():
            if member.join_waiter is not None:
                self.leader = member.member_id
                return True
        return False

    def check_member(self, member_id: str, group_instance_id: str | None) -> LogError | None:
        """The error if the caller is not this member. A static member is named by both ids (KIP-345)."""
        if group_instance_id is None:
            if member_id in self.members:
                return None
        else:
            known = self.static.get(group_instance_id)
            if known == member_id:
                return None
            if known is not None:
                return FencedInstanceId(
                    f"group {self.group_id}: another member has joined as {group_instance_id!r} since; give each process its "
                    "own group.instance.id"
                )
        return UnknownMemberId(f"group {self.group_id} has no member {member_id!r}; join again without a member id")

    # --- its protocol -------------------------------------------------------------------------------------------------
    def supports(self, protocol_type: str, protocols: Sequence[MemberProtocol]) -> bool:
        """Whether a member with these protocols can join."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        supported = self.supported
        return self.protocol_type == protocol_type and len(self.members) in [supported[each.name] for each in protocols]

    def selected_protocol(self) -> str:
        """The protocol with the most votes among those that every member supports; in a tie, the first that got a vote."""
        candidates = frozenset(name for name, members in self.supported.items() if members == len(self.members))
        if len(candidates) == 1:
            return next(iter(candidates))
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    # --- its answers and its record -----------------------------------------------------------------------------------
    def joined(self, member_id: str, *, leader: str | None = None, skip_assignment: bool = False) -> Joined:
        """The answer to a member of this generation; `leader` overrides the leader shown to the member."""
        leads = leader is None and member_id == self.leader
        return Joined(
            None,
            member_id,
            self.generation,
            self.protocol_type,
            self.protocol,
            (leader if leader is not None else self.leader) or UNKNOWN_MEMBER,
            self.joined_members(self.members.values()) if leads else (),
            skip_assignment,
        )

    def joined_members(self, members: Iterable[Member]) -> list[JoinedMember]:
        """These members as the leader sees them."""
        protocol = self.protocol or ""
        return [
            _new_tuple(
                JoinedMember, (each.member_id, each.group_instance_id, subscription_of(each.protocols, protocol))
            )
            for each in members
        ]

    def view(self, rows: Sequence[MemberRow] | None = None) -> GroupView:
        """The group as readers see it now. `rows` are its members' rows, if they exist already."""
        if rows is None:
            rows = member_rows(self.members.values())
        return GroupView(self.state, self.protocol_type, self.protocol, rows)

    @classmethod
    def loaded(cls, group_id: str, value: GroupMetadata, now_ms: int) -> Generator[None, None, ClassicGroup]:
        """Makes a group from its record: stable with its members and their assignments, or empty. Each member is a step."""
        group = cls(group_id, now_ms)
        for each in value.members:
            protocols = () if value.protocol is None else (MemberProtocol(value.protocol, each.subscription),)
            member = Member(
                each.member_id,
                each.group_instance_id,
                client_id=each.client_id,
                client_host=each.client_host,
                protocols=protocols,
                session_timeout_ms=each.session_timeout,
                rebalance_timeout_ms=each.rebalance_timeout,
            )
            member.assignment = each.assignment
            group.add(member, value.protocol_type, None)
            yield
        group.state = group.previous_state = GroupState.STABLE if value.members else GroupState.EMPTY
        if value.state_timestamp >= 0:
            group.state_timestamp = value.state_timestamp
        group.generation = value.generation
        group.protocol_type = value.protocol_type or None
        group.protocol = value.protocol
        group.leader = value.leader
        return group
