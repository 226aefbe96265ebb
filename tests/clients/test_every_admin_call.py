"""Each call of an admin client that a node serves is made by a test. This module makes those of librdkafka and Java, and checks
facts of the answers. `test_admin_clients.py` makes those of kafka-python, aiokafka and kafkajs.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import ElectionType, IsolationLevel, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

from tests.support import kafka_jars
from tests.support.clients import create, produce
from tests.support.node import Node
from tests.support.talker import Talker

HERE = Path(__file__).parent
SECONDS = 30
COUNT = 40
#: Calls whose APIs a node does not serve yet: docs/compatibility.md lists the APIs.
NOT_SERVED = re.compile("acls?$|acls$|Acls$|scram|Scram|sasl|DelegationToken$|ClientQuotas$|Share|Streams")
#: Calls that send no request: they look at the client's own state, or close it.
LOCAL = {
    "cluster_id",
    "close",
    "connect",
    "create",
    "disconnect",
    "events",
    "logger",
    "metrics",
    "on",
    "poll",
    "start",
} | {*("registerMetricForSubscription", "unregisterMetricFromSubscription")}
#: The modules that make the calls of a client, and the name of the variable that has its admin client there.
MADE = {
    AdminClient: (("test_every_admin_call", "test_groups", "test_librdkafka_configs", "test_transactions"), "admin"),
    "KafkaAdminClient": (("test_admin_clients",), "python"),
    "AIOKafkaAdminClient": (("test_admin_clients",), "aio"),
}


def left_out(calls: set[str], made: set[str]) -> list[str]:
    return sorted(call for call in calls - made - LOCAL if not NOT_SERVED.search(call))


def made_in(files: tuple[str, ...], name: str) -> set[str]:
    text = "".join((HERE / f"{file}.py").read_text() for file in files)
    return set(re.findall(rf"\b{name}\.(\w+)\(", text))


def calls_of(client: type) -> set[str]:
    return {name for name in dir(client) if not name.startswith("_") and callable(getattr(client, name))}


@pytest.mark.filterwarnings("ignore:read_text is deprecated", "ignore:open_text is deprecated")
def test_no_admin_call_of_pythons_clients_is_left_out() -> None:
    from aiokafka.admin import AIOKafkaAdminClient
    from kafka import KafkaAdminClient

    for client in (AdminClient, KafkaAdminClient, AIOKafkaAdminClient):
        files, name = MADE.get(client) or MADE[client.__name__]
        assert left_out(calls_of(client), made_in(files, name)) == [], client.__name__


def test_no_admin_call_of_kafkajs_is_left_out(node: Node, javascript: Talker) -> None:
    made = set(re.findall(r'\bjs\(\s*"(\w+)"', (HERE / "test_admin_clients.py").read_text()))
    calls = set(javascript.ask(command="adminCalls", bootstrap=node.kafka))
    assert len(calls) > 20
    assert left_out(calls, made) == []


def test_librdkafka_manages_topics_and_looks_at_the_cluster(node: Node) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    topic = "librdkafka-manages"
    first = TopicPartition(topic, 0)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(SECONDS)
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(SECONDS)
    described = admin.describe_topics(TopicCollection([topic]))[topic].result(SECONDS)
    assert [each.id for each in described.partitions] == [0, 1]
    assert len(admin.list_topics(topic, SECONDS).topics[topic].partitions) == 2
    produce(node, topic, COUNT)
    deleted = admin.delete_records([TopicPartition(topic, 0, 1)])
    assert [each.result(SECONDS).low_watermark for each in deleted.values()] == [1]
    asked = admin.list_offsets({first: OffsetSpec.earliest()}, isolation_level=IsolationLevel.READ_COMMITTED)
    assert asked[first].result(SECONDS).offset == 1
    assert [each.id for each in admin.describe_cluster().result(SECONDS).nodes] == [1]
    (elected,) = admin.elect_leaders(ElectionType.PREFERRED, [first]).result(SECONDS).values()
    assert elected is None or "needed" in str(elected)
    assert isinstance(admin.list_groups(timeout=SECONDS), list)
    admin.delete_topics([topic])[topic].result(SECONDS)
    assert topic not in admin.list_topics(timeout=SECONDS).topics


#: Facts of Java's answers, as AdminCalls prints them; all other answers are null.
FACTS = {
    "createTopics": "1",
    "describeTopics": "2",
    "describeConfigs": "5000000",
    "listTopics": "true",
    "deleteRecords": "1",
    "listOffsets": "1",
    "describeCluster": "1",
    "describeFeatures": "true",
    "describeMetadataQuorum": "1",
    "addRaftVoter": "InvalidRequestException",
    "removeRaftVoter": "UnsupportedVersionException",
    "unregisterBroker": "BrokerIdNotRegisteredException",
    "describeLogDirs": "true",
    "describeReplicaLogDirs": "true",
    "electLeaders": "true",
    "alterPartitionReassignments": "NoReassignmentInProgressException",
    "listPartitionReassignments": "0",
    "listConfigResources": "true",
    "listClientMetricsResources": "0",
    "describeClassicGroups": "1",
    "describeConsumerGroups": "Empty",
    "listGroups": "true",
    "listConsumerGroups": "true",
    "listConsumerGroupOffsets": "7 3",
    "listTransactions": "true",
    "describeTransactions": "[java-admin-0]",
    "describeProducers": "true",
    "commit of the fenced producer": "ProducerFencedException",
}


def test_java_makes_every_admin_call(tmp_path: Path) -> None:
    with Node(tmp_path, settings={"group.initial.rebalance.delay.ms": 0}) as node:
        create(node, "java-admin", 2, {})
        produce(node, "java-admin", COUNT)
        quiet = ["-Xmx256m", *kafka_jars.QUICK_START, "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"]
        program = ["-cp", kafka_jars.class_path(), str(HERE / "java" / "AdminCalls.java")]
        words = ["java", *quiet, *program, node.kafka, "java-admin", str(node.data_dir)]
        ran = subprocess.run(words, capture_output=True, text=True, timeout=kafka_jars.TOOL_SECONDS, check=False)
    assert ran.returncode == 0, ran.stderr
    found = dict(line.split("\t", 1) for line in ran.stdout.splitlines())
    calls = set(found.pop("all").split())
    assert {call: result for call, result in found.items() if result != "null"} == FACTS
    # A client has an instance id only if it pushes metrics, and an admin client does not push them by default.
    assert left_out(calls, {*found, "clientInstanceId"}) == []
