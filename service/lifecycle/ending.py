"""Lets the parts of a node stop the node. It is created before them, and a part calls `end` when the node must not continue."""

from __future__ import annotations

import asyncio

from storage_tiers.errors import LogError


class Ending:
    """`stop` is set when the node has to stop for any reason; `fatal` is the error if it must not continue, else None."""

    def __init__(self, stop: asyncio.Event) -> None:
        self.stop = stop
        self.fatal: LogError | None = None

    def end(self, error: LogError) -> None:
        """Stops the node because it must not continue: a copy of its directory has run, or the store is unusable. Keeps the
        first error."""
        if self.fatal is None:
            self.fatal = error
            self.stop.set()
