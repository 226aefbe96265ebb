"""Waits until moves of partitions have ended. Prints progress, and the reason for a pause, to standard error."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import Enum

from service.cli.client import silence
from service.cli.client.move_planner import PartitionKey, Placement, PlannedMove
from service.cli.client.move_requests import placements
from service.cli.client.silence import Silence
from service.cli.client.waiting import ASK_THE_LOG, held_by_transaction, why_nothing_comes
from service.cli.errors import CommandError, report
from service.cli.listener import require_reachable
from service.cli.output import counted

#: Seconds between two lookups of the placements and between two progress lines, and the longest time without any response.
LOOK_S, PROGRESS_S, UNANSWERED_S = 0.5, 2.0, 30.0
#: Seconds after which a move that the broker does not show counts as cancelled, not as just begun.
SETTLED_S = 5.0
#: The maximum number of partitions that a line names, and of partitions that are checked for open transactions.
NAMED, ASKED = 10, 50

Look = Callable[[Iterable[str]], Sequence[Placement]]


class MoveState(Enum):
    """The progress of a move."""

    MOVING = "moving"
    MOVED = "moved"
    #: Another command has cancelled or changed the move.
    CANCELLED = "cancelled"
    #: The topic was deleted.
    DELETED = "deleted"


class MoveWait:
    """`look` returns the placements of topics and may raise CommandError. `why` returns a sentence about the reason for a wait.
    `now` returns seconds of a monotonic clock."""

    def __init__(
        self,
        moves: Sequence[PlannedMove],
        look: Look,
        why: Callable[[Sequence[PlannedMove]], str],
        now: Callable[[], float] = silence.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._look = look
        self._why = why
        self._now = now
        self._sleep = sleep
        self._states = dict.fromkeys(moves, MoveState.MOVING)
        self._answered_at = now()
        self._absent_since: dict[PlannedMove, float] = {}

    def run(self, timeout: float | None) -> Mapping[PlannedMove, MoveState]:
        """Returns the states after the last move has ended, or after `timeout` seconds. Raises CommandError after UNANSWERED_S
        without a response."""
        begun = self._now()
        silent, said_at, count = Silence(self._now), begun, self._count()
        while True:
            self._update()
            left = self._left()
            if not left or (timeout is not None and self._now() - begun >= timeout):
                return self._states
            if (found := self._count()) != count:
                silent = Silence(self._now)
                count = found
                if self._now() - said_at >= PROGRESS_S:
                    said_at = self._now()
                    report(f"{count} of {counted(len(self._states), 'move')} ended")
            elif silent.due():
                report(f"nothing has moved for {silence.SILENCE_S:g} s; waiting for {named(left)}: {self._why(left)}")
            self._sleep(LOOK_S)

    def _left(self) -> list[PlannedMove]:
        return [move for move, state in self._states.items() if state is MoveState.MOVING]

    def _count(self) -> int:
        return len(self._states) - len(self._left())

    def _update(self) -> None:
        left = self._left()
        try:
            found = {each.key: each for each in self._look({move.topic for move in left})}
        except CommandError as error:
            if self._now() - self._answered_at > UNANSWERED_S:
                raise type(error)(f"{error}; the moves continue") from None
            return
        self._answered_at = self._now()
        for move in left:
            self._states[move] = self._state(move, found.get(move.key))

    def _state(self, move: PlannedMove, row: Placement | None) -> MoveState:
        if row is None:
            return MoveState.DELETED
        if row.destination == move.target:
            return MoveState.MOVED if row.target is None else MoveState.MOVING
        since = self._absent_since.setdefault(move, self._now())  # the broker may learn of the move late
        return MoveState.CANCELLED if self._now() - since > SETTLED_S else MoveState.MOVING


def named(moves: Sequence[PlannedMove]) -> str:
    """Names the partitions of the first moves, and counts the others."""
    return names([move.key for move in moves])


def names(keys: Sequence[PartitionKey]) -> str:
    more = f" and {len(keys) - NAMED} more" if len(keys) > NAMED else ""
    return ", ".join(f"{topic}-{number}" for topic, number in keys[:NAMED]) + more


def look_through(bootstrap: str) -> Look:
    """Reads the placements from the first node that answers at the address."""
    return lambda topics: placements(require_reachable(bootstrap), sorted(topics)).rows


def why_waiting(bootstrap: str, moves: Sequence[PlannedMove]) -> str:
    """The reason for a wait: a broker that is away, an open transaction, or the report of a broker's `/readyz`."""
    with suppress(CommandError):
        if (sentence := _held(bootstrap, moves[:ASKED])) is not None:
            return sentence
    why = why_nothing_comes(bootstrap, [move.key for move in moves])
    if why != ASK_THE_LOG:
        return why
    return (
        f"the brokers report no problem; if a move failed, the event partition.work_failed in the log of broker "
        f"{moves[0].source} has the reason"
    )


def _held(bootstrap: str, moves: Sequence[PlannedMove]) -> str | None:
    from service.cli.client.requests import open_transactions
    from service.cli.client.transactions import cluster_of

    cluster = cluster_of(require_reachable(bootstrap), {move.topic for move in moves})
    for move in moves:
        for broker, role in ((move.source, "has"), (move.target, "will get")):
            if broker not in cluster.brokers:
                return f"broker {broker}, which {role} {move.topic}-{move.partition}, is away"
    asked: dict[tuple[str, str], list[int]] = {}
    for topic, number in (move.key for move in moves if move.key in cluster.leaders):
        asked.setdefault((cluster.brokers[cluster.leaders[topic, number]], topic), []).append(number)
    for (address, topic), numbers in asked.items():
        opened = open_transactions(address, topic, numbers)
        if (sentence := held_by_transaction(bootstrap, topic, opened)) is not None:
            return sentence
    return None
