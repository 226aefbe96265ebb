"""One node, put together: directory, metadata, partitions, tier, services. Opened and closed by `service.app`."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Sequence

from service.beginning import check_metadata, may_begin, unless_stopped
from service.broker.api.append_queues import AppendQueues
from service.broker.api.cold_service import ColdService
from service.broker.api.config_service import ConfigService
from service.broker.api.core import BrokerCore
from service.broker.api.log_service import LogService
from service.broker.api.node_service import NodeService
from service.broker.api.producer_ids import ProducerIds
from service.broker.api.repairing import Repairing
from service.broker.api.topic_service import TopicService
from service.broker.background.disk import DiskGuard, Watermarks
from service.broker.background.expiry_clock import ExpiryClock
from service.broker.background.flusher import Flusher
from service.broker.background.maintenance import Maintenance
from service.broker.background.metadata_snapshots import MetadataSnapshots
from service.broker.background.retention import Retention
from service.broker.background.store_access import StoreAccess
from service.broker.background.sweeping import Sweeping
from service.broker.background.tiering import Tiering, TieringPolicy
from service.broker.background.topic_files import TopicFiles
from service.broker.partition.assignment import Assignment
from service.broker.partition.opening import opened
from service.broker.partition.partition import Partition
from service.broker.partition.partitions import ColdSource, Partitions
from service.configs.resolve import Resolver, check_static
from service.configs.values import BrokerConfigs
from service.descriptors import Descriptors, open_limit
from service.home import HomeGuard
from service.http import Readiness
from service.listeners import Listeners
from service.metadata import planner
from service.metadata.image import Changes, MetadataImage
from service.metadata.log import MetadataLog
from service.node_place import (
    NO_STORE,
    cache_directory_of,
    check,
    listener_configs,
    listeners_of,
    other_clock,
    tier_client,
)
from service.rounds import rounds
from service.scheduling import waited_s
from service.settings import NodeSettings
from service.store_needed import check_no_store_needed
from service.supervisor import Worker
from service.takeover.run import TakeOver
from storage_tiers import events
from storage_tiers.clock import Clock, Rng
from storage_tiers.cold.process.client import TierClient
from storage_tiers.cold.process.launcher import TierLauncher
from storage_tiers.cold.read.cache import ChunkCache, default_cache_bytes
from storage_tiers.cold.read.fetcher import Hydrator
from storage_tiers.cold.read.pace import Pace
from storage_tiers.errors import InvalidConfig, LogError, StorageError, StoreBehind
from storage_tiers.files import Files
from storage_tiers.hot.ballast import Ballast, FilesWithBallast
from storage_tiers.hot.checkpoints import mark_clean, take_clean_mark
from storage_tiers.hot.data_dir import DataDirectory
from storage_tiers.types import TopicId
from storage_tiers.uuids import random_uuid, uuid_text

log = logging.getLogger(__name__)

CACHE_BYTES = "tidelog.tier.chunk.cache.bytes"


class Node:
    """Made by `Node.open`. `fatal` is set, and `stop` with it, when the node must not go on."""

    def __init__(
        self,
        settings: NodeSettings,
        readiness: Readiness,
        stop: asyncio.Event,
        data: DataDirectory,
        client: TierClient | None,
        clock: Clock,
        rng: Rng,
        descriptors: Descriptors,
    ) -> None:
        self.settings = settings
        self.data = data
        self.client = client
        self.readiness = readiness
        self.stop = stop
        self.clock = clock
        self.rng = rng
        self.descriptors = descriptors
        self.fatal: LogError | None = None

    @classmethod
    async def open(
        cls,
        settings: NodeSettings,
        readiness: Readiness,
        stop: asyncio.Event,
        *,
        files: Files,
        clock: Clock,
        rng: Rng,
        listeners: Listeners | None = None,
        launcher: TierLauncher | None = None,
        descriptors: Descriptors | None = None,
    ) -> Node:
        """Locks and recovers everything; returns once the node may serve. Raises LogError if it may not, and
        StoppedBeforeStart if `stop` was set while an empty directory waited for the store.

        `listeners` are those that clients come in by, with the ports that they have; by default what the settings say.
        `launcher` starts the tier process; by default it is a process of its own. `descriptors` tells of the files that
        this process may open; by default as many as it may now."""
        check(settings)
        listeners = listeners or listeners_of(settings)
        client = tier_client(settings, launcher, clock, rng)
        own = descriptors or Descriptors(open_limit())
        try:
            takes_over = await may_begin(settings, client, readiness, stop, clock=clock, rng=rng)
            data = DataDirectory.open(str(settings.data_dir), files=files, rng=rng)
            try:
                self = cls(settings, readiness, stop, data, client, clock, rng, own)
                await self._open(listeners, files, takes_over=takes_over)
            except BaseException:
                data.close()
                raise
        except BaseException:
            if client is not None:
                await client.close()
            raise
        return self

    async def _open(self, listeners: Listeners, files: Files, *, takes_over: bool) -> None:
        settings = self.settings
        self.files = files
        self.metadata = MetadataLog.open(self.data.path, files)
        if not takes_over:
            check_metadata(self.data, self.metadata.image)
        if self.client is None:
            check_no_store_needed(self.data)
        self._build_configs()
        taken_over = takes_over or self.metadata.image.take_over is not None
        new = self.data.identity() is None and not taken_over
        if taken_over:
            directory_id = await self._take_over()
        else:
            directory_id = self.data.establish(self._cluster_id(), settings.node_id).directory_id
            self._build_tier(directory_id)
        self.cluster_id = self._cluster_id()
        may_be_older = self._build_home(new=new, taken_over=taken_over)
        rack = self.broker_configs.broker_rack
        for records in (
            planner.name_cluster(self.metadata.proposed, self.cluster_id),
            planner.register_broker(
                self.metadata.proposed, settings.node_id, directory_id.encode(), listeners.advertised, rack
            ),
            planner.lead_everything(self.metadata.proposed, settings.node_id),
            planner.skip_producer_ids(self.metadata.proposed) if may_be_older else (),
        ):
            if records:
                await self.metadata.propose(records)
        self._build_broker()
        # Taken as late as can be: a start that failed before it has not touched the logs.
        clean = take_clean_mark(files, self.data.path)
        self._recover(clean=clean)
        self.readiness.behind = self.tiering.lineage.reasons
        self.readiness.waiting = lambda: sorted(str(p.partition) for p in self.partitions if p.is_recovering)
        self.readiness.refusing = self._refusing
        self._log = self._log_service()
        self.core = BrokerCore(
            self._log,
            TopicService(
                self.metadata,
                self.configs,
                self.rng,
                on_change=self._follow,
                settled=self.assignment.settled,
                why_unopened=self.partitions.why_held_back,
            ),
            ConfigService(self.metadata, self.configs),
            ColdService(
                self.partitions,
                self.hydrator,
                Repairing(self.access, self.tiering, self.topic_files, self.partitions),
            ),
            NodeService(
                self.partitions,
                self.metadata,
                node_id=settings.node_id,
                data_path=self.data.path,
                clock=self.clock,
            ),
        )

    def _refusing(self) -> list[str]:
        """Partitions that the disk keeps from being written, or from being opened."""
        failed = [str(p.partition) for p in self.partitions if p.life.is_failed]
        return sorted([*failed, *self.assignment.unopened_names()])

    def _recover(self, *, clean: bool) -> None:
        began, image = self.clock.monotonic(), self.metadata.image
        held = sum(len(topic.partitions) for topic in image.topics.values())
        events.info(log, "recovery.started", partitions=held, clean=clean)
        self.assignment.recover(image, self.data, clean=clean)
        self.partitions.places.say_moved()
        took_ms = round((self.clock.monotonic() - began) * 1000)
        events.info(log, "recovery.finished", partitions=len(self.partitions), clean=clean, ms=took_ms)

    async def _take_over(self) -> str:
        """Makes the directory the cluster's, or goes on with that; gives the disk's identity."""
        if self.client is None:
            raise InvalidConfig("a take-over has begun in this directory: start it with the --store that it is from")
        cluster_id = self.metadata.image.cluster_id or self.settings.take_over or ""
        taking = TakeOver(
            self.client,
            self.metadata,
            cluster_id,
            node_id=self.settings.node_id,
            readiness=self.readiness,
            clock=self.clock,
            rng=self.rng,
        )
        await unless_stopped(self.stop, taking.begin())
        identity = self.data.establish(cluster_id, self.settings.node_id)
        self._build_tier(identity.directory_id)
        writer, _ = await unless_stopped(self.stop, taking.run(identity.directory_id))
        if self.access is not None:
            self.access.take(writer)
        return identity.directory_id

    # --- parts --------------------------------------------------------------------------------------------------------
    def _cluster_id(self) -> str:
        known = self.data.identity()
        if known is not None:
            return known.cluster_id
        return self.metadata.image.cluster_id or uuid_text(random_uuid(self.rng))

    def _build_configs(self) -> None:
        settings = self.settings
        static = {**check_static(settings.broker), **listener_configs(settings), "log.dirs": self.data.path}
        self.configs = Resolver(static, node_id=settings.node_id, has_store=settings.store != NO_STORE)

    def _build_home(self, *, new: bool, taken_over: bool) -> bool:
        """Whether the directory may be an older copy of one that went on."""
        self.home = HomeGuard(
            self.data.path,
            lambda: self.metadata.path,
            self.files,
            self.clock,
            wait_ms=self.broker_configs.tidelog_store_claim_wait_ms,
            unclaimed=self.broker_configs.tidelog_store_unclaimed,
        )
        self.readiness.holding = lambda: self.home.holding
        try:
            return self.home.look(
                new=new,
                taken_over=taken_over,
                has_store=self.client is not None,
                had_store=self.metadata.image.incarnation > 0,
            )
        except OSError as error:
            raise StorageError(f"cannot write in {self.data.path} ({error}); free space or mend the disk") from error

    def _build_tier(self, directory_id: str) -> None:
        self.access: StoreAccess | None = None
        self.hydrator: Hydrator | None = None
        self.snapshots: MetadataSnapshots | None = None
        if self.client is None:
            self.readiness.store = "none"
            self.readiness.probed = True
            return
        cache_directory = cache_directory_of(self.settings)
        shutil.rmtree(cache_directory, ignore_errors=True)
        try:
            os.makedirs(cache_directory, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot make {cache_directory} ({error}); free space or mend the disk") from error
        size = self.broker_configs.tidelog_tier_chunk_cache_bytes
        if CACHE_BYTES not in self.settings.broker:  # who says a size gets it, whatever share of the disk that is
            size = min(size, default_cache_bytes(cache_directory))
        self.cache = ChunkCache(cache_directory, size)
        self.client.on_end = self.cache.remove_strays
        self.readiness.trouble = lambda: self.client.trouble if self.client is not None else None
        pace = Pace(lambda: self._log.appends, waited_s, self._most_waiting)
        self.hydrator = Hydrator(self.client, self.cache, pace, self.clock)
        self.access = StoreAccess(
            self.client,
            self.metadata,
            node_id=self.settings.node_id,
            directory_id=directory_id,
            readiness=self.readiness,
            clock=self.clock,
            rng=self.rng,
            grace_ms=lambda: self.broker_configs.tidelog_tier_delete_grace_ms,
            may_be_copy=lambda: self.home.away is not None,
        )
        self.snapshots = MetadataSnapshots(
            self.metadata,
            self.access,
            self.data.path,
            interval_ms=lambda: self.broker_configs.tidelog_metadata_snapshot_interval_ms,
            clock=self.clock,
        )

    def _build_broker(self) -> None:
        ballast = Ballast(self.data.path)
        freeing = FilesWithBallast(self.files, ballast)
        self.flusher = Flusher(self.clock)
        self.append_queues = AppendQueues()
        self.expiry = ExpiryClock(
            self.clock,
            tolerance_ms=self.broker_configs.tidelog_clock_step_tolerance_ms,
            settle_ms=self.broker_configs.tidelog_clock_step_settle_ms,
            store_ms=self.access.store_ms if self.access is not None and other_clock(self.settings) else None,
        )
        self.tiering = Tiering(
            self.access,
            policy=TieringPolicy(
                max_lag_ms=lambda topic: self.configs.topic(self.metadata.image, topic).tidelog_tier_max_lag_ms,
                publish=lambda topic: self.topic_files.publish_now(topic),
                now=self.expiry.now,
                may_be_copy=lambda: self.home.away is not None,
            ),
            flusher=self.flusher,
            files=freeing,
            clock=self.clock,
            rng=self.rng,
            on_fatal=self.end,
        )
        cold = None
        if self.hydrator is not None:
            cold = ColdSource(self.hydrator, self.tiering.current_root, self.tiering.reload)
        self.partitions = Partitions(
            self.data,
            cluster_id=self.cluster_id,
            files=self.files,
            freeing_files=freeing,
            clock=self.clock,
            rng=self.rng,
            on_flush_needed=self.flusher.request,
            on_roll=self.tiering.kick,
            cold=cold,
        )
        self.assignment = Assignment(
            self.partitions,
            self.configs,
            node_id=self.settings.node_id,
            on_open=self._opened,
            on_close=self.tiering.forget,
        )
        configs = self.broker_configs
        marks = Watermarks(configs.tidelog_disk_watermark_slow, configs.tidelog_disk_watermark_refuse)
        self.disk = DiskGuard(self.data.path, marks, ballast)
        self.maintenance = Maintenance(self.partitions, self.tiering, self.flusher, clock=self.clock)
        self.sweeping = Sweeping(
            self.partitions,
            self.tiering,
            self.access,
            cluster_id=self.cluster_id,
            grace_ms=self.grace_ms,
            clock=self.clock,
        )
        self.retention = Retention(self.partitions, self.tiering, self.access, now=self.expiry.now)
        self.topic_files = TopicFiles(
            self.metadata,
            self.access,
            grace_ms=self.grace_ms,
            clock=self.clock,
            on_behind=self._topic_behind,
        )

    def _log_service(self) -> LogService:
        async def reserve() -> tuple[int, int]:
            def plan(image):  # type: ignore[no-untyped-def]
                block = planner.producer_id_block(image, self.settings.node_id)
                return block.records, (block.first, block.size)

            taken: tuple[int, int] = await self.metadata.change(plan)
            return taken

        return LogService(
            self.partitions,
            producer_ids=ProducerIds(reserve),
            tiering=self.tiering,
            disk=self.disk,
            topic_name=self._topic_name,
            queues=self.append_queues,
            fetch_max_bytes=self.broker_configs.fetch_max_bytes,
        )

    @property
    def broker_configs(self) -> BrokerConfigs:
        """This broker's, as they are now."""
        return self.configs.broker(self.metadata.image)

    def _topic_name(self, topic_id: TopicId) -> str | None:
        topic = self.metadata.image.topic_by_id(topic_id)
        return None if topic is None else topic.name

    def _follow(self, image: MetadataImage, changes: Changes) -> None:
        try:
            self.assignment.follow(image, changes)
            self.topic_files.follow(image, changes)
        except Exception as error:  # noqa: BLE001 - said, and the node ends
            events.error(log, "metadata.not_followed", defect=error)
            self.end(LogError(f"the node cannot follow its metadata ({error!r}); start it again"))

    def _topic_behind(self, topic: str, error: StoreBehind) -> None:
        """Its partitions wait as for a manifest, as far as they have one."""
        for partition in self.partitions.of_topic(topic):
            if partition.log.hot.settings.remote_storage_enable or partition.log.tier is not None:
                self.tiering.lineage.begin(partition, error)

    def _most_waiting(self) -> float:
        return self.broker_configs.tidelog_tier_read_most_waiting_percent / 100

    def grace_ms(self) -> int:
        """Longer by what the wall clock has been set ahead: what was removed before that is not older for it."""
        ahead_ms = self.clock.unix_ms() - self.expiry.now().expiry_ms
        return self.broker_configs.tidelog_tier_delete_grace_ms + max(0, ahead_ms)

    def _opened(self, partition: Partition) -> None:
        opened(partition, self.partitions, self.home if self.client is not None else None)

    # --- life ---------------------------------------------------------------------------------------------------------
    def end(self, error: LogError) -> None:
        """The node must not go on: a copy of its directory has run, or the store is not one to use."""
        if self.fatal is None:
            self.fatal = error
            self.stop.set()

    async def run_store_access(self) -> None:
        """Claims the store for this start, then lets every partition look at what it has to do there."""
        if self.access is None:
            return
        await self.access.run()
        await self.expiry.compare()
        await self.tiering.kick_all(self.partitions)

    def has_settled(self) -> bool:
        """Whether every partition is open, and its manifest was looked at in this start."""
        return self.assignment.has_opened_all and all(map(self.tiering.has_compared, self.partitions))

    def workers(self) -> Sequence[Worker]:
        return rounds(self)

    async def close(self) -> None:
        """Everything flushed and checkpointed, then the clean-shutdown marker; without it the next start recovers."""
        await self.assignment.close()
        await self.append_queues.close()
        await self.tiering.close()
        if self.hydrator is not None:
            await self.hydrator.close()
        if self.client is not None:
            await self.client.close()
        await self.flusher.close()
        try:
            await self.partitions.close()
            await self.metadata.close()
            if not self.assignment.unrecovered:
                mark_clean(self.files, self.data.path)
        except (OSError, StorageError) as error:
            events.error(log, "stop.unclean", error=error)
        finally:
            self.data.close()
