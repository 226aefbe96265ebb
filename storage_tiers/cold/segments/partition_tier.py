"""One partition's remote tier, as its broker uses it: extend it, replace compacted segments, raise its log start, pin, delete.

Commit order: store objects -> verify -> compare-and-swap; the caller then informs replicas and evicts. A writer whose swap
failed reads the manifest and verifies its objects again before it commits on that manifest. A sweeper deletes an object only
after a commit has tombstoned it, so either the swap fails or the verification finds the object missing. A key in `removed` or
`tombstoned` is never referenced again: the segment is offloaded under a new uuid.

`extend` may not add the caller's segment. If the manifest's end has moved, the returned manifest shows where the next extension
must begin. `storage_tiers.cold.segments.sweeper` deletes objects that no manifest names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TypeVar

from storage_tiers.cold.manifest import pages, transitions
from storage_tiers.cold.manifest.commit import (
    CommitLoop,
    LoadedManifest,
    Prepare,
    ReadSaved,
    SharedStore,
    Step,
)
from storage_tiers.cold.manifest.lineage import MAX_COMMITS, LoadPage, SeenManifest
from storage_tiers.cold.manifest.model import Author, Ids, Manifest, ManifestWriter, RemoteSegment, State
from storage_tiers.cold.manifest.pages import ManifestChange
from storage_tiers.cold.manifest.replacement import replace_segments
from storage_tiers.cold.manifest.transitions import check_epoch, check_writer, may_begin
from storage_tiers.cold.segments.offloader import ExtendJob, Offloaded, Offloader, RunBlocking, in_thread
from storage_tiers.cold.segments.repairer import LocalEvidence, Repairer, RepairReport
from storage_tiers.cold.segments.sweeper import Listed, Sweeper, SweepReport
from storage_tiers.errors import FencedWriter, LogError
from storage_tiers.types import OffsetRange

T = TypeVar("T")


class PartitionTier:
    """Errors of every method: FencedWriter (give up), TierUnavailable (outcome unknown, retry), StoreBehind, TierCorrupt."""

    def __init__(
        self,
        shared: SharedStore,
        ids: Ids,
        writer: ManifestWriter,
        *,
        run_blocking: RunBlocking = in_thread,
        read_saved: ReadSaved | None = None,
    ) -> None:
        self.ids = ids
        self.writer = writer
        self._loop = CommitLoop(shared, ids, writer, read_saved)
        self._offloader = Offloader(shared.store, ids, shared.rng, run_blocking)
        self._sweeper = Sweeper(shared.store, self._loop, shared.clock)
        self._repairer = Repairer(shared.store, self._loop, self._offloader)

    @property
    def manifest(self) -> Manifest | None:
        """The newest manifest known to be durable; None before the first read and while a write's outcome is unknown."""
        return self._loop.manifest

    def expect(self, seen: SeenManifest | None) -> None:
        """Refuses, from now on, every manifest that does not contain this one. Only `delete_partition` accepts any manifest."""
        self._loop.expect(seen)

    async def load(self) -> LoadedManifest | None:
        """Reads the manifest from the store; None if there is no manifest."""
        return await self._loop.load()

    async def commit(self, step: Step, prepare: Prepare | None = None) -> Manifest:
        return await self._loop.commit(step, prepare)

    async def look(self, question: Callable[[LoadPage], T]) -> T:
        """Answers a pure question over the manifest's pages (`storage_tiers.cold.manifest.lookup`)."""
        return await self._loop.look(question)

    async def extend(self, job: ExtendJob) -> Manifest:
        """Offloads a segment and appends it to the manifest. Returns the newest manifest. If the manifest found does not end
        where `job` begins, the segment is not added, and the caller sends another job."""
        manifest = await self._loop.current()
        if not self._continues(manifest, job):
            loaded = await self._loop.load()
            manifest = loaded.manifest if loaded is not None else transitions.first_manifest(self.ids)
            if not self._continues(manifest, job):
                return manifest
        return await self._commit_offload(
            job,
            manifest,
            continues=lambda manifest: self._continues(manifest, job),
            transition=lambda manifest, segment, by: transitions.extend(
                manifest,
                segment,
                by,
                leader_epoch=job.leader_epoch,
                last_record_epoch=job.last_record_epoch,
                log_start=job.log_start,
            ),
        )

    async def replace(self, job: ExtendJob, old: Sequence[RemoteSegment]) -> Manifest:
        """Offloads a rewritten segment, which replaces the live neighbours `old`. InvalidRequest unless they are all
        live."""

        def may_write(manifest: Manifest) -> bool:
            check_writer(manifest, self.writer)
            return True

        return await self._commit_offload(
            job,
            await self._loop.current(),
            continues=may_write,
            transition=lambda manifest, segment, by: replace_segments(manifest, old, segment, by),
        )

    async def _commit_offload(
        self,
        job: ExtendJob,
        manifest: Manifest,
        *,
        continues: Callable[[Manifest], bool],
        transition: Callable[[Manifest, RemoteSegment, Author], ManifestChange | Manifest | None],
    ) -> Manifest:
        """Stores the objects of `job`, then commits `transition` with their segment on the newest manifest, as long as
        `continues` accepts that manifest."""
        built = await self._offloader.build(job)
        offloaded = await self._offloader.offload(job, built, manifest)

        async def prepare(manifest: Manifest) -> None:
            nonlocal offloaded
            if not continues(manifest) or manifest.commit == offloaded.seen_commit:
                return
            named = offloaded.segment.key, offloaded.segment.sidecar_key
            if set(manifest.keys()).isdisjoint(named) and await self._offloader.still_there(offloaded):
                offloaded = Offloaded(
                    offloaded.segment, offloaded.sidecar_length, offloaded.sidecar_crc32c, manifest.commit
                )
            else:
                offloaded = await self._offloader.offload(job, built, manifest)

        def step(manifest: Manifest, by: Author) -> ManifestChange | Manifest | None:
            return transition(manifest, offloaded.segment, by) if continues(manifest) else None

        try:
            return await self._loop.commit(step, prepare)
        except FencedWriter:
            await self._forget_if_deleted(offloaded)
            raise

    async def claim(self, leader_epoch: int) -> Manifest:
        """Commits the leader epoch and the writer's incarnation. Call it before any other commit of that epoch."""

        def step(manifest: Manifest, by: Author) -> Manifest | None:
            check_writer(manifest, by.writer)
            if manifest.leader_epoch == leader_epoch and by.writer.incarnation in (None, manifest.incarnation):
                return None
            return transitions.claim_epoch(manifest, leader_epoch, by)

        return await self._loop.commit(step)

    async def raise_log_start(self, offset: int) -> Manifest:
        """Returns once the manifest's log start is at least min(`offset`, `end`). No effect without a manifest."""
        if offset > (await self._loop.current()).end:
            await self._loop.load()  # another writer may have moved the end

        def step(manifest: Manifest, by: Author) -> ManifestChange | None:
            check_writer(manifest, by.writer)
            return pages.expire(manifest, offset, by)

        return await self._loop.commit(step)

    async def expire(self, log_start: int) -> Manifest:
        """Raises log start as `raise_log_start` does, and moves all segments wholly below it to `removed`, as far as
        MAX_COMMITS commits reach."""
        before = -1
        for _ in range(MAX_COMMITS):
            manifest = await self.raise_log_start(log_start)
            if manifest.commit == before:
                break
            before = manifest.commit
        return manifest

    async def pin(self, name: str) -> Manifest:
        """Pins the state as of this commit. InvalidRequest if the name is bad or taken, or if there are 32 pins."""
        return await self._loop.commit(lambda manifest, by: transitions.pin(manifest, name, by))

    async def unpin(self, name: str) -> Manifest:
        return await self._loop.commit(lambda manifest, by: transitions.unpin(manifest, name, by))

    async def delete_partition(self) -> Manifest:
        """Commits the state `deleted`, which is final, whatever manifest was seen before. Creates the manifest if there is
        none. No effect if the partition is deleted already."""

        def step(manifest: Manifest, by: Author) -> Manifest | None:
            return None if manifest.state is State.DELETED else transitions.delete(manifest, by)

        return await self._loop.commit_whatever(step)

    async def sweep(self, grace_ms: int, listed: Sequence[Listed] | None = None) -> SweepReport:
        """Deletes objects that the manifest no longer names, or never named, after at least `grace_ms`. Orphans are sought
        among the keys `listed`; None lists the partition."""
        return await self._sweeper.sweep(grace_ms, listed)

    async def sweep_deleted(self, grace_ms: int, listed: Sequence[Listed] | None = None) -> SweepReport:
        """Deletes every object of a deleted partition except its manifest, or only the `listed` ones, once the deletion is
        older than `grace_ms`."""
        return await self._sweeper.sweep_deleted(grace_ms, listed)

    async def repair(
        self, local: LocalEvidence, *, apply: bool, accepted: Sequence[OffsetRange] = ()
    ) -> tuple[RepairReport, Manifest | None]:
        """Plans a manifest that contains everything seen before, and verifies every object that it names. `apply` commits the
        manifest under a new line and returns it. `accepted` are the offsets to give up."""
        return await self._repairer.repair(local, apply=apply, accepted=accepted)

    def _continues(self, manifest: Manifest, job: ExtendJob) -> bool:
        """Whether `job` may begin at the manifest's end. FencedWriter if this writer may no longer extend it."""
        check_writer(manifest, self.writer)
        check_epoch(manifest, job.leader_epoch)
        return may_begin(manifest, job.base, job.log_start)

    async def _forget_if_deleted(self, offloaded: Offloaded) -> None:
        manifest = self._loop.manifest
        if manifest is not None and manifest.state is State.DELETED:
            with contextlib.suppress(LogError):  # the partition's sweep deletes what is left
                await self._offloader.forget(offloaded)
