"""All errors of the log. Each class tells its receiver what to do. The errors of coordinators are in
`grpc_api.contract.coordinator_errors`.

Protocol numbers exist only in `kafka_gateway.errors`, which maps every class exactly once.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import ClassVar, NamedTuple, TypeVar


class Advice(Enum):
    """The reaction that an error requires of its receiver."""

    RETRY = "same request, later"
    REDIRECT = "refresh metadata, ask again"
    STOP = "a newer owner exists; give up your state"
    FIX = "the request itself is wrong"
    PAGE = "stored bytes are damaged or a disk failed; call an operator"


class LogError(Exception):
    """Base class. `str(error)` is a sentence for the user: what is wrong and what to do.

    `log_start_offset` is the partition's log start if its log refused a validated batch, else -1. Answers to producers
    contain it.
    """

    advice: ClassVar[Advice] = Advice.PAGE
    log_start_offset: int = -1


Refusal = TypeVar("Refusal", bound=LogError)


def as_value(error: Refusal) -> Refusal:
    """The error without traceback, cause and context, for storing it in an answer. A traceback references every frame on its
    way, and through them the answer and the error itself: a cycle that only a full garbage collection frees."""
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error


# --- topics, partitions and offsets -----------------------------------------------------------------------------------
class UnknownTopicOrPartition(LogError):
    """No such topic, or the topic has no such partition."""

    advice = Advice.REDIRECT


class UnknownTopicId(LogError):
    """No topic has this id."""

    advice = Advice.REDIRECT


class InconsistentTopicId(LogError):
    """The topic has another id than the request names: it was deleted and created again."""

    advice = Advice.REDIRECT


class OffsetOutOfRange(LogError):
    """The offset is below log start or above the end."""

    advice = Advice.FIX


class OffsetNotAvailable(LogError):
    """The offset up to which the caller may read is not known yet."""

    advice = Advice.RETRY


class NotLeader(LogError):
    """Another broker leads the partition, or none does."""

    advice = Advice.REDIRECT


class BrokerNotRegistered(LogError):
    """The controller does not know a broker of this id."""

    advice = Advice.FIX


class WrongCluster(LogError):
    """The broker and the controller belong to different clusters."""

    advice = Advice.FIX


class BrokerFenced(LogError):
    """The controller has received no heartbeat from the broker in time, and refuses the request."""

    advice = Advice.RETRY


class StaleBrokerEpoch(LogError):
    """The broker has registered again since: a newer process has its id."""

    advice = Advice.STOP


class DuplicateBroker(LogError):
    """A broker with this id and another disk is alive."""

    advice = Advice.FIX


class LeaderNotAvailable(LogError):
    """The partition exists but has no leader yet: it is recovering, or its log is being compared with the store's manifest."""

    advice = Advice.RETRY


class FencedLeaderEpoch(LogError):
    """The caller's epoch is older than this broker's."""

    advice = Advice.REDIRECT


class UnknownLeaderEpoch(LogError):
    """The caller's epoch is newer than this broker's."""

    advice = Advice.RETRY


# --- records ----------------------------------------------------------------------------------------------------------
class CorruptRecord(LogError):
    """CRC, length or framing do not match the bytes."""

    advice = Advice.FIX


class RecordFault(NamedTuple):
    """One record of a refused batch (KIP-467): its index in the batch, from 0, and what is wrong with it."""

    batch_index: int
    message: str


class _NamesRecords(Exception):
    """`faults` are the records that are wrong, as far as they are known."""

    def __init__(self, message: str, faults: Sequence[RecordFault] = ()) -> None:
        super().__init__(message)
        self.faults = faults


class InvalidRecord(_NamesRecords, LogError):
    """A record with correct framing that breaks a rule (a control batch from a client, a null key on a compacted topic ...)."""

    advice = Advice.FIX


class InvalidTimestamp(_NamesRecords, LogError):
    """A timestamp that is too far from the broker's clock, does not fit 64 bits, or has a type that only the broker sets."""

    advice = Advice.FIX


class RecordTooLarge(LogError):
    """The batch exceeds `max.message.bytes`, or inflates beyond its bound."""

    advice = Advice.FIX


class RecordBatchTooLarge(LogError):
    """The batch exceeds `segment.bytes`."""

    advice = Advice.FIX


class UnsupportedMessageFormat(LogError):
    """The batch has magic 0 or 1."""

    advice = Advice.FIX


class UnsupportedCompression(LogError):
    """A codec that does not exist, or that this request or topic may not use."""

    advice = Advice.FIX


# --- idempotent producers ---------------------------------------------------------------------------------------------
class OutOfOrderSequence(LogError):
    """The batch's first sequence number does not follow the producer's last one."""

    advice = Advice.FIX


class DuplicateSequence(LogError):
    """A duplicate older than the five batches remembered per producer, so its offset is no longer known."""

    advice = Advice.FIX


class InvalidProducerEpoch(LogError):
    """The producer's epoch is older than the newest one in the partition."""

    advice = Advice.STOP


class UnknownProducerId(LogError):
    """The partition has no state of the producer."""

    advice = Advice.FIX


class InvalidTransactionState(LogError):
    """A transactional batch or request that fits no open transaction of its producer."""

    advice = Advice.FIX


class TransactionalIdUnauthorized(LogError):
    """The producer may not use the transactional id, or sends a transactional batch without one."""

    advice = Advice.FIX


class TopicUnauthorized(LogError):
    """The request may not name this topic, because the broker keeps it for itself."""

    advice = Advice.FIX


class TransactionCoordinatorFenced(LogError):
    """A newer coordinator of the transaction has written its marker."""

    advice = Advice.STOP


# --- requests ---------------------------------------------------------------------------------------------------------
class InvalidRequest(LogError):
    """A request that contradicts itself, or that the node's state does not permit."""

    advice = Advice.FIX


class UnsupportedVersion(LogError):
    """A field or value that this node supports in no version."""

    advice = Advice.FIX


class InvalidRequiredAcks(LogError):
    """`acks` is none of -1, 0 and 1."""

    advice = Advice.FIX


class RequestTimedOut(LogError):
    """The work did not end within its timeout. It may still take effect."""

    advice = Advice.RETRY


class Busy(LogError):
    """The node has reached a bound on concurrent work."""

    advice = Advice.RETRY


class NotEnoughReplicas(LogError):
    """The batch cannot be appended now: too few replicas are in sync, or its transaction could not be verified."""

    advice = Advice.RETRY


# --- administration ---------------------------------------------------------------------------------------------------
class InvalidTopic(LogError):
    """The topic's name breaks a rule or collides with another one, or the topic is the broker's own."""

    advice = Advice.FIX


class TopicExists(LogError):
    """A topic of this name exists already."""

    advice = Advice.FIX


class TopicDeletionDisabled(LogError):
    """`delete.topic.enable` is false."""

    advice = Advice.FIX


class InvalidPartitions(LogError):
    """A number of partitions that the topic cannot have, or a partition that it does not have."""

    advice = Advice.FIX


class InvalidReplicationFactor(LogError):
    """A replication factor below one, or above the number of brokers."""

    advice = Advice.FIX


class InvalidReplicaAssignment(LogError):
    """A manual assignment with gaps, unknown or repeated brokers, or unequal numbers of replicas."""

    advice = Advice.FIX


class NoReassignmentInProgress(LogError):
    """The partition has no reassignment to cancel."""

    advice = Advice.FIX


class InvalidConfig(LogError):
    """A config that does not exist, or a value that it cannot have."""

    advice = Advice.FIX


class PolicyViolation(LogError):
    """A request beyond a bound of the broker, or one that its settings forbid."""

    advice = Advice.FIX


class InvalidUpdateVersion(LogError):
    """A feature level that cannot be set."""

    advice = Advice.FIX


# --- the disk and the store -------------------------------------------------------------------------------------------
class StorageError(LogError):
    """The local disk refused (full, failing, past the watermark). Writes stop, reads continue."""

    advice = Advice.RETRY


class TierUnavailable(LogError):
    """The object store did not answer in time, or at all. Nothing is lost; retry."""

    advice = Advice.RETRY


class TierCorrupt(LogError):
    """An object fails its checksum, or a manifest cannot be parsed. Such bytes are never served; `tidelog fsck` names the
    object."""

    advice = Advice.PAGE


class ManifestDamaged(TierCorrupt):
    """The object under a partition's manifest key cannot be parsed, or belongs to another partition."""


class TierObjectMissing(LogError):
    """The store answered 404 for a referenced object: reload the manifest, then retry."""

    advice = Advice.RETRY


class StoreBehind(LogError):
    """The store shows less of a partition than this node has seen there (I10). Nothing is deleted or evicted until the store
    shows what was seen; retry then."""

    advice = Advice.RETRY


class PreconditionFailed(LogError):
    """The precondition of a conditional write did not hold (412, 409)."""

    advice = Advice.RETRY


class StoreRefused(LogError):
    """The store ignores conditional writes, denies access, or belongs to another cluster."""

    advice = Advice.FIX


class FencedWriter(LogError):
    """A newer incarnation, leader epoch or topic id owns the state that this writer tried to change."""

    advice = Advice.STOP


class DeletedInStore(FencedWriter):
    """The partition's manifest is marked deleted in the bucket, which is final."""


class DirectoryLocked(LogError):
    """Another process uses this data directory."""

    advice = Advice.FIX


class MetadataCorrupt(LogError):
    """The metadata log or one of its snapshots is damaged, and the damage is more than a torn end."""

    advice = Advice.PAGE
