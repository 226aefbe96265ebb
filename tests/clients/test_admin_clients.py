"""The calls of the admin clients of kafka-python, aiokafka and kafkajs: each is made once, and a fact of its answer is checked.

`test_every_admin_call.py` makes the calls of librdkafka and Java, and checks that no call is left out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.clients.members import until
from tests.support.clients import create, produce
from tests.support.node import Node
from tests.support.talker import Talker

pytestmark = pytest.mark.filterwarnings("ignore:read_text is deprecated", "ignore:open_text is deprecated")
COUNT = 40


@pytest.fixture
def topic(node: Node, request: pytest.FixtureRequest) -> str:
    """A topic with records. A group of the same name, without members, has the committed offset 7 of partition 1."""
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
    python.wait_for_topics([made])
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


def test_kafka_python_removes_a_static_member(node: Node, python: Any, topic: str) -> None:
    """A static member leaves only by its session's timeout after it has closed."""
    from kafka.admin import MemberToRemove

    how = {"bootstrap.servers": node.kafka, "group.id": f"{topic}-static", "group.instance.id": "stays"}
    with closing(Consumer(how)) as member:
        member.subscribe([topic])
        until(lambda: member.poll(0.1), lambda: len(member.assignment()) == 2)

    def instances() -> str:
        return str(python.describe_groups([f"{topic}-static"]))

    assert "stays" in instances()
    python.remove_group_members(f"{topic}-static", [MemberToRemove(group_instance_id="stays")])
    assert "stays" not in instances()


def test_kafka_python_looks_at_transactions(node: Node, python: Any, topic: str) -> None:
    from kafka import TopicPartition

    producer = transact(node, topic)
    assert topic in str(python.list_transactions())
    assert topic in str(python.describe_transactions([topic]))
    assert "producer" in str(python.describe_producers([TopicPartition(topic, 0)])).lower()
    python.find_hanging_transactions()
    producer.commit_transaction(60)


def test_kafka_python_aborts_a_transaction_in_its_partition(node: Node, python: Any, topic: str) -> None:
    from kafka import TopicPartition
    from kafka.admin import AbortTransactionSpec

    producer, first = transact(node, topic), TopicPartition(topic, 0)

    def opened() -> list[Any]:
        (found,) = python.describe_producers([first]).values()
        return [each for each in found.active_producers if each.current_transaction_start_offset >= 0]

    (writer,) = opened()
    python.abort_transaction(AbortTransactionSpec(first, writer.producer_id, writer.producer_epoch))
    assert opened() == []
    producer.abort_transaction(60)


def test_kafka_python_looks_at_the_cluster(node: Node, python: Any, topic: str) -> None:
    from kafka import TopicPartition
    from kafka.admin import OffsetSpec
    from kafka.errors import NoError

    port = node.kafka.rpartition(":")[2]
    assert port in str(python.describe_cluster())
    assert topic in str(python.describe_log_dirs())
    assert "transaction.version" in str(python.describe_features())
    assert python.describe_metadata_quorum()
    assert str(python.list_partition_offsets({TopicPartition(topic, 0): OffsetSpec.LATEST}))
    python.elect_leaders(0, {topic: [0]})
    assert topic in str(python.list_config_resources())
    first = TopicPartition(topic, 0)
    assert python.alter_partition_reassignments({first: [1]}) == {first: None}
    assert topic not in str(python.list_partition_reassignments())
    (moved,) = python.alter_replica_log_dirs({(topic, 0, 1): str(node.data_dir)}).values()
    assert moved is NoError
    assert python.api_versions() and python.get_broker_version_data(1) is not None


def test_kafka_python_changes_feature_levels(python: Any) -> None:
    from kafka.admin import UpdateFeatureType
    from kafka.errors import InvalidUpdateVersionError

    def level() -> object:
        return python.describe_features()["transaction.version"]["finalized"]

    python.update_features({"transaction.version": (UpdateFeatureType.SAFE_DOWNGRADE, 1)}, validate_only=True)
    assert level() == (2, 2)
    with pytest.raises(InvalidUpdateVersionError):
        python.update_features({"transaction.version": 3}, validate_only=True)


# --- aiokafka ---------------------------------------------------------------------------------------------------------
@pytest.fixture
async def aio(node: Node) -> AsyncIterator[Any]:
    from aiokafka.admin import AIOKafkaAdminClient

    admin = AIOKafkaAdminClient(bootstrap_servers=node.kafka)
    await admin.start()
    yield admin
    await admin.close()


async def test_aiokafka_manages_topics_and_groups(node: Node, aio: Any, topic: str) -> None:
    from aiokafka import TopicPartition
    from aiokafka.admin import NewPartitions, NewTopic, RecordsToDelete
    from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

    made = f"{topic}-made"
    await aio.create_topics([NewTopic(made, 1, 1)])
    await aio.create_partitions({made: NewPartitions(2)})
    assert made in await aio.list_topics()
    (described,) = await aio.describe_topics([made])
    assert len(described["partitions"]) == 2
    await aio.alter_configs([ConfigResource(ConfigResourceType.TOPIC, made, {"retention.ms": "5000000"})])
    assert "5000000" in str(await aio.describe_configs([ConfigResource(ConfigResourceType.TOPIC, made)]))
    assert await aio.delete_records({TopicPartition(topic, 0): RecordsToDelete(1)}) is not None
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
    """`after` is a call, with its arguments, that the same client makes first."""
    return lambda method, *asked, after=(): javascript.ask(
        command="admin", bootstrap=node.kafka, method=method, arguments=list(asked), after=list(after)
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
    # kafkajs deletes records only of topics whose metadata it has.
    records = {"topic": topic, "partitions": [{"partition": 0, "offset": "1"}]}
    js("deleteTopicRecords", records, after=("fetchTopicOffsets", topic))
    assert {each["partition"]: each["low"] for each in js("fetchTopicOffsets", topic)} == {0: "1", 1: "0"}
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
    js("resetOffsets", {"groupId": topic, "topic": topic, "earliest": True})
    assert offsets() == ["-2", "-2"]  # kafkajs commits -2, its number for the earliest offset
    js("deleteGroups", [topic])
    assert topic not in [each["groupId"] for each in js("listGroups")["groups"]]
