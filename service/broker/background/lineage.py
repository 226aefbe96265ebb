"""Tracks the partitions for which the store shows less than this node has seen (I10), and blocks deletions there.

The manifest seen is the last one accepted and saved beside the partition's segments. Every request about the manifest carries
a digest of it, and the answer may be StoreBehind. From then on nothing of the partition is evicted, expired, swept or committed
until the store again shows a manifest that contains the one seen. Appends and reads continue meanwhile.

The next request about a partition notices that its store went backwards. Every deletion in the bucket, and every eviction of
offloaded segments, makes a request first.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from service.broker.partition.partition import Partition
from storage_tiers import events
from storage_tiers.cold.manifest import lineage
from storage_tiers.cold.manifest.lineage import SeenManifest
from storage_tiers.cold.manifest.model import Manifest
from storage_tiers.cold.manifest.saved_manifest import FILE_NAME
from storage_tiers.errors import DeletedInStore, LeaderNotAvailable, ManifestDamaged, StoreBehind, TierUnavailable

log = logging.getLogger(__name__)


class StoreLineage:
    """`on_behind` is called when the store falls behind for a partition."""

    def __init__(self, on_behind: Callable[[Partition], None]) -> None:
        self._on_behind = on_behind
        self._behind: dict[Partition, StoreBehind] = {}
        self._repaired: dict[Partition, str] = {}
        self._in_repair: set[Partition] = set()

    def __contains__(self, partition: object) -> bool:
        """Whether eviction is blocked: the store's last answer showed less than was seen, or a repair relies on local data."""
        return partition in self._behind or partition in self._in_repair

    def __len__(self) -> int:
        return len(self._behind)

    def reasons(self) -> dict[str, str]:
        """The reasons by partition."""
        return {str(partition.partition): str(error) for partition, error in self._behind.items()}

    def reason(self, partition: Partition) -> StoreBehind | None:
        return self._behind.get(partition)

    def check(self, partition: Partition) -> None:
        """Raises StoreBehind if nothing of the partition may be deleted now."""
        error = self._behind.get(partition)
        if error is not None:
            raise StoreBehind(str(error))

    def seen(self, partition: Partition) -> SeenManifest | None:
        """The digest that accompanies a request about the partition's manifest."""
        tier = partition.log.tier
        return None if tier is None else tier.seen(os.path.join(partition.log.hot.directory, FILE_NAME))

    @contextmanager
    def repairing(self, partition: Partition) -> Iterator[None]:
        """Marks a repair: inside the block nothing of the partition is evicted, and no other request reads or extends the
        manifest that the repair replaces. Raises TierUnavailable if another repair of the partition is under way."""
        self._check_not_in_repair(partition)
        self._in_repair.add(partition)
        try:
            yield
        finally:
            self._in_repair.discard(partition)

    def _check_not_in_repair(self, partition: Partition) -> None:
        if partition in self._in_repair:
            raise TierUnavailable(f"{partition.partition}: its manifest is being repaired; retry")

    @contextmanager
    def asking(self, partition: Partition) -> Iterator[SeenManifest | None]:
        """Wraps a request: records StoreBehind if that is the answer, and logs it once.

        The manifest of a live topic is never deleted. So a deleted manifest, a damaged one, or one of another partition counts
        as StoreBehind, too. Raises TierUnavailable during a repair."""
        self._check_not_in_repair(partition)
        try:
            yield self.seen(partition)
        except DeletedInStore as error:
            if partition.deleted:
                raise
            raise self.begin(partition, StoreBehind(str(error))) from error
        except ManifestDamaged as error:
            raise self.begin(partition, StoreBehind(str(error))) from error
        except StoreBehind as error:
            self.begin(partition, error)
            raise

    def check_joins(self, partition: Partition, manifest: Manifest | None) -> None:
        """Raises StoreBehind if offsets are missing between the store's end and the local log's start. The records between them
        left this disk only after the store had shown them. So a newer manifest existed, even if none is saved here now."""
        hot, end = partition.log.hot, 0 if manifest is None else manifest.end
        if partition.deleted or hot.local_start_offset <= max(hot.log_start_offset, end):
            return
        shown = "no manifest" if manifest is None else f"commit {manifest.commit}, up to offset {end}"
        raise StoreBehind(
            f"{partition.partition}: the object store shows {shown}, and the local log begins at offset "
            f"{hot.local_start_offset}: the records between them left this disk after the store had shown them. The store "
            "has gone backwards, or this directory belongs to another node: nothing is deleted or evicted. Put the newest "
            "version of the partition's manifest back, with every object that existed then"
        )

    def check_follows(self, partition: Partition, manifest: Manifest) -> None:
        """Raises StoreBehind if `manifest` has a newer commit number but does not contain the one seen. All else was checked
        when the manifest was read."""
        seen = self.seen(partition)
        if seen is None or (manifest.line != seen.line and manifest.line == self._repaired.get(partition)):
            return
        fault = lineage.fault(manifest, seen)
        if fault is not None:
            raise StoreBehind(
                f"{partition.partition}: {fault}; nothing is deleted or evicted until it shows that again"
            )

    def repaired(self, partition: Partition, line: str) -> None:
        """Records that a repair on this node committed a manifest of this line. That manifest counts as the successor of any
        manifest seen of another line."""
        self._repaired[partition] = line

    def caught_up(self, partition: Partition) -> None:
        """Records that the store showed a manifest that contains the one seen, or answered at all if none was seen."""
        if self._behind.pop(partition, None) is not None:
            events.info(log, "store.caught_up", partition=partition.partition)

    def forget(self, partition: Partition) -> None:
        self._behind.pop(partition, None)
        self._repaired.pop(partition, None)

    def begin(self, partition: Partition, error: StoreBehind) -> StoreBehind:
        """Records that the store shows less than was seen. Logged once."""
        if partition.deleted:
            return error
        if partition not in self._behind:
            events.error(log, "store.behind", partition=partition.partition, error=error)
        self._behind[partition] = error
        if partition.is_recovering:
            partition.recover(LeaderNotAvailable(str(error)))
        self._on_behind(partition)
        return error

    def begin_all(self, partitions: Iterable[Partition], error: StoreBehind) -> None:
        """Calls `begin` for the partitions of a topic whose file went backwards. Skips those that are not tiered and have no
        manifest."""
        for partition in partitions:
            if partition.log.hot.settings.remote_storage_enable or partition.log.tier is not None:
                self.begin(partition, error)
