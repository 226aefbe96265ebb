"""Newer roots are taken over: saved beside the segments and synced first, then current, so that eviction may follow them.

Memory keeps what sums a root up; whoever needs its ranges gets the saved copy. Invariants: of one partition one root at a time
is saved, and none that does not contain the one before; nothing is written for a topic that was deleted.

Not promised: that the saved copy is sound when it is read. Then the store is asked, which is the caller's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from service.broker.lineage import StoreLineage
from service.broker.partition import Partition
from service.broker.roots import read_root, write_root
from storage_tiers import events
from storage_tiers.cold.manifest.model import Ids, Root, Writer, check_writer
from storage_tiers.errors import FencedWriter, LogError, TierCorrupt
from storage_tiers.files import Files

log = logging.getLogger(__name__)


class AcceptedRoots:
    def __init__(
        self,
        lineage: StoreLineage,
        files: Files,
        *,
        ids_of: Callable[[Partition], Ids],
        on_fatal: Callable[[LogError], None],
    ) -> None:
        self._lineage = lineage
        self._files = files
        self._ids_of = ids_of
        self._on_fatal = on_fatal
        self._locks: dict[Partition, asyncio.Lock] = {}
        self._saving: set[asyncio.Future[None]] = set()

    async def accept(self, partition: Partition, root: Root, writer: Writer) -> bool:
        """Whether it is newer than the one before. FencedWriter, which ends the node, if a newer incarnation than the writer's
        has committed it; StoreBehind if it does not contain the one before."""
        partition.check_exists()
        if root.incarnation > (writer.incarnation or 0):
            fenced = FencedWriter(
                f"the manifest of {partition.partition} was committed by incarnation {root.incarnation}, this node is "
                f"{writer.incarnation}: a copy of its directory has run, or the cluster was taken over. Stop this "
                "node; the one that began last goes on"
            )
            self._on_fatal(fenced)
            raise fenced
        check_writer(root, writer)
        async with self._lock(partition):
            known = partition.log.tier
            if known is not None and root.commit < known.commit:
                return False  # answers may overtake each other
            self._lineage.check_follows(partition, root)
            if known is not None and root.commit == known.commit:
                return False
            await self._save(partition, root)
            partition.log.follow(root)
        return True

    async def current(self, partition: Partition) -> Root | None:
        """The saved copy of the current root; None if the disk has lost or changed it."""
        directory, ids = partition.log.hot.directory, self._ids_of(partition)
        async with self._lock(partition):  # what is being saved becomes current first
            partition.check_exists()
            tier = partition.log.tier
            try:
                root = await asyncio.get_running_loop().run_in_executor(None, read_root, directory, ids)
            except TierCorrupt as error:
                events.warning(log, "root.unusable", partition=partition.partition, path=directory, error=error)
                return None
            return root if root is not None and tier is not None and tier.is_of(root) else None

    async def save_again(self, partition: Partition, root: Root) -> bool:
        """The copy of the current root is lost: made anew. False if another one is current by now."""
        async with self._lock(partition):
            tier = partition.log.tier
            if tier is None or not tier.is_of(root):
                return False
            await self._save(partition, root)
            return True

    async def close(self) -> None:
        if self._saving:
            # In threads that no cancellation reaches: a root saved late would replace what the next start has saved.
            await asyncio.wait(self._saving)

    def forget(self, partition: Partition) -> None:
        self._locks.pop(partition, None)

    def _lock(self, partition: Partition) -> asyncio.Lock:
        return self._locks.setdefault(partition, asyncio.Lock())

    async def _save(self, partition: Partition, root: Root) -> None:
        saving = asyncio.get_running_loop().run_in_executor(None, self._write, partition, root)
        self._saving.add(saving)
        saving.add_done_callback(self._saved)
        await asyncio.shield(saving)

    def _saved(self, saving: asyncio.Future[None]) -> None:
        self._saving.discard(saving)
        if not saving.cancelled():
            saving.exception()  # of a topic that was deleted meanwhile nobody asks any more

    def _write(self, partition: Partition, root: Root) -> None:
        # Looked at again in the thread: the directory's name may have become another topic's in the queue.
        partition.check_exists()
        write_root(self._files, partition.log.hot.directory, root)
