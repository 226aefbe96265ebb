"""Groups' committed offsets as messages. `*_message` encode the contract's values, `*_of` decode."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from grpc_api.contract.caller import Caller
from grpc_api.contract.groups import (
    NO_GENERATION,
    FetchedOffset,
    FetchedTopic,
    LostEnd,
    LowerOffsets,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    OffsetsFetched,
    PartitionCommit,
    PartitionOutcome,
    TopicCommit,
    TopicOutcome,
    TopicPartitionIndexes,
    TxnOffsetCommit,
)
from grpc_api.contract.transactions import ProducerTransaction
from grpc_api.messages.groups import caller_message, maybe, maybe_detail, maybe_error
from grpc_api.messages.log import check_count, check_topics, topic_id_of
from grpc_api.proto import groups_pb2 as pb
from storage_tiers.errors import InvalidRequest
from storage_tiers.types import NO_EPOCH, TopicId, TopicPartition

#: Kafka's number for the broker's own retention.
_BROKERS_OWN = -1


def _topic_id(message: Any) -> TopicId | None:
    return topic_id_of(message.topic_id) if message.HasField("topic_id") else None


# --- commits ----------------------------------------------------------------------------------------------------------
def _topic_commit_messages(topics: Sequence[TopicCommit]) -> Iterable[pb.TopicCommit]:
    for topic in topics:
        partitions = [
            pb.PartitionCommit(
                partition=each.partition, offset=each.offset, leader_epoch=each.leader_epoch, metadata=each.metadata
            )
            for each in topic.partitions
        ]
        yield pb.TopicCommit(topic=topic.topic, partitions=partitions, topic_id=topic.topic_id)


def topic_commits_of(messages: Sequence[pb.TopicCommit]) -> list[TopicCommit]:
    check_topics(messages)
    return [
        TopicCommit(
            topic.topic,
            [
                PartitionCommit(
                    each.partition,
                    each.offset,
                    each.leader_epoch if each.HasField("leader_epoch") else NO_EPOCH,
                    maybe(each, "metadata"),
                )
                for each in topic.partitions
            ],
            _topic_id(topic),
        )
        for topic in messages
    ]


def _generation_of(message: Any) -> int:
    return int(message.generation) if message.HasField("generation") else NO_GENERATION


def commit_message(commit: OffsetCommit, caller: Caller) -> pb.CommitOffsetsRequest:
    return pb.CommitOffsetsRequest(
        group=commit.group,
        generation=commit.generation,
        member_id=commit.member_id,
        group_instance_id=commit.group_instance_id,
        topics=_topic_commit_messages(commit.topics),
        retention_ms=commit.retention_ms,
        caller=caller_message(caller),
    )


def commit_of(message: pb.CommitOffsetsRequest) -> OffsetCommit:
    return OffsetCommit(
        message.group,
        _generation_of(message),
        message.member_id,
        maybe(message, "group_instance_id"),
        topic_commits_of(message.topics),
        message.retention_ms if message.HasField("retention_ms") else _BROKERS_OWN,
    )


def txn_commit_message(commit: TxnOffsetCommit, caller: Caller) -> pb.TxnCommitOffsetsRequest:
    return pb.TxnCommitOffsetsRequest(
        group=commit.group,
        transactional_id=commit.transaction.id,
        transaction_version=commit.transaction.version,
        knows_abortable=commit.transaction.knows_abortable,
        producer_id=commit.producer_id,
        producer_epoch=commit.producer_epoch,
        generation=commit.generation,
        member_id=commit.member_id,
        group_instance_id=commit.group_instance_id,
        topics=_topic_commit_messages(commit.topics),
        caller=caller_message(caller),
    )


def txn_commit_of(message: pb.TxnCommitOffsetsRequest) -> TxnOffsetCommit:
    return TxnOffsetCommit(
        message.group,
        ProducerTransaction(message.transactional_id, message.transaction_version, message.knows_abortable),
        message.producer_id,
        message.producer_epoch,
        _generation_of(message),
        message.member_id,
        maybe(message, "group_instance_id"),
        topic_commits_of(message.topics),
    )


def partition_outcome_message(outcome: PartitionOutcome) -> pb.PartitionOutcome:
    return pb.PartitionOutcome(partition=outcome.partition, error=maybe_detail(outcome.error))


def outcomes_of(message: pb.OffsetOutcomes) -> list[TopicOutcome]:
    return [
        TopicOutcome(
            topic.topic,
            [PartitionOutcome(each.partition, maybe_error(each)) for each in topic.partitions],
            _topic_id(topic),
        )
        for topic in message.topics
    ]


# --- reading and deleting ---------------------------------------------------------------------------------------------
def _topic_messages(topics: Sequence[TopicPartitionIndexes]) -> Iterable[pb.TopicPartitions]:
    for topic in topics:
        yield pb.TopicPartitions(topic=topic.topic, partitions=topic.partitions, topic_id=topic.topic_id)


def _topics_of(messages: Sequence[pb.TopicPartitions]) -> list[TopicPartitionIndexes]:
    check_topics(messages)
    return [TopicPartitionIndexes(each.topic, tuple(each.partitions), _topic_id(each)) for each in messages]


def fetch_offsets_message(fetch: OffsetFetch, caller: Caller) -> pb.FetchOffsetsRequest:
    return pb.FetchOffsetsRequest(
        group=fetch.group,
        all=fetch.topics is None,
        topics=_topic_messages(fetch.topics or ()),
        require_stable=fetch.require_stable,
        caller=caller_message(caller),
    )


def fetch_offsets_of(message: pb.FetchOffsetsRequest) -> OffsetFetch:
    if message.all and message.topics:
        raise InvalidRequest("ask for all of a group's offsets, or for those of some topics, not for both")
    return OffsetFetch(message.group, None if message.all else _topics_of(message.topics), message.require_stable)


def committed_message(offset: FetchedOffset) -> pb.CommittedOffset:
    return pb.CommittedOffset(
        partition=offset.partition,
        offset=offset.offset,
        leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
        error=maybe_detail(offset.error),
    )


def offsets_fetched_of(message: pb.FetchOffsetsResponse) -> OffsetsFetched:
    topics = [
        FetchedTopic(
            topic.topic,
            [
                FetchedOffset(each.partition, each.offset, each.leader_epoch, each.metadata, maybe_error(each))
                for each in topic.partitions
            ],
            _topic_id(topic),
        )
        for topic in message.topics
    ]
    return OffsetsFetched(maybe_error(message), topics)


def delete_offsets_message(delete: OffsetDelete, caller: Caller) -> pb.DeleteOffsetsRequest:
    return pb.DeleteOffsetsRequest(
        group=delete.group, topics=_topic_messages(delete.topics), caller=caller_message(caller)
    )


def delete_offsets_of(message: pb.DeleteOffsetsRequest) -> OffsetDelete:
    return OffsetDelete(message.group, _topics_of(message.topics))


# --- lowering ---------------------------------------------------------------------------------------------------------
def lower_offsets_message(lower: LowerOffsets, caller: Caller) -> pb.LowerOffsetsRequest:
    topics: dict[str, list[pb.LostEnd]] = {}
    for (topic, partition), (offset, epoch) in lower.ends.items():
        topics.setdefault(topic, []).append(pb.LostEnd(partition=partition, offset=offset, leader_epoch=epoch))
    return pb.LowerOffsetsRequest(
        coordinators=sorted(lower.coordinators),
        topics=[pb.LostTopicEnds(topic=topic, partitions=ends) for topic, ends in topics.items()],
        caller=caller_message(caller),
    )


def lower_offsets_of(message: pb.LowerOffsetsRequest) -> LowerOffsets:
    check_topics(message.topics)
    check_count(len(message.coordinators), of="coordinators")
    ends = {
        TopicPartition(topic.topic, each.partition): LostEnd(each.offset, each.leader_epoch)
        for topic in message.topics
        for each in topic.partitions
    }
    wrong = next((f"{partition}: {end.offset}" for partition, end in ends.items() if end.offset < 0), None)
    if wrong is not None:
        raise InvalidRequest(f"a log does not end at a negative offset ({wrong})")
    return LowerOffsets(frozenset(message.coordinators), ends)
