"""The lifecycle of one node: start, serve, stop. `service.build` builds its parts, and `service.serve.rounds` lists its
periodic work.

A start locks the directory and recovers the metadata log. It determines whether the directory is new, this node's own, or the
target of a take-over. Then it registers the node and recovers the partitions. A failed start leaves nothing open. It leaves the
logs untouched, unless the recovery of a log failed.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from grpc_api.contract.topics import text_of
from service.build.broker import Broker, build_broker
from service.build.configs import NodeConfigs, build_configs
from service.build.ground import Ground, Host, Listening
from service.build.home import build_home
from service.build.tier import Tier, build_tier
from service.build.work import Work, build_work
from service.configs.listeners import host_and_port
from service.configs.resolve import Resolver
from service.controller.membership import ClusterMembership
from service.coordination.runtime import ShardHost
from service.directory.beginning import check_metadata, may_begin, unless_stopped
from service.directory.home import HomeGuard
from service.directory.store_needed import check_no_store_needed
from service.lifecycle.ending import Ending
from service.lifecycle.readiness import Readiness, Reports
from service.metadata.commands import FoundCluster, LeadEverything, RegisterBroker, SkipProducerIds
from service.metadata.controller import Commands, Controller
from service.metadata.log import MetadataLog
from service.settings.derived import check, listeners_of, tier_client
from service.settings.node_settings import NodeSettings
from service.takeover.run import TakeOver
from storage_tiers import events
from storage_tiers.cold.process.client import TierClient
from storage_tiers.errors import InvalidConfig, StorageError
from storage_tiers.hot.checkpoints import take_clean_shutdown_marker, write_clean_shutdown_marker
from storage_tiers.hot.data_dir import DataDirectory
from storage_tiers.uuids import random_uuid, uuid_text

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Node:
    """A started node; create it with `Node.open`.

    `ground` holds settings, host, directory and metadata log; its `ending` says whether the node must stop. `configs` are the
    resolved configs, `home` guards the identity of the data directory, `work` is the background work, and `broker` implements
    the contract."""

    ground: Ground
    cluster_id: str
    configs: NodeConfigs
    #: None without a store.
    tier: Tier | None
    home: HomeGuard
    work: Work
    broker: Broker

    @classmethod
    async def open(
        cls,
        settings: NodeSettings,
        readiness: Readiness,
        stop: asyncio.Event,
        host: Host,
        listening: Listening | None = None,
    ) -> Node:
        """Locks the directory, recovers all logs, and returns when the node may serve. `listening` defaults to the settings'
        addresses.

        Raises LogError if the node may not serve: InvalidConfig for wrong settings, DirectoryLocked, StorageError on an I/O
        error, MetadataCorrupt, StoreRefused or FencedWriter. Raises StoppedBeforeStart if `stop` was set while the start waited
        for the store or for another node's controller."""
        check(settings)
        listening = listening or Listening(listeners_of(settings))
        async with AsyncExitStack() as undo:
            client = tier_client(settings, host.launcher, host.clock, host.rng)
            if client is not None:
                undo.push_async_callback(client.close)
            takes_over = False
            if settings.controller is None:
                takes_over = await may_begin(settings, client, readiness, stop, clock=host.clock, rng=host.rng)
            data = DataDirectory.open(str(settings.data_dir), files=host.files, rng=host.rng)
            undo.callback(data.close)
            ending = Ending(stop)
            if settings.controller is None:
                own_log = MetadataLog.open(data.path, host.files, host.rng)
                ground = Ground(settings, host, readiness, ending, data, own_log, own_log)
            else:
                membership = _membership(settings, settings.controller, data, host)
                undo.push_async_callback(membership.close)
                await unless_stopped(stop, membership.joined())
                ground = Ground(settings, host, readiness, ending, data, membership.metadata, membership=membership)
            opened = await cls._on(ground, listening, client, takes_over=takes_over)
            undo.pop_all()
        return opened

    @classmethod
    async def _on(cls, ground: Ground, listening: Listening, client: TierClient | None, *, takes_over: bool) -> Node:
        data, metadata = ground.data, ground.metadata
        if not takes_over:
            check_metadata(data, metadata.image)
        if client is None:
            check_no_store_needed(data)
            _check_cluster_has_no_store(ground)
        configs = build_configs(ground, listening, partial(_commands, ground))
        taken_over = takes_over or (ground.membership is None and metadata.image.take_over is not None)
        new = data.identity() is None and not taken_over
        home, tier = build_home(ground, configs), None
        if taken_over:
            tier = await _take_over(ground, configs, client, home)
        else:
            identity = data.establish(_cluster_id(ground), ground.settings.node_id)
            if client is not None:
                tier = build_tier(ground, configs, client, home, identity.directory_id)
            else:
                ground.readiness.store, ground.readiness.probed = "none", True
        cluster_id = _cluster_id(ground)
        may_be_older = _look_home(ground, home, new=new, taken_over=taken_over, has_store=tier is not None)
        await _register(ground, configs, listening, cluster_id, may_be_older=may_be_older)
        work = build_work(ground, configs, tier, home)
        broker = build_broker(ground, configs, tier, work, home, cluster_id)
        # Only the controller's directory can become the target of a take-over. Another broker's stale log is set aside: left in
        # place, it would be led if its partition came back.
        keeps = may_be_older and tier is not None and ground.membership is None
        _recover(ground, broker, may_be_older=keeps)
        ground.readiness.reports = _reports(tier, home, work, broker, ground.membership)
        return cls(ground, cluster_id, configs, tier, home, work, broker)

    # --- serving ------------------------------------------------------------------------------------------------------
    def has_settled(self) -> bool:
        """Whether every partition is open, and every partition that this node leads has been compared with its manifest since
        this start."""
        led = (partition for partition in self.broker.partitions if partition.leads)
        return self.broker.assignment.has_opened_all and all(map(self.work.tiering.has_compared, led))

    def is_recovering(self) -> bool:
        """Whether a partition is still recovering from the store."""
        return any(partition.is_recovering for partition in self.broker.partitions)

    async def run_membership(self) -> None:
        """Keeps this broker in the cluster of another process's controller. Raises the LogError that ends its
        membership."""
        if self.ground.membership is not None:
            await self.ground.membership.run()

    async def run_store_access(self) -> None:
        """Claims the store for this start, then queues every partition's work on the store. Raises FencedWriter if a newer
        start has claimed it."""
        if self.tier is None:
            return
        await self.tier.access.run()
        await self.work.expiry.compare()
        await self.work.tiering.kick_all(self.broker.partitions)

    # --- stopping -----------------------------------------------------------------------------------------------------
    async def leave(self) -> None:
        """Gives up this broker's leaderships if its controller is in another process. Call it while `run_membership` runs."""
        if self.ground.membership is not None:
            await self.ground.membership.leave()

    async def close(self) -> None:
        """Flushes and checkpoints everything, then writes the clean-shutdown marker. Without the marker the next start recovers
        the logs. Failures are logged, never raised."""
        broker, work, data, membership = self.broker, self.work, self.ground.data, self.ground.membership
        await broker.coordinators.close()
        await broker.moving.close()
        if membership is not None:  # so that later metadata cannot reopen a partition
            await membership.close()
        await broker.assignment.close()
        await broker.append_queues.close()
        await work.tiering.close()
        if self.tier is not None:
            await self.tier.hydrator.close()
            await self.tier.client.close()
        await work.flusher.close()
        try:
            await broker.partitions.close()
            await self.ground.metadata.close()
            if not broker.assignment.unrecovered:
                write_clean_shutdown_marker(self.ground.host.files, data.path)
            await asyncio.to_thread(self.home.note)
            if membership is not None:
                await asyncio.to_thread(membership.applied.noting())
        except (OSError, StorageError) as error:
            events.error(log, "stop.unclean", error=error)
        finally:
            data.close()


def _membership(settings: NodeSettings, controller: str, data: DataDirectory, host: Host) -> ClusterMembership:
    known = data.identity()
    cluster_id = "" if known is None else known.cluster_id
    return ClusterMembership(
        controller, settings.node_id, cluster_id, data.path, files=host.files, clock=host.clock, rng=host.rng
    )


def _check_cluster_has_no_store(ground: Ground) -> None:
    """Raises InvalidConfig if the other brokers offload, because the records of this one would stay on its disk only."""
    if ground.membership is not None and ground.metadata.image.incarnation:
        raise InvalidConfig("the brokers of this cluster have a store: give the controller's --store here, too")


def _commands(ground: Ground, resolver: Resolver) -> Commands:
    if ground.membership is not None:
        return ground.membership.commands
    assert ground.own_log is not None
    return Controller(ground.own_log, resolver)


def _cluster_id(ground: Ground) -> str:
    """The directory's cluster id, or a new one."""
    known = ground.data.identity()
    if known is not None:
        return known.cluster_id
    return ground.metadata.image.cluster_id or uuid_text(random_uuid(ground.host.rng))


async def _take_over(ground: Ground, configs: NodeConfigs, client: TierClient | None, home: HomeGuard) -> Tier:
    """Starts or continues a take-over into this directory. Raises InvalidConfig without a store."""
    if client is None:
        raise InvalidConfig("a take-over has begun in this directory: start it with the --store of that take-over")
    stop, settings, host = ground.ending.stop, ground.settings, ground.host
    cluster_id = ground.metadata.image.cluster_id or settings.take_over or ""
    taking = TakeOver(
        client,
        ground.own_log,
        cluster_id,
        node_id=settings.node_id,
        readiness=ground.readiness,
        clock=host.clock,
        rng=host.rng,
    )
    await unless_stopped(stop, taking.begin())
    directory_id = ground.data.establish(cluster_id, settings.node_id).directory_id
    tier = build_tier(ground, configs, client, home, directory_id)
    writer, _ = await unless_stopped(stop, taking.run(directory_id))
    tier.access.take(writer)
    return tier


def _look_home(ground: Ground, home: HomeGuard, *, new: bool, taken_over: bool, has_store: bool) -> bool:
    """Whether the directory may be an older copy of one that continued to run. Raises StorageError on an I/O error."""
    had_store = ground.metadata.image.incarnation > 0
    try:
        return home.look(new=new, taken_over=taken_over, has_store=has_store, had_store=had_store)
    except OSError as error:
        raise StorageError(
            f"cannot write in {ground.data.path} ({error}); free space, or repair or replace the disk"
        ) from error


async def _register(
    ground: Ground, configs: NodeConfigs, listening: Listening, cluster_id: str, *, may_be_older: bool
) -> None:
    """Registers this node in the metadata. If the controller is in this process, also makes the node the leader of its
    partitions; otherwise the node is fenced at first."""
    execute, node_id, identity = configs.controller.execute, ground.settings.node_id, ground.data.identity()
    assert identity is not None
    advertised, start_id = tuple(listening.listeners.advertised), ground.host.rng.token(16)
    peer = _peer(listening)
    command = RegisterBroker(
        node_id, identity.directory_id.encode(), advertised, configs.broker.broker_rack, start_id, peer=peer
    )
    if ground.membership is not None:
        await ground.membership.register(replace(command, fenced=True))
        return
    await execute(FoundCluster(cluster_id))
    await execute(command)
    await execute(LeadEverything(node_id))
    if may_be_older:
        await execute(SkipProducerIds())


def _peer(listening: Listening) -> str:
    """The gRPC address for other brokers: the gRPC listener's port at the host that the first Kafka listener advertises."""
    if listening.grpc is None or not listening.listeners.advertised:
        return ""
    _, port = host_and_port(listening.grpc)
    return text_of(listening.listeners.advertised[0].host, port)


def _recover(ground: Ground, broker: Broker, *, may_be_older: bool) -> None:
    clock, image = ground.host.clock, ground.metadata.image
    # The marker is removed as late as possible, because a start that fails before this point has not touched the logs.
    clean = take_clean_shutdown_marker(ground.host.files, ground.data.path)
    began, held = clock.monotonic(), sum(len(topic.partitions) for topic in image.topics.values())
    events.info(log, "recovery.started", partitions=held, clean=clean)
    broker.assignment.recover(image, ground.data, clean=clean, may_be_older=may_be_older)
    broker.partitions.directories.say_moved()
    took_ms = round((clock.monotonic() - began) * 1000)
    events.info(log, "recovery.finished", partitions=len(broker.partitions), clean=clean, ms=took_ms)


def _reports(
    tier: Tier | None, home: HomeGuard, work: Work, broker: Broker, membership: ClusterMembership | None
) -> Reports:
    def refusing() -> list[str]:
        failed = [str(p.partition) for p in broker.partitions if p.life.is_failed]
        return sorted([*failed, *broker.assignment.unopened_names()])

    def unreadable() -> dict[str, str]:
        shards = broker.coordinators.shards
        hosts: list[ShardHost[Any]] = [*shards.groups.hosts.values(), *shards.transactions.hosts.values()]
        return {str(host.partition): host.unreadable for host in hosts if host.unreadable}

    return Reports(
        trouble=lambda: None if tier is None else tier.client.trouble,
        recovering=lambda: sorted(str(p.partition) for p in broker.partitions if p.is_recovering),
        refusing=refusing,
        holding=lambda: home.holding,
        full=lambda: work.disk.refusal,
        behind=work.tiering.lineage.reasons,
        fenced=lambda: membership is not None and membership.commands.fenced,
        controller=lambda: None if membership is None else membership.metadata.trouble,
        unreadable=unreadable,
    )
