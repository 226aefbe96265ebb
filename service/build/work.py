"""Builds a node's background work, before the partitions that use it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from service.broker.appending.disk import DiskGuard, Watermarks
from service.broker.background.expiry_clock import ExpiryClock
from service.broker.background.fence_patience import FencePatience
from service.broker.background.flusher import Flusher
from service.broker.background.offload_quotas import OffloadQuotas
from service.broker.background.store_access import StoreAccess
from service.broker.background.tiering import Tiering
from service.broker.background.tiering_policy import TieringPolicy
from service.broker.background.topic_files import TopicFiles
from service.build.configs import NodeConfigs
from service.build.ground import Ground
from service.build.tier import Tier
from service.directory.home import HomeGuard
from service.settings.derived import other_clock
from storage_tiers.errors import LogError
from storage_tiers.files import Files
from storage_tiers.hot.ballast import Ballast, FilesWithBallast
from storage_tiers.types import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """`freeing_files` writes the files that must be on disk before anything can be removed. `grace_ms` returns
    `tidelog.tier.delete.grace.ms` plus the time by which the wall clock is ahead."""

    freeing_files: Files
    flusher: Flusher
    expiry: ExpiryClock
    grace_ms: Callable[[], int]
    disk: DiskGuard
    topic_files: TopicFiles
    tiering: Tiering


def build_work(ground: Ground, configs: NodeConfigs, tier: Tier | None, home: HomeGuard) -> Work:
    host, broker = ground.host, configs.broker
    access = None if tier is None else tier.access
    ballast = Ballast(ground.data.path)
    freeing = FilesWithBallast(host.files, ballast)
    flusher = Flusher(host.clock)
    expiry = _expiry(ground, configs, access)

    def grace_ms() -> int:
        return broker.tidelog_tier_delete_grace_ms + expiry.ahead_ms()

    topic_files = TopicFiles(
        ground.metadata,
        configs.controller,
        access,
        writes=ground.membership is None,
        grace_ms=grace_ms,
        clock=host.clock,
    )
    tiering = Tiering(
        access,
        policy=TieringPolicy(
            max_lag_ms=lambda topic: configs.topic(topic).tidelog_tier_max_lag_ms,
            publish=topic_files.publish_now,
            now=expiry.now,
            may_be_copy=lambda: home.away is not None,
            quotas=OffloadQuotas(
                lambda: broker.remote_log_manager_copy_max_bytes_per_second,
                lambda: broker.leader_replication_throttled_rate,
            ),
            is_throttled_move=partial(_is_throttled_move, ground, configs),
        ),
        flusher=flusher,
        files=freeing,
        clock=host.clock,
        rng=host.rng,
        on_fatal=_on_fatal(ground),
    )
    marks = Watermarks(broker.tidelog_disk_watermark_slow, broker.tidelog_disk_watermark_refuse)
    disk = DiskGuard(ground.data.path, marks, ballast)
    return Work(
        freeing_files=freeing,
        flusher=flusher,
        expiry=expiry,
        grace_ms=grace_ms,
        disk=disk,
        topic_files=topic_files,
        tiering=tiering,
    )


def _is_throttled_move(ground: Ground, configs: NodeConfigs, partition: TopicPartition) -> bool:
    """Whether the partition moves away from this broker and its topic's `leader.replication.throttled.replicas` contains it."""
    node_id, placed = ground.settings.node_id, ground.metadata.image.partition(*partition)
    if placed is None or not placed.adding or placed.leader != node_id:
        return False
    throttled = configs.topic(partition.topic).leader_replication_throttled_replicas
    return throttled == ("*",) or f"{partition.partition}:{node_id}" in throttled


def _on_fatal(ground: Ground) -> Callable[[LogError], None]:
    """The callback for an error that must end the node."""
    if ground.membership is None:
        return ground.ending.end
    patience, metadata, clock = FencePatience(), ground.metadata, ground.host.clock

    def fenced(error: LogError) -> None:
        if patience.ends_broker(error, metadata.image.incarnation, clock.monotonic()):
            ground.ending.end(error)

    return fenced


def _expiry(ground: Ground, configs: NodeConfigs, access: StoreAccess | None) -> ExpiryClock:
    return ExpiryClock(
        ground.host.clock,
        tolerance_ms=configs.broker.tidelog_clock_step_tolerance_ms,
        settle_ms=configs.broker.tidelog_clock_step_settle_ms,
        store_ms=access.store_ms if access is not None and other_clock(ground.settings) else None,
    )
