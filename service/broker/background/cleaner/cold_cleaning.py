"""Compacts the segments that the bucket holds. They are fetched one by one, rewritten by the cleaner process, offloaded again
and replaced in the manifest. Neighbours that fit into one segment are joined.

To the cleaner these segments are a separate log, whose dirty part begins where its last cleaning ended. The newest segment is
never rewritten, because a follower of this node would begin with that segment's sidecar.

Invariants: segments are replaced oldest first, each by one commit; a rewritten segment's sidecar has the epochs and producers
of the last segment that it replaces, and the remaining aborted transactions. The local disk holds one fetched and one rewritten
segment at a time.

Segments of a partition whose manifest has live pages of level 1 are not compacted. Such a manifest has more than about 200,000
segments.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from service.broker.background.aborted_lists import sendable
from service.broker.background.accepted_manifests import say_committed
from service.broker.background.store_access import StoreAccess
from service.broker.background.tiering import Tiering
from service.broker.background.turns import GLANCES_A_TURN, slices
from service.broker.partition.partition import Partition
from storage_tiers.cold.manifest.model import Manifest, PageRef, RemoteSegment, Section
from storage_tiers.cold.process.operations import FetchObject, PageSegments, ReplaceSegments
from storage_tiers.cold.process.settings import CHUNK_BYTES
from storage_tiers.cold.segments import sidecar
from storage_tiers.cold.segments.offloader import ExtendJob
from storage_tiers.cold.segments.sidecar import Sidecar
from storage_tiers.compaction.clean_point import (
    begin_bucket_clean_point,
    bucket_clean_point,
    bucket_cleaned_to,
    read_bucket_clean_point,
    write_bucket_clean_point,
)
from storage_tiers.compaction.rewriter import CleaningJob, SourceSegment
from storage_tiers.compaction.transactions import aborted_of
from storage_tiers.errors import InvalidRequest, TierCorrupt, TierUnavailable
from storage_tiers.files import Files
from storage_tiers.hot import layout
from storage_tiers.hot.indexes import read_transactions
from storage_tiers.hot.log import HotLog
from storage_tiers.hot.swap import RewrittenSegment
from storage_tiers.policy.compaction import CleaningLimits, CleaningPlan, plan_cleaning
from storage_tiers.types import NO_TIMESTAMP, AbortedTransaction

#: A cleaning needs one segment besides the newest one, which is never rewritten.
_LEAST_SEGMENTS = 2


class _View(NamedTuple):
    """Segments [base, end) as planners see them: a single one, several with their sizes added (`_summed`), or all of `page`.
    `first_timestamp` (ms) estimates from the manifest's minimum when the oldest record was written; -1 if it is unknown."""

    base: int
    end: int
    size_bytes: int
    max_timestamp: int
    first_timestamp: int
    active: bool
    page: PageRef | None = None

    @property
    def first_append_ms(self) -> int:
        return -1


_Views = tuple[_View, ...]
_Opened = dict[tuple[str, int | None], _Views]


class _BucketLog(NamedTuple):
    """The bucket's log according to the manifest of `commit`. `cleaned_to` is 0 if it is not known. `opened` holds the segments
    of the last MAX_OPENED pages that plans had to read, or the segments' sums."""

    line: str
    commit: int
    log_start: int
    views: tuple[_View, ...]
    cleaned_to: int
    opened: _Opened


#: Most pages whose segments are kept for the next plan: the last page, and those inside which log start, the clean point or the
#: lag limit lies.
MAX_OPENED = 4
#: Segments and pages that plans visit in one turn of the event loop; a partition may have hundreds in the bucket.
VIEWS_A_TURN = 500


class ColdCleaning:
    """Plans cleanings of partitions' remote segments, and fetches and replaces these segments. Raises LogError if the store
    refuses."""

    def __init__(self, tiering: Tiering, access: StoreAccess, *, files: Files) -> None:
        self._tiering = tiering
        self._access = access
        self._client = access.client
        self._files = files
        self._known: dict[HotLog, _BucketLog] = {}
        #: Views that plans have visited in this turn of the event loop.
        self._views = 0

    # --- which --------------------------------------------------------------------------------------------------------
    async def plan(self, partition: Partition, now_ms: int, limits: CleaningLimits) -> CleaningPlan | None:
        """Plans a cleaning. Returns None if nothing is dirty, or nothing may be cleaned now. Raises LogError if the manifest
        cannot be read."""
        if self._views >= VIEWS_A_TURN:
            self._views = 0
            await asyncio.sleep(0)
        known = await self._current_log(partition)
        if known is None:
            return None
        self._views += len(known.views)
        newest_ms = now_ms - limits.min_lag_ms if limits.min_lag_ms > 0 else None
        return plan_cleaning(
            await self._divided(partition, known, newest_ms),
            cleaned_to=known.cleaned_to,
            bound=known.views[-1].end,
            now_ms=now_ms,
            limits=limits,
            first_timestamp=lambda view: view.first_timestamp,
        )

    async def _divided(self, partition: Partition, known: _BucketLog, newest_ms: int | None) -> list[_View]:
        """Returns the views. A page is replaced by its segments if a plan needs them. Any other page stays one view, so that
        the cost of a plan does not grow with the segments in pages."""
        found: list[_View] = []
        for view in known.views:
            is_dirty, is_last = view.end > known.cleaned_to, view is known.views[-1]
            is_first_dirty = is_dirty and not (found and found[-1].end > known.cleaned_to)
            is_young = newest_ms is not None and is_dirty and view.max_timestamp > newest_ms
            is_cut = view.base < known.log_start < view.end
            divides = view.base < known.cleaned_to < view.end or (is_first_dirty and view.first_timestamp < 0)
            if view.page is None or not (is_young or is_cut or divides or is_last):
                found.append(view)
                continue
            inside = await self._opened(partition, known, view.page, is_whole=is_young or is_cut)
            found += [each for each in inside if each.end > known.log_start]
            if is_last:
                found[-1] = found[-1]._replace(active=True)
            if newest_ms is not None and any(
                each.max_timestamp > newest_ms and each.end > known.cleaned_to for each in inside
            ):
                break  # no plan goes beyond a young segment
        return found

    async def _opened(self, partition: Partition, known: _BucketLog, page: PageRef, *, is_whole: bool) -> _Views:
        """The page's segments if `is_whole`; else their sums (`_summed`)."""
        name = (page.key, None if is_whole else known.cleaned_to)
        if name not in known.opened:
            views = tuple([_view(each) async for each in self._of_page(partition, page)])
            while len(known.opened) >= MAX_OPENED:
                del known.opened[next(iter(known.opened))]
            known.opened[name] = views if is_whole else _summed(views, known.cleaned_to)
        return known.opened[name]

    def cleaned_to(self, partition: Partition) -> int:
        """The offset below which the bucket is clean: no record supersedes another one there. 0 if it is unknown."""
        known, tier = self._known.get(partition.log.hot), partition.log.tier
        return known.cleaned_to if known is not None and tier is not None and known.line == tier.line else 0

    def forget_others(self, logs: set[HotLog]) -> None:
        """Forgets all logs but these."""
        for hot in self._known.keys() - logs:
            del self._known[hot]

    async def _current_log(self, partition: Partition) -> _BucketLog | None:
        """Returns the log in the current manifest. Returns None while the log must not be changed, if it has too few segments
        to clean, or if it has pages of level 1."""
        hot, tier = partition.log.hot, partition.log.tier
        may_write = (
            self._access.is_open
            and self._tiering.is_tiered(partition)
            and self._tiering.has_compared(partition)
            and not hot.settings.remote_copy_disable
        )
        if tier is None or not may_write or tier.segments < _LEAST_SEGMENTS:
            return None
        known = self._known.get(hot)
        if known is None or (known.line, known.commit) != (tier.line, tier.commit):
            assert partition.log.cold is not None
            manifest = await partition.log.cold.manifest()
            if any(page.level for page in manifest.live_pages):
                return None
            opened = {} if known is None else known.opened
            if known is not None and known.line == manifest.line:
                reached = known.cleaned_to
            else:
                point = await asyncio.to_thread(read_bucket_clean_point, hot.directory)
                reached = bucket_cleaned_to(point, manifest)
            known = self._known[hot] = _bucket_log(manifest, reached, opened)
        is_enough = len(known.views) >= _LEAST_SEGMENTS or any(view.page is not None for view in known.views)
        return known if is_enough else None

    async def _segments(self, partition: Partition, end: int) -> list[RemoteSegment]:
        """The live segments from log start on that end at or below `end`."""
        assert partition.log.cold is not None
        manifest = await partition.log.cold.manifest()
        found: list[RemoteSegment] = []
        for page in manifest.live_pages:
            if manifest.log_start < page.end and page.base < end:
                found += [each async for each in self._of_page(partition, page)]
        found += manifest.segments
        first = next((at for at, each in enumerate(found) if each.end > manifest.log_start), len(found))
        return found[first : bisect_right(found, end, key=lambda each: each.end)]

    async def _of_page(self, partition: Partition, page: PageRef) -> AsyncIterator[RemoteSegment]:
        start = page.base
        while start < page.end:
            some = await self._client.ask(PageSegments(partition.ids, page, start))
            if not some:
                raise TierCorrupt(
                    f"page {page.key} does not hold offset {start} as its manifest says; run `tidelog fsck`"
                )
            for segment in some:
                yield segment
            start = some[-1].end

    # --- what ---------------------------------------------------------------------------------------------------------
    async def begin(self, partition: Partition, plan: CleaningPlan) -> ColdRewrite:
        """Prepares the cleaning that `plan` found due. Raises LogError if the store refuses."""
        hot = partition.log.hot
        segments = await self._segments(partition, plan.end)
        if not segments:
            raise InvalidRequest(
                f"the segments of {partition.partition} below {plan.end} expired; their cleaning is planned again"
            )
        named, sources = list[tuple[int, Sequence[AbortedTransaction]]](), list[SourceSegment]()
        async for some in slices(segments, GLANCES_A_TURN):
            sources += [SourceSegment(each.base, each.end, each.length) for each in some]
            for segment in some:
                if any(section.name == sidecar.ABORTED and section.length for section in segment.sections):
                    named.append((segment.end, (await self._part(segment, (sidecar.ABORTED,))).aborted))
        aborted = await asyncio.to_thread(aborted_of, named)
        job = CleaningJob(
            directory=hot.directory,
            segments=sources,
            dirty_start=max(plan.dirty_start, segments[0].base),
            fences=(),
            aborted=aborted,
            segment_bytes=hot.settings.segment_bytes,
            index_interval=hot.settings.index_interval_bytes,
            is_remote=True,
        )
        return ColdRewrite(self, partition, hot, job, segments)

    async def save_clean_point(self, partition: Partition, hot: HotLog, reached: int) -> None:
        """Records that the bucket is clean up to offset `reached`."""
        assert partition.log.cold is not None
        manifest = await partition.log.cold.manifest()
        point = bucket_clean_point(manifest, reached)
        await asyncio.to_thread(write_bucket_clean_point, self._files, hot.directory, point)
        known = self._known.get(hot)
        self._known[hot] = _bucket_log(manifest, reached, {} if known is None else known.opened)

    # --- the store ----------------------------------------------------------------------------------------------------
    async def _part(self, segment: RemoteSegment, names: Sequence[str]) -> Sidecar:
        """Fetches these sections of a segment's sidecar."""
        sections: tuple[Section, ...] = segment.sections
        position, length = sidecar.span(sections, names)
        ready = await self._client.ask(FetchObject(segment.sidecar_key, position, length, urgent=False))
        data = await asyncio.to_thread(_read_and_unlink, ready.path)
        return sidecar.parse_part(
            data,
            position,
            sections,
            base=segment.base,
            end=segment.end,
            length=segment.length,
            crc=segment.crc32c,
            where=segment.sidecar_key,
        )

    async def fetch(self, segment: RemoteSegment, path: str) -> None:
        """Writes the segment's bytes to a new file, a chunk at a time."""
        for start in range(0, segment.length, CHUNK_BYTES):
            length = min(CHUNK_BYTES, segment.length - start)
            question = FetchObject(segment.key, segment.position + start, length, urgent=False)
            ready = await self._client.ask(question)
            await asyncio.to_thread(_append, path, ready.path, is_first=start == 0)

    async def replace(self, partition: Partition, job: ExtendJob, old: tuple[RemoteSegment, ...]) -> None:
        # Written first, because `tidelog fsck` would otherwise report the removed records as lost if the node dies before it
        # saves the clean point.
        await asyncio.to_thread(begin_bucket_clean_point, self._files, partition.log.hot.directory)
        before, writer = partition.log.tier, self._access.writer
        if writer is None or not self._access.is_open:
            raise TierUnavailable("the object store has not answered yet; retry")
        async with sendable(job) as sent:
            with self._tiering.lineage.asking(partition) as seen:
                manifest = await self._client.ask(ReplaceSegments(partition.ids, writer, sent, old, seen))
                say_committed(partition, manifest, before)
                await self._tiering.accept(partition, manifest)

    async def state_of(self, segment: RemoteSegment) -> Sidecar:
        """The epochs and producers at the segment's end."""
        return await self._part(segment, sidecar.STATE)


class ColdRewrite:
    """One cleaning of a partition's remote segments. `job` is the request to the cleaner; `fetch_segment` and `replace` handle
    the cleaner's answers."""

    def __init__(
        self,
        cold: ColdCleaning,
        partition: Partition,
        hot: HotLog,
        job: CleaningJob,
        segments: Sequence[RemoteSegment],
    ) -> None:
        self.job = job
        self._cold = cold
        self._partition = partition
        self._hot = hot
        self._by_base = {segment.base: segment for segment in segments}
        self._files: set[str] = set()

    async def fetch_segment(self, base: int) -> str:
        path = self._path(base, layout.LOG) + layout.TEMPORARY
        self._files.add(path)
        await self._cold.fetch(self._by_base[base], path)
        return path

    async def replace(self, new: RewrittenSegment) -> None:
        """Offloads the rewritten segment and commits it. Raises LogError; InvalidRequest means that the manifest has
        changed."""
        old = tuple(self._by_base[base] for base, _ in new.replaces)
        path, snapshot = (self._path(new.base, suffix) + layout.CLEANED for suffix in (layout.LOG, layout.SNAPSHOT))
        index = self._path(new.base, layout.TRANSACTION_INDEX) + layout.CLEANED
        self._files.update((path, snapshot, index))
        self._files.update(self._path(new.base, suffix) + layout.CLEANED for suffix in layout.COMPANIONS)
        state, tier = await self._cold.state_of(old[-1]), self._partition.log.tier
        assert tier is not None, "the segments to replace are in a manifest"
        await asyncio.to_thread(_write, snapshot, state.producer_state)
        aborted = await asyncio.to_thread(read_transactions, index) if new.has_transactions else []
        job = ExtendJob(
            path=path,
            position=0,
            length=new.size,
            base=new.base,
            end=new.end,
            leader_epoch=tier.leader_epoch,  # a replacement does not raise it
            last_record_epoch=max(entry.epoch for entry in state.epochs if entry.start_offset < new.end),
            epochs=state.epochs,
            producer_snapshot=snapshot,
            aborted=tuple(aborted),
        )
        await self._cold.replace(self._partition, job, old)
        await asyncio.to_thread(self.clear)

    async def save_clean_point(self, reached: int) -> None:
        await self._cold.save_clean_point(self._partition, self._hot, reached)

    def clear(self) -> None:
        """Removes the remaining files. Blocking. If an earlier call was cancelled, its thread may still be removing files."""
        files, self._files = self._files, set()
        for path in files:
            with contextlib.suppress(OSError):
                os.unlink(path)

    def _path(self, base: int, suffix: str) -> str:
        return os.path.join(self._hot.directory, layout.file_name(base, suffix))


def _bucket_log(manifest: Manifest, cleaned_to: int, opened: _Opened) -> _BucketLog:
    pages = [page for page in manifest.live_pages if page.end > manifest.log_start]
    segments = [segment for segment in manifest.segments if segment.end > manifest.log_start]
    views = (
        *(_View(page.base, page.end, page.bytes, page.max_timestamp, _first(page), False, page) for page in pages),
        *(_view(segment) for segment in segments[:-1]),
        *(_view(segment, active=True) for segment in segments[-1:]),
    )
    keys = {page.key for page in pages}
    kept = {name: views for name, views in opened.items() if name[0] in keys and name[1] in (None, cleaned_to)}
    return _BucketLog(manifest.line, manifest.commit, manifest.log_start, views, cleaned_to, kept)


def _summed(views: _Views, cleaned_to: int) -> _Views:
    """One view for all clean segments, one for the dirty segments before the last, and the last. If all are old enough, the
    plan is the same as for single views."""
    clean = [each for each in views[:-1] if each.end <= cleaned_to]
    dirty = views[len(clean) : -1]
    return (*(_sum(some) for some in (clean, dirty) if some), *views[-1:])


def _sum(views: Sequence[_View]) -> _View:
    sizes, newest = sum(each.size_bytes for each in views), max(each.max_timestamp for each in views)
    return _View(views[0].base, views[-1].end, sizes, newest, views[0].first_timestamp, False)


def _view(segment: RemoteSegment, *, active: bool = False) -> _View:
    return _View(segment.base, segment.end, segment.length, segment.max_timestamp, _first(segment), active)


def _first(of: RemoteSegment | PageRef) -> int:
    """Estimates when the oldest record was written, in ms; -1 for a page without an estimate."""
    if isinstance(of, PageRef) and of.min_timestamp < 0:
        return NO_TIMESTAMP
    return of.min_timestamp if 0 <= of.min_timestamp <= of.max_timestamp else of.max_timestamp


def _read_and_unlink(path: str) -> bytes:
    with open(path, "rb") as file:
        data = file.read()
    os.unlink(path)
    return data


def _append(path: str, piece: str, *, is_first: bool) -> None:
    with open(path, "wb" if is_first else "ab") as file, open(piece, "rb") as source:
        shutil.copyfileobj(source, file)
    os.unlink(piece)


def _write(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
