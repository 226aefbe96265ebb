"""The rounds of a node's background work that the clock demands, and how often each comes. Each is one worker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from service import memory
from service.broker.background.expiry_clock import ASK_S, TICK_S
from service.descriptors import TICK_S as DESCRIPTORS_TICK_S
from service.supervisor import Worker

if TYPE_CHECKING:
    from service.node import Node

#: Seconds between rounds of background work.
TIER_TICK_S = 1.0
SHORTEST_CHECKPOINT_PAUSE_S = 0.1
DISK_TICK_S = 2.0
FLUSH_TICK_S = 0.5
TOPIC_FILES_TICK_S = 1.0
OPEN_TICK_S = 5.0
HOME_TICK_S = 0.5
CLUSTER_TICK_S = 5.0
METADATA_TICK_S = 1.0
#: A sweep finds what has become due for deletion: four times a grace is often enough.
LONGEST_SWEEP_PAUSE_S = 3600.0


def rounds(node: Node) -> Sequence[Worker]:
    """To be run under a supervisor as long as the node lives."""
    maintenance, configs = node.maintenance, node.broker_configs
    retention_s = configs.log_retention_check_interval_ms / 1000
    # One round saves all checkpoints, as often as the more frequent asks.
    checkpoint_ms = min(
        configs.log_flush_offset_checkpoint_interval_ms, configs.log_flush_start_offset_checkpoint_interval_ms
    )
    checkpoint_s = max(SHORTEST_CHECKPOINT_PAUSE_S, checkpoint_ms / 1000)
    sweep_s = min(LONGEST_SWEEP_PAUSE_S, max(1.0, node.grace_ms() / 4000))

    async def snapshot_metadata() -> None:
        if node.snapshots is not None:
            await node.snapshots.tick()

    async def look_at_cluster() -> None:
        if node.access is not None:
            await node.access.tick()

    async def look_home() -> None:
        claimed = node.access is not None and node.access.writer is not None
        node.home.tick(node.partitions, claimed=claimed, settled=node.has_settled)

    async def look_at_disk() -> None:
        node.disk.look()

    found: list[tuple[str, float, Callable[[], Awaitable[None]]]] = [
        ("clock", TICK_S, node.expiry.tick),
        ("the store's clock", ASK_S, node.expiry.compare),
        ("tiering", TIER_TICK_S, maintenance.tier),
        ("flush by time", FLUSH_TICK_S, maintenance.flush_by_time),
        ("checkpoints", checkpoint_s, maintenance.checkpoint),
        ("retention", retention_s, node.retention.tick),
        ("sweeping", sweep_s, node.sweeping.tick),
        ("topic files", TOPIC_FILES_TICK_S, node.topic_files.tick),
        ("sweeping of deleted topics", sweep_s, node.topic_files.sweep),
        ("disk watermark", DISK_TICK_S, look_at_disk),
        ("partitions to open", OPEN_TICK_S, node.assignment.retry),
        ("descriptors", DESCRIPTORS_TICK_S, node.descriptors.tick),
        ("metadata snapshots", METADATA_TICK_S, snapshot_metadata),
        ("home", HOME_TICK_S, look_home),
        ("cluster file", CLUSTER_TICK_S, look_at_cluster),
        ("memory", memory.TICK_S, memory.HeapTrimmer().tick),
    ]
    return [Worker(*each) for each in found]
