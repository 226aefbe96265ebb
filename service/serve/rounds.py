"""The periodic background work of a node: one worker per kind, with its period."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

from service.broker.background.expiry_clock import ASK_S, TICK_S
from service.broker.partition.opening import lead_uncompared
from service.lifecycle.supervisor import Worker
from service.node import Node
from service.process import memory
from service.process.descriptors import TICK_S as DESCRIPTORS_TICK_S

#: Periods of background work, in seconds.
TIER_TICK_S = 1.0
SHORTEST_CHECKPOINT_PAUSE_S = 0.1
DISK_TICK_S = 2.0
FLUSH_TICK_S = 0.5
TOPIC_FILES_TICK_S = 1.0
OPEN_TICK_S = 5.0
HOME_TICK_S = 0.5
CLUSTER_TICK_S = 5.0
METADATA_TICK_S = 1.0
APPLIED_TICK_S = 1.0
EPOCHS_TICK_S = 1.0
RECOVERED_TICK_S = 1.0
FORGET_TICK_S = 1.0
#: Seconds between two checks whether `log.cleaner.backoff.ms` is over.
CLEANING_TICK_S = 0.1
#: Longest pause between sweeps, in seconds. With a grace period below four hours, the pause is a quarter of that period.
LONGEST_SWEEP_PAUSE_S = 3600.0


def rounds(node: Node) -> Sequence[Worker]:
    """The workers that `supervised` runs while the node serves."""
    broker, work, tier, configs = node.broker, node.work, node.tier, node.configs.broker
    coordinators, membership = broker.coordinators, node.ground.membership
    retention_s = configs.log_retention_check_interval_ms / 1000
    # One round saves all checkpoints, at the shorter of the two intervals.
    checkpoint_ms = min(
        configs.log_flush_offset_checkpoint_interval_ms, configs.log_flush_start_offset_checkpoint_interval_ms
    )
    checkpoint_s = max(SHORTEST_CHECKPOINT_PAUSE_S, checkpoint_ms / 1000)
    sweep_s = min(LONGEST_SWEEP_PAUSE_S, max(1.0, work.grace_ms() / 4000))

    leads_uncompared = False

    async def look_home() -> None:
        nonlocal leads_uncompared
        claimed = tier is not None and tier.access.writer is not None
        leads_uncompared |= node.home.tick(claimed=claimed, recovers=node.is_recovering, settled=node.has_settled)
        if leads_uncompared:
            leads_uncompared = not lead_uncompared(broker.partitions)
        if node.home.note_is_due:
            with contextlib.suppress(OSError):  # the next round tries again
                await asyncio.to_thread(node.home.note)

    async def note_applied() -> None:
        if membership is not None and membership.applied.is_due:
            with contextlib.suppress(OSError):  # the next round tries again
                await asyncio.to_thread(membership.applied.noting())

    async def end_outdated() -> None:
        await coordinators.outdated_transactions.tick(coordinators.shards.transactions)
        await coordinators.lost_markers.tick(coordinators.shards.transactions)

    async def look_at_disk() -> None:
        work.disk.look()

    found: list[tuple[str, float, Callable[[], Awaitable[None]]]] = [
        ("clock", TICK_S, work.expiry.tick),
        ("the store's clock", ASK_S, work.expiry.compare),
        ("tiering", TIER_TICK_S, broker.maintenance.tier),
        ("flush by time", FLUSH_TICK_S, broker.maintenance.flush_by_time),
        ("checkpoints", checkpoint_s, broker.maintenance.checkpoint),
        ("retention", retention_s, broker.retention.tick),
        ("cleaning", CLEANING_TICK_S, broker.cleaning.tick),
        ("older epochs", EPOCHS_TICK_S, broker.epoch_raises.tick),
        ("offset expiry", configs.offsets_retention_check_interval_ms / 1000, coordinators.offset_expiry.tick),
        ("offsets of deleted topics", FORGET_TICK_S, coordinators.offset_expiry.retry),
        ("offsets of recovered partitions", RECOVERED_TICK_S, coordinators.recovered_offsets.tick),
        ("transactions of recovered partitions", RECOVERED_TICK_S, end_outdated),
        ("sweeping", sweep_s, broker.sweeping.tick),
        ("topic files", TOPIC_FILES_TICK_S, work.topic_files.tick),
        ("sweeping of deleted topics", sweep_s, work.topic_files.sweep),
        ("disk watermark", DISK_TICK_S, look_at_disk),
        ("partitions to open", OPEN_TICK_S, broker.assignment.retry),
        ("descriptors", DESCRIPTORS_TICK_S, node.ground.host.descriptors.tick),
        ("home", HOME_TICK_S, look_home),
        ("memory", memory.TICK_S, memory.HeapTrimmer().tick),
    ]
    if membership is not None:
        found.append(("metadata applied", APPLIED_TICK_S, note_applied))
    if tier is not None:
        found.append(("cluster file", CLUSTER_TICK_S, tier.access.tick))
        if tier.access.writes_cluster:
            found.append(("metadata snapshots", METADATA_TICK_S, tier.snapshots.tick))
    return [Worker(*each) for each in found]
