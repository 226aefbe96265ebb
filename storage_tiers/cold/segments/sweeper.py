"""Deletes objects that a partition's manifest no longer names, or never named.

    removed, past the grace, unpinned ─────────────────────────────> delete ──> commit: dropped
    listed, unreferenced, past the grace ──> commit: tombstoned ────> delete ──> commit: dropped

Invariants: an object that the manifest names is never deleted. The listing is read before the manifest, so that an object
stored and committed in between counts as referenced. Nothing is deleted without a manifest, or with one that does not contain
the manifest seen before (StoreBehind). An orphan is deleted only after a commit has tombstoned it: a writer that still wants to
reference it then fails its swap, and finds the object tombstoned or missing. A key is dropped only after its deletion
succeeded, so that a crash at any point only leaves work for the next sweep.

The store's clock comes from the modification time of an object that this commit loop has just written. If the loop has written
none and there is an unreferenced object or an unfinished upload to judge, the sweeper makes a commit that changes nothing.

Bounds: at most 64 keys tombstoned at a time, 4,096 listed keys in memory, one page at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from storage_tiers.clock import Clock
from storage_tiers.cold.manifest import keys, model, pages, transitions
from storage_tiers.cold.manifest.commit import CommitLoop
from storage_tiers.cold.manifest.lineage import MAX_COMMITS
from storage_tiers.cold.manifest.model import MAX_TOMBSTONED, Author, Manifest, ManifestPage, PageRef, State
from storage_tiers.cold.manifest.pages import ManifestChange
from storage_tiers.cold.stores.port import ObjectInfo, ObjectStore, UnfinishedUpload
from storage_tiers.errors import InvalidRequest, TierUnavailable
from storage_tiers.policy import orphans

_LISTED_KEYS = 4096
_DELETED_KEYS = 1000


class Listed(NamedTuple):
    """An object in a listing, with its modification time by the store's clock (ms)."""

    key: str
    modified_ms: int


@dataclass(frozen=True, slots=True)
class SweepReport:
    """The result of one sweep, in objects. `waiting` counts objects and unfinished uploads that are too young, and pinned
    objects; `young` counts those of them that are unreferenced objects. `done`: a deleted partition has no object left but its
    manifest. `cut_short`: MAX_COMMITS commits did not suffice; sweep again."""

    removed: int = 0
    orphans: int = 0
    uploads_aborted: int = 0
    waiting: int = 0
    young: int = 0
    done: bool = False
    cut_short: bool = False


class _Allowance:
    """The commits that one sweep may still make. One of MAX_COMMITS is reserved for learning the store's time."""

    def __init__(self) -> None:
        self._left = MAX_COMMITS - 1
        self.exceeded = False

    def take(self) -> bool:
        self.exceeded = self.exceeded or self._left == 0
        self._left = max(0, self._left - 1)
        return not self.exceeded


class Sweeper:
    """Deletes the objects of one partition that no commit references. LogError if the store refuses, FencedWriter if another
    incarnation writes."""

    def __init__(self, store: ObjectStore, loop: CommitLoop, clock: Clock) -> None:
        self._store = store
        self._loop = loop
        self._clock = clock
        ids = loop.ids
        self._prefixes = (ids.segments_prefix, ids.pages_prefix)
        # A writer that died may have left an unfinished write here. Partition 0 also covers its topic's file.
        self._written = (*self._prefixes, ids.manifest_key)
        topic_file = (keys.topic_file_key(ids.cluster_id, ids.topic),) if ids.partition == 0 else ()
        self._written_while_live = self._written + topic_file

    async def sweep(self, grace_ms: int, listed: Sequence[Listed] | None = None) -> SweepReport:
        """Sweeps the partition, but deletes nothing without a manifest: only a manifest tells an orphan from a referenced
        object. DeletedInStore if the partition is deleted: only `sweep_deleted` deletes its objects. `listed` are this
        partition's keys from a listing just made. With None this method lists them, and aborts unfinished uploads too."""
        loaded = await self._loop.load()
        if loaded is None:
            return SweepReport()
        transitions.check_writer(loaded.manifest, self._loop.writer)
        allowance = _Allowance()
        report = await self._sweep_removed(loaded.manifest, grace_ms, allowance)
        aborted = running = 0
        if listed is None:
            found, young = await self._sweep_orphans(grace_ms, allowance)
            aborted, running = await self._abort_uploads(grace_ms)
        else:
            found, young = await self._judge(listed, grace_ms, allowance)
        return replace(
            report,
            orphans=found,
            uploads_aborted=aborted,
            waiting=report.waiting + young + running,
            young=young,
            cut_short=allowance.exceeded,
        )

    async def sweep_deleted(self, grace_ms: int, listed: Sequence[Listed] | None = None) -> SweepReport:
        """Deletes the objects of a deleted partition; InvalidRequest if it is not deleted. `listed` are the keys of a listing
        of the topic just made. With None this method lists the partition, and aborts its unfinished uploads too."""
        loaded = await self._loop.load()
        if loaded is None or loaded.manifest.state is not State.DELETED:
            raise InvalidRequest(f"{self._loop.ids} is not deleted in the bucket; delete it first")
        if loaded.manifest.committed_at + grace_ms > self._clock.unix_ms():
            return SweepReport()
        removed = aborted = 0
        if listed is not None:
            mine = [each.key for each in listed if each.key.startswith(self._prefixes)]
            for start in range(0, len(mine), _DELETED_KEYS):
                await self._store.delete(mine[start : start + _DELETED_KEYS])
            return SweepReport(removed=len(mine), done=True)
        for prefix in self._prefixes:
            async for batch in _batches(self._store.list(prefix), _DELETED_KEYS):
                await self._store.delete([info.key for info in batch])
                removed += len(batch)
        for prefix in self._written:
            async for upload in self._store.unfinished_uploads(prefix):
                await self._store.abort_upload(upload)
                aborted += 1
        return SweepReport(removed=removed, uploads_aborted=aborted, done=True)

    # --- objects once referenced --------------------------------------------------------------------------------------
    async def _sweep_removed(self, manifest: Manifest, grace_ms: int, allowance: _Allowance) -> SweepReport:
        now = self._clock.unix_ms()
        due = orphans.due_removed(manifest.removed, manifest.pins, now, grace_ms)
        waiting = len(manifest.removed) - len(due)
        gone = {key for item in due for key in pages.sweepable(manifest, item)}
        # An earlier sweep that did not finish has tombstoned these.
        gone.update(tombstoned.key for tombstoned in manifest.tombstoned)
        removed = await self._delete_and_drop(gone, (), allowance)
        manifest = await self._unfolded(manifest, now - grace_ms, allowance)
        for ref in manifest.removed_pages:
            if ref.level:
                waiting += ref.count
                continue
            if ref.first_removed_ms + grace_ms > now:
                waiting += ref.count
                continue
            page = await self._loop.page(ref)
            due = orphans.due_removed(page.removed, manifest.pins, now, grace_ms)
            waiting += ref.count - len(due)
            gone = {key for item in due for key in pages.sweepable(manifest, item)}
            removed += await self._delete_and_drop(gone, (ref.key,), allowance)
        return SweepReport(removed=removed, waiting=waiting)

    async def _unfolded(self, manifest: Manifest, due_ms: int, allowance: _Allowance) -> Manifest:
        """Unfolds the first removed page of level 1 that has items due; each sweep moves a few of its pages into the
        manifest."""
        for ref in manifest.removed_pages:
            if ref.level and ref.first_removed_ms <= due_ms and allowance.take():
                return await self._loop.commit(lambda manifest, by, key=ref.key: pages.unfold(manifest, key, by))  # type: ignore[misc]
        return manifest

    async def _delete_and_drop(self, gone: set[str], page_keys: Sequence[str], allowance: _Allowance) -> int:
        if not gone or not allowance.take():
            return 0
        ordered = sorted(gone)
        for start in range(0, len(ordered), _DELETED_KEYS):
            await self._store.delete(ordered[start : start + _DELETED_KEYS])

        def drop(manifest: Manifest, by: Author) -> ManifestChange | None:
            transitions.check_writer(manifest, by.writer)
            return pages.drop_gone(manifest, gone, page_keys, by)

        await self._loop.commit(drop)
        return len(gone)

    # --- orphans ------------------------------------------------------------------------------------------------------
    async def _sweep_orphans(self, grace_ms: int, allowance: _Allowance) -> tuple[int, int]:
        """Lists the partition and deletes its orphans. Returns their numbers: (deleted, too young)."""
        deleted = young = 0
        for prefix in self._prefixes:
            async for batch in _batches(self._store.list(prefix), _LISTED_KEYS):
                found = await self._judge([Listed(info.key, info.modified_ms) for info in batch], grace_ms, allowance)
                deleted, young = deleted + found[0], young + found[1]
        return deleted, young

    async def _judge(self, listed: Sequence[Listed], grace_ms: int, allowance: _Allowance) -> tuple[int, int]:
        """Deletes the orphans among `listed`. Returns their numbers: (deleted, too young). The manifest is read after the
        listing."""
        mine = [each for each in listed if each.key.startswith(self._prefixes)]
        unreferenced = await self._unreferenced(await self._fresh_manifest(), mine) if mine else []
        if not unreferenced:
            return 0, 0
        deleted = 0
        old = orphans.orphans(unreferenced, (), await self._store_now(), grace_ms)
        for start in range(0, len(old), MAX_TOMBSTONED):
            deleted += await self._tombstone_and_delete(old[start : start + MAX_TOMBSTONED], allowance)
        return deleted, len(unreferenced) - len(old)

    async def _tombstone_and_delete(self, candidates: Sequence[str], allowance: _Allowance) -> int:
        if not allowance.take():
            return 0
        still: set[str] = set()

        async def prepare(manifest: Manifest) -> None:
            nonlocal still
            still = set(candidates) - set(manifest.keys())
            refs = list(manifest.pages)
            while refs and still:
                page = await self._loop.page(refs.pop())
                still -= set(_named(page))
                refs.extend(page.pages)

        def step(manifest: Manifest, by: Author) -> Manifest | None:
            room = MAX_TOMBSTONED - len(manifest.tombstoned)
            chosen = sorted(still)[: max(room, 0)]
            return transitions.tombstone(manifest, chosen, by) if chosen else None

        manifest = await self._loop.commit(step, prepare)
        return await self._delete_and_drop({tombstoned.key for tombstoned in manifest.tombstoned}, (), allowance)

    async def _unreferenced(self, manifest: Manifest, listed: Sequence[Listed]) -> list[Listed]:
        """The listed objects that are not named by the manifest or by pages that their keys point to. One object may hold
        several segments, so its key may point to the wrong page: all pages are searched before anything is tombstoned."""
        found = {info.key: info for info in listed}
        _discard(found, manifest.keys())
        refs = list(manifest.pages)
        while refs and found:
            ref = refs.pop()
            if _may_name(ref, found):
                page = await self._loop.page(ref)
                _discard(found, _named(page))
                refs.extend(page.pages)
        return list(found.values())

    async def _abort_uploads(self, grace_ms: int) -> tuple[int, int]:
        """Aborts abandoned uploads. Returns the numbers of uploads: (aborted, too young)."""
        found: list[UnfinishedUpload] = []
        for prefix in self._written_while_live:
            async for upload in self._store.unfinished_uploads(prefix):
                found.append(upload)
                if len(found) == _LISTED_KEYS:
                    break
        if not found:
            return 0, 0
        old = orphans.abandoned(found, await self._store_now(), grace_ms)
        for upload in old:
            await self._store.abort_upload(upload)
        return len(old), len(found) - len(old)

    async def _fresh_manifest(self) -> Manifest:
        loaded = await self._loop.load()
        assert loaded is not None, "a manifest that was seen cannot be absent: the loop raises StoreBehind"
        return loaded.manifest

    async def _store_now(self) -> int:
        now = self._loop.store_clock.now_ms()
        if now is None:
            await self._loop.commit(transitions.touch)
            now = self._loop.store_clock.now_ms()
        if now is None:
            raise TierUnavailable(f"the store's time is not known; the sweep of {self._loop.ids} is tried again later")
        return now


def _named(page: ManifestPage) -> Iterable[str]:
    live = ((segment.key, segment.sidecar_key) for segment in page.segments)
    removed = (item.keys for item in page.removed)
    return itertools.chain.from_iterable(itertools.chain(live, removed, ((ref.key,) for ref in page.pages)))


def _discard(found: dict[str, Listed], names: Iterable[str]) -> None:
    for name in names:
        found.pop(name, None)


def _may_name(ref: PageRef, found: dict[str, Listed]) -> bool:
    """Whether a page may name one of these keys. Any removed page may name an old page's key. A segment's key has the base
    offset of its segment, so the page's offsets decide."""
    for key in found:
        try:
            parsed = keys.parse(key)
        except ValueError:
            continue
        if isinstance(parsed, keys.SegmentKey | keys.SidecarKey):
            if ref.base <= parsed.base < ref.end:
                return True
        elif ref.kind is model.PageKind.REMOVED or ref.level:
            return True
    return False


async def _batches(infos: AsyncIterator[ObjectInfo], size: int) -> AsyncIterator[list[ObjectInfo]]:
    batch: list[ObjectInfo] = []
    async for info in infos:
        batch.append(info)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
