"""The life of one partition on this node: its phases, the events that end them, and the requests that each refuses.

    opening ──▶ comparing ──▶ recovering ◀──▶ leading ◀──▶ handing_over        every phase ──▶ deleted
       ▲            │              │             │
       │            ▼              ▼             ▼
       │   failed_comparing ─▶ failed_recovering ◀─▶ failed
       │                           ▲
    following ──▶ failed_following ┘

Opening may end in comparing, recovering, leading or failed_recovering; comparing may also end in leading. Every phase above the
last row belongs to a leader. When the node resigns, the partition enters following, or failed_following if the disk has failed.
A follower that becomes leader begins at opening, because its knowledge of the bucket is stale: another node may have written to
it.

Resigning is an event and not a phase, because nothing has to be awaited. A partition without a known leader is also in
following, and refuses the same callers.

Pure: events in, the next life out. A row of `ANSWERS` defines which uses a phase refuses, and for which cause, so that no code
infers a partition's state from the type of an error.

Invariants: a partition accepts records only while it leads; a failed partition accepts none until the node is restarted; a
follower serves neither clients nor the bucket; deleted is the last phase. `TRANSITIONS` has every pair of a phase and an
event. An unexpected event is a defect (`UnexpectedEvent`) and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from storage_tiers.errors import LeaderNotAvailable, LogError
from storage_tiers.types import TopicPartition


class Phase(Enum):
    """A phase of a partition's life. "Both" means that two conditions hold at once."""

    #: The log is open; whether the store may hold more of it has not been checked. Ends within one turn of the event loop.
    OPENING = "opening"
    #: The local log is not known to match the bucket: reads and writes are refused.
    RECOVERING = "recovering"
    #: The directory may be an older copy: reads are served, writes are refused until the store has answered.
    COMPARING = "comparing"
    LEADING = "leading"
    #: Another node is about to lead: reads are served, writes are refused until the move ends or is given up.
    HANDING_OVER = "handing_over"
    #: The disk has failed: reads are served, writes are refused until the node is restarted.
    FAILED = "failed"
    #: Both: the disk has failed, and the directory may be an older copy. Reads are served; the store is queried.
    FAILED_COMPARING = "failed_comparing"
    #: Both: the disk has failed, and the local log is not known to match the bucket.
    FAILED_RECOVERING = "failed_recovering"
    #: Another node leads, or none does: reads and writes are refused.
    FOLLOWING = "following"
    #: Both: the disk has failed, and another node leads.
    FAILED_FOLLOWING = "failed_following"
    #: The topic is gone. Nothing of the log may be touched, because a new topic may have its directory's name.
    DELETED = "deleted"


class PartitionEvent(Enum):
    """An event of a partition's life, which may change its phase."""

    #: The log was opened in a directory that may be an older copy.
    COMPARE = "compare"
    #: The local log is not known to match the bucket, or the reason for the doubt has changed.
    RECOVER = "recover"
    #: The local log was discarded in favour of the bucket's, and begins again.
    DISCARD = "discard"
    #: The local log is known to match the bucket, or there is no store.
    RECONCILE = "reconcile"
    #: This node becomes the leader in place of another node.
    LEAD = "lead"
    #: This node leads under a later epoch, or will once its log is reconciled.
    BEGIN_EPOCH = "new epoch"
    #: A move of the partition needs a log that no longer grows.
    HOLD = "hold"
    #: The move is cancelled, and no consent to it is in flight.
    RELEASE = "release"
    #: This node no longer leads, or it follows another leader than before.
    RESIGN = "resign"
    #: The disk has failed.
    FAIL = "fail"
    #: The topic was deleted.
    DELETE = "delete"


class Use(Enum):
    """The kind of access that a caller needs."""

    WRITE = "write"
    #: Fetches and offset queries.
    READ = "read"
    #: Hiding records for ever: DeleteRecords and retention.
    ADMIN = "admin"
    #: Waiting until appended records are on disk.
    FLUSH = "flush"


class Cause(Enum):
    """The cause of a refused request. Each cause has one error at a time, the reason of the last event that set it."""

    RECOVERY = "recovery"
    LEADERSHIP = "leadership"
    MOVE = "move"
    FAILURE = "failure"
    DELETION = "deletion"


class PhaseEffect(NamedTuple):
    """The effects of an event besides the change of phase."""

    #: The cause whose error becomes the event's reason; None if the event sets no error.
    cause: Cause | None
    #: Whether pending acknowledgements fail with the event's reason.
    ends_acknowledgements: bool
    #: Whether waiting fetches are checked again.
    wakes_readers: bool
    #: Whether the callbacks for the end of the leadership or of the log (`Resignations`) get the event's reason.
    ends_registered: bool = False


class Answers(NamedTuple):
    """The cause for which each use is refused in a phase; None where it is allowed."""

    write: Cause | None
    read: Cause | None
    admin: Cause | None
    flush: Cause | None
    #: Whether the partition waits for the store's manifest, because records past the log end may exist.
    is_recovering: bool
    #: Whether the partition waits for a restart of the node.
    is_failed: bool
    #: Whether this node is the leader, even while it refuses requests.
    is_leader: bool


class UnexpectedEvent(Exception):
    """An event that cannot happen to a partition in its phase: a defect of the code that reports it."""


EFFECTS: Mapping[PartitionEvent, PhaseEffect] = {
    PartitionEvent.COMPARE: PhaseEffect(Cause.RECOVERY, ends_acknowledgements=False, wakes_readers=False),
    # Waiters keep waiting: after recovery the records may be present and acknowledged.
    PartitionEvent.RECOVER: PhaseEffect(Cause.RECOVERY, ends_acknowledgements=False, wakes_readers=False),
    PartitionEvent.DISCARD: PhaseEffect(None, ends_acknowledgements=True, wakes_readers=False, ends_registered=True),
    PartitionEvent.RECONCILE: PhaseEffect(None, ends_acknowledgements=False, wakes_readers=True),
    PartitionEvent.LEAD: PhaseEffect(Cause.RECOVERY, ends_acknowledgements=False, wakes_readers=False),
    # Readers under the previous epoch get their error at once.
    PartitionEvent.BEGIN_EPOCH: PhaseEffect(None, ends_acknowledgements=False, wakes_readers=True),
    # Records that were appended before the hold are still acknowledged and read here.
    PartitionEvent.HOLD: PhaseEffect(Cause.MOVE, ends_acknowledgements=False, wakes_readers=False),
    PartitionEvent.RELEASE: PhaseEffect(None, ends_acknowledgements=False, wakes_readers=False),
    PartitionEvent.RESIGN: PhaseEffect(
        Cause.LEADERSHIP, ends_acknowledgements=True, wakes_readers=True, ends_registered=True
    ),
    PartitionEvent.FAIL: PhaseEffect(Cause.FAILURE, ends_acknowledgements=True, wakes_readers=True),
    PartitionEvent.DELETE: PhaseEffect(
        Cause.DELETION, ends_acknowledgements=True, wakes_readers=True, ends_registered=True
    ),
}

_RECOVERY, _LEADERSHIP, _FAILURE, _DELETION = Cause.RECOVERY, Cause.LEADERSHIP, Cause.FAILURE, Cause.DELETION
_MOVE = Cause.MOVE
ANSWERS: Mapping[Phase, Answers] = {
    #                                write      read       admin      flush      recovering  failed  leader
    Phase.OPENING: Answers(_RECOVERY, _RECOVERY, _RECOVERY, None, True, False, True),
    Phase.RECOVERING: Answers(_RECOVERY, _RECOVERY, _RECOVERY, None, True, False, True),
    Phase.COMPARING: Answers(_RECOVERY, None, _RECOVERY, None, True, False, True),
    Phase.LEADING: Answers(None, None, None, None, False, False, True),
    Phase.HANDING_OVER: Answers(_MOVE, None, _MOVE, None, False, False, True),
    Phase.FAILED: Answers(_FAILURE, None, None, _FAILURE, False, True, True),
    Phase.FAILED_COMPARING: Answers(_FAILURE, None, _RECOVERY, _FAILURE, True, True, True),
    Phase.FAILED_RECOVERING: Answers(_FAILURE, _RECOVERY, _RECOVERY, _FAILURE, True, True, True),
    Phase.FOLLOWING: Answers(_LEADERSHIP, _LEADERSHIP, _LEADERSHIP, None, False, False, False),
    Phase.FAILED_FOLLOWING: Answers(_LEADERSHIP, _LEADERSHIP, _LEADERSHIP, _FAILURE, False, True, False),
    Phase.DELETED: Answers(_DELETION, _DELETION, _DELETION, _DELETION, False, False, False),
}

#: The phase after an event; None where the event is not expected.
TRANSITIONS: Mapping[Phase, Mapping[PartitionEvent, Phase | None]] = {
    Phase.OPENING: {
        PartitionEvent.COMPARE: Phase.COMPARING,
        PartitionEvent.RECOVER: Phase.RECOVERING,
        PartitionEvent.DISCARD: None,
        PartitionEvent.RECONCILE: Phase.LEADING,
        PartitionEvent.LEAD: None,
        PartitionEvent.BEGIN_EPOCH: Phase.OPENING,
        PartitionEvent.HOLD: None,
        PartitionEvent.RELEASE: None,
        PartitionEvent.RESIGN: Phase.FOLLOWING,
        PartitionEvent.FAIL: Phase.FAILED_RECOVERING,
        PartitionEvent.DELETE: Phase.DELETED,
    },
    Phase.RECOVERING: {
        PartitionEvent.COMPARE: None,
        PartitionEvent.RECOVER: Phase.RECOVERING,
        PartitionEvent.DISCARD: Phase.RECOVERING,
        PartitionEvent.RECONCILE: Phase.LEADING,
        PartitionEvent.LEAD: None,
        PartitionEvent.BEGIN_EPOCH: Phase.RECOVERING,
        PartitionEvent.HOLD: None,
        PartitionEvent.RELEASE: None,
        PartitionEvent.RESIGN: Phase.FOLLOWING,
        PartitionEvent.FAIL: Phase.FAILED_RECOVERING,
        PartitionEvent.DELETE: Phase.DELETED,
    },
    Phase.COMPARING: {
        PartitionEvent.COMPARE: None,
        PartitionEvent.RECOVER: Phase.RECOVERING,
        PartitionEvent.DISCARD: None,
        PartitionEvent.RECONCILE: Phase.LEADING,
        PartitionEvent.LEAD: None,
        PartitionEvent.BEGIN_EPOCH: Phase.COMPARING,
        PartitionEvent.HOLD: None,
        PartitionEvent.RELEASE: None,
        PartitionEvent.RESIGN: Phase.FOLLOWING,
        PartitionEvent.FAIL: Phase.FAILED_COMPARING,
        PartitionEvent.DELETE: Phase.DELETED,
    },
    Phase.LEADING: {
        PartitionEvent.COMPARE: None,
        PartitionEvent.RECOVER: Phase.RECOVERING,
        PartitionEvent.DISCARD: None,
        PartitionEvent.RECONCILE: None,
        PartitionEvent.LEAD: None,
        PartitionEvent.BEGIN_EPOCH: Phase.LEADING,
        PartitionEvent.HOLD: Phase.HANDING_OVER,
        PartitionEvent.RELEASE: None,
        PartitionEvent.RESIGN: Phase.FOLLOWING,
        PartitionEvent.FAIL: Phase.FAILED,
        PartitionEvent.DELETE: Phase.DELETED,
    },
    Phase.HANDING_OVER: {
        PartitionEvent.COMPARE: None,
        PartitionEvent.RECOVER: Phase.RECOVERING,
        PartitionEvent.DISCARD: None,
        PartitionEvent.RECONCILE: None,
        PartitionEvent.LEAD: None,
        # The controller refuses a consent under the earlier epoch.
        PartitionEvent.BEGIN_EPOCH: Phase.LEADING,
        PartitionEvent.HOLD: None,
        PartitionEvent.RELEASE: Phase.LEADING,
        PartitionEvent.RESIGN: Phase.FOLLOWING,
        PartitionEvent.FAIL: Phase.FAILED,
        PartitionEvent.DELETE: Phase.DELETED,
    },
    Phase.FAILED: {
        PartitionEvent.COMPARE: None,
        PartitionEvent.RECOVER: Phase.FAILED_RECOVERING,
        PartitionEvent.DISCARD: None,
        PartitionEvent.RECONCILE: None,
        PartitionEvent.LEAD: None,
        PartitionEvent.BEGIN_EPOCH: Phase.FAILED,
        PartitionEvent.HOLD: None,
        PartitionEvent.RELEASE: None,
        PartitionEvent.RESIGN: Phase.FAILED_FOLLOWING,
        PartitionEvent.FAIL: Phase.FAILED,
        PartitionEvent.DELETE: Phase.DELETED,
    },
    Phase.FAILED_COMPARING: {
        PartitionEvent.COMPARE: None,
        PartitionEvent.RECOVER: Phase.FAILED_RECOVERING,
        PartitionEvent.DISCARD: None,
        PartitionEvent.RECONCILE: Phase.FAILED,
        PartitionEvent.LEAD: None,
        PartitionEvent.BEGIN_EPOCH: Phase.FAILED_COMPARING,
        PartitionEvent.HOLD: None,
        PartitionEvent.RELEASE: None,
        PartitionEvent.RESIGN: Phase.FAILED_FOLLOWING,
        PartitionEvent.FAIL: Phase.FAILED_COMPARING,
        PartitionEvent.DELETE: Phase.DELETED,
    },
    Phase.FAILED_RECOVERING: {
        PartitionEvent.COMPARE: None,
        PartitionEvent.RECOVER: Phase.FAILED_RECOVERING,
        PartitionEvent.DISCARD: Phase.FAILED_RECOVERING,
        PartitionEvent.RECONCILE: Phase.FAILED,
        PartitionEvent.LEAD: None,
        PartitionEvent.BEGIN_EPOCH: Phase.FAILED_RECOVERING,
        PartitionEvent.HOLD: None,
        PartitionEvent.RELEASE: None,
        PartitionEvent.RESIGN: Phase.FAILED_FOLLOWING,
        PartitionEvent.FAIL: Phase.FAILED_RECOVERING,
        PartitionEvent.DELETE: Phase.DELETED,
    },
    Phase.FOLLOWING: {
        PartitionEvent.COMPARE: None,
        PartitionEvent.RECOVER: None,
        PartitionEvent.DISCARD: None,
        PartitionEvent.RECONCILE: None,
        PartitionEvent.LEAD: Phase.OPENING,
        PartitionEvent.BEGIN_EPOCH: None,
        PartitionEvent.HOLD: None,
        PartitionEvent.RELEASE: None,
        PartitionEvent.RESIGN: Phase.FOLLOWING,
        PartitionEvent.FAIL: Phase.FAILED_FOLLOWING,
        PartitionEvent.DELETE: Phase.DELETED,
    },
    Phase.FAILED_FOLLOWING: {
        PartitionEvent.COMPARE: None,
        PartitionEvent.RECOVER: None,
        PartitionEvent.DISCARD: None,
        PartitionEvent.RECONCILE: None,
        PartitionEvent.LEAD: Phase.FAILED_RECOVERING,
        PartitionEvent.BEGIN_EPOCH: None,
        PartitionEvent.HOLD: None,
        PartitionEvent.RELEASE: None,
        PartitionEvent.RESIGN: Phase.FAILED_FOLLOWING,
        PartitionEvent.FAIL: Phase.FAILED_FOLLOWING,
        PartitionEvent.DELETE: Phase.DELETED,
    },
    Phase.DELETED: {
        PartitionEvent.COMPARE: None,
        PartitionEvent.RECOVER: None,
        PartitionEvent.DISCARD: None,
        PartitionEvent.RECONCILE: None,
        PartitionEvent.LEAD: None,
        PartitionEvent.BEGIN_EPOCH: None,
        PartitionEvent.HOLD: None,
        PartitionEvent.RELEASE: None,
        PartitionEvent.RESIGN: None,
        # A flush that was under way fails, because its files are gone.
        PartitionEvent.FAIL: Phase.DELETED,
        PartitionEvent.DELETE: None,
    },
}


@dataclass(frozen=True, slots=True)
class Life:
    """A partition's phase and its `causes`, the errors with which the phase refuses callers."""

    partition: TopicPartition
    phase: Phase
    causes: Mapping[Cause, LogError]

    @classmethod
    def begin(cls, partition: TopicPartition) -> Life:
        why = LeaderNotAvailable(f"{partition}: its log is being opened; retry")
        return cls(partition, Phase.OPENING, {Cause.RECOVERY: why})

    def after(self, event: PartitionEvent, why: LogError | None = None) -> Life:
        """The life after `event`; callers then get `why` as the reason. Raises UnexpectedEvent if the event cannot happen."""
        phase = TRANSITIONS[self.phase][event]
        if phase is None:
            raise UnexpectedEvent(f"{self.partition}: cannot {event.value} while it is {self.phase.value}")
        effect = EFFECTS[event]
        if why is None and (effect.cause is not None or effect.ends_acknowledgements):
            raise TypeError(f"{self.partition}: {event.value} needs a reason for its callers")
        known = self.causes if effect.cause is None or why is None else {**self.causes, effect.cause: why}
        answers = ANSWERS[phase]
        used = {answers.write, answers.read, answers.admin, answers.flush}
        return Life(self.partition, phase, {cause: error for cause, error in known.items() if cause in used})

    @property
    def is_recovering(self) -> bool:
        return ANSWERS[self.phase].is_recovering

    @property
    def is_failed(self) -> bool:
        return ANSWERS[self.phase].is_failed

    @property
    def is_leader(self) -> bool:
        return ANSWERS[self.phase].is_leader

    def refusal(self, use: Use) -> LogError | None:
        """The error with which `use` is refused; None if it is served."""
        cause: Cause | None = getattr(ANSWERS[self.phase], use.value)
        return None if cause is None else self.causes[cause]
