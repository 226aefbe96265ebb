"""A partition moves between brokers through the bucket, while clients write, read, commit and end transactions."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as At
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import InvalidReplicationAssignmentError, InvalidReplicationFactorError

from service.cli.top.numbers import Scrape
from tests.faults.clients import until
from tests.service.serve.test_cluster import PARTITIONS, consumed, create, produce
from tests.support.cluster import Cluster

SLOW_TIER = {"tidelog.tier.max.lag.ms": 3_600_000}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("moves")
    with Cluster(directory, f"file://{directory / 'store'}", SLOW_TIER) as made:
        yield made


def admin(cluster: Cluster, broker: int = 1) -> Any:
    return KafkaAdminClient(bootstrap_servers=cluster.nodes[broker].kafka)


def move(cluster: Cluster, topic: str, targets: dict[int, int], *, asked: int = 1) -> None:
    """Moves partitions to their targets, and waits until every broker names the targets as leaders."""
    python = admin(cluster, asked)
    answered = python.alter_partition_reassignments({TopicPartition(topic, n): [to] for n, to in targets.items()})
    assert set(answered.values()) == {None}
    wait_led(cluster, topic, targets)
    assert topic not in str(python.list_partition_reassignments())
    python.close()


def wait_led(cluster: Cluster, topic: str, targets: dict[int, int]) -> None:
    for broker in cluster.nodes:

        def is_led(at: int = broker) -> bool:
            return targets.items() <= cluster.leaders(at, topic).items()

        until(is_led, f"broker {broker} shows that {topic} is led by {targets}")


def reassigning(cluster: Cluster, broker: int) -> float:
    """The broker's gauge of partitions that it leads and that are being reassigned."""
    page = Scrape.parse(cluster.nodes[broker].get("/metrics")[1], 0)
    return page.gauge("kafka_server_replicamanager_reassigningpartitions")


def directories(cluster: Cluster, broker: int, topic: str) -> list[str]:
    return sorted(path.name for path in cluster.nodes[broker].data_dir.glob(f"{topic}-*"))


def test_every_partition_of_a_topic_moves_with_its_records(cluster: Cluster) -> None:
    create(cluster, 1, "t")
    produce(cluster, 2, "t", range(60))
    before = cluster.leaders(1, "t")
    targets = {number: leader % 3 + 1 for number, leader in before.items()}
    move(cluster, "t", targets)
    produce(cluster, 3, "t", range(60, 120))
    assert consumed(cluster, 2, "t", "moved", 120) == set(range(120))
    for broker in cluster.nodes:
        own = sorted(f"t-{number}" for number, target in targets.items() if target == broker)

        def has_them(at: int = broker, wanted: list[str] = own) -> bool:
            return directories(cluster, at, "t") == wanted

        until(has_them, f"broker {broker} has {own} alone")


def test_a_partition_moves_to_one_broker(cluster: Cluster) -> None:
    create(cluster, 1, "one", 1)
    (source,) = cluster.leaders(1, "one").values()
    target, other = source % 3 + 1, (source + 1) % 3 + 1
    python = admin(cluster)
    (refused,) = python.alter_partition_reassignments({TopicPartition("one", 0): [target, other]}).values()
    assert refused is InvalidReplicationFactorError
    python.close()
    move(cluster, "one", {0: target})


def test_a_topic_that_is_not_tiered_moves_once_it_is(cluster: Cluster) -> None:
    topic = NewTopic("local", PARTITIONS, 1, config={"remote.storage.enable": "false"})
    confluent = cluster.admin(1)
    confluent.create_topics([topic])["local"].result(30)
    produce(cluster, 1, "local", range(60))
    targets = {number: leader % 3 + 1 for number, leader in cluster.leaders(1, "local").items()}
    python = admin(cluster)
    (refused,) = python.alter_partition_reassignments({TopicPartition("local", 0): [targets[0]]}).values()
    assert refused is InvalidReplicationAssignmentError
    python.close()
    entry = ConfigEntry("remote.storage.enable", "true", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, "local", incremental_configs=[entry])
    confluent.incremental_alter_configs([resource])[resource].result(30)
    move(cluster, "local", targets, asked=2)
    assert consumed(cluster, 2, "local", "local", 60) == set(range(60))


def test_an_open_transaction_holds_a_move_up_until_it_ends_or_the_move_is_cancelled(cluster: Cluster) -> None:
    create(cluster, 1, "open", 1)
    (source,) = cluster.leaders(1, "open").values()
    partition, target = TopicPartition("open", 0), source % 3 + 1
    producer = Producer({"bootstrap.servers": cluster.nodes[1].kafka, "transactional.id": "holds-up"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("open", b"0")
    assert producer.flush(30) == 0
    python = admin(cluster)
    python.alter_partition_reassignments({partition: [target]})
    until(lambda: reassigning(cluster, source) == 1, "the leader's metrics show the move")
    assert reassigning(cluster, target) == 0
    shown = str(python.list_partition_reassignments())
    assert "open" in shown and str(target) in shown
    python.alter_partition_reassignments({partition: None})
    assert "open" not in str(python.list_partition_reassignments())
    assert cluster.leaders(2, "open") == {0: source}
    until(lambda: "open-0" not in directories(cluster, target, "open"), "the target has removed its empty log")
    python.alter_partition_reassignments({partition: [target]})
    producer.produce("open", b"1")
    producer.commit_transaction(60)
    wait_led(cluster, "open", {0: target})
    python.close()
    producer.begin_transaction()
    producer.produce("open", b"2")
    producer.commit_transaction(60)
    assert values(cluster, "open", 3) == [0, 1, 2]


def test_exactly_once_holds_while_everything_moves(cluster: Cluster) -> None:
    """Data, group offsets and transactions move at once. Each committed number is there once, and in order."""
    create(cluster, 1, "input", 2)
    create(cluster, 1, "output", 2)
    stop = threading.Event()
    sent: list[int] = []
    failures: list[Exception] = []

    def write() -> None:
        producer = Producer({"bootstrap.servers": cluster.nodes[2].kafka, "transactional.id": "moves"})
        try:
            producer.init_transactions(60)
            for number in count():
                if stop.is_set() and number % 4 == 0:
                    break
                producer.begin_transaction()
                for topic in ("input", "output"):
                    producer.produce(topic, b"%d" % number, partition=number % 2)
                producer.commit_transaction(60)
                sent.append(number)
        except Exception as error:  # noqa: BLE001 - the test shows it
            failures.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        until(lambda: sent or failures, "the first transaction has ended")
        for _ in range(3):
            for topic in ("input", "output", "__transaction_state"):
                leaders = cluster.leaders(1, topic)
                some = dict(list(leaders.items())[:5])
                move(cluster, topic, {number: leader % 3 + 1 for number, leader in some.items()})
                wait_more(sent, failures)
    finally:
        stop.set()
        writer.join(90)
    assert not failures
    for topic in ("input", "output"):
        assert values(cluster, topic, len(sent)) == sent


def test_a_group_continues_where_its_coordinator_has_moved(cluster: Cluster) -> None:
    create(cluster, 1, "grouped")
    produce(cluster, 1, "grouped", range(60))
    assert len(consumed(cluster, 1, "grouped", "moving", 60)) == 60
    before = committed(cluster, "moving", "grouped")
    leaders = cluster.leaders(1, "__consumer_offsets")
    move(cluster, "__consumer_offsets", {number: leader % 3 + 1 for number, leader in leaders.items()})
    assert committed(cluster, "moving", "grouped") == before == dict.fromkeys(range(PARTITIONS), 10)
    produce(cluster, 1, "grouped", range(60, 120))
    assert consumed(cluster, 3, "grouped", "moving", 60) == set(range(60, 120))


def wait_more(sent: list[int], failures: list[Exception]) -> None:
    known = len(sent)
    until(lambda: len(sent) > known or failures, "transactions continue")


def committed(cluster: Cluster, group: str, topic: str) -> dict[int, int]:
    consumer = Consumer({"bootstrap.servers": cluster.nodes[2].kafka, "group.id": group})
    try:
        found = consumer.committed([At(topic, number) for number in range(PARTITIONS)], timeout=30)
    finally:
        consumer.close()
    return {each.partition: each.offset for each in found}


def values(cluster: Cluster, topic: str, wanted: int) -> list[int]:
    """Asserts that each partition has its committed numbers in ascending order; returns those of all partitions, sorted."""
    configs = {
        "bootstrap.servers": cluster.nodes[3].kafka,
        "group.id": f"read-{topic}",
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
    }
    consumer, found = Consumer(configs), dict[int, list[int]]()

    def read() -> bool:
        for message in consumer.consume(500, 0.2):
            if message.error() is None:
                found.setdefault(message.partition() or 0, []).append(int(message.value() or b""))
        return sum(map(len, found.values())) >= wanted

    try:
        consumer.subscribe([topic])
        until(read, f"{wanted} records of {topic}")
    finally:
        consumer.close()
    assert all(each == sorted(each) for each in found.values()), "the order of each partition"
    return sorted(number for each in found.values() for number in each)
