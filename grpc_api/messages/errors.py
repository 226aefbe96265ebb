"""Converts LogErrors to gRPC statuses and back: one table for both ends.

A failed call ends with the table's status. Its trailing metadata holds, under the standard key of rich gRPC errors, a
message equal on the wire to google.rpc.Status with one `ErrorDetail`: Kafka's name, tidelog's finer one, whether to retry,
and the advice. A failed part of a call carries the same ErrorDetail. Any other exception is a defect of the node: the
caller gets INTERNAL, without the text of the exception.

An older client may not know a reason. It then gets a LogError with the message and Kafka's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import grpc

from grpc_api.contract import coordinator_errors
from grpc_api.proto import errors_pb2 as pb
from storage_tiers import errors as log
from storage_tiers.errors import Advice, InvalidRecord, InvalidTimestamp, LogError, RecordFault

#: The metadata key of rich gRPC errors (https://grpc.io/docs/guides/error, "Richer error model").
DETAILS_KEY = "grpc-status-details-bin"
_TYPE_URL = "type.googleapis.com/tidelog.v1.ErrorDetail"

#: Maximum bytes of an error's message. The trailing metadata holds it three times, escaped.
MAX_ERROR_MESSAGE_BYTES = 1000
_CUT = " … ".encode()
#: Maximum number of faulty records that an error names.
MAX_FAULTS = 10_000
_NAMING = (InvalidRecord, InvalidTimestamp)

_Code = grpc.StatusCode


class Meaning(NamedTuple):
    """Kafka's name of an error, and the status of a call that ends with it."""

    kafka: str
    status: grpc.StatusCode


#: In gRPC, a call that ends with UNAVAILABLE may be retried unchanged, with ABORTED from a higher level, and with
#: FAILED_PRECONDITION not at all.
TABLE: Mapping[type[LogError], Meaning] = {
    LogError: Meaning("UNKNOWN_SERVER_ERROR", _Code.DATA_LOSS),
    log.UnknownTopicOrPartition: Meaning("UNKNOWN_TOPIC_OR_PARTITION", _Code.NOT_FOUND),
    log.UnknownTopicId: Meaning("UNKNOWN_TOPIC_ID", _Code.NOT_FOUND),
    log.InconsistentTopicId: Meaning("INCONSISTENT_TOPIC_ID", _Code.ABORTED),
    log.OffsetOutOfRange: Meaning("OFFSET_OUT_OF_RANGE", _Code.OUT_OF_RANGE),
    log.OffsetNotAvailable: Meaning("OFFSET_NOT_AVAILABLE", _Code.UNAVAILABLE),
    log.NotLeader: Meaning("NOT_LEADER_OR_FOLLOWER", _Code.ABORTED),
    log.BrokerNotRegistered: Meaning("BROKER_ID_NOT_REGISTERED", _Code.FAILED_PRECONDITION),
    log.WrongCluster: Meaning("INCONSISTENT_CLUSTER_ID", _Code.FAILED_PRECONDITION),
    log.BrokerFenced: Meaning("STALE_BROKER_EPOCH", _Code.UNAVAILABLE),
    log.StaleBrokerEpoch: Meaning("STALE_BROKER_EPOCH", _Code.FAILED_PRECONDITION),
    log.DuplicateBroker: Meaning("DUPLICATE_BROKER_REGISTRATION", _Code.ALREADY_EXISTS),
    log.LeaderNotAvailable: Meaning("LEADER_NOT_AVAILABLE", _Code.UNAVAILABLE),
    log.FencedLeaderEpoch: Meaning("FENCED_LEADER_EPOCH", _Code.ABORTED),
    log.UnknownLeaderEpoch: Meaning("UNKNOWN_LEADER_EPOCH", _Code.UNAVAILABLE),
    log.CorruptRecord: Meaning("CORRUPT_MESSAGE", _Code.INVALID_ARGUMENT),
    log.InvalidRecord: Meaning("INVALID_RECORD", _Code.INVALID_ARGUMENT),
    log.InvalidTimestamp: Meaning("INVALID_TIMESTAMP", _Code.INVALID_ARGUMENT),
    log.RecordTooLarge: Meaning("MESSAGE_TOO_LARGE", _Code.INVALID_ARGUMENT),
    log.RecordBatchTooLarge: Meaning("RECORD_LIST_TOO_LARGE", _Code.INVALID_ARGUMENT),
    log.UnsupportedMessageFormat: Meaning("UNSUPPORTED_FOR_MESSAGE_FORMAT", _Code.INVALID_ARGUMENT),
    log.UnsupportedCompression: Meaning("UNSUPPORTED_COMPRESSION_TYPE", _Code.INVALID_ARGUMENT),
    log.OutOfOrderSequence: Meaning("OUT_OF_ORDER_SEQUENCE_NUMBER", _Code.INVALID_ARGUMENT),
    log.DuplicateSequence: Meaning("DUPLICATE_SEQUENCE_NUMBER", _Code.INVALID_ARGUMENT),
    log.InvalidProducerEpoch: Meaning("INVALID_PRODUCER_EPOCH", _Code.FAILED_PRECONDITION),
    log.InvalidTransactionState: Meaning("INVALID_TXN_STATE", _Code.INVALID_ARGUMENT),
    log.UnknownProducerId: Meaning("UNKNOWN_PRODUCER_ID", _Code.INVALID_ARGUMENT),
    log.InvalidRequest: Meaning("INVALID_REQUEST", _Code.INVALID_ARGUMENT),
    log.UnsupportedVersion: Meaning("UNSUPPORTED_VERSION", _Code.INVALID_ARGUMENT),
    log.InvalidRequiredAcks: Meaning("INVALID_REQUIRED_ACKS", _Code.INVALID_ARGUMENT),
    log.RequestTimedOut: Meaning("REQUEST_TIMED_OUT", _Code.DEADLINE_EXCEEDED),
    log.NotEnoughReplicas: Meaning("NOT_ENOUGH_REPLICAS", _Code.UNAVAILABLE),
    coordinator_errors.CoordinatorLoading: Meaning("COORDINATOR_LOAD_IN_PROGRESS", _Code.UNAVAILABLE),
    coordinator_errors.CoordinatorNotAvailable: Meaning("COORDINATOR_NOT_AVAILABLE", _Code.UNAVAILABLE),
    coordinator_errors.NotCoordinator: Meaning("NOT_COORDINATOR", _Code.ABORTED),
    coordinator_errors.InvalidGroupId: Meaning("INVALID_GROUP_ID", _Code.INVALID_ARGUMENT),
    coordinator_errors.UnknownMemberId: Meaning("UNKNOWN_MEMBER_ID", _Code.FAILED_PRECONDITION),
    coordinator_errors.MemberIdRequired: Meaning("MEMBER_ID_REQUIRED", _Code.ABORTED),
    coordinator_errors.IllegalGeneration: Meaning("ILLEGAL_GENERATION", _Code.FAILED_PRECONDITION),
    coordinator_errors.FencedInstanceId: Meaning("FENCED_INSTANCE_ID", _Code.FAILED_PRECONDITION),
    coordinator_errors.RebalanceInProgress: Meaning("REBALANCE_IN_PROGRESS", _Code.ABORTED),
    coordinator_errors.InconsistentGroupProtocol: Meaning("INCONSISTENT_GROUP_PROTOCOL", _Code.FAILED_PRECONDITION),
    coordinator_errors.InvalidSessionTimeout: Meaning("INVALID_SESSION_TIMEOUT", _Code.INVALID_ARGUMENT),
    coordinator_errors.GroupMaxSizeReached: Meaning("GROUP_MAX_SIZE_REACHED", _Code.FAILED_PRECONDITION),
    coordinator_errors.GroupMetadataTooLarge: Meaning("UNKNOWN_SERVER_ERROR", _Code.FAILED_PRECONDITION),
    coordinator_errors.CoordinatorRecordTooLarge: Meaning("UNKNOWN_SERVER_ERROR", _Code.FAILED_PRECONDITION),
    coordinator_errors.GroupIdNotFound: Meaning("GROUP_ID_NOT_FOUND", _Code.NOT_FOUND),
    coordinator_errors.NonEmptyGroup: Meaning("NON_EMPTY_GROUP", _Code.FAILED_PRECONDITION),
    coordinator_errors.GroupSubscribedToTopic: Meaning("GROUP_SUBSCRIBED_TO_TOPIC", _Code.FAILED_PRECONDITION),
    coordinator_errors.OffsetMetadataTooLarge: Meaning("OFFSET_METADATA_TOO_LARGE", _Code.INVALID_ARGUMENT),
    coordinator_errors.UnstableOffsetCommit: Meaning("UNSTABLE_OFFSET_COMMIT", _Code.UNAVAILABLE),
    coordinator_errors.ProducerFenced: Meaning("PRODUCER_FENCED", _Code.FAILED_PRECONDITION),
    coordinator_errors.InvalidProducerIdMapping: Meaning("INVALID_PRODUCER_ID_MAPPING", _Code.FAILED_PRECONDITION),
    coordinator_errors.ConcurrentTransactions: Meaning("CONCURRENT_TRANSACTIONS", _Code.UNAVAILABLE),
    coordinator_errors.InvalidTransactionTimeout: Meaning("INVALID_TRANSACTION_TIMEOUT", _Code.INVALID_ARGUMENT),
    coordinator_errors.TransactionAbortable: Meaning("TRANSACTION_ABORTABLE", _Code.ABORTED),
    coordinator_errors.TransactionalIdNotFound: Meaning("TRANSACTIONAL_ID_NOT_FOUND", _Code.NOT_FOUND),
    coordinator_errors.OperationNotAttempted: Meaning("OPERATION_NOT_ATTEMPTED", _Code.FAILED_PRECONDITION),
    log.InvalidTopic: Meaning("INVALID_TOPIC_EXCEPTION", _Code.INVALID_ARGUMENT),
    log.TopicExists: Meaning("TOPIC_ALREADY_EXISTS", _Code.ALREADY_EXISTS),
    log.TopicDeletionDisabled: Meaning("TOPIC_DELETION_DISABLED", _Code.INVALID_ARGUMENT),
    log.InvalidPartitions: Meaning("INVALID_PARTITIONS", _Code.INVALID_ARGUMENT),
    log.InvalidReplicationFactor: Meaning("INVALID_REPLICATION_FACTOR", _Code.INVALID_ARGUMENT),
    log.InvalidReplicaAssignment: Meaning("INVALID_REPLICA_ASSIGNMENT", _Code.INVALID_ARGUMENT),
    log.NoReassignmentInProgress: Meaning("NO_REASSIGNMENT_IN_PROGRESS", _Code.FAILED_PRECONDITION),
    log.InvalidConfig: Meaning("INVALID_CONFIG", _Code.INVALID_ARGUMENT),
    log.PolicyViolation: Meaning("POLICY_VIOLATION", _Code.INVALID_ARGUMENT),
    log.InvalidUpdateVersion: Meaning("INVALID_UPDATE_VERSION", _Code.INVALID_ARGUMENT),
    log.Busy: Meaning("THROTTLING_QUOTA_EXCEEDED", _Code.RESOURCE_EXHAUSTED),
    log.StorageError: Meaning("KAFKA_STORAGE_ERROR", _Code.UNAVAILABLE),
    log.TierUnavailable: Meaning("KAFKA_STORAGE_ERROR", _Code.UNAVAILABLE),
    log.TierObjectMissing: Meaning("KAFKA_STORAGE_ERROR", _Code.UNAVAILABLE),
    log.StoreBehind: Meaning("KAFKA_STORAGE_ERROR", _Code.UNAVAILABLE),
    log.PreconditionFailed: Meaning("KAFKA_STORAGE_ERROR", _Code.UNAVAILABLE),
    log.StoreRefused: Meaning("KAFKA_STORAGE_ERROR", _Code.INVALID_ARGUMENT),
    log.DirectoryLocked: Meaning("KAFKA_STORAGE_ERROR", _Code.INVALID_ARGUMENT),
    log.TierCorrupt: Meaning("CORRUPT_MESSAGE", _Code.DATA_LOSS),
    log.ManifestDamaged: Meaning("CORRUPT_MESSAGE", _Code.DATA_LOSS),
    coordinator_errors.InvalidRegularExpression: Meaning("INVALID_REGULAR_EXPRESSION", _Code.INVALID_ARGUMENT),
    log.TopicUnauthorized: Meaning("TOPIC_AUTHORIZATION_FAILED", _Code.PERMISSION_DENIED),
    log.TransactionalIdUnauthorized: Meaning("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", _Code.INVALID_ARGUMENT),
    log.TransactionCoordinatorFenced: Meaning("TRANSACTION_COORDINATOR_FENCED", _Code.FAILED_PRECONDITION),
    log.FencedWriter: Meaning("NOT_LEADER_OR_FOLLOWER", _Code.FAILED_PRECONDITION),
    log.DeletedInStore: Meaning("NOT_LEADER_OR_FOLLOWER", _Code.FAILED_PRECONDITION),
    log.MetadataCorrupt: Meaning("UNKNOWN_SERVER_ERROR", _Code.DATA_LOSS),
}

_ADVICE: Mapping[Advice, pb.Advice.ValueType] = {
    Advice.RETRY: pb.ADVICE_RETRY,
    Advice.REDIRECT: pb.ADVICE_REDIRECT,
    Advice.STOP: pb.ADVICE_STOP,
    Advice.FIX: pb.ADVICE_FIX,
    Advice.PAGE: pb.ADVICE_PAGE,
}
_REASONS: Mapping[str, type[LogError]] = {kind.__name__: kind for kind in TABLE}
_UNKNOWN = TABLE[LogError]


def retriable(error: LogError) -> bool:
    """Whether the same request may succeed when sent again, perhaps after a metadata refresh."""
    return error.advice in (Advice.RETRY, Advice.REDIRECT)


def meaning(error: LogError) -> Meaning:
    return TABLE.get(type(error), _UNKNOWN)


def bounded_message(error: LogError) -> str:
    """The error's message, cut in the middle to MAX_ERROR_MESSAGE_BYTES. Receivers drop trailing metadata longer than 8 KiB,
    and with it the error's detail. A message can be long because it quotes the request."""
    text = str(error).encode(errors="replace")
    if len(text) > MAX_ERROR_MESSAGE_BYTES:
        half = (MAX_ERROR_MESSAGE_BYTES - len(_CUT)) // 2
        text = text[:half] + _CUT + text[-half:]
    return text.decode(errors="ignore")


def detail_of(error: LogError) -> pb.ErrorDetail:
    faults = error.faults[:MAX_FAULTS] if isinstance(error, _NAMING) else ()
    clear_tracebacks(error)
    return pb.ErrorDetail(
        kafka_error=meaning(error).kafka,
        reason=type(error).__name__,
        retriable=retriable(error),
        advice=_ADVICE[error.advice],
        message=bounded_message(error),
        faults=[pb.RecordFault(batch_index=each.batch_index, message=each.message) for each in faults],
    )


def clear_tracebacks(error: BaseException | None) -> None:
    """Clears the tracebacks of a reported error and of the errors in its context. A traceback keeps its frames and all their
    values alive. If a frame refers to the error, the cycle lives until a full collection."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        context = error.__context__
        error.__traceback__ = error.__context__ = None
        error = context


def error_of(detail: pb.ErrorDetail) -> LogError:
    """The error that `detail` describes, of the class that `reason` names; LogError itself if the reason is unknown here."""
    kind = _REASONS.get(detail.reason)
    if kind is None:
        return LogError(f"{detail.kafka_error}: {detail.message}")
    if issubclass(kind, _NAMING):
        return kind(detail.message, [RecordFault(each.batch_index, each.message) for each in detail.faults])
    return kind(detail.message)


def trailing_metadata(error: LogError) -> tuple[tuple[str, bytes], ...]:
    status = pb.Status(code=meaning(error).status.value[0], message=bounded_message(error))
    status.details.add(type_url=_TYPE_URL, value=detail_of(error).SerializeToString())
    return ((DETAILS_KEY, status.SerializeToString()),)


def detail_in(metadata: Sequence[tuple[str, Any]] | None) -> pb.ErrorDetail | None:
    """The detail in a failed call's trailing metadata; None if there is none, as when the channel failed."""
    statuses = (pb.Status.FromString(value) for key, value in metadata or () if key == DETAILS_KEY)
    packed = (each.value for status in statuses for each in status.details if each.type_url == _TYPE_URL)
    found = next(packed, None)
    return None if found is None else pb.ErrorDetail.FromString(found)


#: The error for a call without a detail, which the channel or gRPC itself has ended.
_WITHOUT_DETAIL: Mapping[grpc.StatusCode, type[LogError]] = {
    _Code.UNAVAILABLE: log.LeaderNotAvailable,
    _Code.DEADLINE_EXCEEDED: log.RequestTimedOut,
    _Code.CANCELLED: log.LeaderNotAvailable,
    _Code.RESOURCE_EXHAUSTED: log.RecordTooLarge,
    _Code.UNIMPLEMENTED: log.UnsupportedVersion,
    _Code.INVALID_ARGUMENT: log.InvalidRequest,
}
#: Details with which gRPC for Python reports INTERNAL or UNKNOWN, instead of UNAVAILABLE, if a channel breaks during a call.
#: A node never sends them: its own defects have other details.
_BROKEN_CHANNEL = ("Internal error from Core", "Stream removed")


def error_of_call(failure: Any, address: str) -> LogError:
    """The LogError for a failed call (`failure` is a grpc.RpcError). It is LeaderNotAvailable if the node is unreachable or
    stopped; the call may or may not have taken effect. It is RecordTooLarge for a message above either end's bound."""
    detail = detail_in(failure.trailing_metadata())
    if detail is not None:
        return error_of(detail)
    broken = failure.details() in _BROKEN_CHANNEL
    kind = log.LeaderNotAvailable if broken else _WITHOUT_DETAIL.get(failure.code(), LogError)
    return kind(f"{address}: {failure.code().name}: {failure.details()}")
