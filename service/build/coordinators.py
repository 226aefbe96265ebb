"""Builds the coordinators of a node: their shards' runtimes, their topics, and the contract's services over them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from grpc_api.contract.topics import NewTopic
from service.broker.api.group_service import GroupService
from service.broker.api.internal_topics import InternalTopic
from service.broker.api.known_partitions import KnownPartitions
from service.broker.background.offset_expiry import OffsetExpiry
from service.broker.partition.coordinators import Coordinators
from service.build.configs import NodeConfigs
from service.build.ground import Ground
from service.coordination.groups.group_offsets import OffsetSettings
from service.coordination.groups.rebalancing import GroupSettings
from service.coordination.groups.shard import GroupShard
from service.coordination.runtime import CoordinatorRuntime
from service.metadata.internal_topics import CONSUMER_OFFSETS, consumer_offsets_configs
from storage_tiers.backoff import Backoff, BackoffSettings
from storage_tiers.turns import Lane

#: Pauses in seconds between attempts to load a coordinator whose partition cannot be read.
LOADING = BackoffSettings(0.1, 5.0)
MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class NodeCoordinators:
    """`led` loads and unloads the shards; `groups` is the contract's service."""

    led: Coordinators
    groups: GroupService
    offset_expiry: OffsetExpiry
    offsets_topic: InternalTopic

    async def close(self) -> None:
        await self.offsets_topic.close()
        await self.led.close()


def build_coordinators(ground: Ground, configs: NodeConfigs) -> NodeCoordinators:
    host, broker, metadata = ground.host, configs.broker, ground.metadata
    lane, topics = Lane(), KnownPartitions(metadata)

    def new_shard() -> GroupShard:
        return GroupShard(host.rng, _group_settings(configs), _offset_settings(configs))

    groups = CoordinatorRuntime(
        CONSUMER_OFFSETS, new_shard, clock=host.clock, lane=lane, backoff=partial(Backoff, LOADING, host.rng)
    )

    def offsets_topic() -> NewTopic:
        own = consumer_offsets_configs(broker.offsets_topic_segment_bytes)
        return NewTopic(CONSUMER_OFFSETS, broker.offsets_topic_num_partitions, 1, own)

    topic = InternalTopic(metadata, configs.resolver, host.rng, offsets_topic)
    return NodeCoordinators(
        Coordinators({CONSUMER_OFFSETS: groups}),
        GroupService(groups, topic, topics),
        OffsetExpiry(groups, metadata, topics, lane),
        topic,
    )


def _group_settings(configs: NodeConfigs) -> GroupSettings:
    broker = configs.broker
    return GroupSettings(
        min_session_timeout_ms=broker.group_min_session_timeout_ms,
        max_session_timeout_ms=broker.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=broker.group_initial_rebalance_delay_ms,
        max_size=broker.group_max_size,
        max_record_bytes=configs.topic(CONSUMER_OFFSETS).max_message_bytes,
    )


def _offset_settings(configs: NodeConfigs) -> OffsetSettings:
    broker = configs.broker
    return OffsetSettings(
        metadata_max_bytes=broker.offset_metadata_max_bytes,
        retention_ms=broker.offsets_retention_minutes * MINUTE_MS,
    )
