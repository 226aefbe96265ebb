"""Batches, fetches and offsets as messages. `*_message` encode the contract's values, `*_of` decode.

Values that a message must not hold are refused here with InvalidRequest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from grpc_api.contract.log import (
    ISOLATIONS,
    Append,
    Appended,
    Fetch,
    FetchPartition,
    Isolation,
    OffsetQuery,
)
from grpc_api.contract.transactions import ProducerTransaction
from grpc_api.messages.errors import detail_of, error_of
from grpc_api.proto import log_pb2 as pb
from grpc_api.proto import offsets_pb2
from storage_tiers.errors import InvalidRequest, LogError
from storage_tiers.types import NO_EPOCH, AbortedTransaction, TimestampOffset, TopicId, TopicPartition

#: Maximum partitions in one request: as many as a node is designed to hold.
MAX_PARTITIONS = 10_000
#: The largest timeout of the contract, in milliseconds; an int32, as in Kafka.
MAX_TIMEOUT_MS = (1 << 31) - 1


def isolation_of(number: int) -> Isolation:
    """The isolation level of that number. Raises InvalidRequest unless callers may request that level."""
    isolation = ISOLATIONS.get(number)
    if isolation is None:
        raise InvalidRequest(f"isolation {number} does not exist; it must be 0 (uncommitted) or 1 (committed)")
    return isolation


def topic_id_of(data: bytes) -> TopicId:
    """Raises InvalidRequest unless `data` has 16 bytes."""
    try:
        return TopicId(data)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


def check_count(count: int, most: int = MAX_PARTITIONS, of: str = "partitions") -> None:
    """Raises InvalidRequest if `count` is above `most`."""
    if count > most:
        raise InvalidRequest(f"a request names at most {most} {of}, not {count}: split it into smaller requests")


def check_topics(topics: Collection[Any]) -> None:
    """Raises InvalidRequest if there are too many topics, with or without partitions, or too many partitions in all of
    them."""
    check_count(len(topics), of="topics")
    check_count(sum(len(each.partitions) for each in topics))


# --- appending --------------------------------------------------------------------------------------------------------
def produce_message(
    appends: Iterable[Append], acks: pb.Acks.ValueType, transaction: ProducerTransaction | None = None
) -> pb.ProduceRequest:
    return pb.ProduceRequest(
        appends=[
            pb.Append(topic=each.partition.topic, partition=each.partition.partition, batch=bytes(each.batch))
            for each in appends
        ],
        acks=acks,
        transactional_id=None if transaction is None else transaction.id,
        transaction_version=0 if transaction is None else transaction.version,
    )


def check_produce(request: pb.ProduceRequest) -> None:
    """Raises InvalidRequest for too many batches, or an unknown `acks`."""
    check_count(len(request.appends))
    if request.acks not in (pb.ACKS_ALL, pb.ACKS_LEADER):
        raise InvalidRequest(f"acks {request.acks} does not exist: 0 waits for the commit, 1 for the leader's append")


def transaction_of(request: pb.ProduceRequest) -> ProducerTransaction | None:
    if not request.HasField("transactional_id"):
        return None
    return ProducerTransaction(request.transactional_id, request.transaction_version, knows_abortable=True)


def append_of(message: pb.Append) -> Append:
    """Copies the batch once: protobuf returns a bytes field as new bytes. The memoryview keeps them valid without the
    message."""
    return Append(TopicPartition(message.topic, message.partition), memoryview(message.batch))


def result_message(result: Appended | LogError, *, committed: bool) -> pb.AppendResult:
    """`committed`: whether the batch is below the high watermark now."""
    if isinstance(result, LogError):
        return pb.AppendResult(error=detail_of(result), log_start_offset=result.log_start_offset)
    return pb.AppendResult(
        base_offset=result.base_offset,
        leader_epoch=result.leader_epoch,
        log_append_time_ms=result.log_append_time_ms,
        log_start_offset=result.log_start_offset,
        committed=committed,
    )


def result_of(message: pb.AppendResult) -> Appended | LogError:
    if message.HasField("error"):
        error = error_of(message.error)
        error.log_start_offset = message.log_start_offset
        return error
    return Appended(message.base_offset, message.leader_epoch, message.log_append_time_ms, message.log_start_offset)


# --- fetching ---------------------------------------------------------------------------------------------------------
def fetch_message(fetch: Fetch) -> pb.FetchRequest:
    return pb.FetchRequest(
        partitions=[
            pb.FetchPartition(
                topic=each.partition.topic,
                partition=each.partition.partition,
                offset=each.offset,
                max_bytes=each.max_bytes,
                current_leader_epoch=each.current_leader_epoch,
                last_fetched_epoch=each.last_fetched_epoch,
                topic_id=each.topic_id,
            )
            for each in fetch.partitions
        ],
        max_wait_ms=fetch.max_wait_ms,
        min_bytes=fetch.min_bytes,
        max_bytes=fetch.max_bytes,
        isolation=pb.Isolation.ValueType(fetch.isolation),
    )


def fetch_of(request: pb.FetchRequest) -> Fetch:
    """Raises InvalidRequest for too many partitions, a negative number, or an unknown isolation level."""
    check_count(len(request.partitions))
    for name in ("max_wait_ms", "min_bytes", "max_bytes"):
        if getattr(request, name) < 0:
            raise InvalidRequest(f"{name} is {getattr(request, name)}; it cannot be negative")
    return Fetch(
        [_fetch_partition(each) for each in request.partitions],
        request.max_wait_ms,
        request.min_bytes,
        request.max_bytes,
        isolation_of(request.isolation),
    )


def _fetch_partition(message: pb.FetchPartition) -> FetchPartition:
    if message.max_bytes < 0:
        raise InvalidRequest(
            f"max_bytes of {message.topic}-{message.partition} is {message.max_bytes}; it cannot be negative"
        )
    return FetchPartition(
        TopicPartition(message.topic, message.partition),
        message.offset,
        message.max_bytes,
        message.current_leader_epoch if message.HasField("current_leader_epoch") else NO_EPOCH,
        message.last_fetched_epoch if message.HasField("last_fetched_epoch") else NO_EPOCH,
        topic_id_of(message.topic_id) if message.HasField("topic_id") else None,
    )


def aborted_message(aborted: Sequence[AbortedTransaction] | None) -> pb.AbortedTransactions | None:
    if aborted is None:
        return None
    return pb.AbortedTransactions(
        transactions=[
            pb.AbortedTransaction(
                producer_id=each.producer_id,
                first_offset=each.first_offset,
                last_offset=each.last_offset,
                last_stable_offset=each.last_stable_offset,
            )
            for each in aborted
        ]
    )


def aborted_of(message: pb.FetchedPartition) -> list[AbortedTransaction] | None:
    """None under ISOLATION_READ_UNCOMMITTED."""
    if not message.HasField("aborted"):
        return None
    return [
        AbortedTransaction(each.producer_id, each.first_offset, each.last_offset, each.last_stable_offset)
        for each in message.aborted.transactions
    ]


# --- offsets ----------------------------------------------------------------------------------------------------------
def query_message(query: OffsetQuery) -> offsets_pb2.OffsetQuery:
    return offsets_pb2.OffsetQuery(
        topic=query.partition.topic,
        partition=query.partition.partition,
        timestamp=query.timestamp,
        current_leader_epoch=query.current_leader_epoch,
        isolation=pb.Isolation.ValueType(query.isolation),
    )


def query_of(message: offsets_pb2.OffsetQuery) -> OffsetQuery:
    return OffsetQuery(
        TopicPartition(message.topic, message.partition),
        message.timestamp,
        message.current_leader_epoch if message.HasField("current_leader_epoch") else NO_EPOCH,
        isolation_of(message.isolation),
    )


def found_message(found: TimestampOffset | LogError | None) -> offsets_pb2.FoundOffset:
    if isinstance(found, LogError):
        return offsets_pb2.FoundOffset(error=detail_of(found))
    if found is None:
        return offsets_pb2.FoundOffset()
    return offsets_pb2.FoundOffset(
        found=True, timestamp=found.timestamp, offset=found.offset, leader_epoch=found.leader_epoch
    )


def found_of(message: offsets_pb2.FoundOffset) -> TimestampOffset | LogError | None:
    """None if no record has the queried time or a later one."""
    if message.HasField("error"):
        return error_of(message.error)
    if not message.found:
        return None
    return TimestampOffset(message.timestamp, message.offset, message.leader_epoch)
