"""Ends the first phase of a partition: the partition leads at once, waits for a comparison, or recovers from a store that may
hold more records."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from service.broker.partition.leading import agrees, has_hole, lead, recover_from_store
from service.broker.partition.partition import Partition
from service.broker.partition.partitions import Partitions
from service.broker.partition.phase import Phase
from service.broker.partition.record_loss import lost_again
from service.broker.partition.recovered_end import read_recovered_end
from service.directory.home import HomeGuard
from storage_tiers import events
from storage_tiers.cold.manifest.saved_manifest import read_manifest
from storage_tiers.errors import LeaderNotAvailable, StorageError, TierCorrupt
from storage_tiers.types import TopicPartition

log = logging.getLogger(__name__)


def opened(partition: Partition, leads: bool, *, partitions: Partitions, home: HomeGuard | None) -> None:
    """Ends the opening phase of a partition whose log was opened. If the bucket may hold more than the disk, the partition
    waits for the bucket. If this node does not lead it, only its manifest is loaded. `home` is None without a store."""
    hot, tiered = partition.log.hot, partition.log.hot.settings.remote_storage_enable
    lost = partitions.ends_before_flushed(partition)
    if lost and partitions.flushed_before(partition) > hot.end_offset:
        flushed = partitions.flushed_before(partition)
        events.error(log, "log.shrunk", partition=hot.partition, local_end=hot.end_offset, flushed_end=flushed)
    noted = read_recovered_end(partition)
    if lost or partitions.ends_before_committed(partition):
        partition.recovered_end = lost_again(noted, hot.end_offset)  # if the bucket has no more records
    elif noted is not None:
        partition.recovered_end = noted if noted.offset <= hot.end_offset else lost_again(noted, hot.end_offset)
    if leads and hot.end_offset < partition.moved_end:  # handed over to this node, and its log has not begun here
        recover_from_store(partition)
        return
    if home is None:
        if leads:
            lead(partition)
        return
    try:
        # Needed even if tiering is now off for the topic: its offloaded records are read from the bucket.
        manifest = read_manifest(hot.directory, partition.ids)
    except TierCorrupt as error:
        events.warning(log, "manifest.unusable", partition=hot.partition, path=hot.directory, error=error)
        if leads:
            recover_from_store(partition)
        return
    partition.log.apply(manifest)
    if not leads:
        return
    tier = partition.log.tier
    if (tiered and lost) or (tier is not None and not agrees(partition, tier)):
        recover_from_store(partition)
        return
    if tier is not None and tier.log_start <= hot.end_offset:
        hot.raise_log_start(tier.log_start)
    if has_hole(partition) and tiered:
        recover_from_store(partition)
        return
    why = home.refusal(hot.partition) or _put_back(hot.partition, partitions.directories.moved.get(hot.partition))
    if why is None:
        lead(partition)
    else:
        partition.compare(why)


def led_again(partition: Partition, home: HomeGuard | None) -> None:
    """Ends the opening phase of a partition that another node led last. That node may have written to the bucket without a
    trace on the local disk, so the partition waits for the bucket. `home` is None without a store."""
    tiered = partition.log.hot.settings.remote_storage_enable or partition.log.tier is not None
    if (home is not None and tiered) or partition.log.hot.end_offset < partition.moved_end:
        recover_from_store(partition)
    else:
        lead(partition)


def lead_uncompared(partitions: Iterable[Partition]) -> bool:
    """Lets the partitions that wait for the comparison with the bucket lead without it. Returns False if some still wait
    because the disk refuses the note of their loss. Without the note, a crash would erase every trace of the loss."""
    lead_all = True
    for partition in partitions:
        if partition.phase in (Phase.COMPARING, Phase.FAILED_COMPARING):
            try:
                lead(partition)
            except StorageError as error:
                events.warning(log, "partition.work_failed", partition=partition.partition, work="leading", error=error)
                lead_all = False
    return lead_all


def _put_back(partition: TopicPartition, moved: str | None) -> LeaderNotAvailable | None:
    """Returns the reason why a partition must be compared, or None. `moved` describes how its directory differs from before;
    None if it does not."""
    if moved is None:
        return None
    return LeaderNotAvailable(
        f"{partition}: its directory was copied or put back ({moved}); it accepts records once it has been compared with "
        "the store"
    )
