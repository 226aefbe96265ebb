"""The coordinators' topics as a node creates them: Kafka's own configs, one replica, and no client's records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import pytest

from grpc_api.contract.caller import Caller
from grpc_api.contract.coordinator_errors import CoordinatorNotAvailable
from grpc_api.contract.topics import Resource, ResourceKind
from service.broker.partition.partition import Partition
from storage_tiers.errors import InvalidTopic, LogError
from storage_tiers.types import TopicPartition
from tests.service.broker.support import Running, running, until

CALLER = Caller("User:ANONYMOUS", "app", "/127.0.0.1")
OFFSETS, DECISIONS = "__consumer_offsets", "__transaction_state"
#: The configs with which Kafka 4.2.1 creates them (GroupMetadataManager and TransactionStateManager).
KAFKAS: Mapping[str, Mapping[str, str]] = {
    OFFSETS: {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": str(100 << 20)},
    DECISIONS: {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": "2",
        "segment.bytes": str(100 << 20),
        "unclean.leader.election.enable": "false",
    },
}


async def created(node: Running, topic: str) -> None:
    """Asks for a coordinator until its topic exists, and waits until its partitions are open."""
    core = node.node.broker.core
    asked: Callable[[str, Caller], Coroutine[Any, Any, int]] = (
        core.groups.coordinator if topic == OFFSETS else core.transactions.coordinator
    )
    async with asyncio.timeout(60):
        while True:
            try:
                await asked("x", CALLER)
                break
            except CoordinatorNotAvailable:
                await asyncio.sleep(0.005)
    found = node.node.ground.metadata.image.topic(topic)
    assert found is not None
    await until(lambda: len(held(node, topic)) == len(found.partitions))


def held(node: Running, topic: str) -> list[Partition]:
    return [each for each in node.node.broker.partitions if each.partition.topic == topic]


@pytest.mark.parametrize("topic", [OFFSETS, DECISIONS])
async def test_a_coordinators_topic_is_as_kafka_creates_it(tmp_path: Path, topic: str) -> None:
    async with running(tmp_path / "data") as node:
        await created(node, topic)
        (described,) = node.core.topics.describe([topic])
        assert not isinstance(described, LogError)
        assert described.internal
        assert [(each.partition, each.replicas, each.isr) for each in described.partitions] == [
            (number, (1,), (1,)) for number in range(50)
        ]
        assert node.node.ground.metadata.image.topic_config(topic) == KAFKAS[topic]
        for partition in held(node, topic):
            settings = partition.log.hot.settings
            assert (settings.cleanup_compact, settings.cleanup_delete, settings.segment_bytes) == (
                True,
                False,
                100 << 20,
            )
            assert (settings.local_retention_ms, settings.local_retention_bytes) == (-1, -1)


async def test_its_configs_come_from_the_brokers_and_it_has_one_replica_whatever_they_say(tmp_path: Path) -> None:
    broker = {
        "offsets.topic.num.partitions": "3",
        "offsets.topic.segment.bytes": "1048576",
        "offsets.topic.replication.factor": "5",
        "transaction.state.log.num.partitions": "4",
        "transaction.state.log.segment.bytes": "2097152",
        "transaction.state.log.min.isr": "3",
        "transaction.state.log.replication.factor": "5",
    }
    async with running(tmp_path / "data", broker=broker) as node:
        image = node.node.ground.metadata
        for topic, partitions, segment_bytes in ((OFFSETS, 3, "1048576"), (DECISIONS, 4, "2097152")):
            await created(node, topic)
            found = image.image.topic(topic)
            assert found is not None
            assert [each.replicas for each in found.partitions] == [(1,)] * partitions
            assert image.image.topic_config(topic)["segment.bytes"] == segment_bytes
        assert image.image.topic_config(DECISIONS)["min.insync.replicas"] == "3"


@pytest.mark.parametrize("topic", [OFFSETS, DECISIONS])
async def test_its_description_has_the_values_that_act(tmp_path: Path, topic: str) -> None:
    """A coordinator's log reaches the bucket sooner than others, and stays local."""
    async with running(tmp_path / "data") as node:
        await created(node, topic)
        entries = await node.core.configs.describe_configs(Resource(ResourceKind.TOPIC, topic))
        found = {entry.name: entry.value for entry in entries}
        acting = ("tidelog.tier.max.lag.ms", "local.retention.ms", "local.retention.bytes")
        assert [found[name] for name in acting] == ["600000", "-1", "-1"]


@pytest.mark.parametrize("topic", [OFFSETS, DECISIONS, "__share_group_state"])
async def test_clients_neither_append_to_it_nor_delete_its_records(tmp_path: Path, topic: str) -> None:
    """This also holds for an internal topic that no coordinator uses."""
    async with running(tmp_path / "data") as node:
        if topic in KAFKAS:
            await created(node, topic)
        else:
            await node.create(topic)
        with pytest.raises(InvalidTopic, match="Cannot append to internal topic"):
            await node.append(topic, b"x")
        with pytest.raises(InvalidTopic, match="Cannot delete records of internal topic"):
            await node.log.delete_records(TopicPartition(topic, 0), 0)
        assert await node.end(topic) == 0
