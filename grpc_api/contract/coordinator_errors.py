"""The errors of group and transaction coordinators. They are part of the contract that both listeners serve.

Invariant: `storage_tiers` raises none of them, and the tier process sends none.
"""

from __future__ import annotations

from storage_tiers.errors import Advice, LogError


# --- groups -----------------------------------------------------------------------------------------------------------
class CoordinatorLoading(LogError):
    """The coordinator is still reading its partition and cannot answer yet."""

    advice = Advice.RETRY


class CoordinatorNotAvailable(LogError):
    """No broker coordinates the group or the transactional id now, or the coordinator could not write its records."""

    advice = Advice.RETRY


class NotCoordinator(LogError):
    """Another broker coordinates the group or the transactional id."""

    advice = Advice.REDIRECT


class InvalidGroupId(LogError):
    """The group id is empty."""

    advice = Advice.FIX


class UnknownMemberId(LogError):
    """The member has left or was removed; it rejoins without a member id."""

    advice = Advice.STOP


class MemberIdRequired(LogError):
    """The group has given the member an id; the member joins again with it (KIP-394)."""

    advice = Advice.RETRY


class IllegalGeneration(LogError):
    """The group has another generation now; the member joins again."""

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
    """The session timeout is outside the bounds of `group.min.session.timeout.ms` and `group.max.session.timeout.ms`."""

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
    """The coordinator knows no such group."""

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
    """The timeout is not positive, or exceeds `transaction.max.timeout.ms`."""

    advice = Advice.FIX


class TransactionAbortable(LogError):
    """The transaction can only be aborted; the producer may continue after that (KIP-890)."""

    advice = Advice.FIX


class InvalidRegularExpression(LogError):
    """The pattern is not a regular expression, or could take exponential time to match."""

    advice = Advice.FIX


class TransactionalIdNotFound(LogError):
    """The coordinator knows no such transactional id."""

    advice = Advice.FIX


class OperationNotAttempted(LogError):
    """Another part of the request was refused, so this one was not tried."""

    advice = Advice.FIX
