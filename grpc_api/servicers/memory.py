"""A shared memory bound: a call takes a share of it for a while, or waits until enough is free.

Invariants: a call that waits for its own connection's memory delays no other connection. Calls that wait for others' memory are
served in order. A connection without progress while others wait for its share is closed, which ends its calls and frees what
they held. gRPC alone cannot do that: an aborted RPC keeps holding what its caller does not read.

The connection of a caller that needs more than STALLED_S to read a message may be closed while others wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from grpc_api.servicers.accounts import STALLED_S, Accounts
from storage_tiers import events

log = logging.getLogger(__name__)

#: Closes a connection, named as gRPC names it.
ClosePeer = Callable[[str], None]


class _WaitingCall(NamedTuple):
    peer: str
    size: int
    turn: asyncio.Future[None]


class CallerMemory:
    """A memory bound: `held_bytes` of `limit_bytes` are in use. Used on one event loop."""

    def __init__(self, limit_bytes: int, close_peer: ClosePeer) -> None:
        self._accounts = Accounts(limit_bytes)
        self._close_peer = close_peer
        self._waiting: deque[_WaitingCall] = deque()
        self._looking: asyncio.TimerHandle | None = None

    @property
    def held_bytes(self) -> int:
        return self._accounts.held_bytes

    @property
    def limit_bytes(self) -> int:
        return self._accounts.limit_bytes

    def share(self, peer: str) -> int:
        """The most bytes that the connection's next answer should hold: half of what it may still take."""
        return max(0, self._accounts.left(peer)) // 2

    @asynccontextmanager
    async def hold(self, peer: str, size: int) -> AsyncIterator[Hold]:
        """Counts `size` bytes for the connection until the block ends; waits while they do not fit."""
        hold = Hold(self, peer)
        try:
            await self._take(hold, size)
            yield hold
        finally:
            hold.resize(0)

    def try_hold(self, peer: str, size: int) -> Hold | None:
        """As `hold`, but returns None instead of waiting. `resize(0)` releases it."""
        if self._waiting or not self._accounts.fits(peer, size):
            return None
        hold = Hold(self, peer)
        hold.resize(size)
        return hold

    async def _take(self, hold: Hold, size: int) -> None:
        if not self._waiting and self._accounts.fits(hold.peer, size):
            hold.resize(size)
            return
        waiting = _WaitingCall(hold.peer, size, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._admit()
        try:
            await waiting.turn
        except asyncio.CancelledError:
            if waiting.turn.done() and not waiting.turn.cancelled():
                hold.size = size  # admitted in the turn in which it was cancelled
            raise
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
                self._admit()  # calls behind it may fit
        hold.size = size

    def change(self, peer: str, before: int, after: int) -> None:
        now = asyncio.get_running_loop().time()
        if after > before:
            self._accounts.take(peer, after - before, now)
        elif after < before:
            self._accounts.give(peer, before - after, now)
            if self._waiting:
                self._admit()

    def _admit(self) -> None:
        """Admits waiting calls in order. No call passes one that waits for other connections' memory."""
        now = asyncio.get_running_loop().time()
        is_full = False
        remaining: deque[_WaitingCall] = deque()
        for each in self._waiting:
            if each.turn.done():
                continue
            if not is_full and self._accounts.fits(each.peer, each.size):
                self._accounts.take(each.peer, each.size, now)
                each.turn.set_result(None)
                continue
            is_full = is_full or not self._accounts.holds(each.peer)
            remaining.append(each)
        self._waiting = remaining
        if is_full and self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(STALLED_S / 4, self._close_stalled)

    def _close_stalled(self) -> None:
        """Closes the largest stalled connection, and repeats this later until no call waits for other connections' memory."""
        self._looking = None
        if not any(not self._accounts.holds(each.peer) for each in self._waiting):
            return
        peer = self._accounts.largest_stalled(asyncio.get_running_loop().time())
        if peer is not None:
            held, bound = self._accounts.held_bytes, self._accounts.limit_bytes
            events.provoked(log, "memory.refused", by="", client=peer, held_bytes=held, bound_bytes=bound)
            self._close_peer(peer)
        self._looking = asyncio.get_running_loop().call_later(STALLED_S / 4, self._close_stalled)


class Hold:
    """The memory that one call holds. `size` is in bytes."""

    __slots__ = ("_memory", "peer", "size")

    def __init__(self, memory: CallerMemory, peer: str) -> None:
        self._memory = memory
        self.peer = peer
        self.size = 0

    def resize(self, size: int) -> None:
        """Sets the size actually held; never waits."""
        before, self.size = self.size, size
        self._memory.change(self.peer, before, size)
