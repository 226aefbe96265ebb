"""Every way the log refuses, each saying what its receiver should do.

An error here is a promise that could not be kept; protocol numbers exist only in `kafka_gateway.errors`, which maps
every class of this module exactly once.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import ClassVar, NamedTuple, TypeVar


class Advice(Enum):
    RETRY = "same request, later"
    REDIRECT = "refresh metadata, ask again"
    STOP = "a newer owner exists; give up your state"
    FIX = "the request itself is wrong"
    PAGE = "stored bytes are damaged or a disk failed; call an operator"


class LogError(Exception):
    """Base of all. `str(error)` is a sentence for the user: what is wrong and what to do.

    `log_start_offset` is the partition's where a log refused a batch after looking at it, else -1: producers are told it.
    """

    advice: ClassVar[Advice] = Advice.PAGE
    log_start_offset: int = -1


Refusal = TypeVar("Refusal", bound=LogError)


def as_value(error: Refusal) -> Refusal:
    """The error as an answer holds it: without the way that it took. Its traceback would keep every frame that it passed, and
    with them the answer and so itself, until a full garbage collection comes."""
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error


# --- what is asked does not exist, or not yet, or no more -------------------------------------------------------------
class UnknownTopicOrPartition(LogError):
    advice = Advice.REDIRECT


class UnknownTopicId(LogError):
    advice = Advice.REDIRECT


class InconsistentTopicId(LogError):
    advice = Advice.REDIRECT


class OffsetOutOfRange(LogError):
    advice = Advice.FIX


class OffsetNotAvailable(LogError):
    advice = Advice.RETRY


class NotLeader(LogError):
    advice = Advice.REDIRECT


class LeaderNotAvailable(LogError):
    """The partition exists, but waits (for recovery, for the store's manifest) before it may lead."""

    advice = Advice.RETRY


class FencedLeaderEpoch(LogError):
    """The caller's epoch is older than ours."""

    advice = Advice.REDIRECT


class UnknownLeaderEpoch(LogError):
    """The caller's epoch is newer than ours."""

    advice = Advice.RETRY


# --- records ----------------------------------------------------------------------------------------------------------
class CorruptRecord(LogError):
    """CRC, length or framing do not fit the bytes."""

    advice = Advice.FIX


class RecordFault(NamedTuple):
    """One record of a refused batch (KIP-467): its place in the batch, from 0, and what is wrong with it."""

    place: int
    message: str


class _NamesRecords(Exception):
    def __init__(self, message: str, faults: Sequence[RecordFault] = ()) -> None:
        super().__init__(message)
        self.faults = faults


class InvalidRecord(_NamesRecords, LogError):
    """Well framed, but breaks a rule (control batch from a client, null key on a compacted topic ...)."""

    advice = Advice.FIX


class InvalidTimestamp(_NamesRecords, LogError):
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
    advice = Advice.FIX


# --- idempotent producers ---------------------------------------------------------------------------------------------
class OutOfOrderSequence(LogError):
    advice = Advice.FIX


class DuplicateSequence(LogError):
    """Older than the five batches remembered per producer: a duplicate whose offset is no longer known."""

    advice = Advice.FIX


class InvalidProducerEpoch(LogError):
    advice = Advice.STOP


class UnknownProducerId(LogError):
    advice = Advice.FIX


class InvalidTransactionState(LogError):
    """A transactional batch without a transaction that this node coordinates."""

    advice = Advice.FIX


# --- requests ---------------------------------------------------------------------------------------------------------
class InvalidRequest(LogError):
    advice = Advice.FIX


class UnsupportedVersion(LogError):
    """A field or value that this node serves in no version."""

    advice = Advice.FIX


class InvalidRequiredAcks(LogError):
    advice = Advice.FIX


class RequestTimedOut(LogError):
    advice = Advice.RETRY


class Busy(LogError):
    """The node does as much for its callers as it may."""

    advice = Advice.RETRY


class NotEnoughReplicas(LogError):
    advice = Advice.RETRY


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
    advice = Advice.FIX


# --- the disk and the store -------------------------------------------------------------------------------------------
class StorageError(LogError):
    """The local disk refused (full, failing, past the watermark). Writes stop, reads go on."""

    advice = Advice.RETRY


class TierUnavailable(LogError):
    """The object store did not answer, or not in time. Nothing is lost; retry."""

    advice = Advice.RETRY


class TierCorrupt(LogError):
    """An object's bytes fail their checksum, or a manifest cannot be parsed. Never served; `tidelog fsck` names it."""

    advice = Advice.PAGE


class ManifestDamaged(TierCorrupt):
    """What lies under a partition's manifest key cannot be read, or is another partition's."""


class TierObjectMissing(LogError):
    """The store answered 404 for a referenced object: reload the manifest, then ask again."""

    advice = Advice.RETRY


class StoreBehind(LogError):
    """The store shows less of a partition than this node has seen there (I10). Nothing is deleted or evicted until it shows
    that again; what was asked may then be asked again."""

    advice = Advice.RETRY


class PreconditionFailed(LogError):
    """A conditional write met another state than it was told to replace (412, 409)."""

    advice = Advice.RETRY


class StoreRefused(LogError):
    """The store ignores conditional writes, denies access, or is not the one the node belongs to."""

    advice = Advice.FIX


class FencedWriter(LogError):
    """A newer incarnation, leader epoch or topic id owns what this writer meant to change."""

    advice = Advice.STOP


class DeletedInStore(FencedWriter):
    """The partition's manifest is deleted in the bucket, and nothing follows that."""


class DirectoryLocked(LogError):
    """Another process runs on this data directory."""

    advice = Advice.FIX


class MetadataCorrupt(LogError):
    """The metadata log or one of its snapshots is damaged before its end."""

    advice = Advice.PAGE
