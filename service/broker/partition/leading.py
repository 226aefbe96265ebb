"""Reconciles a new leader's log with the bucket. Where they contradict each other, the bucket wins (I9).

A local log that ends below the manifest's end, or whose batches there have another epoch, is discarded. The new log begins at
the manifest's end, with the epochs and producers that the newest sidecar holds for exactly that offset. A missing or truncated
epoch history is not a contradiction, and the log is kept. Its history is rebuilt from the newest sidecar and the log's own
batches before the partition leads, because every later sidecar repeats the history.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from service.broker.partition.partition import Partition
from service.broker.partition.record_loss import lost_again
from service.broker.partition.recovered_end import forget_recovered_end, read_recovered_end, write_recovered_end
from storage_tiers import events
from storage_tiers.cold.manifest.model import Manifest
from storage_tiers.cold.manifest.summary import ManifestSummary
from storage_tiers.cold.segments.sidecar import Sidecar
from storage_tiers.errors import LeaderNotAvailable, StorageError, TierCorrupt
from storage_tiers.hot.producer_snapshot import end_transactions
from storage_tiers.types import NO_EPOCH, EpochEntry

log = logging.getLogger(__name__)


def agrees(partition: Partition, manifest: Manifest | ManifestSummary) -> bool:
    """Whether the local log is known to hold or continue the manifest's records, and has their epochs."""
    hot = partition.log.hot
    if manifest.end == 0 or hot.log_start_offset >= manifest.end:
        return True
    if hot.end_offset < manifest.end or hot.epoch_at(manifest.end - 1) != manifest.last_record_epoch:
        return False
    return hot.epoch_at(max(hot.log_start_offset, manifest.log_start)) != NO_EPOCH


def disagrees(partition: Partition, manifest: Manifest) -> bool:
    """Whether the local log contradicts the manifest: it is shorter, or its own batches have another epoch. The epochs are read
    from the batches, because the log's epoch history may be missing."""
    hot = partition.log.hot
    if hot.end_offset < manifest.end:
        return True
    try:
        held = hot.reader.epoch_on_disk(max(manifest.end - 1, hot.local_start_offset))
    except StorageError as error:
        events.warning(log, "partition.work_failed", partition=partition.partition, work="comparing", error=error)
        return False
    if held is None:
        return False
    base, epoch = held
    return epoch != manifest.last_record_epoch if base < manifest.end else epoch < manifest.last_record_epoch


def has_hole(partition: Partition) -> bool:
    """Whether the last known manifest and the local log leave a gap above log start. The store's own manifest may close it."""
    hot, tier = partition.log.hot, partition.log.tier
    return hot.local_start_offset > max(hot.log_start_offset, tier.end if tier is not None else 0)


def recover_from_store(partition: Partition) -> None:
    """Starts the partition's recovery, because the store may hold records that are missing locally."""
    tier = partition.log.tier
    partition.recover(
        LeaderNotAvailable(
            f"{partition.partition}: its local log has not been compared with the bucket up to offset "
            f"{tier.end if tier else 0}; it leads once the store answers"
        )
    )


def _epoch_before(epochs: Sequence[EpochEntry], end: int) -> int:
    return max((entry.epoch for entry in epochs if entry.start_offset < end), default=NO_EPOCH)


async def reconcile(partition: Partition) -> None:
    """Reconciles the local log with the manifest where they disagree, then lets the partition lead."""
    tiered = partition.log
    _check_arrival(partition)
    completed: ManifestSummary | None = None
    while (tier := tiered.tier) is not None and tier is not completed and not agrees(partition, tier):
        # The log may have to be discarded. Refuse appends and reads, even if the store fails now.
        recover_from_store(partition)
        assert tiered.cold is not None
        manifest = await tiered.cold.manifest()
        state = await tiered.cold.newest_state(manifest)
        if tiered.tier is not tier or manifest.commit != tier.commit or agrees(partition, tier):
            continue  # the manifest or the log has changed: compare again
        if _epoch_before(state.epochs, manifest.end) != manifest.last_record_epoch:
            raise TierCorrupt(
                f"{partition.partition}: the manifest and its last sidecar disagree on the leader epoch before offset "
                f"{manifest.end}; nothing is discarded, run `tidelog fsck`"
            )
        if disagrees(partition, manifest):
            _discard(partition, manifest, state)
        else:
            await _complete(partition, manifest, state)
            completed = tier
    if tier is not None and tiered.hot.log_start_offset < tier.log_start <= tiered.hot.end_offset:
        tiered.hot.raise_log_start(tier.log_start)
    if partition.is_recovering:
        lead(partition)


def lead(partition: Partition) -> None:
    """Lets the partition lead after its opening or its wait for the bucket. Raises StorageError if the disk refuses the note of
    a loss."""
    if partition.recovered_end is not None:
        write_recovered_end(partition, partition.recovered_end)
    partition.reconciled()


def note_move(partition: Partition, moved_end: int) -> None:
    """Sets the offset at which another node handed the partition over to this one. `moved_end` is 0 if none did, or if the loss
    of records below that offset is accepted."""
    end = partition.log.hot.end_offset
    if partition.leads and moved_end == 0 and end < partition.moved_end:
        partition.recovered_end = lost_again(partition.recovered_end, end)  # if the bucket has no more records
    partition.moved_end = moved_end


def has_to_arrive(partition: Partition) -> bool:
    """Whether another node has handed the partition over, and its log has not begun here yet."""
    return partition.log.hot.end_offset < partition.moved_end


def _check_arrival(partition: Partition) -> None:
    """Raises TierCorrupt if the bucket lacks records that the former leader had offloaded before it handed the partition over.
    If the partition led without them, their offsets would be assigned a second time."""
    tier, end = partition.log.tier, partition.moved_end
    found = 0 if tier is None else tier.end
    if end > max(found, partition.log.hot.end_offset):
        topic, number = partition.partition
        raise TierCorrupt(
            f"{partition.partition}: the bucket's manifest ends at offset {found}, below {end}, where the former leader handed "
            "the partition over; it leads once the bucket has the missing records. If they are lost for good, give them up "
            f"with `tidelog cold repair {topic} --accept-loss {number}:{found}-{end} --apply`"
        )


def _discard(partition: Partition, manifest: Manifest, state: Sidecar) -> None:
    hot = partition.log.hot
    if has_to_arrive(partition) and partition.recovered_end is None:
        _arrive(partition, manifest, state)
        return
    if hot.end_offset > hot.local_start_offset:  # an empty log, as after a take-over, loses nothing
        events.warning(
            log,
            "log.discarded",
            partition=partition.partition,
            local_start=hot.local_start_offset,
            local_end=hot.end_offset,
            tiered_end=manifest.end,
        )
    end = lost_again(read_recovered_end(partition), manifest.end)
    write_recovered_end(partition, end)
    _begin_at_end(partition, manifest, state)
    partition.recovered_end = end


def _arrive(partition: Partition, manifest: Manifest, state: Sidecar) -> None:
    """Begins the log of a partition that was handed over to this node. The former leader has offloaded its whole log, and this
    node has written nothing since. So nothing is lost, even if this disk has an older log of the partition."""
    forget_recovered_end(partition)
    _begin_at_end(partition, manifest, state)
    partition.recovered_end = None
    events.info(log, "partition.arrived", partition=partition.partition, offset=manifest.end)


def _begin_at_end(partition: Partition, manifest: Manifest, state: Sidecar) -> None:
    # Only records below a last stable offset are offloaded, so every transaction in the bucket has ended. The markers of some
    # transactions may have been above that offset and are gone with the log. If these transactions stayed open, they would
    # block readers and offloads for ever.
    producers = end_transactions(state.producer_state)
    partition.log.hot.truncate_fully_and_start_at(
        manifest.end, epochs=state.epochs, producer_state=producers, log_start_offset=manifest.log_start
    )
    partition.begin_at(manifest.end)


async def _complete(partition: Partition, manifest: Manifest, state: Sidecar) -> None:
    """Rebuilds the epoch history: from the sidecar up to the manifest's end, from the local batches above it. The partition is
    recovering, so nothing is appended meanwhile."""
    hot = partition.log.hot
    scan = hot.reader.scan_epochs(manifest.end)
    try:
        epochs = await asyncio.get_running_loop().run_in_executor(None, scan.after, state.epochs)
    finally:
        scan.release()
    hot.replace_epochs(epochs)
    events.info(log, "epochs.completed", partition=partition.partition, epochs=len(epochs), tiered_end=manifest.end)
