"""The command line drains a broker: all its partitions move to others. Later it moves a share back. A partition moves with the
state of its producers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from storage_tiers.records.builder import NewRecord, build_batch
from tests.differential.peer import Peer
from tests.faults.clients import until
from tests.service.cli.support import tidelog
from tests.service.serve.test_cluster import consumed, create, produce
from tests.support.cluster import Cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("drained")
    settings = {"offsets.topic.num.partitions": 6}
    with Cluster(directory, f"file://{directory / 'store'}", settings) as made:
        yield made


def held(cluster: Cluster) -> Counter[int]:
    """The number of partitions that each broker holds."""
    topics = cluster.admin(1).list_topics(timeout=10).topics.values()
    return Counter(broker for topic in topics for part in topic.partitions.values() for broker in part.replicas)


def wait_fenced(cluster: Cluster, broker: int) -> None:
    def is_fenced() -> bool:
        since = cluster.nodes[1].output().rpartition(f"broker.unfenced broker={broker} ")[2]
        return f"broker.fenced broker={broker} " in since

    until(is_fenced, f"broker {broker} is fenced")


def test_a_drained_broker_holds_nothing_and_gets_its_share_back(cluster: Cluster) -> None:
    for topic in ("a", "b"):
        create(cluster, 1, topic)
        produce(cluster, 1, topic, range(60))
    assert consumed(cluster, 1, "a", "readers", 60) == set(range(60))
    before, at = held(cluster), ("-b", cluster.nodes[2].kafka)

    assert "Nothing was changed" in tidelog("cluster", "drain", "3", *at).out
    assert held(cluster) == before
    drained = tidelog("cluster", "drain", "3", "--execute", "--timeout", "60", "--json", *at)
    assert drained.code == 0, drained.err
    assert {row["state"] for row in drained.json["moves"]} == {"moved"}
    assert {row["topic"] for row in drained.json["moves"]} == {"a", "b", "__consumer_offsets"}
    until(lambda: held(cluster)[3] == 0, "broker 3 holds nothing")
    until(lambda: not [*cluster.nodes[3].data_dir.glob("*-[0-9]")], "broker 3 has no partition's directory")
    assert max(held(cluster).values()) - min(held(cluster)[broker] for broker in (1, 2)) <= 1

    produce(cluster, 2, "a", range(60, 90))
    assert consumed(cluster, 2, "a", "others", 90) == set(range(90))
    assert consumed(cluster, 2, "a", "readers", 30) == set(range(60, 90))
    assert consumed(cluster, 2, "b", "others", 60) == set(range(60))

    balanced = tidelog("cluster", "rebalance", "--execute", "--timeout", "60", *at)
    assert balanced.code == 0, balanced.err
    until(lambda: [*held(cluster).values()] == [6, 6, 6], "all brokers hold equally many")


def test_a_topic_is_sealed_where_its_partitions_are(cluster: Cluster) -> None:
    tidelog("topic", "create", "single", "--partitions", "1", "-b", cluster.nodes[1].kafka)
    producer = Producer({"bootstrap.servers": cluster.nodes[1].kafka})
    for number in range(10):
        producer.produce("single", b"%d" % number)
    assert producer.flush(30) == 0
    for node in cluster.nodes.values():
        sealed = tidelog("topic", "seal", "single", "--wait", "--json", "-b", node.kafka)
        assert (sealed.code, sealed.json["partitions"]) == (0, [{"partition": 0, "end": 10, "tiered_end": 10}]), (
            sealed.err
        )


def test_a_drained_broker_is_removed_and_comes_back(cluster: Cluster) -> None:
    create(cluster, 1, "left")
    produce(cluster, 1, "left", range(60))
    at, three = ("-b", cluster.nodes[2].kafka), cluster.nodes[3]
    running = tidelog("cluster", "unregister", "3", *at)
    assert running.code == 1 and "is a running broker of this cluster; stop it first" in running.err
    assert three.stop() == 0
    wait_fenced(cluster, 3)
    holding = tidelog("cluster", "unregister", "3", *at)
    assert holding.code == 1 and "`tidelog cluster drain 3 --execute`, and stop it again" in holding.err
    three.start()
    drained = tidelog("cluster", "drain", "3", "--execute", "--timeout", "60", *at)
    assert drained.code == 0, drained.err
    assert three.stop() == 0
    wait_fenced(cluster, 3)
    removed = tidelog("cluster", "unregister", "3", *at)
    assert (removed.code, removed.out) == (0, "broker 3 is no longer part of the cluster\n"), removed.err
    assert "Broker ID 3 is not currently registered" in tidelog("cluster", "unregister", "3", *at).err
    three.start()
    cluster.wait_leaders(1, "left", {1, 2})
    until(lambda: cluster.brokers(2) == {1, 2, 3}, "broker 3 is back")
    create(cluster, 1, "after")
    cluster.wait_leaders(2, "after", {1, 2, 3})
    balanced = tidelog("cluster", "rebalance", "--execute", "--timeout", "60", *at)
    assert balanced.code == 0, balanced.err


def test_a_wait_names_the_transaction_that_holds_a_move_up(cluster: Cluster) -> None:
    create(cluster, 1, "open")
    at, source = ("-b", cluster.nodes[2].kafka), cluster.leaders(1, "open")[0]
    producer = Producer({"bootstrap.servers": cluster.nodes[1].kafka, "transactional.id": "slow", "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("open", b"1", partition=0)
    assert producer.flush(30) == 0

    target = source % 3 + 1
    waited = tidelog("cluster", "move", "open:0", "--to", str(target), "--execute", "--timeout", "5", *at)
    assert waited.code == 1
    assert "nothing has moved for 3 s; waiting for open-0: producer" in waited.err
    assert "`tidelog txn abort slow` aborts it now" in waited.err
    assert f"1 partition moving: open-0 to broker {target}" in tidelog("cluster", "status", *at).out
    assert tidelog("cluster", "move", "--cancel", "--execute", *at).out.endswith("1 move cancelled\n")
    producer.commit_transaction(30)
    assert cluster.leaders(1, "open")[0] == source
    assert tidelog("cluster", "move", "open:0", "--to", str(target), "--execute", "--timeout", "60", *at).code == 0
    until(lambda: cluster.leaders(1, "open")[0] == target, "the partition has moved")


def test_every_leader_repairs_its_own_partitions(cluster: Cluster) -> None:
    create(cluster, 1, "repaired")
    produce(cluster, 1, "repaired", range(60))
    assert set(cluster.leaders(1, "repaired").values()) == {1, 2, 3}
    shown = tidelog("cold", "repair", "repaired", "-b", cluster.nodes[2].kafka)
    assert shown.code == 0, shown.err
    assert shown.out.count("nothing to repair") == 7, "topic.json and six partitions"


def offset_of(cluster: Cluster, broker: int, topic: str, batch: bytes) -> int:
    """Produces the batch to partition 0 until the broker leads it; returns the base offset of the broker's answer."""
    rows = [{"index": 0, "records": batch}]
    peer = Peer(f"broker {broker}", cluster.nodes[broker].kafka, "")
    found: dict[str, Any] = {}

    def is_led() -> bool:
        answer = peer.quietly("produce", 12, acks=-1, topic_data=[{"name": topic, "partition_data": rows}])
        (found["row"],) = answer["responses"][0]["partition_responses"]
        return found["row"]["error_code"] not in ("LEADER_NOT_AVAILABLE", "NOT_LEADER_OR_FOLLOWER")

    until(is_led, f"broker {broker} leads {topic}")
    peer.close_connection()
    assert found["row"]["error_code"] == "NONE", found
    return int(found["row"]["base_offset"])


def moved(cluster: Cluster, topic: str) -> int:
    """Moves partition 0 to the next broker, and returns that broker."""
    target = cluster.leaders(2, topic)[0] % 3 + 1
    at = ("-b", cluster.nodes[2].kafka)
    assert tidelog("cluster", "move", f"{topic}:0", "--to", str(target), "--execute", "--timeout", "60", *at).code == 0
    until(lambda: cluster.leaders(target, topic)[0] == target, "the partition has moved")
    return target


def test_a_new_leader_knows_all_five_batches_in_flight_of_each_producer(cluster: Cluster) -> None:
    create(cluster, 1, "five", 1)
    batches = {
        (producer, number): build_batch(
            [NewRecord(b"", b"%d" % (10 * producer + number + each), timestamp=1) for each in range(2)],
            producer_id=producer,
            producer_epoch=0,
            base_sequence=2 * number,
        )
        for number in range(7)
        for producer in (1, 2)
    }
    (leader,) = cluster.leaders(2, "five").values()
    written = {key: offset_of(cluster, leader, "five", batch) for key, batch in batches.items()}
    assert sorted(written.values()) == [*range(0, 28, 2)]
    last = {key: offset for key, offset in written.items() if key[1] >= 2}
    for _ in range(2):
        leader = moved(cluster, "five")
        assert {key: offset_of(cluster, leader, "five", batches[key]) for key in last} == last
    cluster.nodes[leader].restart()
    until(lambda: cluster.leaders(2, "five") == {0: leader}, "the leader is back")
    assert {key: offset_of(cluster, leader, "five", batches[key]) for key in last} == last
    leader = moved(cluster, "five")
    assert {key: offset_of(cluster, leader, "five", batches[key]) for key in last} == last
    following = build_batch([NewRecord(b"", b"last")], producer_id=1, producer_epoch=0, base_sequence=14)
    assert offset_of(cluster, leader, "five", following) == 28, "each batch is in the log once"
