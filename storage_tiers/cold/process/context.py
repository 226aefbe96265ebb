"""The state that all questions in the tier process share: the store, retries, deadlines and budgets.

Caches decoded pages, manifests with their ETags, and the store's clock between questions. Any of it may be forgotten at any
time; compare-and-swap keeps commits safe even with outdated entries.

Invariant: offloads stay within their memory budget; an operation past its deadline is cancelled and answered with
TierUnavailable, its outcome unknown.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TypeVar

from storage_tiers.clock import Clock, Rng
from storage_tiers.cold.manifest import json as manifest_json
from storage_tiers.cold.manifest.commit import CommitSettings, PageCache, SharedStore, StoreClock
from storage_tiers.cold.manifest.lineage import SeenManifest
from storage_tiers.cold.manifest.model import Ids, ManifestPage, ManifestWriter, PageKind, PageRef
from storage_tiers.cold.process.byte_budget import ByteBudget
from storage_tiers.cold.process.downloads import Downloads
from storage_tiers.cold.process.operations import TierCounters
from storage_tiers.cold.process.patient_reads import GetStore, PatientReads
from storage_tiers.cold.process.settings import TierSettings
from storage_tiers.cold.segments.partition_tier import PartitionTier
from storage_tiers.errors import InvalidRequest, TierUnavailable

T = TypeVar("T")

#: Manifests cached between questions, about 150 KB each when full.
MAX_PARTITIONS = 256
COMMITS = CommitSettings()


class TierContext:
    """`counters` returns the process's counters; `directory` is the broker's cache directory."""

    def __init__(
        self,
        store: GetStore,
        settings: TierSettings,
        directory: str,
        clock: Clock,
        rng: Rng,
        counters: Callable[[], TierCounters],
    ) -> None:
        self.store = store
        self.settings = settings
        self.rng = rng
        self.counters = counters
        self.reads = PatientReads(settings, clock, rng)
        self.downloads = Downloads(store, directory, settings, self.reads, rng)
        self.offloads = ByteBudget(settings.offload_bytes_in_flight, settings.offloads)
        self.store_clock = StoreClock(clock)
        self._clock = clock
        self._pages = PageCache()
        self._partitions: OrderedDict[tuple[Ids, ManifestWriter], PartitionTier] = OrderedDict()

    async def partition(self, ids: Ids, writer: ManifestWriter, seen: SeenManifest | None = None) -> PartitionTier:
        known = self._partitions.get((ids, writer))
        if known is None:
            store = await self.store()
            shared = SharedStore(store, self._clock, self.rng, COMMITS, self._pages, self.store_clock)
            known = PartitionTier(shared, ids, writer)
            self._partitions[ids, writer] = known
            if len(self._partitions) > MAX_PARTITIONS:
                self._partitions.popitem(last=False)
        self._partitions.move_to_end((ids, writer))
        known.expect(seen)
        return known

    async def live_page(self, ids: Ids, ref: PageRef) -> ManifestPage:
        page = self._pages.get(ref.key)
        if page is None:

            async def attempt() -> bytes:
                return (await (await self.store()).get(ref.key)).data

            data = await self.reads.retry_until_deadline(f"bytes of {ref.key}", attempt)
            page = await asyncio.to_thread(manifest_json.decode_page, data, ids, ref)
            self._pages.put(ref.key, page)
        if page.kind is not PageKind.LIVE:
            raise InvalidRequest(f"{ref.key} is a page of removed segments; only live pages are read")
        return page

    async def in_time(self, work: Awaitable[T], what: str, extra_s: float = 0.0) -> T:
        """Awaits `work`. TierUnavailable after `commit_deadline_s` plus `extra_s` seconds."""
        deadline_s = self.settings.commit_deadline_s + extra_s
        try:
            async with asyncio.timeout(deadline_s):
                return await work
        except TimeoutError as error:
            raise TierUnavailable(
                f"{what} took longer than {deadline_s:g} s; its outcome is unknown, try again"
            ) from error
