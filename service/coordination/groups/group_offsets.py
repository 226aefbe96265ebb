"""The requests for committed offsets (OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete), and the offsets' expiry.

Pure. The rules are those of Kafka 4.2.1's OffsetMetadataManager and ClassicGroup. A member's commit must name the current
generation. A commit from outside the protocol (generation -1, no member) is accepted while the group has no members, and
creates the group if it does not exist.

Invariants: a refused partition changes nothing. A commit that succeeds is in the outcome's records.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import NamedTuple

from grpc_api.contract.coordinator_errors import (
    CoordinatorRecordTooLarge,
    GroupIdNotFound,
    GroupSubscribedToTopic,
    IllegalGeneration,
    InvalidGroupId,
    NonEmptyGroup,
    OffsetMetadataTooLarge,
    RebalanceInProgress,
    UnknownMemberId,
    UnstableOffsetCommit,
)
from grpc_api.contract.groups import (
    UNKNOWN_MEMBER,
    FetchedOffset,
    FetchedTopic,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    OffsetsCommitted,
    OffsetsDeleted,
    OffsetsFetched,
    PartitionOutcome,
    TopicCommit,
    TopicOutcome,
    TxnOffsetCommit,
)
from service.coordination.commit_fields import OffsetChange, encode_commit, encode_offset_key
from service.coordination.counts import GroupCounts
from service.coordination.group_records import NO_TOPIC_ID, CommittedOffset, encode_offset, later
from service.coordination.groups.classic_group import ClassicGroup, GroupState
from service.coordination.groups.classic_groups import ClassicGroups
from service.coordination.groups.committed_offsets import CommittedOffsets, SeenOffsets, shared
from service.coordination.groups.consumer_protocol import CONSUMER, subscribed_topics
from service.coordination.groups.member_memory import GROUP_BYTES
from service.coordination.outcome import CoordinatorRecord, Outcome, PlannedDecision
from service.coordination.record_batches import record_bytes
from service.coordination.record_fields import MAX_STRING_BYTES
from storage_tiers.errors import LogError
from storage_tiers.types import NO_EPOCH, TopicId, TopicPartition

# A NamedTuple's own constructor costs three times as much, and each commit makes several.
_new_tuple = tuple.__new__
# Looking up an enum member takes 0.1 µs in Python 3.11.
_EMPTY, _COMPLETING_REBALANCE = GroupState.EMPTY, GroupState.COMPLETING_REBALANCE
#: The maximum number of partitions that are fetched in one turn of the event loop.
FETCHED = 500
#: The maximum number of bytes of a committed offset's key and value, without its names and metadata.
OFFSET_BYTES = 100


class OffsetSettings(NamedTuple):
    """The configs of offsets: `offset.metadata.max.bytes` and `offsets.retention.minutes` (here in ms)."""

    metadata_max_bytes: int = 4_096
    retention_ms: int = 7 * 24 * 60 * 60 * 1000
    #: The maximum number of bytes of a batch of `__consumer_offsets`, which also limits a record.
    max_record_bytes: int = 1 << 20

    @property
    def holds_any_commit(self) -> bool:
        """Whether every commit fits, however long its names are. With Kafka's default configs every commit fits."""
        return self.max_record_bytes >= record_bytes(2 * MAX_STRING_BYTES, 4 * self.metadata_max_bytes) + OFFSET_BYTES


class GroupOffsets:
    """`settings` may be replaced at any time."""

    def __init__(
        self, groups: ClassicGroups, offsets: CommittedOffsets, settings: OffsetSettings, counts: GroupCounts
    ) -> None:
        self.settings = settings
        self._counts = counts
        self._groups = groups
        self._by_id = groups.groups
        self._offsets = offsets

    @property
    def settings(self) -> OffsetSettings:
        return self._settings

    @settings.setter
    def settings(self, settings: OffsetSettings) -> None:
        self._settings, self._holds_any_commit = settings, settings.holds_any_commit

    # --- committing ---------------------------------------------------------------------------------------------------
    def commit(self, request: OffsetCommit, record_number: int, now_ms: int, outcome: Outcome) -> OffsetsCommitted:
        """Commits the request's offsets. `record_number` is that of the first record written."""
        group = self._by_id.get(request.group)
        error = _commit_error(group, request) or self._size_error(request)
        if error is None and group is None:
            error = self._groups.no_room_for(request.group, has_offsets=True)
        if error is not None:
            return _refused(request.topics, error)
        if group is None:
            group = ClassicGroup(request.group, now_ms)
            self._groups.put(group, has_offsets=False)
        member = group.members.get(request.member_id)
        if member is not None:
            self._groups.rebalancing.heard(group, member, now_ms)
        if request.retention_ms < 0:
            most_metadata = self._settings.metadata_max_bytes
            common = encode_commit(request.group, request.topics, record_number, now_ms, most_metadata, shared)
            if common is not None:
                records, changes, answered = common
                if records:
                    self._write_all(group, records, changes, outcome)
                return _new_tuple(OffsetsCommitted, (answered,))
        expires_ms = -1 if request.retention_ms < 0 else later(now_ms, request.retention_ms)
        return self._record(group, request.topics, expires_ms, -1, record_number, now_ms, outcome)

    def plan(self, request: OffsetCommit, record_number: int, now_ms: int) -> PlannedDecision | None:
        """Decides the usual commit, of a group that has offsets: a member's in the present generation, or one from outside the
        protocol while there are no members. None for any other."""
        group_id, generation, member_id, instance_id, topics, retention_ms, _ = request
        group = self._by_id.get(group_id)
        if group is None or retention_ms >= 0 or not self._holds_any_commit or group.own_bytes >= GROUP_BYTES:
            return None
        member = group.members.get(member_id)
        if member is None:
            if generation >= 0 or group.state is not _EMPTY:
                return None
        elif (
            generation != group.generation
            or group.state is _COMPLETING_REBALANCE
            or (instance_id is not None and group.static.get(instance_id) != member_id)
            or not self._groups.rebalancing.heard_again(member, now_ms)
        ):
            return None
        encoded = encode_commit(group_id, topics, record_number, now_ms, self._settings.metadata_max_bytes, shared)
        if encoded is None or not encoded[0]:
            return None
        records, changes, answered = encoded
        return records, changes, _new_tuple(OffsetsCommitted, (answered,))

    def _write_all(
        self,
        group: ClassicGroup,
        records: Sequence[CoordinatorRecord],
        changes: Sequence[OffsetChange],
        outcome: Outcome,
    ) -> None:
        """Writes encoded offsets, at least one; `changes` belong to `records`."""
        self._offsets.write_all(group.group_id, changes)
        outcome.records += records
        self._counts.commits += len(records)
        if group.own_bytes >= GROUP_BYTES:
            self._groups.count(group, has_offsets=True)

    def commit_in_transaction(
        self, request: TxnOffsetCommit, record_number: int, now_ms: int, outcome: Outcome
    ) -> OffsetsCommitted:
        """Does the same as `commit`, but the records belong to the producer's transaction and take effect once its marker
        commits them."""
        group = self._by_id.get(request.group)
        error = _commit_error(group, request) or self._size_error(request)
        if error is None and group is None:
            error = self._groups.no_room_for(request.group, has_offsets=True)
        if error is not None:
            return _refused(request.topics, error)
        if group is None:
            group = ClassicGroup(request.group, now_ms)
            self._groups.put(group, has_offsets=False)
        return self._record(group, request.topics, -1, request.producer_id, record_number, now_ms, outcome)

    def _record(
        self,
        of: ClassicGroup,
        topics: Sequence[TopicCommit],
        expires_ms: int,
        producer_id: int,
        record_number: int,
        now_ms: int,
        outcome: Outcome,
    ) -> OffsetsCommitted:
        answered, group = [], of.group_id
        for topic, commits, topic_id in topics:
            outcomes = []
            for partition, offset, leader_epoch, metadata in commits:
                error = self._metadata_error(topic, partition, metadata) if metadata else None
                if error is None:
                    at = topic_id or NO_TOPIC_ID
                    value = encode_offset(CommittedOffset(offset, leader_epoch, metadata or "", now_ms, expires_ms, at))
                    self._write(producer_id, group, shared(topic, partition), value, record_number)
                    outcome.write(encode_offset_key(group, topic, partition), value)
                    record_number += 1
                    self._counts.commits += 1
                outcomes.append(_new_tuple(PartitionOutcome, (partition, error)))
            answered.append(_new_tuple(TopicOutcome, (topic, outcomes, topic_id)))
        if of.own_bytes >= GROUP_BYTES and outcome.records:
            self._groups.count(of, has_offsets=True)
        return _new_tuple(OffsetsCommitted, (answered,))

    def _write(self, producer_id: int, group: str, partition: TopicPartition, value: bytes, record_number: int) -> None:
        """Writes in the producer's transaction, or outside any transaction if the id is negative."""
        if producer_id >= 0:
            self._offsets.write_in_transaction(producer_id, group, partition, value, record_number)
        else:
            self._offsets.write(group, partition, value, record_number)

    def _metadata_error(self, topic: str, partition: int, metadata: str) -> OffsetMetadataTooLarge | None:
        most, given = self.settings.metadata_max_bytes, _java_length(metadata)
        if given <= most:
            return None
        return OffsetMetadataTooLarge(
            f"{topic}-{partition}: the commit's metadata has {given} characters; offset.metadata.max.bytes is {most}"
        )

    def _size_error(self, request: OffsetCommit | TxnOffsetCommit) -> CoordinatorRecordTooLarge | None:
        """The error if one of the records could not be written. As in Kafka, none of the request's records is written then."""
        if self._holds_any_commit:
            return None
        most, group = self._settings.max_record_bytes, len(request.group.encode())
        for topic in request.topics:
            names = group + len(topic.topic.encode()) + OFFSET_BYTES
            for each in topic.partitions:
                size = record_bytes(names, len((each.metadata or "").encode()))
                if size > most and self._metadata_error(topic.topic, each.partition, each.metadata or "") is None:
                    return CoordinatorRecordTooLarge(
                        f"{topic.topic}-{each.partition}: the commit makes a record of {size} bytes, more than {most}; "
                        "raise max.message.bytes of __consumer_offsets"
                    )
        return None

    # --- fetching -----------------------------------------------------------------------------------------------------
    def fetch(self, request: OffsetFetch) -> Generator[None, None, OffsetsFetched]:
        """Fetches committed offsets. A group that does not exist has none. Each step fetches FETCHED partitions; all offsets
        are those at the time of the first step."""
        wanted: Sequence[tuple[str, Sequence[int], TopicId]]
        if request.topics is not None:
            wanted = [(topic.topic, topic.partitions, topic.topic_id or NO_TOPIC_ID) for topic in request.topics]
            is_long = len(wanted) > FETCHED or sum(len(partitions) for _, partitions, _ in wanted) > FETCHED
            seen = self._offsets.seen(request.group, copied=is_long)
        else:
            seen = self._offsets.seen(request.group, copied=self._offsets.count(request.group) > FETCHED)
            by_topic: dict[str, list[int]] = {}
            for number, (topic, partition) in enumerate(seen.committed, 1):
                by_topic.setdefault(topic, []).append(partition)
                if not number % FETCHED and number < len(seen.committed):
                    yield
            wanted = [(topic, partitions, NO_TOPIC_ID) for topic, partitions in by_topic.items()]
        found, left = [], FETCHED
        for topic, partitions, topic_id in wanted:
            rows = []
            for number in partitions:
                rows.append(_fetched(request, seen, TopicPartition(topic, number), topic_id))
                left -= 1
                if not left:
                    left = FETCHED
                    yield
            found.append(FetchedTopic(topic, rows))
        return OffsetsFetched(None, found)

    # --- removing -----------------------------------------------------------------------------------------------------
    def delete(self, request: OffsetDelete, record_number: int, outcome: Outcome) -> OffsetsDeleted:
        group = self._by_id.get(request.group)
        if not request.group:
            return OffsetsDeleted(InvalidGroupId("the group id is empty; set group.id"))
        if group is None:
            return OffsetsDeleted(GroupIdNotFound(f"Group {request.group} not found."))
        topics = _subscribed(group)
        if group.state is not GroupState.EMPTY and group.protocol_type != CONSUMER:
            return OffsetsDeleted(
                NonEmptyGroup(f"group {request.group} has members whose topics are not known; stop them first")
            )
        answered, removed = [], []
        for topic in request.topics:
            error: LogError | None = None
            # As in Kafka, unknown topics count as subscribed.
            if topic.topic in topics if topics is not None else bool(group.members):
                error = GroupSubscribedToTopic(
                    f"group {request.group} is subscribed to {topic.topic}; stop its members first"
                )
            for partition in topic.partitions if error is None else ():
                key = TopicPartition(topic.topic, partition)
                if self._offsets.has(request.group, key):
                    removed.append(key)
            answered.append(TopicOutcome(topic.topic, [PartitionOutcome(each, error) for each in topic.partitions]))
        too_large = self.tombstone_error(request.group, {each.topic for each in removed}) if removed else None
        if too_large is not None:  # as in Kafka, the whole request fails
            return OffsetsDeleted(too_large)
        for number, key in enumerate(removed):
            self.remove(request.group, key, record_number + number, outcome)
        self._counts.deletions += len(removed)
        if removed:
            self._groups.count(group, has_offsets=self._offsets.has_any(request.group))
        return OffsetsDeleted(None, answered)

    def tombstone_error(self, group: str, topics: Iterable[str] = ()) -> CoordinatorRecordTooLarge | None:
        """The error if the tombstones of the group and of its offsets of these topics could not be written. This happens if
        `max.message.bytes` of `__consumer_offsets` was lowered."""
        if self._holds_any_commit:
            return None
        most = self._settings.max_record_bytes
        size = record_bytes(len(group.encode()) + max((len(each.encode()) for each in topics), default=0), OFFSET_BYTES)
        if size <= most:
            return None
        return CoordinatorRecordTooLarge(
            f"group {group}: removing it, or an offset, takes a record of {size} bytes, more than {most}; "
            "raise max.message.bytes of __consumer_offsets"
        )

    def remove(self, group: str, partition: TopicPartition, record_number: int, outcome: Outcome) -> None:
        """Adds the tombstone of one offset."""
        self._offsets.write(group, partition, None, record_number)
        outcome.write(encode_offset_key(group, *partition), None)

    def remove_all(
        self, group: str, partitions: Iterable[TopicPartition], record_number: int, outcome: Outcome
    ) -> None:
        """Adds the tombstones of a group's offsets of these partitions."""
        for partition in partitions:
            if self._offsets.has(group, partition):
                self.remove(group, partition, record_number, outcome)
                record_number += 1
                self._counts.deletions += 1

    def lower(
        self,
        group: str,
        ends: Mapping[TopicPartition, int],
        epochs: Mapping[TopicPartition, int],
        *,
        loaded: int,
        record_number: int,
        outcome: Outcome,
    ) -> None:
        """Lowers the group's offsets above these ends if their record numbers are below `loaded`, or if their leader epoch is
        below the partition's in `epochs`. Raises CoordinatorRecordTooLarge, and changes nothing, if a record does not fit
        because the topic's max.message.bytes was lowered."""
        too_high = [
            (partition, value, encode_offset_key(group, *partition))
            for partition, value in self._offsets.newest(group)
            if value.offset > ends.get(partition, value.offset)
            and (
                self._offsets.record_number(group, partition) < loaded
                or value.leader_epoch < epochs.get(partition, NO_EPOCH)
            )
        ]
        changes = [
            (partition, value.offset, key, encode_offset(value._replace(offset=ends[partition], leader_epoch=NO_EPOCH)))
            for partition, value, key in too_high
        ]
        most = self._settings.max_record_bytes
        for partition, _, key, lowered in changes:
            if (size := record_bytes(len(key), len(lowered))) > most:
                raise CoordinatorRecordTooLarge(
                    f"group {group}: lowering its offset of {partition} takes a record of {size} bytes, more than {most}; "
                    "raise max.message.bytes of __consumer_offsets"
                )
        for partition, offset, key, lowered in changes:
            self._offsets.write(group, partition, lowered, record_number)
            outcome.write(key, lowered)
            topic, number = partition
            outcome.note(
                "group.offset_lowered", group=group, topic=topic, partition=number, offset=offset, end=ends[partition]
            )
            record_number += 1

    def pending_above(
        self, group: str, ends: Mapping[TopicPartition, int], epochs: Mapping[TopicPartition, int], *, loaded: int
    ) -> set[TopicPartition]:
        """The partitions in which `lower` may have more to do once the group's open transactions have ended."""
        return {
            partition
            for partition, value, record_number in self._offsets.pending(group)
            if value.offset > ends.get(partition, value.offset)
            and (record_number < loaded or value.leader_epoch < epochs.get(partition, NO_EPOCH))
        }

    def expire(
        self,
        group: ClassicGroup,
        partitions: Iterable[TopicPartition],
        record_number: int,
        now_ms: int,
        outcome: Outcome,
    ) -> None:
        """Adds tombstones of the offsets whose retention has ended (KIP-211). Retention starts with the commit if the group
        never had members, or is stable and not subscribed to the topic. For an empty group it starts when the group became
        empty, or with a later commit. A commit's own expiry takes precedence. Kafka differs: it drops an offset that an
        administrator sets on a group that has long been empty."""
        retention = self.settings.retention_ms
        topics = _subscribed(group)
        for partition in partitions:
            value = self._offsets.written_offset(group.group_id, partition)
            if value is None:
                continue
            if group.protocol_type is None:
                since = value.commit_timestamp
            elif group.state is GroupState.EMPTY:
                since = max(group.state_timestamp, value.commit_timestamp)
            elif group.state is GroupState.STABLE and topics is not None and partition.topic not in topics:
                since = value.commit_timestamp
            else:
                continue
            is_over = value.expire_timestamp <= now_ms if value.expire_timestamp >= 0 else since + retention <= now_ms
            is_kept = self._offsets.is_unstable(group.group_id, partition)
            if is_over and not is_kept and self.tombstone_error(group.group_id, (partition.topic,)) is None:
                self.remove(group.group_id, partition, record_number, outcome)
                record_number += 1
                self._counts.expirations += 1


def _java_length(text: str) -> int:
    """The length in Java's characters: a character beyond U+FFFF counts as two."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def _subscribed(group: ClassicGroup) -> frozenset[str] | None:
    """The topics of a consumer group's members under the last chosen protocol; None if they are not known. Empty without
    members."""
    if group.protocol_type != CONSUMER:
        return None
    topics: frozenset[str] = frozenset()
    for member in group.members.values():
        if group.protocol is None:
            return None
        subscription = next((each.metadata for each in member.protocols if each.name == group.protocol), None)
        if subscription is None:
            continue  # the member has joined meanwhile
        found = subscribed_topics(subscription)
        if found is None:
            return None
        topics |= found
    return topics


def _refused(topics: Sequence[TopicCommit], error: LogError) -> OffsetsCommitted:
    return OffsetsCommitted(
        [
            TopicOutcome(
                topic.topic, [PartitionOutcome(each.partition, error) for each in topic.partitions], topic.topic_id
            )
            for topic in topics
        ]
    )


def _commit_error(group: ClassicGroup | None, request: OffsetCommit | TxnOffsetCommit) -> LogError | None:
    """The error that refuses the whole request; None if it is accepted."""
    is_outside = request.generation < 0
    if not request.group and isinstance(request, TxnOffsetCommit):  # OffsetCommit accepts an empty id, for old clients
        return InvalidGroupId("the group id is empty; set group.id")
    if group is None:
        if is_outside:
            return None
        if isinstance(request, OffsetCommit) and request.knows_missing_group:
            return GroupIdNotFound(f"Group {request.group} not found.")
        return IllegalGeneration(
            f"there is no group {request.group!r} with generation {request.generation}; join again"
        )
    if is_outside and group.state is _EMPTY:
        return None
    is_transactional = isinstance(request, TxnOffsetCommit)
    if not is_outside or request.member_id != UNKNOWN_MEMBER or request.group_instance_id is not None:
        error = group.check_member(request.member_id, request.group_instance_id)
        if error is not None:
            return error
        if request.generation != group.generation:
            return IllegalGeneration(
                f"group {request.group} is at generation {group.generation}, not {request.generation}; join again"
            )
    elif not is_transactional:
        return UnknownMemberId(f"group {request.group} has members; commit as one of them, or stop them first")
    if group.state is _COMPLETING_REBALANCE and not is_transactional:
        return RebalanceInProgress(f"group {request.group} is rebalancing; join again")
    return None


def _fetched(request: OffsetFetch, seen: SeenOffsets, partition: TopicPartition, topic_id: TopicId) -> FetchedOffset:
    if request.require_stable and seen.is_unstable(partition):
        error = UnstableOffsetCommit(
            f"group {request.group}: a transaction with an offset of {partition} is still open; retry"
        )
        return FetchedOffset(partition.partition, error=error)
    value = seen.fetch(partition)
    # The offset may belong to a deleted topic with the same name.
    if value is None or NO_TOPIC_ID != topic_id != value.topic_id != NO_TOPIC_ID:
        return FetchedOffset(partition.partition)
    return FetchedOffset(partition.partition, value.offset, value.leader_epoch, value.metadata)
