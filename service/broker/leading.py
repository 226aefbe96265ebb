"""Becoming leader: the tier wins (I9).

A local log that ends below the manifest's end, or whose history at that end is another epoch's, is discarded and begun
anew at the manifest's end, with the epochs and the producers that the newest sidecar holds for exactly that offset.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from service.broker.partition import Partition
from storage_tiers import events
from storage_tiers.cold.manifest.model import Root
from storage_tiers.errors import LeaderNotAvailable, TierCorrupt
from storage_tiers.types import NO_EPOCH, EpochEntry

log = logging.getLogger(__name__)


def agrees(partition: Partition, root: Root) -> bool:
    """Whether the local log holds, or continues, what the manifest names."""
    hot = partition.log.hot
    if root.end == 0 or hot.log_start_offset >= root.end:
        return True
    if hot.end_offset < root.end:
        return False
    return hot.epoch_at(root.end - 1) == root.last_record_epoch


def has_hole(partition: Partition) -> bool:
    """Whether neither the local log nor the last root seen holds all from log start on: the store's own root may."""
    hot, root = partition.log.hot, partition.log.root
    return hot.local_start_offset > max(hot.log_start_offset, root.end if root is not None else 0)


def waits(partition: Partition) -> bool:
    """Whether the partition serves nothing until the store has been asked."""
    return isinstance(partition.reads_blocked, LeaderNotAvailable)


def wait_for_store(partition: Partition) -> None:
    """Blocks the partition until the store has been asked: what it lacks locally may be there."""
    root = partition.log.root
    partition.wait(
        LeaderNotAvailable(
            f"{partition.partition}: its local log is not what the bucket holds up to offset {root.end if root else 0}; "
            "it leads once the store answers"
        )
    )


def _epoch_before(epochs: Sequence[EpochEntry], end: int) -> int:
    return max((entry.epoch for entry in epochs if entry.start_offset < end), default=NO_EPOCH)


async def adopt(partition: Partition) -> None:
    """Takes the manifest over where the local log disagrees with it, then lets the partition lead."""
    tiered = partition.log
    while (root := tiered.root) is not None and not agrees(partition, root):
        # Nobody may append to, or read, what is about to go; if the store fails us now, it stays so.
        wait_for_store(partition)
        assert tiered.cold is not None
        state = await tiered.cold.newest_state(root)
        if tiered.root is not root or agrees(partition, root):
            continue  # what was found wrong is so no more
        if _epoch_before(state.epochs, root.end) != root.last_record_epoch:
            raise TierCorrupt(
                f"{partition.partition}: the manifest and the sidecar of its end do not agree on the leader epoch before "
                f"offset {root.end}; nothing is discarded for them, run `tidelog fsck`"
            )
        hot = tiered.hot
        events.warning(
            log,
            "log.discarded",
            partition=partition.partition,
            local_start=hot.local_start_offset,
            local_end=hot.end_offset,
            tiered_end=root.end,
        )
        hot.truncate_fully_and_start_at(
            root.end, epochs=state.epochs, producer_state=state.producer_snapshot, log_start_offset=root.log_start
        )
        partition.begin_at(root.end)
    if root is not None and tiered.hot.log_start_offset < root.log_start <= tiered.hot.end_offset:
        tiered.hot.raise_log_start(root.log_start)
    if waits(partition):
        partition.lead()
