"""What the admin clients of kafka-python, aiokafka and kafkajs ask: each call once, with a fact of each answer.

librdkafka's is asked in `test_groups.py` and `test_librdkafka_configs.py`; Java's by Kafka's own tools (`tools.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.clients import create, produce
from tests.support.node import Node
from tests.support.talker import Talker

pytestmark = pytest.mark.filterwarnings("ignore:read_text is deprecated", "ignore:open_text is deprecated")
COUNT = 40


@pytest.fixture
def topic(node: Node, request: pytest.FixtureRequest) -> str:
    """With records and the committed offset 7 of partition 1 in a group of its name, which has no members."""
    name = str(request.node.name.replace("[", "-").replace("]", ""))
    create(node, name, 2, {})
    produce(node, name, COUNT)
    with closing(Consumer({"bootstrap.servers": node.kafka, "group.id": name})) as asks:
        asks.commit(offsets=[TopicPartition(name, 1, 7)], asynchronous=False)
    return name


def transact(node: Node, topic: str) -> Producer:
    producer = Producer({"bootstrap.servers": node.kafka, "transactional.id": topic})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"in a transaction", partition=0)
    assert producer.flush(60) == 0
    return producer


# --- kafka-python -----------------------------------------------------------------------------------------------------
@pytest.fixture
def python(node: Node) -> Iterator[Any]:
    from kafka import KafkaAdminClient

    with closing(KafkaAdminClient(bootstrap_servers=node.kafka)) as admin:
        yield admin


def test_kafka_python_manages_topics(python: Any, topic: str) -> None:
    from kafka import TopicPartition
    from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic

    made = f"{topic}-made"
    config = ConfigResource(ConfigResourceType.TOPIC, made, {"retention.ms": "5000000"})
    python.create_topics([NewTopic(made, 1, 1)])
    python.create_partitions({made: NewPartitions(2)})
    assert made in python.list_topics()
    (described,) = python.describe_topics([made])
    assert len(described["partitions"]) == 2
    assert made in str(python.describe_topic_partitions([made]))
    python.alter_configs([config])
    asked = [ConfigResource(ConfigResourceType.TOPIC, made)]
    assert "5000000" in str(python.describe_configs(asked))
    python.reset_configs([ConfigResource(ConfigResourceType.TOPIC, made, {"retention.ms": None})])
    assert "5000000" not in str(python.describe_configs(asked))
    assert python.delete_records({TopicPartition(topic, 0): 1})
    python.delete_topics([made])
    assert made not in python.list_topics()


def test_kafka_python_manages_groups(python: Any, topic: str) -> None:
    from kafka import OffsetAndMetadata, TopicPartition
    from kafka.admin import OffsetSpec

    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)

    def offsets() -> dict[int, int]:
        found = python.list_group_offsets(topic)
        found = found.get(topic, found)
        return {place.partition: at.offset for place, at in found.items() if at.offset >= 0}

    assert topic in str(python.list_groups())
    assert topic in str(python.describe_groups([topic]))
    assert offsets() == {1: 7}
    python.alter_group_offsets(topic, {first: OffsetAndMetadata(1, "", -1)})
    assert offsets() == {0: 1, 1: 7}
    python.reset_group_offsets(topic, {first: OffsetSpec.EARLIEST})
    assert offsets() == {0: 0, 1: 7}
    python.delete_group_offsets(topic, [second])
    assert offsets() == {0: 0}
    python.delete_groups([topic])
    assert topic not in str(python.list_groups())


def test_kafka_python_looks_at_transactions(node: Node, python: Any, topic: str) -> None:
    from kafka import TopicPartition

    producer = transact(node, topic)
    assert topic in str(python.list_transactions())
    assert topic in str(python.describe_transactions([topic]))
    assert "producer" in str(python.describe_producers([TopicPartition(topic, 0)])).lower()
    python.find_hanging_transactions()
    producer.commit_transaction(60)


def test_kafka_python_looks_at_the_cluster(node: Node, python: Any, topic: str) -> None:
    from kafka import TopicPartition
    from kafka.admin import OffsetSpec

    port = node.kafka.rpartition(":")[2]
    assert port in str(python.describe_cluster())
    assert topic in str(python.describe_log_dirs())
    assert "transaction.version" in str(python.describe_features())
    assert python.describe_metadata_quorum()
    assert str(python.list_partition_offsets({TopicPartition(topic, 0): OffsetSpec.LATEST}))
    python.elect_leaders(0, {topic: [0]})
    python.list_config_resources()
    assert topic not in str(python.list_partition_reassignments())
    assert python.get_broker_version_data(1) is not None


# --- aiokafka ---------------------------------------------------------------------------------------------------------
@pytest.fixture
async def aio(node: Node) -> AsyncIterator[Any]:
    from aiokafka.admin import AIOKafkaAdminClient

    admin = AIOKafkaAdminClient(bootstrap_servers=node.kafka)
    await admin.start()
    yield admin
    await admin.close()


async def test_aiokafka_manages_topics_and_groups(node: Node, aio: Any, topic: str) -> None:
    from aiokafka.admin import NewPartitions, NewTopic
    from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

    made = f"{topic}-made"
    await aio.create_topics([NewTopic(made, 1, 1)])
    await aio.create_partitions({made: NewPartitions(2)})
    assert made in await aio.list_topics()
    (described,) = await aio.describe_topics([made])
    assert len(described["partitions"]) == 2
    await aio.alter_configs([ConfigResource(ConfigResourceType.TOPIC, made, {"retention.ms": "5000000"})])
    assert "5000000" in str(await aio.describe_configs([ConfigResource(ConfigResourceType.TOPIC, made)]))
    await aio.delete_topics([made])
    assert made not in await aio.list_topics()
    assert node.kafka.rpartition(":")[2] in str(await aio.describe_cluster())
    assert topic in str(await aio.list_consumer_groups())
    assert topic in str(await aio.describe_consumer_groups([topic]))
    offsets = await aio.list_consumer_group_offsets(topic)
    assert {place.partition: at.offset for place, at in offsets.items() if at.offset >= 0} == {1: 7}
    assert await aio.find_coordinator(topic) == 1


# --- kafkajs ----------------------------------------------------------------------------------------------------------
@pytest.fixture
def js(node: Node, javascript: Talker) -> Callable[..., Any]:
    return lambda method, *asked: javascript.ask(
        command="admin", bootstrap=node.kafka, method=method, arguments=list(asked)
    )


def test_kafkajs_manages_topics(js: Callable[..., Any], topic: str) -> None:
    made = f"{topic}-made"
    resource = {"type": 2, "name": made}
    assert js("createTopics", {"topics": [{"topic": made, "numPartitions": 1}], "waitForLeaders": True}) is True
    js("createPartitions", {"topicPartitions": [{"topic": made, "count": 2}]})
    assert made in js("listTopics")
    (described,) = js("fetchTopicMetadata", {"topics": [made]})["topics"]
    assert len(described["partitions"]) == 2
    js("alterConfigs", {"resources": [{**resource, "configEntries": [{"name": "retention.ms", "value": "5000000"}]}]})
    assert "5000000" in str(js("describeConfigs", {"includeSynonyms": False, "resources": [resource]}))
    js(
        "alterPartitionReassignments",
        {"topics": [{"topic": made, "partitionAssignment": [{"partition": 0, "replicas": [1]}]}]},
    )
    assert js("listPartitionReassignments", {})["topics"] == []
    js("deleteTopics", {"topics": [made]})
    assert made not in js("listTopics")
    assert [each["low"] for each in js("fetchTopicOffsets", topic)] == ["0", "0"]
    assert len(js("fetchTopicOffsetsByTimestamp", topic, 1)) == 2
    assert len(js("describeCluster")["brokers"]) == 1


def test_kafkajs_manages_groups(js: Callable[..., Any], topic: str) -> None:
    def offsets() -> list[str]:
        (found,) = js("fetchOffsets", {"groupId": topic, "topics": [topic]})
        return [each["offset"] for each in sorted(found["partitions"], key=lambda each: each["partition"])]

    assert topic in [each["groupId"] for each in js("listGroups")["groups"]]
    assert [each["state"] for each in js("describeGroups", [topic])["groups"]] == ["Empty"]
    assert offsets() == ["-1", "7"]
    js("setOffsets", {"groupId": topic, "topic": topic, "partitions": [{"partition": 0, "offset": "3"}]})
    assert offsets() == ["3", "7"]
    js("deleteGroups", [topic])
    assert topic not in [each["groupId"] for each in js("listGroups")["groups"]]
