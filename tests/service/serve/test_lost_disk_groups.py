"""A broker loses its disk after groups have read more of its partitions than the bucket has: the groups' offsets are lowered,
whichever broker coordinates the group."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ElectionType, TopicPartition
from typer.testing import CliRunner

from service.cli.main import app
from tests.faults.clients import until
from tests.service.serve.test_cluster import PARTITIONS, create, produce
from tests.support.cluster import Cluster

LOSES = 3


@pytest.mark.parametrize("coordinator", [1, LOSES], ids=["another broker", "the same broker"])
def test_offsets_above_the_end_are_lowered(tmp_path: Path, coordinator: int) -> None:
    with Cluster(tmp_path, f"file://{tmp_path / 'store'}", {"offsets.topic.num.partitions": 3}) as cluster:
        create(cluster, 1, "t")
        produce(cluster, 1, "t", range(60))
        assert CliRunner().invoke(app, ["topic", "seal", "t", "--wait", "-b", cluster.nodes[1].kafka]).exit_code == 0
        produce(cluster, 1, "t", range(60, 120))
        lost = [number for number, leader in cluster.leaders(1, "t").items() if leader == LOSES]
        read = [TopicPartition("t", number, 120 // PARTITIONS) for number in lost]
        group, admin = _group_of(cluster, coordinator), cluster.admin(1)
        _commit(cluster, group, read)
        node = cluster.nodes[LOSES]
        node.kill()
        if coordinator == LOSES:  # the group's own records are kept
            for number in lost:
                shutil.rmtree(node.partition_dir("t", number))
        else:
            shutil.rmtree(node.data_dir)
        node.start()
        admin.elect_leaders(ElectionType.UNCLEAN, None).result(30)
        consumer = Consumer({"bootstrap.servers": cluster.nodes[1].kafka, "group.id": group})
        try:
            until(lambda: {at.offset for at in consumer.committed(read, 30)} == {60 // PARTITIONS}, "lowered")
        finally:
            consumer.close()
        # The offsets that the group commits next do not exceed any log end, so they stay.
        produce(cluster, 1, "t", range(120, 180))
        again = [TopicPartition("t", number, 90 // PARTITIONS) for number in lost]
        _commit(cluster, group, again)
        until(lambda: not list(node.data_dir.glob("t-*/recovered-end")), "the loss is settled")
        assert [at.offset for at in _committed(cluster, group, again)] == [90 // PARTITIONS] * len(lost)


def _group_of(cluster: Cluster, coordinator: int) -> str:
    """The name of a group that this broker coordinates."""
    admin = cluster.admin(1)
    names = [f"g{number}" for number in range(100)]
    _commit(cluster, names[0], [])
    return next(
        name for name in names if admin.describe_consumer_groups([name])[name].result(30).coordinator.id == coordinator
    )


def _commit(cluster: Cluster, group: str, at: list[TopicPartition]) -> None:
    consumer = Consumer({"bootstrap.servers": cluster.nodes[1].kafka, "group.id": group, "auto.offset.reset": "error"})
    try:
        until(lambda: bool(consumer.list_topics("t", timeout=30)), "the consumer is connected")
        if at:
            consumer.commit(offsets=at, asynchronous=False)
    finally:
        consumer.close()


def _committed(cluster: Cluster, group: str, at: list[TopicPartition]) -> list[TopicPartition]:
    consumer = Consumer({"bootstrap.servers": cluster.nodes[1].kafka, "group.id": group})
    try:
        found: list[TopicPartition] = consumer.committed(at, 30)
        return found
    finally:
        consumer.close()
