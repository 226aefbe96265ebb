"""One membership in a consumer group, with Kafka's classic protocol: joins, assigns partitions as leader, sends heartbeats,
commits, leaves.

Invariants: the group's coordinator is authoritative. If it does not know the member, or the group has a newer generation, the
member has lost its partitions and commits none of their offsets. Requests to an unavailable coordinator are retried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import NamedTuple

from grpc_api.channel import NodeChannel
from grpc_api.contract.caller import Caller
from grpc_api.contract.coordinator_errors import (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    IllegalGeneration,
    MemberIdRequired,
    NotCoordinator,
    RebalanceInProgress,
    UnknownMemberId,
)
from grpc_api.contract.groups import (
    NO_GENERATION,
    UNKNOWN_MEMBER,
    Groups,
    Heartbeat,
    Joined,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    MemberProtocol,
    OffsetCommit,
    OffsetFetch,
    PartitionCommit,
    SyncGroup,
    TopicCommit,
    TopicPartitionIndexes,
)
from grpc_api.remote_topics import RemoteTopics
from grpc_api.sdk.assignors import COOPERATIVE_STICKY, Subscriber, assign
from grpc_api.sdk.consumer_protocol import (
    CONSUMER,
    MemberSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from grpc_api.sdk.retries import Patience
from grpc_api.sdk.values import ConsumerOptions
from storage_tiers.errors import LogError
from storage_tiers.types import TopicPartition


class Next(Enum):
    """The member's reaction to an error of its coordinator. The program gets any other error."""

    #: Retry after a pause.
    WAIT = auto()
    #: Join the next generation; partitions are kept until then.
    JOIN = auto()
    #: Join under the same id; the partitions are lost.
    LOSE = auto()
    #: Join as a new member; the partitions are lost.
    BEGIN = auto()


AFTER: Mapping[type[LogError], Next] = {
    CoordinatorNotAvailable: Next.WAIT,
    CoordinatorLoading: Next.WAIT,
    NotCoordinator: Next.WAIT,
    MemberIdRequired: Next.JOIN,
    RebalanceInProgress: Next.JOIN,
    IllegalGeneration: Next.LOSE,
    UnknownMemberId: Next.BEGIN,
}


class MemberIdentity(NamedTuple):
    """The identity under which a member commits."""

    group: str
    generation: int
    member_id: str
    instance_id: str | None


class Membership:
    """`owned` are the member's partitions. `must_join` is True if the member has to join the next generation. `failure` is an
    error that the program has to handle. `on_change` is called when a coordinator's error or changed metadata sets `must_join`
    or `failure`."""

    def __init__(
        self,
        node: NodeChannel,
        groups: Groups,
        metadata: RemoteTopics,
        *,
        group: str,
        topics: Sequence[str],
        options: ConsumerOptions,
        on_change: Callable[[], None],
    ) -> None:
        self._node = node
        self._groups = groups
        self._metadata = metadata
        self._group = group
        self._topics = tuple(dict.fromkeys(topics))
        self._options = options
        self._on_change = on_change
        self._caller = Caller("User:ANONYMOUS", options.client_id, "")
        self._member_id = UNKNOWN_MEMBER
        self._generation = NO_GENERATION
        #: Topics of the group with their numbers of partitions, as this member assigned them; None if it does not lead.
        self._assigned_from: Mapping[str, int] | None = None
        self.owned: Sequence[TopicPartition] = ()
        self.must_join = True
        self.failure: LogError | None = None
        self._unsubscribe = metadata.subscribe(self._on_metadata)

    @property
    def is_member(self) -> bool:
        return self._generation != NO_GENERATION

    @property
    def is_cooperative(self) -> bool:
        """Whether partitions are kept during a rebalance. This is so only if cooperative-sticky is the one assignor offered,
        because all members must support it."""
        return set(self._options.assignors) == {COOPERATIVE_STICKY}

    # --- joining ------------------------------------------------------------------------------------------------------
    async def join(self) -> set[TopicPartition]:
        """Joins the group's next generation. Returns the partitions that the member kept during the rebalance."""
        if not self.is_cooperative:
            self.owned = ()
        patience = Patience(self._node, self._options.retry_s)
        while True:
            try:
                self._metadata_exists()
                await self._groups.coordinator(self._group, self._caller)
                before = set(self.owned)
                self.owned = await self._join_once()
            except LogError as error:
                if self._after(error) is Next.WAIT:
                    await patience.pause(error)
            else:
                break
        kept = before & set(self.owned)
        self.must_join = kept != before  # other members wait for the revoked partitions
        self._on_metadata()
        return kept

    def _metadata_exists(self) -> None:
        for topic in self._topics:
            self._metadata.partition_count(topic)

    async def _join_once(self) -> Sequence[TopicPartition]:
        options = self._options
        subscription = encode_subscription(MemberSubscription(self._topics, self.owned, self._generation))
        request = JoinGroup(
            self._group,
            self._member_id,
            options.instance_id,
            CONSUMER,
            [MemberProtocol(name, subscription) for name in options.assignors],
            round(options.session_s * 1000),
            round(options.processing_s * 1000),
            needs_member_id=True,
            may_skip_assignment=True,
        )
        joined = await self._groups.join(request, self._caller)
        if isinstance(joined.error, MemberIdRequired) or joined.error is None:
            self._member_id = joined.member_id
        if joined.error is not None:
            raise joined.error
        assignments: Sequence[tuple[str, bytes]] = ()
        self._assigned_from = None
        if joined.leader == joined.member_id:
            assignments = self._assigned(joined)
        sync = SyncGroup(
            self._group,
            joined.generation,
            self._member_id,
            options.instance_id,
            assignments,
            joined.protocol_type,
            joined.protocol,
        )
        synced = await self._groups.sync(sync, self._caller)
        if synced.error is not None:
            raise synced.error
        self._generation = joined.generation
        return decode_assignment(synced.assignment)

    def _assigned(self, joined: Joined) -> Sequence[tuple[str, bytes]]:
        """Every member's assignment, computed as leader. When a static leader returns (KIP-814), the coordinator keeps the
        existing assignment and ignores this one."""
        members = [
            Subscriber(each.member_id, each.group_instance_id, decode_subscription(each.metadata))
            for each in joined.members
        ]
        self._assigned_from = self._counts({topic for each in members for topic in each.subscription.topics})
        assert joined.protocol is not None
        found = assign(joined.protocol, members, self._assigned_from)
        return [(member, encode_assignment(partitions)) for member, partitions in found.items()]

    def _counts(self, topics: set[str]) -> Mapping[str, int]:
        known = self._metadata.partition_counts
        return {topic: known.get(topic, 0) for topic in topics}

    def _on_metadata(self) -> None:
        """The leader assigns again when the group's topics have changed."""
        assigned = self._assigned_from
        if assigned is not None and self.is_member and self._counts(set(assigned)) != assigned:
            self.must_join = True
            self._on_change()

    def _after(self, error: LogError) -> Next:
        """Applies a coordinator's error to this member's state. Raises the error if the program has to handle it."""
        step = AFTER.get(type(error))
        if step is None:
            raise error
        if step in (Next.LOSE, Next.BEGIN):
            self.owned, self._generation = (), NO_GENERATION
        if step is Next.BEGIN:
            self._member_id = UNKNOWN_MEMBER
        if step is not Next.WAIT:
            self.must_join = True
            self._on_change()
        return step

    # --- while a member -----------------------------------------------------------------------------------------------
    async def beat(self) -> None:
        """Sends one heartbeat. Sets `must_join` or `failure` by the coordinator's answer."""
        request = Heartbeat(self._group, self._generation, self._member_id, self._options.instance_id)
        try:
            answer = await self._groups.heartbeat(request, self._caller)
            if answer.error is not None and request.generation == self._generation:
                self._after(answer.error)
        except LogError as error:
            # If the coordinator is unavailable, simply send the next heartbeat when it is due.
            if AFTER.get(type(error)) is not Next.WAIT:
                self.failure = error
                self._on_change()

    async def leave(self) -> None:
        """Leaves the group. A static member stays, because it may come back. Does not fail if the node is unreachable."""
        self.owned = ()
        is_dynamic, self._generation = self._options.instance_id is None, NO_GENERATION
        if not is_dynamic or self._member_id == UNKNOWN_MEMBER:
            return
        leaving = LeavingMember(self._member_id, None, "the consumer was closed")
        self._member_id = UNKNOWN_MEMBER
        try:
            await self._groups.leave(LeaveGroup(self._group, [leaving]), self._caller)
        except LogError:
            return  # the coordinator removes the member when its session ends

    def close(self) -> None:
        self._unsubscribe()

    # --- offsets ------------------------------------------------------------------------------------------------------
    @property
    def identity(self) -> MemberIdentity:
        """Raises IllegalGeneration if this client is not a member."""
        if not self.is_member:
            raise IllegalGeneration(
                f"this consumer is no longer a member of group {self._group}: its partitions belong to other members"
            )
        return MemberIdentity(self._group, self._generation, self._member_id, self._options.instance_id)

    async def commit(self, offsets: Mapping[TopicPartition, int], *, retry: bool = True) -> None:
        """Commits as a member. Raises the first error of a partition. After IllegalGeneration or UnknownMemberId the partitions
        belong to another member."""
        request = OffsetCommit(*self.identity, topic_commits(offsets))
        patience = Patience(self._node, self._options.retry_s if retry else 0.0)
        while True:
            try:
                done = await self._groups.commit_offsets(request, self._caller)
                errors = [each.error for topic in done.topics for each in topic.partitions if each.error is not None]
                if errors:
                    raise errors[0]
            except LogError as error:
                if request.generation != self._generation or self._after(error) is not Next.WAIT:
                    raise
                await patience.pause(error)
            else:
                return

    async def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The group's committed offsets of the partitions that have one. If an open transaction holds offsets of these
        partitions, waits until it has ended, but at most `retry_s`."""
        patience = Patience(self._node, self._options.retry_s)
        wanted: dict[str, list[int]] = {}
        for each in partitions:
            wanted.setdefault(each.topic, []).append(each.partition)
        asked = OffsetFetch(self._group, [TopicPartitionIndexes(*each) for each in wanted.items()], require_stable=True)
        while True:
            try:
                fetched = await self._groups.fetch_offsets(asked, self._caller)
                found = [(topic.topic, each) for topic in fetched.topics for each in topic.partitions]
                error = fetched.error or next((each.error for _, each in found if each.error is not None), None)
                if error is not None:
                    raise error
            except LogError as error:
                await patience.pause(error)
            else:
                return {TopicPartition(topic, each.partition): each.offset for topic, each in found if each.offset >= 0}


def topic_commits(offsets: Mapping[TopicPartition, int]) -> Sequence[TopicCommit]:
    topics: dict[str, list[PartitionCommit]] = {}
    for partition, offset in offsets.items():
        topics.setdefault(partition.topic, []).append(PartitionCommit(partition.partition, offset))
    return [TopicCommit(topic, commits) for topic, commits in topics.items()]
