"""Compacts the segments that the bucket holds: has them fetched one by one, rewritten by the cleaner process, offloaded anew
and exchanged in the manifest, neighbours that fit one segment together.

It is a log of its own to the cleaner: its dirty part begins where its last cleaning ended, and its newest segment is never
rewritten, because a follower of this node would begin with its sidecar.

Invariants: segments are replaced oldest first, each by one commit; a rewritten segment's sidecar has the epochs and producers
of the last one it replaces, and the aborted transactions that are left. The local disk holds one fetched segment and one
rewritten one at a time.

Not promised: the compaction of segments in pages of level 1, which begin at about 200,000 segments.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Sequence
from typing import NamedTuple

from service.broker.background.store_access import StoreAccess
from service.broker.background.tiering import Tiering
from service.broker.partition.partition import Partition
from service.broker.partition.saved_manifest import say_committed
from storage_tiers.cold.manifest.model import Manifest, RemoteSegment, Section
from storage_tiers.cold.process.operations import FetchObject, PageSegments, ReplaceSegments
from storage_tiers.cold.process.settings import CHUNK_BYTES
from storage_tiers.cold.segments import sidecar
from storage_tiers.cold.segments.offloader import ExtendJob
from storage_tiers.cold.segments.sidecar import Sidecar
from storage_tiers.compaction.clean_point import (
    BUCKET_FILE_NAME,
    CleanPoint,
    begin_clean_point,
    clean_point,
    cleaned_to,
    read_clean_point,
    write_clean_point,
)
from storage_tiers.compaction.rewriter import CleaningJob, SourceSegment
from storage_tiers.errors import TierCorrupt, TierUnavailable
from storage_tiers.files import Files
from storage_tiers.hot import layout
from storage_tiers.hot.indexes import read_transactions
from storage_tiers.hot.log import HotLog
from storage_tiers.hot.swap import RewrittenSegment
from storage_tiers.policy.compaction import CleaningLimits, CleaningPlan, plan_cleaning
from storage_tiers.types import AbortedTransaction

#: The newest and one that may be rewritten.
_LEAST_SEGMENTS = 2


class _View(NamedTuple):
    """A remote segment as planners see it."""

    segment: RemoteSegment
    active: bool

    @property
    def base(self) -> int:
        return self.segment.base

    @property
    def end(self) -> int:
        return self.segment.end

    @property
    def size_bytes(self) -> int:
        return self.segment.length

    @property
    def max_timestamp(self) -> int:
        return self.segment.max_timestamp

    @property
    def first_append_ms(self) -> int:
        return -1


class _BucketLog(NamedTuple):
    """What the manifest of `commit` says. `cleaned_to` is 0 if it is not known."""

    line: str
    commit: int
    views: tuple[_View, ...]
    cleaned_to: int


class ColdCleaning:
    def __init__(self, tiering: Tiering, access: StoreAccess, *, files: Files) -> None:
        self._tiering = tiering
        self._access = access
        self._client = access.client
        self._files = files
        self._known: dict[HotLog, _BucketLog] = {}

    # --- which --------------------------------------------------------------------------------------------------------
    async def plan(self, partition: Partition, now_ms: int, limits: CleaningLimits) -> CleaningPlan | None:
        """None if nothing is dirty. LogError if the manifest cannot be read."""
        known = await self._look(partition)
        if known is None:
            return None
        return plan_cleaning(
            known.views,
            cleaned_to=known.cleaned_to,
            bound=known.views[-1].end,
            now_ms=now_ms,
            limits=limits,
            first_timestamp=_first_timestamp,
        )

    def cleaned_to(self, partition: Partition) -> int:
        """The offset below which the bucket has no record that a newer one supersedes, of those below it; 0 if not known."""
        known, tier = self._known.get(partition.log.hot), partition.log.tier
        return known.cleaned_to if known is not None and tier is not None and known.line == tier.line else 0

    def forget_others(self, logs: set[HotLog]) -> None:
        """Keeps what is known of these logs."""
        for hot in self._known.keys() - logs:
            del self._known[hot]

    async def _look(self, partition: Partition) -> _BucketLog | None:
        """What the current manifest says; None while it must not be changed."""
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
            point = await asyncio.to_thread(read_clean_point, hot.directory, BUCKET_FILE_NAME)
            known = await self._read(partition, point)
            if known is not None:
                self._known[hot] = known
        return known if known is not None and len(known.views) >= _LEAST_SEGMENTS else None

    async def _read(self, partition: Partition, point: CleanPoint | None) -> _BucketLog | None:
        assert partition.log.cold is not None
        manifest = await partition.log.cold.manifest()
        segments = await self._live(partition, manifest)
        if segments is None:
            return None
        views = tuple(_View(segment, segment is segments[-1]) for segment in segments)
        return _BucketLog(manifest.line, manifest.commit, views, cleaned_to(point, views))

    async def _live(self, partition: Partition, manifest: Manifest) -> list[RemoteSegment] | None:
        """The live segments from log start on; None if some are in pages of level 1."""
        found: list[RemoteSegment] = []
        for page in manifest.live_pages:
            if page.level:
                return None
            start = page.base
            while start < page.end:
                some = await self._client.ask(PageSegments(partition.ids, page, start))
                if not some:
                    raise TierCorrupt(
                        f"page {page.key} does not hold offset {start} as its manifest says; run `tidelog fsck`"
                    )
                found += some
                start = some[-1].end
        found += manifest.segments
        return [segment for segment in found if segment.end > manifest.log_start]

    # --- what ---------------------------------------------------------------------------------------------------------
    async def begin(self, partition: Partition, plan: CleaningPlan) -> ColdRewrite:
        """Prepares the cleaning that `plan` found due. LogError if the store refuses."""
        known, hot = self._known[partition.log.hot], partition.log.hot
        segments = [view.segment for view in known.views if view.end <= plan.end]
        aborted: set[AbortedTransaction] = set()
        for segment in segments:
            if any(section.name == sidecar.ABORTED and section.length for section in segment.sections):
                found = (await self._part(segment, (sidecar.ABORTED,))).aborted
                # A sidecar lists all that overlap its segment. One that lies between a transaction's data and its marker is
                # not written anew when these go, so the marker's own segment tells whether the transaction is still there.
                aborted.update(e for e in found if e.last_offset < segment.end or e.last_offset >= segments[-1].end)
        job = CleaningJob(
            hot.directory,
            [SourceSegment(segment.base, segment.end, segment.length) for segment in segments],
            plan.dirty_start,
            (),
            tuple(aborted),
            hot.settings.segment_bytes,
            hot.settings.index_interval_bytes,
            is_remote=True,
        )
        return ColdRewrite(self, partition, hot, job, segments)

    async def note(self, partition: Partition, hot: HotLog, reached: int) -> None:
        """Records that the bucket is clean up to offset `reached`."""
        known = await self._read(partition, None)
        if known is None:
            return
        point = clean_point(known.views, reached)
        self._known[hot] = known._replace(cleaned_to=reached)
        await asyncio.to_thread(write_clean_point, self._files, hot.directory, point, BUCKET_FILE_NAME)

    # --- the store ----------------------------------------------------------------------------------------------------
    async def _part(self, segment: RemoteSegment, names: Sequence[str]) -> Sidecar:
        """These sections of a segment's sidecar."""
        sections: tuple[Section, ...] = segment.sections
        position, length = sidecar.span(sections, names)
        ready = await self._client.ask(FetchObject(segment.sidecar_key, position, length, urgent=False))
        data = await asyncio.to_thread(_taken, ready.path)
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
        # `tidelog fsck` would take what the bucket lacks then for lost, were the node to die before the cleaning is noted.
        await asyncio.to_thread(begin_clean_point, self._files, partition.log.hot.directory, BUCKET_FILE_NAME)
        before, writer = partition.log.tier, self._access.writer
        if writer is None or not self._access.is_open:
            raise TierUnavailable("the object store has not answered yet; retry")
        with self._tiering.lineage.asking(partition) as seen:
            manifest = await self._client.ask(ReplaceSegments(partition.ids, writer, job, old, seen))
            say_committed(partition, manifest, before)
            await self._tiering.accept(partition, manifest)

    async def state_of(self, segment: RemoteSegment) -> Sidecar:
        """The epochs and producers at the segment's end."""
        return await self._part(segment, (sidecar.EPOCHS, sidecar.PRODUCER))


class ColdRewrite:
    """One cleaning of a partition's remote segments: `job` for the cleaner, `bring` for what it wants, `exchange` for what it
    has written."""

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

    async def bring(self, base: int) -> str:
        path = self._path(base, layout.LOG) + layout.TEMPORARY
        self._files.add(path)
        await self._cold.fetch(self._by_base[base], path)
        return path

    async def exchange(self, new: RewrittenSegment) -> None:
        """Offloads what was written and commits it. LogError; InvalidRequest if the manifest has changed."""
        old = tuple(self._by_base[base] for base, _ in new.replaces)
        path, snapshot = (self._path(new.base, suffix) + layout.CLEANED for suffix in (layout.LOG, layout.SNAPSHOT))
        index = self._path(new.base, layout.TRANSACTION_INDEX) + layout.CLEANED
        self._files.update((path, snapshot, index))
        self._files.update(self._path(new.base, suffix) + layout.CLEANED for suffix in layout.COMPANIONS)
        state, tier = await self._cold.state_of(old[-1]), self._partition.log.tier
        assert tier is not None, "segments of a manifest are exchanged"
        await asyncio.to_thread(_write, snapshot, state.producer_snapshot)
        aborted = await asyncio.to_thread(read_transactions, index) if new.has_transactions else []
        job = ExtendJob(
            path=path,
            position=0,
            length=new.size,
            base=new.base,
            end=new.end,
            leader_epoch=tier.leader_epoch,  # which an exchange does not raise
            last_record_epoch=max(entry.epoch for entry in state.epochs if entry.start_offset < new.end),
            epochs=state.epochs,
            producer_snapshot=snapshot,
            aborted=tuple(aborted),
        )
        await self._cold.replace(self._partition, job, old)
        await asyncio.to_thread(self.clear)

    async def note(self, reached: int) -> None:
        await self._cold.note(self._partition, self._hot, reached)

    def clear(self) -> None:
        """Removes the files that are left. Blocking."""
        for path in self._files:
            with contextlib.suppress(OSError):
                os.unlink(path)
        self._files.clear()

    def _path(self, base: int, suffix: str) -> str:
        return os.path.join(self._hot.directory, layout.file_name(base, suffix))


def _first_timestamp(view: _View) -> int:
    """When its oldest record was written, as far as is known (ms): the manifest's minimum is a hint. -1 if no record tells."""
    segment = view.segment
    is_known = 0 <= segment.min_timestamp <= segment.max_timestamp
    return segment.min_timestamp if is_known else segment.max_timestamp


def _taken(path: str) -> bytes:
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
