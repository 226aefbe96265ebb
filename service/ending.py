"""What ends a node by itself: made before its parts, which tell it that the node must not go on."""

from __future__ import annotations

import asyncio

from storage_tiers.errors import LogError


class Ending:
    """`stop` is set when the node shall stop, whoever wants that; `fatal` says why it must not go on, if so."""

    def __init__(self, stop: asyncio.Event) -> None:
        self.stop = stop
        self.fatal: LogError | None = None

    def end(self, error: LogError) -> None:
        """The node must not go on: a copy of its directory has run, or the store is not one to use. The first reason stays."""
        if self.fatal is None:
            self.fatal = error
            self.stop.set()
