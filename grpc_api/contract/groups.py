"""Consumer groups of the classic protocol and their committed offsets: the requests and answers of a group coordinator.

Every answer holds its error as a value, since one request may succeed in part. A request that reached no coordinator has no
answer: its future ends with a LogError. Subscriptions and assignments are opaque bytes of the clients' protocol. Times are in
ms. A member id is "" until the coordinator has issued one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from grpc_api.contract.caller import Caller
from grpc_api.contract.transactions import ProducerTransaction
from storage_tiers.errors import LogError
from storage_tiers.types import NO_EPOCH, TopicId, TopicPartition

if TYPE_CHECKING:
    import asyncio

#: The member id of a member that has none yet.
UNKNOWN_MEMBER = ""
#: The generation of a commit from outside the group's protocol.
NO_GENERATION = -1


class MemberProtocol(NamedTuple):
    """An assignor that a member supports, with its subscription."""

    name: str
    metadata: bytes


class JoinGroup(NamedTuple):
    """`protocols` are in the member's order of preference. A negative `rebalance_timeout_ms` stands for the session
    timeout. `needs_member_id`: whether a member without an id gets one and joins again (version 4 and up, KIP-394).
    `may_skip_assignment`: whether a returning static leader may skip the assignment (version 9, KIP-814)."""

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
    """`members` is empty except for the leader. If `error` is set, `generation` is -1 and `protocol` is None."""

    error: LogError | None
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = UNKNOWN_MEMBER
    members: Sequence[JoinedMember] = ()
    skip_assignment: bool = False


class SyncGroup(NamedTuple):
    """`assignments` holds (member id, assignment) and comes from the leader alone. `protocol_type` and `protocol` are None
    below version 5."""

    group: str
    generation: int
    member_id: str
    group_instance_id: str | None
    assignments: Sequence[tuple[str, bytes]]
    protocol_type: str | None = None
    protocol: str | None = None


class Synced(NamedTuple):
    """The member's own assignment; empty if there is an error."""

    error: LogError | None
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class Heartbeat(NamedTuple):
    """`generation` is the one that the member joined; any other gets IllegalGeneration."""

    group: str
    generation: int
    member_id: str
    group_instance_id: str | None


class HeartbeatAnswer(NamedTuple):
    """`error` is None if the member is in the group's current generation. RebalanceInProgress makes it join again."""

    error: LogError | None


class LeavingMember(NamedTuple):
    """A member, named by its id; an administrator may name it by its instance id alone."""

    member_id: str
    group_instance_id: str | None = None
    reason: str | None = None


class LeaveGroup(NamedTuple):
    """Removes members from a group: one that leaves, or several that an administrator names."""

    group: str
    members: Sequence[LeavingMember]


class LeftMember(NamedTuple):
    """One member's outcome, named as in the request."""

    member_id: str
    group_instance_id: str | None
    error: LogError | None


class Left(NamedTuple):
    """`error` is that of the whole request; `members` are in the request's order."""

    error: LogError | None
    members: Sequence[LeftMember] = ()


# --- offsets ----------------------------------------------------------------------------------------------------------
class PartitionCommit(NamedTuple):
    """`offset` is the next one to read; `leader_epoch` that of the last record read, -1 if unknown."""

    partition: int
    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str | None = None


class TopicCommit(NamedTuple):
    """`topic_id` is None in the request versions that name topics; with an id the name may be ""."""

    topic: str
    partitions: Sequence[PartitionCommit]
    topic_id: TopicId | None = None


class OffsetCommit(NamedTuple):
    """For a commit from outside the group's protocol, `generation` is NO_GENERATION and `member_id` is UNKNOWN_MEMBER.
    `retention_ms` is -1 for the broker's retention (versions 2 to 4 may set another). `knows_missing_group`: whether the client
    knows the error for a group that does not exist; clients below version 9 get IllegalGeneration instead."""

    group: str
    generation: int
    member_id: str
    group_instance_id: str | None
    topics: Sequence[TopicCommit]
    retention_ms: int = -1
    knows_missing_group: bool = True


class TxnOffsetCommit(NamedTuple):
    """Offsets that take effect when the producer's transaction is committed."""

    group: str
    transaction: ProducerTransaction
    producer_id: int
    producer_epoch: int
    generation: int
    member_id: str
    group_instance_id: str | None
    topics: Sequence[TopicCommit]


class PartitionOutcome(NamedTuple):
    """`error` is None if the offset was committed or deleted."""

    partition: int
    error: LogError | None


class TopicOutcome(NamedTuple):
    """`topic_id` is that of the request."""

    topic: str
    partitions: Sequence[PartitionOutcome]
    topic_id: TopicId | None = None


class OffsetsCommitted(NamedTuple):
    """The outcomes in the request's order. As in the protocol, an error of the whole request is repeated for every
    partition."""

    topics: Sequence[TopicOutcome]


class TopicPartitionIndexes(NamedTuple):
    """`topic_id` is None in the request versions that name topics; with an id the name may be ""."""

    topic: str
    partitions: Sequence[int]
    topic_id: TopicId | None = None


class OffsetFetch(NamedTuple):
    """`topics` is None for all topics of which the group has committed offsets. With `require_stable`, partitions with offsets
    of open transactions are refused; without it, the answer has their previous offsets (KIP-447)."""

    group: str
    topics: Sequence[TopicPartitionIndexes] | None
    require_stable: bool = False


class FetchedOffset(NamedTuple):
    """`offset` is -1 where none is committed."""

    partition: int
    offset: int = -1
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    error: LogError | None = None


class FetchedTopic(NamedTuple):
    """`topic_id` is that of the request. If the request had no topics, it is the topic's own id, or None if the topic is
    deleted."""

    topic: str
    partitions: Sequence[FetchedOffset]
    topic_id: TopicId | None = None


class OffsetsFetched(NamedTuple):
    """`error` is that of the whole request; partitions have their own."""

    error: LogError | None
    topics: Sequence[FetchedTopic] = ()


class OffsetDelete(NamedTuple):
    """Removes committed offsets of topics to which the group is not subscribed."""

    group: str
    topics: Sequence[TopicPartitionIndexes]


class OffsetsDeleted(NamedTuple):
    """`error` is that of the whole request; partitions have their own."""

    error: LogError | None
    topics: Sequence[TopicOutcome] = ()


# --- administration ---------------------------------------------------------------------------------------------------
class ListGroups(NamedTuple):
    """An empty filter excludes nothing. States and types are compared without regard to case."""

    states: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()


class ListedGroup(NamedTuple):
    """`state` and `type` are Kafka's names, such as "Stable" and "classic"."""

    group: str
    protocol_type: str
    state: str
    type: str


class GroupsListed(NamedTuple):
    """The groups of the shards that this broker coordinates. `error` is that of the first shard that could not be read;
    `groups` has the groups of all other shards."""

    error: LogError | None
    groups: Sequence[ListedGroup] = ()


class DescribeGroup(NamedTuple):
    """Requests the state and the members of one group."""

    group: str


class DescribedMember(NamedTuple):
    """`metadata` is empty unless the group is stable. `assignment` is the member's last one; a rebalance of a stable group
    keeps it until the leader assigns again."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class DescribedGroup(NamedTuple):
    """A group that does not exist has the error GroupIdNotFound and the state Dead. `protocol` is "" in any state but
    Stable."""

    error: LogError | None
    group: str
    state: str
    protocol_type: str = ""
    protocol: str = ""
    members: Sequence[DescribedMember] = ()


class DeleteGroup(NamedTuple):
    """Deletes a group without members, with its offsets."""

    group: str


class GroupDeleted(NamedTuple):
    """`error` is NonEmptyGroup or GroupIdNotFound; None if the group is deleted."""

    group: str
    error: LogError | None


class LostEnd(NamedTuple):
    """The log end of a partition that has lost its newest records. No lost record has the epoch `leader_epoch`, so an offset
    committed with this epoch, or with a later one, is valid."""

    offset: int
    leader_epoch: int


class LowerOffsets(NamedTuple):
    """The log ends of partitions that have lost records, for some coordinators. `coordinators` are partition numbers of
    `__consumer_offsets`."""

    coordinators: Collection[int]
    ends: Mapping[TopicPartition, LostEnd]


class Groups(Protocol):
    """Group coordinators of the classic protocol.

    Every future ends with its answer, or with a LogError if the request was not decided or may not have been written:
    NotCoordinator (another broker coordinates the group), CoordinatorLoading, CoordinatorNotAvailable. Cancelling a
    future undoes nothing. A JoinGroup waits as long as the group's members may take to join, and a SyncGroup for the leader's
    assignments; other requests wait only for records to be committed."""

    async def coordinator(self, group: str, caller: Caller) -> int:
        """The id of the broker that coordinates the group. Creates the internal topic if there is none. Raises
        CoordinatorNotAvailable while the coordinator's partition has no leader."""

    def join(self, request: JoinGroup, caller: Caller) -> asyncio.Future[Joined]: ...

    def sync(self, request: SyncGroup, caller: Caller) -> asyncio.Future[Synced]: ...

    def heartbeat(self, request: Heartbeat, caller: Caller) -> asyncio.Future[HeartbeatAnswer]: ...

    def leave(self, request: LeaveGroup, caller: Caller) -> asyncio.Future[Left]: ...

    def commit_offsets(self, request: OffsetCommit, caller: Caller) -> asyncio.Future[OffsetsCommitted]:
        """The answer has UnknownTopicOrPartition or UnknownTopicId for partitions that the cluster does not have; the others
        are committed."""

    async def commit_offsets_in_transaction(self, request: TxnOffsetCommit, caller: Caller) -> OffsetsCommitted:
        """As `commit_offsets`; the offsets are pending until the transaction's marker is written."""

    def fetch_offsets(self, request: OffsetFetch, caller: Caller) -> asyncio.Future[OffsetsFetched]: ...

    def delete_offsets(self, request: OffsetDelete, caller: Caller) -> asyncio.Future[OffsetsDeleted]: ...

    async def list_groups(self, request: ListGroups, caller: Caller) -> GroupsListed: ...

    def describe_group(self, request: DescribeGroup, caller: Caller) -> asyncio.Future[DescribedGroup]: ...

    def delete_group(self, request: DeleteGroup, caller: Caller) -> asyncio.Future[GroupDeleted]: ...

    async def lower_offsets(self, request: LowerOffsets, caller: Caller) -> Collection[int]:
        """Lowers committed offsets above these ends, on behalf of the broker that leads the partitions. Returns the
        coordinators that have committed the change. The others are on other brokers, are not loaded, or refused the change;
        the caller asks again later."""
