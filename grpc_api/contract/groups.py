"""Consumer groups of the classic protocol and their committed offsets: the requests and answers of a group coordinator.

Every answer holds its error as a value, since one request may succeed in part. Subscriptions and assignments are opaque bytes
of the clients' protocol. Times are in ms. A member id is "" where the coordinator has given none yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from storage_tiers.errors import LogError

#: The member id of a member that has none yet.
UNKNOWN_MEMBER = ""
#: The generation of a commit from outside the group's protocol.
NO_GENERATION = -1


class Caller(NamedTuple):
    """Who asks. `host` is as Kafka shows it, such as "/10.0.0.1". `principal` is "User:ANONYMOUS" without authentication."""

    principal: str
    client_id: str
    host: str


class MemberProtocol(NamedTuple):
    """An assignor that a member supports, with its subscription."""

    name: str
    metadata: bytes


class JoinGroup(NamedTuple):
    """`protocols` are in the member's order of preference. `rebalance_timeout_ms` is -1 below version 1, where both timeouts
    are one. `needs_member_id`: whether a member without an id is given one and joins again (version 4 and up, KIP-394).
    `may_skip_assignment`: whether a static leader that returns may be told to keep the assignment (version 9, KIP-814)."""

    group: str
    member_id: str
    group_instance_id: str | None
    protocol_type: str
    protocols: Sequence[MemberProtocol]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    needs_member_id: bool
    may_skip_assignment: bool = False
    reason: str | None = None


class JoinedMember(NamedTuple):
    """A member as the leader sees it; `metadata` is its subscription under the chosen protocol."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


class Joined(NamedTuple):
    """`members` is empty for all but the leader. `generation` is -1 and `protocol` None where `error` is set."""

    error: LogError | None
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = UNKNOWN_MEMBER
    members: Sequence[JoinedMember] = ()
    skip_assignment: bool = False


class SyncGroup(NamedTuple):
    """`assignments` holds (member id, assignment) and comes from the leader alone. The protocol's type and name are None below
    version 5."""

    group: str
    generation: int
    member_id: str
    group_instance_id: str | None
    assignments: Sequence[tuple[str, bytes]]
    protocol_type: str | None = None
    protocol: str | None = None


class Synced(NamedTuple):
    error: LogError | None
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class Heartbeat(NamedTuple):
    group: str
    generation: int
    member_id: str
    group_instance_id: str | None


class HeartbeatAnswer(NamedTuple):
    error: LogError | None


class LeavingMember(NamedTuple):
    """Named by its id, or by its instance id alone, as an administrator does."""

    member_id: str
    group_instance_id: str | None = None
    reason: str | None = None


class LeaveGroup(NamedTuple):
    group: str
    members: Sequence[LeavingMember]


class LeftMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    error: LogError | None


class Left(NamedTuple):
    """`error` is the whole request's; `members` are in the request's order."""

    error: LogError | None
    members: Sequence[LeftMember] = ()
