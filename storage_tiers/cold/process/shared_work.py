"""The parts of a tier process that all its sessions share: stores with their connections, budgets, decoded pages, and the
chunks that were downloaded.

Invariants: each location is opened once, and one that does not answer delays no other. At most MAX_STORES are open. The budgets
bound the sum of all sessions, which take turns (`byte_budget.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

from storage_tiers import events
from storage_tiers.cold.manifest.commit import PageCache
from storage_tiers.cold.process.byte_budget import ByteBudget
from storage_tiers.cold.process.known_chunks import KnownChunks
from storage_tiers.cold.process.settings import TierSettings
from storage_tiers.cold.stores.location import StoreLocation
from storage_tiers.cold.stores.port import ObjectStore
from storage_tiers.errors import LogError, TierUnavailable

log = logging.getLogger(__name__)

OpenStore = Callable[[StoreLocation], Awaitable[ObjectStore]]
#: Seconds for connections to the store to close at the end.
CLOSE_S = 2.0
#: The most seconds that opening a store takes. It sends few requests or none.
OPEN_S = 30.0
#: The most stores of one process. The brokers of a supervisor share one store.
MAX_STORES = 8


class Budgets(NamedTuple):
    """The bounds on downloads and offloads in flight."""

    downloads: ByteBudget
    offloads: ByteBudget


class SharedWork:
    """`sessions` is the number of open sessions."""

    def __init__(self, open_store: OpenStore) -> None:
        self._open_store = open_store
        self._stores: dict[StoreLocation, asyncio.Task[ObjectStore]] = {}
        self._budgets: Budgets | None = None
        self.pages = PageCache()
        self.chunks = KnownChunks()
        self.sessions = 0

    def budgets(self, settings: TierSettings) -> Budgets:
        """The budgets. Their sizes come from the first session's settings."""
        if self._budgets is None:
            self._budgets = Budgets(
                ByteBudget(settings.download_bytes_in_flight, settings.download_connections),
                ByteBudget(settings.offload_bytes_in_flight, settings.offloads),
            )
        return self._budgets

    async def store(self, location: StoreLocation) -> ObjectStore:
        """The first call for a location opens its store. If that fails, all calls that wait for it raise the error, and
        the next call tries again. Raises TierUnavailable beyond MAX_STORES, and for a store that is not open after OPEN_S."""
        opening = self._stores.get(location)
        if opening is None:
            if len(self._stores) >= MAX_STORES:
                raise TierUnavailable(f"the tier process serves {MAX_STORES} other stores already; retry")
            opening = self._stores[location] = asyncio.ensure_future(self._open(location))
            opening.add_done_callback(partial(self._opened, location))
        return await asyncio.shield(opening)

    async def _open(self, location: StoreLocation) -> ObjectStore:
        try:
            async with asyncio.timeout(OPEN_S):
                return await self._open_store(location)
        except TimeoutError:
            raise TierUnavailable(f"{location.url} cannot be opened within {OPEN_S:g} s; retry") from None

    def _opened(self, location: StoreLocation, opening: asyncio.Task[ObjectStore]) -> None:
        if opening.cancelled() or opening.exception() is not None:
            self._stores.pop(location, None)

    async def close(self) -> None:
        opening = list(self._stores.values())
        for each in opening:
            each.cancel()  # has no effect on an open store
        for found in await asyncio.gather(*opening, return_exceptions=True):
            if isinstance(found, BaseException):
                continue
            try:
                async with asyncio.timeout(CLOSE_S):
                    await found.close()
            except (LogError, TimeoutError) as error:
                events.warning(log, "store.not_closed", error=error)
        self._stores.clear()
