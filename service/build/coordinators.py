"""Builds the coordinators of a node: their shards' runtimes, their topics, and the contract's services over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from service.broker.api.group_service import GroupService
from service.broker.api.transaction_service import TransactionService
from service.broker.appending.disk import DiskGuard
from service.broker.coordinators.internal_topics import InternalTopic, coordinated_topics
from service.broker.coordinators.known_partitions import KnownPartitions
from service.broker.coordinators.leadership import Coordinators
from service.broker.coordinators.lost_markers import LostMarkers
from service.broker.coordinators.offset_expiry import OffsetExpiry
from service.broker.coordinators.outdated_transactions import OutdatedTransactions
from service.broker.coordinators.peers import GroupCoordinators, Peers, RoutedCoordinator
from service.broker.coordinators.producer_ids import ProducerIds, blocks_of
from service.broker.coordinators.recovered_offsets import RecoveredOffsets
from service.broker.coordinators.transaction_markers import TransactionMarkers
from service.broker.coordinators.transactional_offsets import TransactionalOffsets
from service.broker.partition.partitions import Partitions
from service.build.configs import NodeConfigs
from service.build.ground import Ground
from service.coordination.coordinator_runtime import CoordinatorRuntime
from service.coordination.counts import GroupCounts, TransactionCounts
from service.coordination.groups.group_offsets import OffsetSettings
from service.coordination.groups.member_memory import node_memory
from service.coordination.groups.rebalancing import GroupSettings
from service.coordination.groups.shard import GroupShard
from service.coordination.kept_memory import KeptMemory
from service.coordination.ports import WriteSettings
from service.coordination.runtime import ShardHost
from service.coordination.transactions.shard import TransactionSettings, TransactionShard
from service.coordination.transactions.transaction import IDS_BYTES
from service.coordination.turn_writes import TurnWrites
from service.metadata import features
from service.metadata.following import Metadata
from service.metadata.internal_topics import CONSUMER_OFFSETS, COORDINATED_TOPICS, TRANSACTION_STATE
from storage_tiers.backoff import Backoff, BackoffSettings
from storage_tiers.policy.segments import Now
from storage_tiers.records.codecs import Codec
from storage_tiers.turns import TurnScheduler
from storage_tiers.types import TopicPartition

#: Pauses in seconds between attempts to load a coordinator whose partition cannot be read.
LOADING = BackoffSettings(0.1, 5.0)
#: Pauses in seconds between attempts to write the markers of a transaction.
MARKING = BackoffSettings(0.02, 1.0)
MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class CoordinatorShards:
    """The shards that this node runs, and their counters."""

    groups: CoordinatorRuntime[GroupShard]
    transactions: CoordinatorRuntime[TransactionShard]
    group_counts: GroupCounts
    transaction_counts: TransactionCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCoordinators:
    """`led` loads and unloads the shards; `groups` and `transactions` are the contract's services. `producer_ids` issues all
    of the node's producer ids."""

    led: Coordinators
    shards: CoordinatorShards
    groups: GroupService
    transactions: TransactionService
    #: Asks the coordinator of a transactional id, on whichever broker it is.
    verifying: RoutedCoordinator
    peers: Peers
    markers: TransactionMarkers
    producer_ids: ProducerIds
    offset_expiry: OffsetExpiry
    recovered_offsets: RecoveredOffsets
    outdated_transactions: OutdatedTransactions
    lost_markers: LostMarkers
    offsets_topic: InternalTopic
    transactions_topic: InternalTopic
    writes: TurnWrites

    async def close(self) -> None:
        await self.offsets_topic.close()
        await self.transactions_topic.close()
        await self.markers.close()
        await self.offset_expiry.close()
        await self.led.close()
        await self.peers.close()


def build_coordinators(
    ground: Ground, configs: NodeConfigs, partitions: Partitions, disk: DiskGuard, *, now: Callable[[], Now]
) -> NodeCoordinators:
    """`now` returns the current time for the expiry of offsets."""
    host, broker, metadata = ground.host, configs.broker, ground.metadata
    #: List requests have their own slots, so they do not wait for shards that load.
    scheduler, lists, topics = TurnScheduler(), TurnScheduler(), KnownPartitions(metadata)

    group_counts, transaction_counts = GroupCounts(), TransactionCounts()
    writes = TurnWrites()
    groups = _group_runtime(ground, configs, group_counts, scheduler, writes)
    backoff = partial(Backoff, MARKING, host.rng)
    peers = Peers(metadata, ground.settings.node_id, host.clock, host.rng)
    markers = TransactionMarkers(
        partitions,
        groups,
        topics,
        partial(_epoch_of, partitions),
        peers,
        admit=disk.admit_marker,
        clock=host.clock,
        backoff=backoff,
    )
    outdated = OutdatedTransactions(partitions, scheduler)
    after = partial(_after, outdated, markers)
    transactions = _transaction_runtime(ground, configs, transaction_counts, scheduler, writes, after)
    coordinated = coordinated_topics(broker)
    offsets = InternalTopic(metadata, configs.controller, host.rng, coordinated[CONSUMER_OFFSETS])
    decisions = InternalTopic(metadata, configs.controller, host.rng, coordinated[TRANSACTION_STATE])
    producer_ids = ProducerIds(blocks_of(configs.controller, ground.settings.node_id))
    coordinator = TransactionService(
        transactions, decisions, offsets, topics, producer_ids.next, markers, clock=host.clock, scheduler=lists
    )
    routed = RoutedCoordinator(coordinator, decisions, peers)
    recovered = RecoveredOffsets(
        groups,
        partitions,
        scheduler,
        partial(outdated.is_settled, transactions),
        partitions.checkpoint,
        GroupCoordinators(metadata, ground.settings.node_id, peers),
        partial(partitions.holds_back, COORDINATED_TOPICS),
    )
    return NodeCoordinators(
        led=Coordinators(
            {CONSUMER_OFFSETS: groups, TRANSACTION_STATE: transactions}, disk, {CONSUMER_OFFSETS: _writing(configs)}
        ),
        shards=CoordinatorShards(groups, transactions, group_counts, transaction_counts),
        groups=GroupService(groups, offsets, topics, TransactionalOffsets(partitions, routed), lists, recovered),
        transactions=coordinator,
        verifying=routed,
        peers=peers,
        markers=markers,
        producer_ids=producer_ids,
        offset_expiry=OffsetExpiry(groups, metadata, topics, scheduler, now=now),
        recovered_offsets=recovered,
        outdated_transactions=outdated,
        lost_markers=LostMarkers(partitions, markers, partial(_epoch_of, partitions)),
        offsets_topic=offsets,
        transactions_topic=decisions,
        writes=writes,
    )


def _group_runtime(
    ground: Ground, configs: NodeConfigs, counts: GroupCounts, scheduler: TurnScheduler, writes: TurnWrites
) -> CoordinatorRuntime[GroupShard]:
    host, memory = ground.host, node_memory()

    def new_shard() -> GroupShard:
        return GroupShard(host.rng, _group_settings(configs), _offset_settings(configs), memory, counts)

    return CoordinatorRuntime(
        CONSUMER_OFFSETS,
        new_shard,
        clock=host.clock,
        scheduler=scheduler,
        backoff=partial(Backoff, LOADING, host.rng),
        writes=writes,
    )


def _transaction_runtime(
    ground: Ground,
    configs: NodeConfigs,
    counts: TransactionCounts,
    scheduler: TurnScheduler,
    writes: TurnWrites,
    after: Callable[[ShardHost[TransactionShard]], None],
) -> CoordinatorRuntime[TransactionShard]:
    host, ids, version = ground.host, KeptMemory(IDS_BYTES), partial(_version, ground.metadata)

    def new_shard() -> TransactionShard:
        return TransactionShard(_transaction_settings(configs), counts, version, ids)

    return CoordinatorRuntime(
        TRANSACTION_STATE,
        new_shard,
        clock=host.clock,
        scheduler=scheduler,
        backoff=partial(Backoff, LOADING, host.rng),
        writes=writes,
        after=after,
    )


def _after(outdated: OutdatedTransactions, markers: TransactionMarkers, host: ShardHost[TransactionShard]) -> None:
    outdated.loaded(host)
    markers.decided(host)


def _epoch_of(partitions: Partitions, coordinator: TopicPartition) -> int:
    return partitions.get(coordinator).state.leader_epoch


def _version(metadata: Metadata) -> int:
    return features.current(metadata.image, features.TRANSACTION_VERSION)


def _transaction_settings(configs: NodeConfigs) -> TransactionSettings:
    broker = configs.broker
    return TransactionSettings(
        max_timeout_ms=broker.transaction_max_timeout_ms, expiration_ms=broker.transactional_id_expiration_ms
    )


def _group_settings(configs: NodeConfigs) -> GroupSettings:
    broker = configs.broker
    return GroupSettings(
        min_session_timeout_ms=broker.group_min_session_timeout_ms,
        max_session_timeout_ms=broker.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=broker.group_initial_rebalance_delay_ms,
        max_size=broker.group_max_size,
    )


def _writing(configs: NodeConfigs) -> WriteSettings:
    broker = configs.broker
    return WriteSettings(Codec(broker.offsets_topic_compression_codec), broker.offsets_commit_timeout_ms)


def _offset_settings(configs: NodeConfigs) -> OffsetSettings:
    broker = configs.broker
    return OffsetSettings(
        metadata_max_bytes=broker.offset_metadata_max_bytes,
        retention_ms=broker.offsets_retention_minutes * MINUTE_MS,
    )
