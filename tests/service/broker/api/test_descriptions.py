"""Descriptions of the cluster and its topics: fenced brokers are not shown, and a partition without a leader says so."""

from __future__ import annotations

from pathlib import Path

from grpc_api.contract.topics import TopicDescription
from service.metadata import records_pb2 as pb
from storage_tiers.errors import LeaderNotAvailable
from tests.service.broker.support import Running, metadata_log, running, until
from tests.service.metadata.records import broker, broker_change

OTHER = 2


def described(node: Running) -> TopicDescription:
    """The topic's description by name; asserts that the list of all topics agrees."""
    (named,) = node.core.topics.describe(["t"])
    (listed,) = [
        each for each in node.core.topics.describe() if isinstance(each, TopicDescription) and each.name == "t"
    ]
    assert isinstance(named, TopicDescription)
    assert (named.name, len(named.partitions)) == (listed.name, len(listed.partitions))
    assert [(each.leader, each.offline) for each in named.partitions] == [
        (each.leader, each.offline) for each in listed.partitions
    ]
    return named


async def test_a_partition_of_a_fenced_broker_has_no_leader_and_an_offline_replica(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await node.create("t", partitions=2)
        log, known = metadata_log(node), node.node.ground.metadata.image.topic_ids["t"]
        moved = pb.PartitionChangeRecord(
            topic_id=known,
            index=1,
            leader=OTHER,
            replicas=pb.ReplicaList(nodes=[OTHER]),
            isr=pb.ReplicaList(nodes=[OTHER]),
        )
        await log.propose([broker(OTHER), pb.MetadataRecord(partition_change=moved)])
        await until(lambda: described(node).partitions[1].leader == OTHER)
        assert [(each.error, each.offline) for each in described(node).partitions] == [(None, ())] * 2
        assert [each.node_id for each in node.core.topics.cluster().brokers] == [1, OTHER]
        gone = pb.PartitionChangeRecord(topic_id=known, index=1, leader=-1)
        await log.propose([broker_change(OTHER, fenced=True), pb.MetadataRecord(partition_change=gone)])
        await until(lambda: described(node).partitions[1].leader == -1)
        led, waiting = described(node).partitions
        assert (led.error, led.offline) == (None, ())
        assert waiting.offline == (OTHER,)
        assert isinstance(waiting.error, LeaderNotAvailable)
        assert [each.node_id for each in node.core.topics.cluster().brokers] == [1]
