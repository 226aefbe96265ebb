"""The steps of a move, from what the partition's leader sees."""

from __future__ import annotations

import pytest

from service.broker.background.move_steps import (
    DRAIN_AFTER_MS,
    DRAIN_LIMIT_MS,
    HELD_TAIL_BYTES,
    HOLD_LIMIT_MS,
    MoveStep,
    MoveView,
    next_step,
)

#: Everything is in the bucket, and no transaction is open.
READY = MoveView(
    may_begin=True,
    log_end=9,
    tier_end=9,
    tail_bytes=0,
    in_transaction=False,
    waited_ms=0,
    drained_ms=None,
    held_ms=None,
)
LONG = 1000 * DRAIN_LIMIT_MS


@pytest.mark.parametrize(
    ("changes", "step"),
    [
        ({}, MoveStep.HOLD),
        ({"tail_bytes": HELD_TAIL_BYTES}, MoveStep.HOLD),
        ({"tail_bytes": HELD_TAIL_BYTES + 1}, MoveStep.OFFLOAD),
        ({"may_begin": False}, MoveStep.WAIT),
        ({"may_begin": False, "tail_bytes": HELD_TAIL_BYTES + 1}, MoveStep.WAIT),
        ({"in_transaction": True}, MoveStep.WAIT),
        ({"in_transaction": True, "waited_ms": DRAIN_AFTER_MS}, MoveStep.WAIT),
        ({"in_transaction": True, "waited_ms": DRAIN_AFTER_MS + 1}, MoveStep.DRAIN),
        ({"in_transaction": True, "waited_ms": LONG}, MoveStep.DRAIN),
        ({"in_transaction": True, "waited_ms": LONG, "drained_ms": 0}, MoveStep.DRAIN),
        ({"in_transaction": True, "waited_ms": LONG, "drained_ms": DRAIN_LIMIT_MS}, MoveStep.DRAIN),
        ({"in_transaction": True, "waited_ms": LONG, "drained_ms": DRAIN_LIMIT_MS + 1}, MoveStep.GIVE_UP),
        ({"may_begin": False, "in_transaction": True, "waited_ms": LONG, "drained_ms": 0}, MoveStep.WAIT),
        ({"waited_ms": LONG}, MoveStep.HOLD),
        ({"waited_ms": LONG, "drained_ms": 0}, MoveStep.HOLD),
        ({"held_ms": 0}, MoveStep.HAND_OVER),
        ({"held_ms": HOLD_LIMIT_MS}, MoveStep.HAND_OVER),
        ({"held_ms": HOLD_LIMIT_MS + 1}, MoveStep.GIVE_UP),
        ({"held_ms": 0, "tier_end": 8}, MoveStep.FINISH),
        ({"held_ms": 0, "may_begin": False}, MoveStep.GIVE_UP),
    ],
)
def test_the_next_step_of_a_move_follows_from_its_view(changes: dict[str, bool | int], step: MoveStep) -> None:
    assert next_step(MoveView(**{**READY._asdict(), **changes})) is step
