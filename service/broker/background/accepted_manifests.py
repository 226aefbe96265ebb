"""Accepts newer manifests: each is saved beside the segments and synced before it becomes current, so eviction can rely on it.

Memory keeps only a summary of a manifest; its segments are read from the saved copy. Invariants: each partition saves one
manifest at a time, and only one that contains its predecessor. A saved manifest becomes current even if the caller is
cancelled. Nothing is written for a deleted topic.

The disk may damage the saved copy later. The caller then reads the store's manifest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from service.broker.background.lineage import StoreLineage
from service.broker.partition.partition import Partition
from storage_tiers import events
from storage_tiers.cold.manifest.model import Manifest, ManifestWriter
from storage_tiers.cold.manifest.saved_manifest import read_manifest, write_manifest
from storage_tiers.cold.manifest.summary import ManifestSummary
from storage_tiers.cold.manifest.transitions import check_not_fenced, check_writer
from storage_tiers.errors import FencedWriter, LogError, TierCorrupt
from storage_tiers.files import Files

log = logging.getLogger(__name__)

T = TypeVar("T")


class AcceptedManifests:
    """The manifests that this node has accepted, one per partition, on disk and as summaries. Errors: FencedWriter,
    StoreBehind, StorageError if the disk refuses."""

    def __init__(
        self,
        lineage: StoreLineage,
        files: Files,
        *,
        on_fatal: Callable[[LogError], None],
        on_newer: Callable[[Partition], None],
    ) -> None:
        """`on_newer` is called when a newer manifest of a partition has become current."""
        self._lineage = lineage
        self._files = files
        self._on_fatal = on_fatal
        self._on_newer = on_newer
        self._locks: dict[Partition, asyncio.Lock] = {}
        self._saving: set[asyncio.Task[Any]] = set()

    async def accept(self, partition: Partition, manifest: Manifest, writer: ManifestWriter) -> None:
        """Makes the manifest current if it is newer. Raises FencedWriter, which ends the node, if a newer incarnation than the
        writer's has committed it, and StoreBehind if the manifest does not contain the previous one."""
        _check_exists(partition)
        try:
            check_not_fenced(manifest, writer)
        except FencedWriter as error:
            self._on_fatal(error)
            raise
        check_writer(manifest, writer)
        await self._to_its_end(self._take_over(partition, manifest))

    async def _take_over(self, partition: Partition, manifest: Manifest) -> None:
        async with self._lock(partition):
            known = partition.log.tier
            if known is not None and manifest.commit < known.commit:
                return  # a later request's answer may arrive first
            self._lineage.check_follows(partition, manifest)
            if known is not None and manifest.commit == known.commit:
                return
            await self._save(partition, manifest)
            partition.log.apply(manifest)
        self._on_newer(partition)

    async def current(self, partition: Partition) -> Manifest | None:
        """The saved copy of the current manifest; None if the disk has lost or changed it."""
        _check_exists(partition)
        directory, ids = partition.log.hot.directory, partition.ids
        async with self._lock(partition):  # a manifest that is being saved becomes current first
            _check_exists(partition)
            tier = partition.log.tier
            try:
                manifest = await asyncio.get_running_loop().run_in_executor(None, read_manifest, directory, ids)
            except TierCorrupt as error:
                events.warning(log, "manifest.unusable", partition=partition.partition, path=directory, error=error)
                return None
            return manifest if manifest is not None and tier is not None and tier.is_of(manifest) else None

    async def save_again(self, partition: Partition, manifest: Manifest) -> bool:
        """Saves the current manifest again after its copy was lost. Returns False if another manifest has become current."""
        _check_exists(partition)
        return await self._to_its_end(self._replace(partition, manifest))

    async def _replace(self, partition: Partition, manifest: Manifest) -> bool:
        async with self._lock(partition):
            tier = partition.log.tier
            if tier is None or not tier.is_of(manifest):
                return False
            await self._save(partition, manifest)
            return True

    async def close(self) -> None:
        if self._saving:
            # A late write would replace a manifest that the next start has saved.
            await asyncio.wait(self._saving)

    def forget(self, partition: Partition) -> None:
        self._locks.pop(partition, None)

    def _lock(self, partition: Partition) -> asyncio.Lock:
        return self._locks.setdefault(partition, asyncio.Lock())

    async def _to_its_end(self, saving: Coroutine[Any, Any, T]) -> T:
        """Runs `saving` to its end even if the caller is cancelled. Cancellation does not stop a writing thread, and releasing
        the lock early would let an older manifest replace a newer one."""
        task = asyncio.get_running_loop().create_task(saving)
        self._saving.add(task)
        task.add_done_callback(self._save_ended)
        return await asyncio.shield(task)

    def _save_ended(self, task: asyncio.Task[Any]) -> None:
        self._saving.discard(task)
        if not task.cancelled():
            task.exception()  # marks the exception as retrieved, because the caller may have been cancelled

    async def _save(self, partition: Partition, manifest: Manifest) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._write, partition, manifest)

    def _write(self, partition: Partition, manifest: Manifest) -> None:
        # Checked again in the thread, because the directory may belong to a newer topic of the same name by now.
        _check_exists(partition)
        write_manifest(self._files, partition.log.hot.directory, manifest)


def say_committed(partition: Partition, manifest: Manifest, before: ManifestSummary | None) -> None:
    """Logs the commit if the manifest is newer than the one known before."""
    if before is None or manifest.commit > before.commit:
        events.info(
            log,
            "manifest.committed",
            partition=partition.partition,
            commit=manifest.commit,
            log_start=manifest.log_start,
            end_offset=manifest.end,
        )


def _check_exists(partition: Partition) -> None:
    """Raises UnknownTopicOrPartition if the topic is gone."""
    if partition.deleted:
        partition.check_readable()
