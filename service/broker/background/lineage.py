"""Which partitions the store shows less of than this node has seen (I10), and what is not done to them meanwhile.

What was seen is the last manifest that was accepted and saved beside the partition's segments; a digest of it goes with every
question about the manifest, and the answer may be StoreBehind. From then on nothing is evicted, expired, swept or committed
there, until the store shows a manifest again that contains the one seen. Records are taken and served all the while.

Not promised: that a store which goes backwards is noticed before it is asked. What is deleted or evicted is asked for first.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from service.broker.partition.partition import Partition
from service.broker.partition.saved_manifest import FILE_NAME
from storage_tiers import events
from storage_tiers.cold.manifest import lineage
from storage_tiers.cold.manifest.lineage import SeenManifest
from storage_tiers.cold.manifest.model import Manifest
from storage_tiers.errors import DeletedInStore, LeaderNotAvailable, ManifestDamaged, StoreBehind, TierUnavailable

log = logging.getLogger(__name__)


class StoreLineage:
    """`on_behind` is called when a partition begins to be behind."""

    def __init__(self, on_behind: Callable[[Partition], None]) -> None:
        self._on_behind = on_behind
        self._behind: dict[Partition, StoreBehind] = {}
        self._repaired: dict[Partition, str] = {}
        self._in_repair: set[Partition] = set()

    def __contains__(self, partition: object) -> bool:
        """Whether nothing of it may be evicted: the store shows less of it than was seen, as far as it was asked, or a repair
        counts on what is here."""
        return partition in self._behind or partition in self._in_repair

    def __len__(self) -> int:
        return len(self._behind)

    def reasons(self) -> dict[str, str]:
        """By partition."""
        return {str(partition.partition): str(error) for partition, error in self._behind.items()}

    def reason(self, partition: Partition) -> StoreBehind | None:
        return self._behind.get(partition)

    def check(self, partition: Partition) -> None:
        """StoreBehind if nothing of it may be deleted now."""
        error = self._behind.get(partition)
        if error is not None:
            raise StoreBehind(str(error))

    def seen(self, partition: Partition) -> SeenManifest | None:
        """The digest that accompanies a request about the partition's manifest."""
        tier = partition.log.tier
        return None if tier is None else tier.seen(os.path.join(partition.log.hot.directory, FILE_NAME))

    @contextmanager
    def repairing(self, partition: Partition) -> Iterator[None]:
        """While a repair is made: nothing of it is evicted, and nobody else asks, or commits on what the repair replaces.
        TierUnavailable if another repair of it is under way."""
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
        """While a question is asked: notes that the store is behind, if that is the answer, and says so once.

        The manifest of a topic that lives here is deleted by nobody, and none is damaged or another partition's while its
        store shows what was seen: these are StoreBehind, too. TierUnavailable while it is repaired."""
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
        """StoreBehind if offsets are missing between what the store shows and what the local log begins with: they left this
        disk once the store had shown them, so there was a newer manifest, also where none is saved here any more."""
        hot, end = partition.log.hot, 0 if manifest is None else manifest.end
        if partition.deleted or hot.local_start_offset <= max(hot.log_start_offset, end):
            return
        shown = "no manifest" if manifest is None else f"commit {manifest.commit}, up to offset {end}"
        raise StoreBehind(
            f"{partition.partition}: the object store shows {shown}, and the local log begins at offset "
            f"{hot.local_start_offset}: the records between them left this disk after the store had shown them. The store "
            "has gone "
            ""
            "backwards, or this directory belongs to another node: nothing is deleted or evicted. Put the newest version "
            "of the partition's manifest back, with every object that was there then"
        )

    def check_follows(self, partition: Partition, manifest: Manifest) -> None:
        """StoreBehind if `manifest` is newer than the one seen by number alone. What the digest cannot tell was looked at where
        the manifest was read."""
        seen = self.seen(partition)
        if seen is None or (manifest.line != seen.line and manifest.line == self._repaired.get(partition)):
            return
        fault = lineage.fault(manifest, seen)
        if fault is not None:
            raise StoreBehind(
                f"{partition.partition}: {fault}; nothing is deleted or evicted until it shows that again"
            )

    def repaired(self, partition: Partition, line: str) -> None:
        """A repair of this node has begun this line: its manifest follows whatever was seen of another one."""
        self._repaired[partition] = line

    def caught_up(self, partition: Partition) -> None:
        """The store has shown a manifest that contains the one seen, or, where none was, has answered."""
        if self._behind.pop(partition, None) is not None:
            events.info(log, "store.caught_up", partition=partition.partition)

    def forget(self, partition: Partition) -> None:
        self._behind.pop(partition, None)
        self._repaired.pop(partition, None)

    def begin(self, partition: Partition, error: StoreBehind) -> StoreBehind:
        """The store shows less of it than was seen. Said once."""
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
        """Of a topic whose file the store shows less of: they wait as for a manifest, as far as they have one."""
        for partition in partitions:
            if partition.log.hot.settings.remote_storage_enable or partition.log.tier is not None:
                self.begin(partition, error)
