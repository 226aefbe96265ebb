"""The state that all questions of a session share: the store, retries, deadlines and budgets.

Caches decoded pages, manifests with their ETags, and the store's clock between questions. Any entry may be forgotten at any
time; compare-and-swap keeps commits safe even with outdated entries.

Invariants: offloads stay within their memory budget. An operation past its deadline is cancelled; the answer is
TierUnavailable, and the outcome is unknown.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TypeVar

from storage_tiers.clock import Clock, Rng
from storage_tiers.cold.manifest import json as manifest_json
from storage_tiers.cold.manifest.commit import CommitSettings, SharedStore, StoreClock
from storage_tiers.cold.manifest.lineage import SeenManifest
from storage_tiers.cold.manifest.model import Ids, ManifestPage, ManifestWriter, PageKind, PageRef
from storage_tiers.cold.process.byte_budget import Ticket
from storage_tiers.cold.process.downloads import Downloads
from storage_tiers.cold.process.operations import TierCounters
from storage_tiers.cold.process.patient_reads import GetStore, PatientReads
from storage_tiers.cold.process.settings import TierSettings
from storage_tiers.cold.process.shared_work import SharedWork
from storage_tiers.cold.segments.partition_tier import PartitionTier
from storage_tiers.errors import InvalidRequest, TierUnavailable

T = TypeVar("T")

#: Manifests cached between questions by all sessions of a process, about 150 KB each when full.
MAX_PARTITIONS = 256
COMMITS = CommitSettings()


class TierContext:
    """`counters` returns the session's counters; `directory` is the broker's cache directory; `shared` is the work that the
    process's sessions share, whose budgets know this session as `owner`."""

    def __init__(
        self,
        shared: SharedWork,
        owner: int,
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
        self._shared = shared
        self._owner = owner
        budgets = shared.budgets(settings)
        self.downloads = Downloads(store, directory, budgets.downloads, owner, self.reads, rng, shared.chunks)
        self.offloads = budgets.offloads
        self.store_clock = StoreClock(clock)
        self._clock = clock
        self._pages = shared.pages
        self._partitions: OrderedDict[tuple[Ids, ManifestWriter], PartitionTier] = OrderedDict()

    async def partition(self, ids: Ids, writer: ManifestWriter, seen: SeenManifest | None = None) -> PartitionTier:
        known = self._partitions.get((ids, writer))
        if known is None:
            store = await self.store()
            shared = SharedStore(store, self._clock, self.rng, COMMITS, self._pages, self.store_clock)
            known = PartitionTier(shared, ids, writer)
            self._partitions[ids, writer] = known
            while len(self._partitions) > max(1, MAX_PARTITIONS // max(1, self._shared.sessions)):
                self._partitions.popitem(last=False)
        self._partitions.move_to_end((ids, writer))
        known.expect(seen)
        return known

    def offload(self, size: int) -> Ticket:
        """A ticket of this session in the budget of offloads."""
        return self.offloads.ticket(size, owner=self._owner)

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
