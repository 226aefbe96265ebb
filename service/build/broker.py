"""Builds the partitions of a node, and the contract's services over them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from service.broker.api.cold_service import ColdService
from service.broker.api.config_service import ConfigService
from service.broker.api.core import BrokerCore
from service.broker.api.feature_service import FeatureService
from service.broker.api.log_service import LogService
from service.broker.api.move_losses import MoveLosses
from service.broker.api.node_service import NodeService
from service.broker.api.repairing import Repairing
from service.broker.api.topic_service import TopicService
from service.broker.appending.append_queues import AppendQueues
from service.broker.appending.appending import Appending
from service.broker.background.cleaner.cleaner_process import CleanerProcess
from service.broker.background.cleaner.cleaning import (
    CleanerSettings,
    Cleaning,
    CleaningParts,
    CleaningPolicy,
    TopicCleaning,
)
from service.broker.background.cleaner.cold_cleaning import ColdCleaning
from service.broker.background.epoch_raises import EpochRaises
from service.broker.background.maintenance import Maintenance
from service.broker.background.metadata_publisher import publish_to
from service.broker.background.moving import Moving
from service.broker.background.retention import Retention
from service.broker.background.store_access import StoreAccess
from service.broker.background.sweeping import Sweeping
from service.broker.background.tiering import Tiering
from service.broker.coordinators.internal_topics import coordinated_topics
from service.broker.partition.assignment import Assignment
from service.broker.partition.opening import led_again, opened
from service.broker.partition.partition import Partition
from service.broker.partition.partitions import ColdSource, LogStorage, Partitions, Wakers
from service.build.configs import NodeConfigs
from service.build.coordinators import NodeCoordinators, build_coordinators
from service.build.ground import Ground
from service.build.tier import Tier
from service.build.work import Work
from service.directory.home import HomeGuard
from service.lifecycle.lease import Lease
from storage_tiers.policy.compaction import CleaningLimits


@dataclass(frozen=True, slots=True)
class Broker:
    """The parts of a broker that a node starts, runs periodically, and closes."""

    core: BrokerCore
    partitions: Partitions
    assignment: Assignment
    append_queues: AppendQueues
    moving: Moving
    epoch_raises: EpochRaises
    maintenance: Maintenance
    sweeping: Sweeping
    retention: Retention
    cleaning: Cleaning
    coordinators: NodeCoordinators


def build_broker(
    ground: Ground, configs: NodeConfigs, tier: Tier | None, work: Work, home: HomeGuard, cluster_id: str
) -> Broker:
    """Opens no partition yet. From this call on, the broker follows changes of the metadata."""
    clock, access = ground.host.clock, None if tier is None else tier.access
    partitions = _partitions(ground, tier, work, cluster_id)
    lineage = work.tiering.lineage
    work.topic_files.subscribe(lambda topic, error: lineage.begin_all(partitions.of_topic(topic), error))
    assignment = Assignment(
        partitions,
        configs.resolver,
        node_id=ground.settings.node_id,
        on_open=partial(opened, partitions=partitions, home=None if tier is None else home),
        on_lead=partial(led_again, home=None if tier is None else home),
        on_close=work.tiering.forget,
        has_copy=partial(_has_copy, work.tiering),
    )
    assignment.subscribe(work.tiering)
    publish_to(ground.metadata, assignment, work.topic_files, ground.ending.end)
    moving = Moving(
        partitions,
        work.tiering,
        ground.metadata,
        configs.controller,
        node_id=ground.settings.node_id,
        clock=clock,
        rng=ground.host.rng,
        on_fatal=ground.ending.end,
    )
    assignment.subscribe(moving)
    coordinators = build_coordinators(ground, configs, partitions, work.disk, now=work.expiry.now)
    assignment.subscribe(coordinators.led)
    queues = AppendQueues()
    return Broker(
        core=_core(ground, configs, tier, work, partitions, assignment, queues, coordinators),
        partitions=partitions,
        assignment=assignment,
        append_queues=queues,
        moving=moving,
        epoch_raises=EpochRaises(
            assignment.outrun, ground.metadata, configs.controller, node_id=ground.settings.node_id
        ),
        maintenance=Maintenance(partitions, work.tiering, work.flusher, clock=clock),
        sweeping=Sweeping(partitions, work.tiering, access, cluster_id=cluster_id, grace_ms=work.grace_ms, clock=clock),
        retention=Retention(partitions, work.tiering, access, now=work.expiry.now),
        cleaning=_cleaning(ground, configs, work, partitions, access),
        coordinators=coordinators,
    )


def _has_copy(tiering: Tiering, partition: Partition) -> bool:
    """Whether the log is empty, or the bucket contains all of it, as after a move. A bucket that went back to an older state
    does not count."""
    end, tier = partition.log.hot.end_offset, partition.log.tier
    return end == 0 or (tier is not None and tier.end >= end and partition not in tiering.lineage)


def _cleaning(
    ground: Ground, configs: NodeConfigs, work: Work, partitions: Partitions, access: StoreAccess | None
) -> Cleaning:
    broker, host = configs.broker, ground.host

    def settings() -> CleanerSettings:
        return CleanerSettings(
            broker.log_cleaner_enable,
            broker.log_cleaner_backoff_ms,
            broker.log_cleaner_dedupe_buffer_size,
            broker.log_cleaner_io_buffer_load_factor,
            broker.log_cleaner_io_max_bytes_per_second,
        )

    def topic(name: str) -> TopicCleaning:
        found = configs.topic(name)
        limits = CleaningLimits(
            found.min_compaction_lag_ms, found.max_compaction_lag_ms, found.min_cleanable_dirty_ratio
        )
        return TopicCleaning(limits, found.delete_retention_ms)

    cold = None if access is None else ColdCleaning(work.tiering, access, files=work.freeing_files)
    return Cleaning(
        partitions,
        work.tiering,
        CleaningPolicy(settings, topic, work.expiry.now),
        CleaningParts(CleanerProcess(ground.settings.log_format), work.flusher, cold),
        files=work.freeing_files,
        clock=host.clock,
        rng=host.rng,
    )


def _partitions(ground: Ground, tier: Tier | None, work: Work, cluster_id: str) -> Partitions:
    host, tiering = ground.host, work.tiering
    return Partitions(
        LogStorage(ground.data, host.files, work.freeing_files, host.clock, host.rng, _lease(ground)),
        Wakers(flush=work.flusher.request, offload=tiering.kick),
        cluster_id=cluster_id,
        cold=None if tier is None else ColdSource(tier.hydrator, tiering.current_manifest, tiering.reload),
    )


def _lease(ground: Ground) -> Lease:
    return Lease() if ground.membership is None else ground.membership.commands.lease


def _core(
    ground: Ground,
    configs: NodeConfigs,
    tier: Tier | None,
    work: Work,
    partitions: Partitions,
    assignment: Assignment,
    queues: AppendQueues,
    coordinators: NodeCoordinators,
) -> BrokerCore:
    settings, metadata = ground.settings, ground.metadata
    access = None if tier is None else tier.access
    repairing = Repairing(
        access, work.tiering, work.topic_files, partitions, MoveLosses(work.tiering, configs.controller)
    )
    return BrokerCore(
        log=LogService(
            partitions,
            metadata,
            producer_ids=coordinators.producer_ids,
            tiering=work.tiering,
            appending=Appending(
                partitions,
                disk=work.disk,
                queues=queues,
                appended=ground.appended,
                transactions=coordinators.verifying,
            ),
            fetch_max_bytes=configs.broker.fetch_max_bytes,
        ),
        topics=TopicService(
            metadata,
            configs.controller,
            configs.resolver,
            configs.descriptions,
            ground.host.rng,
            assignment,
            partitions,
            coordinated_topics(configs.broker),
        ),
        configs=ConfigService(metadata, configs.controller, configs.descriptions, node_id=configs.resolver.node_id),
        cold=ColdService(partitions, metadata, None if tier is None else tier.hydrator, repairing),
        node=NodeService(
            partitions,
            metadata,
            node_id=settings.node_id,
            data_path=ground.data.path,
            clock=ground.host.clock,
        ),
        groups=coordinators.groups,
        transactions=coordinators.transactions,
        features=FeatureService(metadata, configs.controller),
        turns=coordinators.writes,
    )
