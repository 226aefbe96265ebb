"""Lets the parts of a node stop the node. An `Ending` is made before the parts, which call `end` when the node must not
continue."""

from __future__ import annotations

import asyncio

from storage_tiers.errors import LogError


class Ending:
    """`stop` is set when the node has to stop for any reason. `fatal` is the error if the node must not continue, otherwise
    None."""

    def __init__(self, stop: asyncio.Event) -> None:
        self.stop = stop
        self.fatal: LogError | None = None

    def end(self, error: LogError) -> None:
        """Stops the node because it must not continue, for example because a copy of its directory has run. Keeps the first
        error."""
        if self.fatal is None:
            self.fatal = error
            self.stop.set()
