"""Newer manifests are taken over: saved beside the segments and synced first, then current, so that eviction may follow them.

Memory keeps a summary of a manifest; whoever needs its ranges gets the saved copy. Invariants: of one partition one manifest at
a time is saved, and none that does not contain the one before; what is saved becomes current, also when the caller leaves;
nothing is written for a topic that was deleted.

Not promised: that the saved copy is sound when it is read. Then the store is asked, which is the caller's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from service.broker.background.lineage import StoreLineage
from service.broker.partition.partition import Partition
from service.broker.partition.saved_manifest import read_manifest, write_manifest
from storage_tiers import events
from storage_tiers.cold.manifest.model import Manifest, ManifestWriter
from storage_tiers.cold.manifest.transitions import check_not_fenced, check_writer
from storage_tiers.errors import FencedWriter, LogError, TierCorrupt
from storage_tiers.files import Files

log = logging.getLogger(__name__)

T = TypeVar("T")


class AcceptedManifests:
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
        """Makes it current if it is newer. FencedWriter, which ends the node, if a newer incarnation than the writer's has
        committed it; StoreBehind if it does not contain the one before."""
        partition.check_exists()
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
                return  # answers may overtake each other
            self._lineage.check_follows(partition, manifest)
            if known is not None and manifest.commit == known.commit:
                return
            await self._save(partition, manifest)
            partition.log.apply(manifest)
        self._on_newer(partition)

    async def current(self, partition: Partition) -> Manifest | None:
        """The saved copy of the current manifest; None if the disk has lost or changed it."""
        partition.check_exists()
        directory, ids = partition.log.hot.directory, partition.ids
        async with self._lock(partition):  # what is being saved becomes current first
            partition.check_exists()
            tier = partition.log.tier
            try:
                manifest = await asyncio.get_running_loop().run_in_executor(None, read_manifest, directory, ids)
            except TierCorrupt as error:
                events.warning(log, "manifest.unusable", partition=partition.partition, path=directory, error=error)
                return None
            return manifest if manifest is not None and tier is not None and tier.is_of(manifest) else None

    async def save_again(self, partition: Partition, manifest: Manifest) -> bool:
        """The copy of the current manifest is lost: made anew. False if another one is current by now."""
        partition.check_exists()
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
            # A manifest that is saved late would replace what the next start has saved.
            await asyncio.wait(self._saving)

    def forget(self, partition: Partition) -> None:
        self._locks.pop(partition, None)

    def _lock(self, partition: Partition) -> asyncio.Lock:
        return self._locks.setdefault(partition, asyncio.Lock())

    async def _to_its_end(self, saving: Coroutine[Any, Any, T]) -> T:
        """Also when the caller is cancelled. No cancellation reaches a thread that writes: a lock that was let go meanwhile
        would let an older manifest replace a newer one."""
        task = asyncio.get_running_loop().create_task(saving)
        self._saving.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._saving.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may have left

    async def _save(self, partition: Partition, manifest: Manifest) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._write, partition, manifest)

    def _write(self, partition: Partition, manifest: Manifest) -> None:
        # Looked at again in the thread: the directory's name may have become another topic's in the queue.
        partition.check_exists()
        write_manifest(self._files, partition.log.hot.directory, manifest)
