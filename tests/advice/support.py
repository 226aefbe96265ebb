"""Helpers shared by the tests of advice."""

from __future__ import annotations

import functools

from grpc_api.contract.topics import AlterOp, ConfigAlteration, Resource, ResourceKind
from service.broker.partition.partition import Partition
from storage_tiers.types import TopicPartition
from tests.service.broker.support import Running, until


async def configure(node: Running, topic: str, configs: dict[str, str]) -> None:
    changes = [ConfigAlteration(key, AlterOp.SET, value) for key, value in configs.items()]
    await node.core.configs.alter_configs(Resource(ResourceKind.TOPIC, topic), changes)


async def leads(node: Running, *topics: str) -> None:
    """Returns once the node leads partition 0 of each topic. After a start this needs answers from the store."""
    for topic in topics:
        led = node.node.broker.partitions.get(TopicPartition(topic, 0))
        await until(functools.partial(_leads, led))


def _leads(partition: Partition) -> bool:
    return partition.write_error is None and partition.read_error is None
