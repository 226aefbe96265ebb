"""All errors of the log. Each class tells its receiver what to do.

Protocol numbers exist only in `kafka_gateway.errors`, which maps every class of this module exactly once.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import ClassVar, NamedTuple, TypeVar


class Advice(Enum):
    """The reaction that an error asks of its receiver."""

    RETRY = "same request, later"
    REDIRECT = "refresh metadata, ask again"
    STOP = "a newer owner exists; give up your state"
    FIX = "the request itself is wrong"
    PAGE = "stored bytes are damaged or a disk failed; call an operator"


class LogError(Exception):
    """Base class. `str(error)` is a sentence for the user: what is wrong and what to do.

    `log_start_offset` is the partition's if its log refused a validated batch, else -1; answers to producers contain it.
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
    advice = Advice.REDIRECT


class UnknownTopicId(LogError):
    advice = Advice.REDIRECT


class InconsistentTopicId(LogError):
    """The topic has another id than the request names: it was deleted and created again."""

    advice = Advice.REDIRECT


class OffsetOutOfRange(LogError):
    """The offset is below log start or above the end."""

    advice = Advice.FIX


class OffsetNotAvailable(LogError):
    """The offset that the caller may read is not known yet."""

    advice = Advice.RETRY


class NotLeader(LogError):
    """Another broker leads the partition, or none does."""

    advice = Advice.REDIRECT


class LeaderNotAvailable(LogError):
    """The partition exists but does not lead yet: it is recovering, or compares itself with the store's manifest."""

    advice = Advice.RETRY


class FencedLeaderEpoch(LogError):
    """The caller's epoch is older than ours."""

    advice = Advice.REDIRECT


class UnknownLeaderEpoch(LogError):
    """The caller's epoch is newer than ours."""

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
    def __init__(self, message: str, faults: Sequence[RecordFault] = ()) -> None:
        super().__init__(message)
        self.faults = faults


class InvalidRecord(_NamesRecords, LogError):
    """Correct framing, but a broken rule (a control batch from a client, a null key on a compacted topic ...)."""

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
    """Magic 0 or 1."""

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


# --- groups -----------------------------------------------------------------------------------------------------------
class CoordinatorLoading(LogError):
    """The coordinator reads its partition; its answers are not known yet."""

    advice = Advice.RETRY


class CoordinatorNotAvailable(LogError):
    """No broker coordinates it now, or its records could not be written."""

    advice = Advice.RETRY


class NotCoordinator(LogError):
    """Another broker coordinates the group or the transactional id."""

    advice = Advice.REDIRECT


class InvalidGroupId(LogError):
    advice = Advice.FIX


class UnknownMemberId(LogError):
    """The member has left or was removed; it rejoins without a member id."""

    advice = Advice.STOP


class MemberIdRequired(LogError):
    """The group has given the member an id, with which it joins again (KIP-394)."""

    advice = Advice.RETRY


class IllegalGeneration(LogError):
    """The group has another generation by now; the member joins again."""

    advice = Advice.STOP


class FencedInstanceId(LogError):
    """Another member has joined under the same `group.instance.id` (KIP-345)."""

    advice = Advice.STOP


class RebalanceInProgress(LogError):
    """The group waits for its members to join again."""

    advice = Advice.RETRY


class InconsistentGroupProtocol(LogError):
    """The member's protocols have nothing in common with the group's."""

    advice = Advice.FIX


class InvalidSessionTimeout(LogError):
    advice = Advice.FIX


class GroupMaxSizeReached(LogError):
    """The group has `group.max.size` members, or their subscriptions fill its record."""

    advice = Advice.FIX


class GroupMetadataTooLarge(LogError):
    """The members' subscriptions and assignments do not fit one record of the coordinator's partition."""

    advice = Advice.FIX


class CoordinatorRecordTooLarge(LogError):
    """The request would need a record that no batch of the coordinator's partition can hold. Nothing was changed."""

    advice = Advice.FIX


class GroupIdNotFound(LogError):
    advice = Advice.FIX


class NonEmptyGroup(LogError):
    """The group has members, which must leave first."""

    advice = Advice.FIX


class GroupSubscribedToTopic(LogError):
    """A member of the group is subscribed to the topic, so its offsets stay."""

    advice = Advice.FIX


class OffsetMetadataTooLarge(LogError):
    """The offset's metadata exceeds `offset.metadata.max.bytes`."""

    advice = Advice.FIX


class UnstableOffsetCommit(LogError):
    """A transaction that has written this offset is still open (KIP-447)."""

    advice = Advice.RETRY


# --- transactions -----------------------------------------------------------------------------------------------------
class ProducerFenced(LogError):
    """A newer producer uses the transactional id."""

    advice = Advice.STOP


class InvalidProducerIdMapping(LogError):
    """The transactional id has another producer id, or has expired."""

    advice = Advice.STOP


class ConcurrentTransactions(LogError):
    """The producer's previous transaction is still being completed."""

    advice = Advice.RETRY


class InvalidTransactionTimeout(LogError):
    advice = Advice.FIX


class TransactionAbortable(LogError):
    """The transaction can only be aborted; the producer may continue after that (KIP-890)."""

    advice = Advice.FIX


class InvalidRegularExpression(LogError):
    """A pattern that is no regular expression, or one that could take exponential time."""

    advice = Advice.FIX


class TransactionalIdNotFound(LogError):
    advice = Advice.FIX


class OperationNotAttempted(LogError):
    """Another part of the request was refused, so this one was not tried."""

    advice = Advice.FIX


# --- administration ---------------------------------------------------------------------------------------------------
class InvalidTopic(LogError):
    advice = Advice.FIX


class TopicExists(LogError):
    advice = Advice.FIX


class TopicDeletionDisabled(LogError):
    advice = Advice.FIX


class InvalidPartitions(LogError):
    advice = Advice.FIX


class InvalidReplicationFactor(LogError):
    advice = Advice.FIX


class InvalidReplicaAssignment(LogError):
    advice = Advice.FIX


class InvalidConfig(LogError):
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
    shows it again; retry then."""

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
    """The metadata log or one of its snapshots is damaged, and not only at its torn end."""

    advice = Advice.PAGE
