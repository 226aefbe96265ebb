"""The manifests that the tier process has at hand, and every question about them.

Keeps what is worth keeping between questions: decoded pages, roots with their ETags, the store's clock. All of it may be
forgotten at any time; a commit is safe by compare-and-swap, whatever was remembered.

Invariant: what uploads hold in memory stays within their budget; an operation past its deadline is cut off and answered
with TierUnavailable, its outcome open.
"""

from __future__ import annotations

import asyncio
import bisect
from collections import OrderedDict
from collections.abc import Awaitable
from typing import TypeVar

from storage_tiers.clock import Clock, Rng
from storage_tiers.cold.manifest import cluster_file, topic_file
from storage_tiers.cold.manifest import json as manifest_json
from storage_tiers.cold.manifest.clusters import find_clusters
from storage_tiers.cold.manifest.commit import PageCache, StoreClock
from storage_tiers.cold.manifest.lineage import Seen
from storage_tiers.cold.manifest.model import Entry, Ids, Page, PageNeeded, PageRef, Root, Writer
from storage_tiers.cold.process import operations as ask
from storage_tiers.cold.process.byte_budget import ByteBudget
from storage_tiers.cold.process.patient_reads import GetStore, PatientReads
from storage_tiers.cold.process.settings import MIB, TierSettings
from storage_tiers.cold.segments.partition_tier import PartitionTier
from storage_tiers.cold.segments.sweeper import Listed, SweepReport
from storage_tiers.cold.stores.port import PART_BYTES
from storage_tiers.cold.stores.probe import probe_conditional_writes, store_time
from storage_tiers.errors import InvalidRequest, TierUnavailable
from storage_tiers.policy.orphans import abandoned
from storage_tiers.policy.retention import Expired, plan_pages

T = TypeVar("T")

#: Roots remembered between questions, at about 150 KB each when full.
MAX_PARTITIONS = 256
#: What one upload holds in memory at most: four parts on their way (the S3 store's lanes), or a small object whole.
UPLOAD_BYTES = 4 * PART_BYTES


class TierCommits:
    def __init__(self, store: GetStore, settings: TierSettings, reads: PatientReads, clock: Clock, rng: Rng) -> None:
        self.store = store
        self._settings = settings
        self.reads = reads
        self._clock = clock
        self._rng = rng
        self._pages = PageCache()
        self._store_clock = StoreClock(clock)
        self._partitions: OrderedDict[tuple[Ids, Writer], PartitionTier] = OrderedDict()
        self._uploads = ByteBudget(settings.upload_bytes_in_flight, settings.uploads)

    # --- the cluster and its topics -----------------------------------------------------------------------------------
    async def probe(self, question: ask.Probe) -> ask.Done:
        store = await self.store()
        await self.in_time(probe_conditional_writes(store, question.key_prefix, self._rng), "the probe")
        return ask.Done()

    async def store_time(self, question: ask.ReadStoreTime) -> ask.StoreTime:
        return ask.StoreTime(await self.in_time(self._store_time(question.key_prefix), "reading the store's clock"))

    async def _store_time(self, key_prefix: str) -> int:
        unix_ms = await store_time(await self.store(), key_prefix, self._rng)
        self._store_clock.wrote(unix_ms)
        return unix_ms

    async def find_clusters(self, question: ask.FindClusters) -> ask.FoundClusters:
        # Asked once: whoever wants to know waits for an answer as long as it takes, and says so meanwhile.
        return ask.FoundClusters(await self.in_time(find_clusters(await self.store()), "looking for clusters"))

    async def read_cluster(self, question: ask.ReadCluster) -> ask.FoundCluster:
        async def attempt() -> ask.FoundCluster:
            return ask.FoundCluster(await cluster_file.read_cluster(await self.store(), question.cluster_id))

        return await self.reads.until_answered("cluster.json", attempt)

    async def open_cluster(self, question: ask.OpenCluster) -> ask.Incarnation:
        opening = cluster_file.open_cluster(
            await self.store(), question.cluster_id, question.holder, question.expected_incarnation, question.raised_by
        )
        return ask.Incarnation(await self.in_time(opening, "raising the incarnation"))

    async def read_topic(self, question: ask.ReadTopic) -> ask.FoundTopic:
        async def attempt() -> ask.FoundTopic:
            return ask.FoundTopic(await topic_file.read_topic(await self.store(), question.cluster_id, question.topic))

        return await self.reads.until_answered("topic.json", attempt)

    async def publish_topic(self, question: ask.PublishTopic) -> ask.FoundTopic:
        publishing = topic_file.publish_topic(await self.store(), question.topic)
        return ask.FoundTopic(await self.in_time(publishing, f"publishing topic {question.topic.topic}"))

    async def mark_topic_deleted(self, question: ask.MarkTopicDeleted) -> ask.FoundTopic:
        marking = topic_file.delete_topic(await self.store(), question.topic)
        return ask.FoundTopic(await self.in_time(marking, f"marking topic {question.topic.topic} deleted"))

    # --- one partition's manifest -------------------------------------------------------------------------------------
    async def load_root(self, question: ask.LoadRoot) -> ask.RootDocument:
        tier = await self.partition(question.ids, question.writer, question.seen)
        loaded = await self.reads.until_answered(f"manifest of {question.ids}", tier.load)
        return ask.RootDocument(None) if loaded is None else _document(loaded.root)

    async def extend(self, question: ask.Extend) -> ask.RootDocument:
        tier = await self.partition(question.ids, question.writer, question.seen)
        ticket = self._uploads.ticket(min(question.job.length, UPLOAD_BYTES))
        more_s = question.job.length / MIB * self._settings.upload_s_per_mib
        async with self._uploads.hold(ticket):
            return await self._commit(tier.extend(question.job), f"extending {question.ids}", more_s)

    async def claim(self, question: ask.Claim) -> ask.RootDocument:
        tier = await self.partition(question.ids, question.writer, question.seen)
        return await self._commit(tier.claim(question.leader_epoch), f"claiming {question.ids}")

    async def raise_log_start(self, question: ask.RaiseLogStart) -> ask.RootDocument:
        tier = await self.partition(question.ids, question.writer, question.seen)
        return await self._commit(tier.raise_log_start(question.offset), f"raising log start of {question.ids}")

    async def retire(self, question: ask.Retire) -> ask.RootDocument:
        tier = await self.partition(question.ids, question.writer, question.seen)
        return await self._commit(tier.retire(question.log_start), f"retiring ranges of {question.ids}")

    async def delete_partition(self, question: ask.DeletePartition) -> ask.RootDocument:
        tier = await self.partition(question.ids, question.writer)
        return await self._commit(tier.delete_partition(), f"deleting {question.ids}")

    async def sweep(self, question: ask.Sweep) -> SweepReport:
        tier = await self.partition(question.ids, question.writer, question.seen)
        return await self.in_time(tier.sweep(question.grace_ms, question.listed), f"sweeping {question.ids}")

    async def list_keys(self, question: ask.ListKeys) -> ask.ListedKeys:
        async def attempt() -> ask.ListedKeys:
            found: list[Listed] = []
            listing = (await self.store()).list(question.prefix, start_after=question.after)
            async for info in listing:
                found.append(Listed(info.key, info.modified_ms))
                if len(found) == ask.LISTED_KEYS:
                    break
            return ask.ListedKeys(tuple(found), len(found) < ask.LISTED_KEYS)

        return await self.reads.until_answered(f"keys under {question.prefix}", attempt)

    async def abort_uploads(self, question: ask.AbortUploads) -> ask.AbortedUploads:
        return await self.in_time(self._abort_uploads(question), f"ending uploads under {question.prefix}")

    async def _abort_uploads(self, question: ask.AbortUploads) -> ask.AbortedUploads:
        store = await self.store()
        found = [upload async for upload in store.unfinished_uploads(question.prefix)]
        if not found:
            return ask.AbortedUploads(0)
        if self._store_clock.now_ms() is None:
            await self._store_time(question.prefix)
        now_ms = self._store_clock.now_ms()
        assert now_ms is not None
        old = abandoned(found, now_ms, question.grace_ms)
        for upload in old:
            await store.abort_upload(upload)
        return ask.AbortedUploads(len(old))

    async def sweep_deleted(self, question: ask.SweepDeleted) -> SweepReport:
        tier = await self.partition(question.ids, question.writer)
        return await self.in_time(tier.sweep_deleted(question.grace_ms, question.listed), f"sweeping {question.ids}")

    async def page_entries(self, question: ask.PageEntries) -> ask.FoundEntries:
        return ask.FoundEntries(await self._neighbours(question.ids, question.page, question.start, question.timestamp))

    async def _neighbours(self, ids: Ids, ref: PageRef, start: int, timestamp: int | None) -> tuple[Entry, ...]:
        page = await self._live_page(ids, ref)
        for child in page.pages:
            if child.end > start and (timestamp is None or child.max_timestamp >= timestamp):
                found = await self._neighbours(ids, child, start, timestamp)
                if found:
                    return found
        return _neighbours(page.entries, start, timestamp)

    async def plan_pages(self, question: ask.PlanPages) -> Expired:
        held: dict[str, Page] = {}

        def load_page(ref: PageRef) -> Page:
            if ref.key not in held:
                raise PageNeeded(ref)
            return held[ref.key]

        while True:
            try:
                return plan_pages(question.pages, load_page, question.found, question.moment)
            except PageNeeded as needed:
                held[needed.ref.key] = await self._live_page(question.ids, needed.ref)

    # --- common -------------------------------------------------------------------------------------------------------
    async def _live_page(self, ids: Ids, ref: PageRef) -> Page:
        page = self._pages.get(ref.key)
        if page is None:

            async def attempt() -> bytes:
                return (await (await self.store()).get(ref.key)).data

            data = await self.reads.until_answered(f"bytes of {ref.key}", attempt)
            page = await asyncio.to_thread(manifest_json.decode_page, data, ids, ref)
            self._pages.put(ref.key, page)
        if page.removed:
            raise InvalidRequest(f"{ref.key} is a page of removed ranges; nobody reads those")
        return page

    async def partition(self, ids: Ids, writer: Writer, seen: Seen | None = None) -> PartitionTier:
        known = self._partitions.get((ids, writer))
        if known is None:
            known = PartitionTier(
                await self.store(),
                ids,
                writer,
                self._clock,
                self._rng,
                page_cache=self._pages,
                store_clock=self._store_clock,
            )
            self._partitions[ids, writer] = known
            if len(self._partitions) > MAX_PARTITIONS:
                self._partitions.popitem(last=False)
        self._partitions.move_to_end((ids, writer))
        known.expect(seen)
        return known

    async def _commit(self, work: Awaitable[Root], what: str, more_s: float = 0.0) -> ask.RootDocument:
        return _document(await self.in_time(work, what, more_s))

    async def in_time(self, work: Awaitable[T], what: str, more_s: float = 0.0) -> T:
        deadline_s = self._settings.commit_deadline_s + more_s
        try:
            async with asyncio.timeout(deadline_s):
                return await work
        except TimeoutError as error:
            raise TierUnavailable(
                f"{what} took longer than {deadline_s:g} s; its outcome is open, try again"
            ) from error


def _document(root: Root) -> ask.RootDocument:
    return ask.RootDocument(manifest_json.encode(root).decode())


def _neighbours(entries: tuple[Entry, ...], start: int, timestamp: int | None) -> tuple[Entry, ...]:
    at = bisect.bisect_right(entries, start, key=lambda entry: entry.end)
    if timestamp is not None:
        while at < len(entries) and entries[at].max_timestamp < timestamp:
            at += 1
    return entries[at : at + ask.MAX_PAGE_ENTRIES]
