"""Becoming leader: the tier wins (I9).

A local log that ends below the manifest's end, or whose history at that end is another epoch's, is discarded and begun
anew at the manifest's end, with the epochs and the producers that the newest sidecar holds for exactly that offset.
"""

from __future__ import annotations

import logging

from service.broker.partition import Partition
from storage_tiers.cold.manifest import Root
from storage_tiers.errors import LeaderNotAvailable

log = logging.getLogger(__name__)


def agrees(partition: Partition, root: Root) -> bool:
    """Whether the local log holds, or continues, what the manifest names."""
    hot = partition.log.hot
    if root.end == 0 or hot.log_start_offset >= root.end:
        return True
    if hot.end_offset < root.end:
        return False
    return hot.epoch_at(root.end - 1) == root.last_record_epoch


def wait_for_store(partition: Partition) -> None:
    """Blocks the partition until the store has been asked: what it lacks locally may be there."""
    root = partition.log.root
    waiting = LeaderNotAvailable(
        f"{partition.partition}: its local log does not reach offset {root.end if root else 0}, which the bucket holds; "
        "it leads once the store answers"
    )
    partition.reads_blocked = partition.unavailable = waiting


async def adopt(partition: Partition) -> None:
    """Takes the manifest over where the local log disagrees with it, then lets the partition lead."""
    tiered = partition.log
    root, hot = tiered.root, tiered.hot
    if root is not None and root.log_start > hot.log_start_offset and root.log_start <= hot.end_offset:
        hot.raise_log_start(root.log_start)
    if root is not None and not agrees(partition, root):
        assert tiered.cold is not None
        state = await tiered.cold.newest_state(root)
        log.warning(
            "%s: the local log [%d, %d) is discarded for the bucket's, which ends at %d",
            partition.partition,
            hot.local_start_offset,
            hot.end_offset,
            root.end,
        )
        hot.truncate_fully_and_start_at(
            root.end, epochs=state.epochs, producer_state=state.producer_snapshot, log_start_offset=root.log_start
        )
        partition.begin_at(root.end)
    if isinstance(partition.unavailable, LeaderNotAvailable):
        partition.unavailable = partition.reads_blocked = None
