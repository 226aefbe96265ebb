"""Kafka's error codes: every LogError class has exactly one code, and no other module contains the numbers.

A class missing from the table is a defect (a test checks all subclasses); at run time its code is UNKNOWN_SERVER_ERROR.
Numbers: https://kafka.apache.org/protocol.html#protocol_error_codes
"""

from __future__ import annotations

import enum

from grpc_api.contract import coordinator_errors
from storage_tiers import errors as log
from storage_tiers.errors import LogError


class ErrorCode(enum.IntEnum):
    """The protocol's error codes that this gateway uses."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    UNKNOWN_PRODUCER_ID = 59
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    INVALID_UPDATE_VERSION = 95
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    TRANSACTION_ABORTABLE = 120
    INVALID_REGULAR_EXPRESSION = 128


#: Most errors of the store are KAFKA_STORAGE_ERROR. It is the only retriable code in a Fetch answer after which the consumers
#: of all client libraries continue.
CODES: dict[type[LogError], ErrorCode] = {
    LogError: ErrorCode.UNKNOWN_SERVER_ERROR,
    log.UnknownTopicOrPartition: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    log.UnknownTopicId: ErrorCode.UNKNOWN_TOPIC_ID,
    log.InconsistentTopicId: ErrorCode.INCONSISTENT_TOPIC_ID,
    log.OffsetOutOfRange: ErrorCode.OFFSET_OUT_OF_RANGE,
    log.OffsetNotAvailable: ErrorCode.OFFSET_NOT_AVAILABLE,
    log.NotLeader: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    log.BrokerNotRegistered: ErrorCode.BROKER_ID_NOT_REGISTERED,
    log.WrongCluster: ErrorCode.INCONSISTENT_CLUSTER_ID,
    log.BrokerFenced: ErrorCode.STALE_BROKER_EPOCH,
    log.StaleBrokerEpoch: ErrorCode.STALE_BROKER_EPOCH,
    log.DuplicateBroker: ErrorCode.DUPLICATE_BROKER_REGISTRATION,
    log.LeaderNotAvailable: ErrorCode.LEADER_NOT_AVAILABLE,
    log.FencedLeaderEpoch: ErrorCode.FENCED_LEADER_EPOCH,
    log.UnknownLeaderEpoch: ErrorCode.UNKNOWN_LEADER_EPOCH,
    log.CorruptRecord: ErrorCode.CORRUPT_MESSAGE,
    log.InvalidRecord: ErrorCode.INVALID_RECORD,
    log.InvalidTimestamp: ErrorCode.INVALID_TIMESTAMP,
    log.RecordTooLarge: ErrorCode.MESSAGE_TOO_LARGE,
    log.RecordBatchTooLarge: ErrorCode.RECORD_LIST_TOO_LARGE,
    log.UnsupportedMessageFormat: ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    log.UnsupportedCompression: ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    log.OutOfOrderSequence: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    log.DuplicateSequence: ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
    log.InvalidProducerEpoch: ErrorCode.INVALID_PRODUCER_EPOCH,
    log.InvalidTransactionState: ErrorCode.INVALID_TXN_STATE,
    coordinator_errors.InvalidRegularExpression: ErrorCode.INVALID_REGULAR_EXPRESSION,
    log.TransactionalIdUnauthorized: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    log.TopicUnauthorized: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    log.TransactionCoordinatorFenced: ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    log.UnknownProducerId: ErrorCode.UNKNOWN_PRODUCER_ID,
    log.InvalidRequest: ErrorCode.INVALID_REQUEST,
    log.UnsupportedVersion: ErrorCode.UNSUPPORTED_VERSION,
    log.InvalidRequiredAcks: ErrorCode.INVALID_REQUIRED_ACKS,
    log.RequestTimedOut: ErrorCode.REQUEST_TIMED_OUT,
    log.Busy: ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    log.NotEnoughReplicas: ErrorCode.NOT_ENOUGH_REPLICAS,
    coordinator_errors.CoordinatorLoading: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    coordinator_errors.CoordinatorNotAvailable: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    coordinator_errors.NotCoordinator: ErrorCode.NOT_COORDINATOR,
    coordinator_errors.InvalidGroupId: ErrorCode.INVALID_GROUP_ID,
    coordinator_errors.UnknownMemberId: ErrorCode.UNKNOWN_MEMBER_ID,
    coordinator_errors.MemberIdRequired: ErrorCode.MEMBER_ID_REQUIRED,
    coordinator_errors.IllegalGeneration: ErrorCode.ILLEGAL_GENERATION,
    coordinator_errors.FencedInstanceId: ErrorCode.FENCED_INSTANCE_ID,
    coordinator_errors.RebalanceInProgress: ErrorCode.REBALANCE_IN_PROGRESS,
    coordinator_errors.InconsistentGroupProtocol: ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    coordinator_errors.InvalidSessionTimeout: ErrorCode.INVALID_SESSION_TIMEOUT,
    coordinator_errors.GroupMaxSizeReached: ErrorCode.GROUP_MAX_SIZE_REACHED,
    coordinator_errors.GroupMetadataTooLarge: ErrorCode.UNKNOWN_SERVER_ERROR,
    coordinator_errors.CoordinatorRecordTooLarge: ErrorCode.UNKNOWN_SERVER_ERROR,
    coordinator_errors.GroupIdNotFound: ErrorCode.GROUP_ID_NOT_FOUND,
    coordinator_errors.NonEmptyGroup: ErrorCode.NON_EMPTY_GROUP,
    coordinator_errors.GroupSubscribedToTopic: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
    coordinator_errors.OffsetMetadataTooLarge: ErrorCode.OFFSET_METADATA_TOO_LARGE,
    coordinator_errors.UnstableOffsetCommit: ErrorCode.UNSTABLE_OFFSET_COMMIT,
    coordinator_errors.ProducerFenced: ErrorCode.PRODUCER_FENCED,
    coordinator_errors.InvalidProducerIdMapping: ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    coordinator_errors.ConcurrentTransactions: ErrorCode.CONCURRENT_TRANSACTIONS,
    coordinator_errors.InvalidTransactionTimeout: ErrorCode.INVALID_TRANSACTION_TIMEOUT,
    coordinator_errors.TransactionAbortable: ErrorCode.TRANSACTION_ABORTABLE,
    coordinator_errors.TransactionalIdNotFound: ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    coordinator_errors.OperationNotAttempted: ErrorCode.OPERATION_NOT_ATTEMPTED,
    log.InvalidTopic: ErrorCode.INVALID_TOPIC_EXCEPTION,
    log.TopicExists: ErrorCode.TOPIC_ALREADY_EXISTS,
    log.TopicDeletionDisabled: ErrorCode.TOPIC_DELETION_DISABLED,
    log.InvalidPartitions: ErrorCode.INVALID_PARTITIONS,
    log.InvalidReplicationFactor: ErrorCode.INVALID_REPLICATION_FACTOR,
    log.InvalidReplicaAssignment: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    log.NoReassignmentInProgress: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
    log.InvalidConfig: ErrorCode.INVALID_CONFIG,
    log.PolicyViolation: ErrorCode.POLICY_VIOLATION,
    log.InvalidUpdateVersion: ErrorCode.INVALID_UPDATE_VERSION,
    log.StorageError: ErrorCode.KAFKA_STORAGE_ERROR,
    log.TierUnavailable: ErrorCode.KAFKA_STORAGE_ERROR,
    log.TierObjectMissing: ErrorCode.KAFKA_STORAGE_ERROR,
    log.StoreBehind: ErrorCode.KAFKA_STORAGE_ERROR,
    log.PreconditionFailed: ErrorCode.KAFKA_STORAGE_ERROR,
    log.StoreRefused: ErrorCode.KAFKA_STORAGE_ERROR,
    log.DirectoryLocked: ErrorCode.KAFKA_STORAGE_ERROR,
    log.TierCorrupt: ErrorCode.CORRUPT_MESSAGE,
    log.ManifestDamaged: ErrorCode.CORRUPT_MESSAGE,
    log.FencedWriter: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    log.DeletedInStore: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    log.MetadataCorrupt: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def code_of(error: BaseException | None) -> int:
    """Kafka's code of an error; 0 for None; UNKNOWN_SERVER_ERROR for an exception that is not a LogError."""
    if error is None:
        return 0
    code = CODES.get(type(error))  # type: ignore[arg-type]
    return int(ErrorCode.UNKNOWN_SERVER_ERROR if code is None else code)


def message_of(error: BaseException) -> str:
    """The error message of a response. It reveals nothing about an unexpected exception."""
    return str(error) if isinstance(error, LogError) else "the broker failed unexpectedly; its log says why"
