"""Decides the next step of a partition's move from the view of its leader.

    wait for open transactions -> offload the tail -> hold -> offload the rest -> hand over

Pure. Appends are refused while the log is held. So the log is held only when little of it is missing in the bucket and no
transaction is open. Nothing above the last stable offset is offloaded, so an open transaction would keep the log held until it
ends. If transactions follow each other without a gap, new ones are refused after DRAIN_AFTER_MS.

A transaction that stays open delays a move without a bound, as does an unavailable store.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

#: Bytes that may be missing in the bucket when the log is held: a fraction of a second of offloading.
HELD_TAIL_BYTES = 4 << 20
#: How long a move waits for a moment without an open transaction before it refuses new ones, and how long it refuses them.
DRAIN_AFTER_MS = 2_000
DRAIN_LIMIT_MS = 30_000
#: How long the log is held before the attempt is given up. The move is tried again later.
HOLD_LIMIT_MS = 10_000


class MoveStep(Enum):
    """The next step of a move."""

    #: Nothing can be done now; check again soon.
    WAIT = "wait"
    #: Offload everything so far, while the partition is served.
    OFFLOAD = "offload"
    #: Refuse new transactions.
    DRAIN = "drain"
    #: Refuse appends.
    HOLD = "hold"
    #: Offload the rest of the held log.
    FINISH = "finish"
    #: Everything is in the bucket: consent to the new leader.
    HAND_OVER = "hand over"
    #: The attempt takes too long, or the bucket went backwards: serve as before, and try again later.
    GIVE_UP = "later"


class MoveView(NamedTuple):
    """`tail_bytes` is the size of the segments that are not wholly in the bucket, which ends at `tier_end`. `waited_ms` is the
    time since an open transaction first delayed the move. `drained_ms` is the time for which new transactions have been
    refused, None while they are accepted. `held_ms` is the time for which the log has been held, None while it is not held.
    `may_begin`: this node leads and its disk works, the log was compared with the bucket, the bucket is not behind, and no loss
    of records is unsettled."""

    may_begin: bool
    log_end: int
    tier_end: int
    tail_bytes: int
    in_transaction: bool
    waited_ms: int
    drained_ms: int | None
    held_ms: int | None


def next_step(view: MoveView) -> MoveStep:
    if view.held_ms is not None:
        if view.held_ms > HOLD_LIMIT_MS or not view.may_begin:
            return MoveStep.GIVE_UP
        return MoveStep.HAND_OVER if view.tier_end == view.log_end else MoveStep.FINISH
    if not view.may_begin:
        return MoveStep.WAIT
    if view.in_transaction:
        if view.drained_ms is not None:
            return MoveStep.GIVE_UP if view.drained_ms > DRAIN_LIMIT_MS else MoveStep.DRAIN
        return MoveStep.DRAIN if view.waited_ms > DRAIN_AFTER_MS else MoveStep.WAIT
    return MoveStep.OFFLOAD if view.tail_bytes > HELD_TAIL_BYTES else MoveStep.HOLD
