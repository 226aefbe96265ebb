"""Writes what shards decided in a turn, all shards together (`grpc_api.contract.node.CallerTurns`).

A caller that works through many requests says where its turn begins and ends: its records are written at the end, and most
answers are known then, without a call of the loop for each. For other callers the turn is the event loop's. A caller with
one request has nothing to gather: what it adds is called at once. Invariant: what is added in any other turn is called once,
at its end, in the order of its adding; a defect of one write keeps no other from the log.
Does not bound how much is written in a turn: the requests of a turn are bounded before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class TurnWrites:
    def __init__(self) -> None:
        self._due: list[Callable[[], None]] = []
        self._has_begun = self._at_once = False

    @property
    def has_writes(self) -> bool:
        return bool(self._due)

    def begin(self, *, at_once: bool = False) -> None:
        self._has_begun, self._at_once = True, at_once

    def end(self) -> None:
        self._has_begun = self._at_once = False
        if self._due:
            self._write_all()

    def add(self, write: Callable[[], None]) -> None:
        if self._at_once:
            write()
            return
        if not self._due and not self._has_begun:
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
