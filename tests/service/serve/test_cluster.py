"""Three brokers of one controller, each in its own process: clients find leaders and coordinators from any of them.

Broker 1 has the controller in its process; 2 and 3 follow it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import ConfigResource, NewPartitions, NewTopic
from typer.testing import CliRunner

from service.cli.main import app
from tests.differential.peer import Peer
from tests.faults.clients import until
from tests.kafka_gateway.kio_frames import record_batch
from tests.support.cluster import Cluster
from tests.support.node import NodeFailed

PARTITIONS = 6


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")
    with Cluster(directory, f"file://{directory / 'store'}") as made:
        yield made


def create(cluster: Cluster, broker: int, topic: str, partitions: int = PARTITIONS) -> None:
    admin = cluster.admin(broker)
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)


def produce(cluster: Cluster, broker: int, topic: str, numbers: range) -> None:
    failed: list[Any] = []
    producer = Producer({"bootstrap.servers": cluster.nodes[broker].kafka, "acks": "all"})
    for number in numbers:
        producer.produce(
            topic, b"%d" % number, partition=number % PARTITIONS, on_delivery=lambda error, _: failed.append(error)
        )
    assert producer.flush(60) == 0
    assert set(failed) == {None}


def consumed(cluster: Cluster, broker: int, topic: str, group: str, count: int) -> set[int]:
    configs = {"bootstrap.servers": cluster.nodes[broker].kafka, "group.id": group, "auto.offset.reset": "earliest"}
    consumer = Consumer(configs)
    found: set[int] = set()
    try:
        consumer.subscribe([topic])
        until(lambda: _read(consumer, found) == count, f"{count} records")
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return found


def _read(consumer: Consumer, found: set[int]) -> int:
    message = consumer.poll(0.2)
    if message is not None and message.error() is None:
        found.add(int(message.value() or b""))
    return len(found)


def test_a_topic_made_at_one_broker_is_led_by_all_and_known_to_all(cluster: Cluster) -> None:
    create(cluster, 2, "spread")
    for broker in cluster.nodes:
        cluster.wait_leaders(broker, "spread", {1, 2, 3})
        assert sorted(cluster.leaders(broker, "spread").values()) == [1, 1, 2, 2, 3, 3]
        assert cluster.brokers(broker) == {1, 2, 3}
    assert len({frozenset(cluster.leaders(broker, "spread").items()) for broker in cluster.nodes}) == 1


def test_a_client_finds_leaders_and_its_coordinator_from_any_broker(cluster: Cluster) -> None:
    create(cluster, 1, "found")
    produce(cluster, 3, "found", range(300))
    for broker in cluster.nodes:
        assert consumed(cluster, broker, "found", f"group-{broker}", 300) == set(range(300))
    admin = cluster.admin(2)
    listed = {each.group_id for each in admin.list_consumer_groups().result(30).valid}
    assert {f"group-{broker}" for broker in cluster.nodes} <= listed


def test_a_broker_that_does_not_lead_names_the_leader_and_its_address(cluster: Cluster) -> None:
    create(cluster, 1, "hinted")
    batch = record_batch(b"1")
    for broker, node in cluster.nodes.items():
        for partition, leader in cluster.leaders(broker, "hinted").items():
            peer = Peer(f"broker {broker}", node.kafka, "")
            rows = [{"index": partition, "records": batch}]
            produced = {"acks": -1, "topic_data": [{"name": "hinted", "partition_data": rows}]}
            answer = peer.quietly("produce", 12, **produced)
            (found,) = answer["responses"][0]["partition_responses"]
            if broker == leader:
                assert found["error_code"] == "NONE"
                continue
            assert found["error_code"] == "NOT_LEADER_OR_FOLLOWER"
            assert found["current_leader"]["leader_id"] == leader
            ((at, host, port),) = [(each["node_id"], each["host"], each["port"]) for each in answer["node_endpoints"]]
            assert (at, f"{host}:{port}") == (leader, cluster.nodes[leader].kafka)
            peer.close_connection()
            peer = Peer(f"broker {leader}", f"{host}:{port}", "")
            (found,) = peer.quietly("produce", 12, **produced)["responses"][0]["partition_responses"]
            assert found["error_code"] == "NONE"
            peer.close_connection()


def test_requests_for_the_controller_are_carried_out_from_any_broker(cluster: Cluster) -> None:
    create(cluster, 3, "grown", 2)
    two, three = cluster.admin(2), cluster.admin(3)
    two.create_partitions([NewPartitions("grown", PARTITIONS)])["grown"].result(30)
    until(lambda: len(cluster.leaders(1, "grown")) == PARTITIONS, "six partitions")
    three.delete_topics(["grown"])["grown"].result(30)
    until(lambda: "grown" not in cluster.admin(1).list_topics(timeout=10).topics, "the topic is gone")
    create(cluster, 1, "grown", 3)
    until(lambda: len(cluster.leaders(2, "grown")) == 3, "it is made anew")
    with pytest.raises(KafkaException, match="ask for a replication factor of 1"):
        two.create_topics([NewTopic("copies", 1, 3)])["copies"].result(30)


def test_a_killed_broker_gives_up_its_partitions_and_has_them_again(cluster: Cluster) -> None:
    create(cluster, 1, "killed")
    produce(cluster, 1, "killed", range(60))
    cluster.nodes[2].kill()
    until(lambda: cluster.brokers(3) == {1, 3}, "broker 2 is fenced")
    cluster.wait_leaders(1, "killed", {1, 3, -1})
    shown = json.loads(CliRunner().invoke(app, ["cluster", "status", "-b", cluster.nodes[3].kafka, "--json"]).stdout)
    states = [(each["id"], each["state"], each["controller"]) for each in shown["brokers"]]
    assert states == [(1, "ready", True), (2, "away", False), (3, "ready", False)]
    ran = CliRunner().invoke(app, ["topic", "seal", "killed", "-b", cluster.nodes[3].kafka])
    assert ran.exit_code == 1
    assert "killed: no broker leads partition" in ran.output
    leaders = cluster.leaders(1, "killed")
    assert {f"killed-{number}" for number, leader in leaders.items() if leader == -1} <= set(shown["leaderless"])
    topic = cluster.admin(1).list_topics("killed", timeout=10).topics["killed"]
    waiting = {each.error.code() for each in topic.partitions.values() if each.leader == -1 and each.error is not None}
    assert waiting == {KafkaError.LEADER_NOT_AVAILABLE}
    cluster.nodes[2].start()
    cluster.wait_leaders(3, "killed", {1, 2, 3})
    produce(cluster, 3, "killed", range(60, 120))
    assert consumed(cluster, 2, "killed", "after", 120) == set(range(120))


def test_a_topic_is_sealed_at_all_its_brokers(cluster: Cluster) -> None:
    create(cluster, 1, "sealed")
    produce(cluster, 1, "sealed", range(12))
    words = ["topic", "seal", "sealed", "--wait", "--json", "-b", cluster.nodes[3].kafka]
    ran = CliRunner().invoke(app, words)
    assert ran.exit_code == 0, ran.output
    sealed = [(each["partition"], each["end"], each["tiered_end"]) for each in json.loads(ran.stdout)["partitions"]]
    assert sealed == [(number, 2, 2) for number in range(PARTITIONS)]


def test_brokers_serve_while_the_controller_is_away_and_find_it_again(cluster: Cluster) -> None:
    create(cluster, 1, "away")
    led = [number for number, leader in cluster.leaders(1, "away").items() if leader != 1]
    cluster.nodes[1].kill()
    producer = Producer({"bootstrap.servers": cluster.nodes[2].kafka, "acks": "all"})
    failed: list[Any] = []
    for number in led:
        producer.produce("away", b"1", partition=number, on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(60) == 0
    assert set(failed) == {None}
    cluster.nodes[1].start()
    cluster.wait_leaders(3, "away", {1, 2, 3})
    create(cluster, 3, "back")
    cluster.wait_leaders(2, "back", {1, 2, 3})


def test_a_broker_that_stops_hands_its_leaderships_back(cluster: Cluster) -> None:
    create(cluster, 1, "stopped")
    assert cluster.nodes[3].stop() == 0
    cluster.wait_leaders(2, "stopped", {1, 2, -1})
    assert "controller.stop_unconfirmed" not in cluster.nodes[3].output_tail()
    cluster.nodes[3].start()
    cluster.wait_leaders(2, "stopped", {1, 2, 3})


def test_a_broker_with_an_empty_disk_leads_nothing_of_the_lost_one(cluster: Cluster) -> None:
    create(cluster, 1, "wiped")
    produce(cluster, 1, "wiped", range(12))
    node = cluster.nodes[3]
    node.kill()
    kept = node.data_dir.rename(node.directory / "kept")
    node.start()
    until(lambda: "broker.disk_replaced" in cluster.nodes[1].output_path.read_text(), "the controller reports it")
    assert set(cluster.leaders(2, "wiped").values()) == {1, 2, -1}
    command = ["cluster", "status", "-b", cluster.nodes[2].kafka]
    named = "broker 3 runs without the disk of its partitions"
    until(lambda: named in CliRunner().invoke(app, command).stdout, "the status names the broker")
    node.kill()
    shutil.rmtree(node.data_dir)
    kept.rename(node.data_dir)
    node.start()
    cluster.wait_leaders(2, "wiped", {1, 2, 3})
    assert consumed(cluster, 2, "wiped", "unharmed", 12) == set(range(12))


def test_a_broker_without_its_controllers_address_does_not_begin_a_cluster_of_its_own(cluster: Cluster) -> None:
    create(cluster, 1, "alone")
    node = cluster.nodes[2]
    node.stop()
    flags, node.flags = node.flags, node.flags[:2]
    with pytest.raises(NodeFailed, match="needs its --controller"):
        node.start()
    node.flags = flags
    node.start()
    cluster.wait_leaders(1, "alone", {1, 2, 3})


def test_a_brokers_own_configs_are_altered_there(cluster: Cluster) -> None:
    own = [ConfigResource(ConfigResource.Type.BROKER, "2", set_config={"log.retention.ms": "123456"})]
    one, two = cluster.admin(1), cluster.admin(2)
    (altered,) = two.alter_configs(own).values()
    altered.result(30)
    (described,) = two.describe_configs(own).values()
    assert described.result(30)["log.retention.ms"].value == "123456"
    other = [ConfigResource(ConfigResource.Type.BROKER, "1")]
    (first,) = one.describe_configs(other).values()
    assert first.result(30)["log.retention.ms"].value != "123456"


def test_committed_offsets_are_found_from_any_broker(cluster: Cluster) -> None:
    create(cluster, 2, "committed")
    produce(cluster, 2, "committed", range(12))
    consumed(cluster, 3, "committed", "kept", 12)
    consumer = Consumer({"bootstrap.servers": cluster.nodes[1].kafka, "group.id": "kept"})
    try:
        asked = [TopicPartition("committed", number) for number in range(PARTITIONS)]
        assert [each.offset for each in consumer.committed(asked, timeout=30)] == [2] * PARTITIONS
    finally:
        consumer.close()


def test_every_broker_names_the_controller_as_the_quorums_leader(cluster: Cluster) -> None:
    topics = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    for node in cluster.nodes.values():
        answer = Peer("tidelog", node.kafka, "quorum").quietly("describe_quorum", 2, topics=topics)
        assert answer["topics"][0]["partitions"][0]["leader_id"] == 1
        assert [voter["node_id"] for voter in answer["nodes"]] == [1]


def test_an_empty_transactional_id_is_invalid_at_every_broker(cluster: Cluster) -> None:
    cluster.admin(1).create_topics([NewTopic("__transaction_state", 3, 1)])["__transaction_state"].exception(30)
    producer = {"transactional_id": "", "producer_id": 7, "producer_epoch": 0}
    for node in cluster.nodes.values():
        answer = Peer("tidelog", node.kafka, "empty").quietly("end_txn", 3, **producer, committed=True)
        assert answer["error_code"] == "INVALID_REQUEST"


def test_transactions_span_brokers(cluster: Cluster) -> None:
    """Each transaction writes to partitions on all brokers and commits a group's offsets. Ten ids have different
    coordinators."""
    create(cluster, 1, "paid")
    create(cluster, 1, "source")
    coordinators = set()
    for number in range(10):
        name = f"payer-{number}"
        configs = {"bootstrap.servers": cluster.nodes[1 + number % 3].kafka, "transactional.id": name}
        producer = Producer(configs)
        producer.init_transactions(60)
        for commit in (True, False, True):
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                producer.produce("paid", b"1" if commit else b"0", partition=partition)
            offsets = [TopicPartition("source", 0, 10 * number + commit)]
            group = Consumer({"bootstrap.servers": cluster.nodes[2].kafka, "group.id": f"paying-{number}"})
            producer.send_offsets_to_transaction(offsets, group.consumer_group_metadata(), 60)
            if commit:
                producer.commit_transaction(60)
            else:
                producer.abort_transaction(60)
            if number == 9:
                assert [each.offset for each in group.committed([TopicPartition("source", 0)], timeout=30)] == [91]
            group.close()
        admin = cluster.admin(3)
        described = admin.describe_consumer_groups([f"paying-{number}"])[f"paying-{number}"].result(30)
        coordinators.add(described.coordinator.id)
    assert coordinators == {1, 2, 3}
    reader = Consumer(
        {
            "bootstrap.servers": cluster.nodes[3].kafka,
            "group.id": "audit",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    found: list[bytes | None] = []
    try:
        reader.subscribe(["paid"])

        def read() -> bool:
            message = reader.poll(0.2)
            if message is not None and message.error() is None:
                found.append(message.value())
            return len(found) == 10 * 2 * PARTITIONS

        until(read, "all committed records")
        assert set(found) == {b"1"}
    finally:
        reader.close()
