"""Accounts for one memory bound: how much each connection holds, and which connection to close. Pure.

Invariant: a connection that already holds memory gets at most half of the memory that the others leave free. So one connection
cannot fill the bound, and the next connection always finds half of the rest.

The bound may be exceeded: an answer may exceed its reservation by one batch. Nothing more is granted until the excess is
released.
"""

from __future__ import annotations

#: Seconds without progress after which a connection may be closed if others wait for its memory.
STALLED_S = 0.25


class _Account:
    __slots__ = ("held_bytes", "moved_at")

    def __init__(self, now: float) -> None:
        self.held_bytes = 0
        self.moved_at = now


class Accounts:
    """Sizes are in bytes, times in seconds of one clock. `peer` names a connection."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._of: dict[str, _Account] = {}

    def holds(self, peer: str) -> bool:
        return peer in self._of

    def left(self, peer: str) -> int:
        """Bytes that the connection may still take; negative if it holds more than its share."""
        own = self._of.get(peer)
        if own is None:
            return self.limit_bytes - self.held_bytes
        return (self.limit_bytes - (self.held_bytes - own.held_bytes)) // 2 - own.held_bytes

    def fits(self, peer: str, size: int) -> bool:
        """Whether `size` more bytes fit. A request larger than the whole bound fits only when nothing is held."""
        return size <= self.left(peer) or self.held_bytes == 0

    def take(self, peer: str, size: int, now: float) -> None:
        account = self._of.get(peer)
        if account is None:
            account = self._of[peer] = _Account(now)
        account.held_bytes += size
        self.held_bytes += size

    def give(self, peer: str, size: int, now: float) -> None:
        """Releases `size` bytes, which counts as progress."""
        account = self._of[peer]
        account.held_bytes -= size
        account.moved_at = now
        self.held_bytes -= size
        if account.held_bytes <= 0:
            del self._of[peer]

    def largest_stalled(self, now: float) -> str | None:
        """The connection that holds most among those without progress for STALLED_S."""
        stalled = {peer: each for peer, each in self._of.items() if now - each.moved_at >= STALLED_S}
        return max(stalled, key=lambda peer: stalled[peer].held_bytes, default=None)
