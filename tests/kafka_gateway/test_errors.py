"""Every LogError has exactly one Kafka error code, with the number that Kafka gives it."""

from __future__ import annotations

from collections.abc import Iterator

from kio.schema.errors import ErrorCode as KioErrorCode

from kafka_gateway.errors import CODES, ErrorCode, code_of, message_of
from storage_tiers.errors import LogError, NotLeader, UnknownTopicOrPartition

#: Error codes from org.apache.kafka.common.protocol.Errors.
NUMBERS = {
    "CoordinatorRecordTooLarge": -1,
    "GroupMetadataTooLarge": -1,
    "LogError": -1,
    "MetadataCorrupt": -1,
    "OffsetOutOfRange": 1,
    "CorruptRecord": 2,
    "ManifestDamaged": 2,
    "TierCorrupt": 2,
    "UnknownTopicOrPartition": 3,
    "LeaderNotAvailable": 5,
    "DeletedInStore": 6,
    "FencedWriter": 6,
    "NotLeader": 6,
    "RequestTimedOut": 7,
    "RecordTooLarge": 10,
    "OffsetMetadataTooLarge": 12,
    "CoordinatorLoading": 14,
    "CoordinatorNotAvailable": 15,
    "NotCoordinator": 16,
    "InvalidTopic": 17,
    "RecordBatchTooLarge": 18,
    "NotEnoughReplicas": 19,
    "InvalidRequiredAcks": 21,
    "IllegalGeneration": 22,
    "InconsistentGroupProtocol": 23,
    "InvalidGroupId": 24,
    "UnknownMemberId": 25,
    "InvalidSessionTimeout": 26,
    "RebalanceInProgress": 27,
    "TopicUnauthorized": 29,
    "InvalidTimestamp": 32,
    "UnsupportedVersion": 35,
    "TopicExists": 36,
    "InvalidPartitions": 37,
    "InvalidReplicationFactor": 38,
    "InvalidReplicaAssignment": 39,
    "NoReassignmentInProgress": 85,
    "InvalidConfig": 40,
    "InvalidRequest": 42,
    "UnsupportedMessageFormat": 43,
    "PolicyViolation": 44,
    "InvalidUpdateVersion": 95,
    "OutOfOrderSequence": 45,
    "DuplicateSequence": 46,
    "BrokerFenced": 77,
    "WrongCluster": 104,
    "BrokerNotRegistered": 102,
    "DuplicateBroker": 101,
    "StaleBrokerEpoch": 77,
    "InvalidProducerEpoch": 47,
    "InvalidTransactionState": 48,
    "InvalidProducerIdMapping": 49,
    "InvalidTransactionTimeout": 50,
    "ConcurrentTransactions": 51,
    "TransactionCoordinatorFenced": 52,
    "TransactionalIdUnauthorized": 53,
    "InvalidRegularExpression": 128,
    "OperationNotAttempted": 55,
    "DirectoryLocked": 56,
    "PreconditionFailed": 56,
    "StorageError": 56,
    "StoreBehind": 56,
    "StoreRefused": 56,
    "TierObjectMissing": 56,
    "TierUnavailable": 56,
    "UnknownProducerId": 59,
    "NonEmptyGroup": 68,
    "GroupIdNotFound": 69,
    "TopicDeletionDisabled": 73,
    "FencedLeaderEpoch": 74,
    "UnknownLeaderEpoch": 75,
    "UnsupportedCompression": 76,
    "OffsetNotAvailable": 78,
    "MemberIdRequired": 79,
    "GroupMaxSizeReached": 81,
    "FencedInstanceId": 82,
    "GroupSubscribedToTopic": 86,
    "InvalidRecord": 87,
    "UnstableOffsetCommit": 88,
    "Busy": 89,
    "ProducerFenced": 90,
    "UnknownTopicId": 100,
    "InconsistentTopicId": 103,
    "TransactionalIdNotFound": 105,
    "TransactionAbortable": 120,
}


def all_log_errors(kind: type[LogError] = LogError) -> Iterator[type[LogError]]:
    yield kind
    for child in kind.__subclasses__():
        if child.__module__.split(".")[0] != "tests":
            yield from all_log_errors(child)


def test_every_log_error_is_mapped() -> None:
    assert set(all_log_errors()) - set(CODES) == set()


def test_each_has_the_number_that_clients_act_on() -> None:
    """Similar codes are not interchangeable: a producer splits its batch on MESSAGE_TOO_LARGE, not on RECORD_LIST_TOO_LARGE."""
    assert {kind.__name__: int(code) for kind, code in CODES.items()} == NUMBERS


def test_nothing_else_is_mapped() -> None:
    assert set(CODES) - set(all_log_errors()) == set()


def test_the_numbers_are_kafkas() -> None:
    assert {code.name.lower(): int(code) for code in ErrorCode}.items() <= {
        code.name: int(code) for code in KioErrorCode
    }.items()


def test_other_exceptions_become_unknown_server_errors_without_internals() -> None:
    error = ValueError("/secret/path")
    assert code_of(error) == ErrorCode.UNKNOWN_SERVER_ERROR
    assert "secret" not in message_of(error)


def test_messages_of_log_errors_reach_the_client() -> None:
    assert message_of(UnknownTopicOrPartition("topic a does not exist")) == "topic a does not exist"
    assert code_of(NotLeader("elsewhere")) == 6
    assert code_of(None) == 0
