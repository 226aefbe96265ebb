"""Writes the decisions of all shards at the end of a turn (`grpc_api.contract.node.CallerTurns`).

A caller that processes many requests marks where its turn begins and ends. The records are written at the end, and most answers
are known then, without a call of the loop for each. For other callers the turn is the event loop's. Invariant: each write added
in a turn is called once, at the turn's end, in the order in which they were added; a defect of one write prevents no other.
This module does not bound the writes of a turn, because the caller bounds the requests of a turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class TurnWrites:
    """The writes of one node. Writes that are added outside a caller's turn are called in the event loop's next turn."""

    def __init__(self) -> None:
        self._due: list[Callable[[], None]] = []
        self._begun = 0
        #: The number of the caller's turn that has begun; 0 outside of turns.
        self.turn = 0

    @property
    def has_writes(self) -> bool:
        return bool(self._due)

    def begin(self) -> None:
        self._begun += 1
        self.turn = self._begun

    def end(self) -> None:
        self.turn = 0
        if self._due:
            self._write_all()

    def add(self, write: Callable[[], None]) -> None:
        if not self._due and not self.turn:
            asyncio.get_running_loop().call_soon(self._write_all)
        self._due.append(write)

    def _write_all(self) -> None:
        due, self._due = self._due, []
        rest = iter(due)
        for write in rest:
            try:
                write()
            except BaseException:
                for each in rest:
                    self.add(each)
                raise


#: Most batches that a shard writes at once in a turn. Two or three small batches cost less than the delayed answers of one
#: common batch.
MOST_AT_ONCE = 4


class GatheredWrites:
    """Decides when one shard writes its decisions in callers' turns. In turns with few requests for the shard it writes at
    once, because waiting for the turn's end would cost more than the batches that it would save."""

    __slots__ = ("_gathered", "_gathers", "_is_planned", "_turns", "_write", "_written", "_wrote_in")

    def __init__(self, turns: TurnWrites, write: Callable[[], None]) -> None:
        self._turns = turns
        self._write = write
        self._is_planned = False
        #: Whether the last turn had many requests, and the number of requests in this turn if its records are gathered.
        self._gathers = False
        self._gathered = 0
        #: The last turn in which a record was written at once, and how many were.
        self._wrote_in, self._written = -1, 0

    @property
    def writes_at_once(self) -> bool:
        """Whether the next decision is written at once."""
        turn = self._turns.turn
        if self._is_planned or self._gathers or not turn:
            return False
        return turn != self._wrote_in or self._written < MOST_AT_ONCE

    def wrote(self) -> None:
        """Called before a decision is written at once."""
        turn = self._turns.turn
        self._written = 1 + (self._written if turn == self._wrote_in else 0)
        self._wrote_in = turn

    def decided(self) -> None:
        """Called when there is something to write. Writes it before this returns, or at the end of the turn."""
        if self._is_planned:
            self._gathered += 1
        elif self.writes_at_once:
            self.wrote()
            self._write()
        else:
            self._is_planned = True
            self._gathered = 1 + (self._written if self._wrote_in == self._turns.turn else 0)
            self._turns.add(self._flush)

    def _flush(self) -> None:
        self._is_planned, self._gathers = False, self._gathered > MOST_AT_ONCE
        self._write()
