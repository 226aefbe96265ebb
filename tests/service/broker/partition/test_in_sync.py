"""Changes of the in-sync replicas of a partition whose leader stays: which appends wait, and which are acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from grpc_api.contract.topics import AlterOp, ConfigAlteration, Resource, ResourceKind
from service.metadata import records_pb2 as pb
from storage_tiers.types import TopicPartition
from tests.service.broker.support import Running, batch, metadata_log, running

ME, OTHER = 1, 2
UNTIERED = {"remote.storage.enable": "false"}


async def place(node: Running, *, in_sync: Sequence[int], replicas: Sequence[int] = (ME, OTHER)) -> None:
    """Makes this node lead partition 0 of t with these replicas."""
    known = node.node.ground.metadata.image.topic("t")
    assert known is not None
    change = pb.PartitionChangeRecord(
        topic_id=known.topic_id,
        index=0,
        leader=ME,
        replicas=pb.ReplicaList(nodes=replicas),
        isr=pb.ReplicaList(nodes=in_sync),
    )
    await metadata_log(node).propose([pb.MetadataRecord(partition_change=change)])


async def require(node: Running, resource: Resource, minimum: str) -> None:
    await node.core.configs.alter_configs(resource, [ConfigAlteration("min.insync.replicas", AlterOp.SET, minimum)])


async def test_with_fewer_in_sync_replicas_than_the_topic_demands_nothing_is_committed(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as node:
        await node.create("t", configs={**UNTIERED, "min.insync.replicas": "2"})
        led = node.node.broker.partitions.get(TopicPartition("t", 0))
        assert led.state.min_in_sync == 1, "it has one replica"
        assert (await node.append("t", b"a")).base_offset == 0
        await place(node, in_sync=[ME])
        assert led.state.min_in_sync == 2
        appended = led.append(memoryview(batch(b"b")))
        assert appended.committed is not None and not appended.committed.done()
        assert (led.state.high_watermark, led.state.is_under_min_in_sync) == (1, True)
        await place(node, in_sync=[ME], replicas=[ME])
        await asyncio.wait_for(appended.committed, 60)
        assert led.state.high_watermark == 2


@pytest.mark.parametrize("kind", [ResourceKind.TOPIC, ResourceKind.BROKER])
async def test_a_changed_minimum_of_in_sync_replicas_acts_at_once(tmp_path: Path, kind: ResourceKind) -> None:
    resource = Resource(kind, "t" if kind is ResourceKind.TOPIC else "")
    async with running(tmp_path / "data") as node:
        await node.create("t", configs=UNTIERED)
        led = node.node.broker.partitions.get(TopicPartition("t", 0))
        await require(node, resource, "2")
        await place(node, in_sync=[ME])
        appended = led.append(memoryview(batch(b"a")))
        assert appended.committed is not None and not appended.committed.done()
        await require(node, resource, "1")
        await asyncio.wait_for(appended.committed, 60)
        assert led.state.high_watermark == 1


async def test_a_start_knows_the_minimum_before_it_leads(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as node:
        await node.create("t", configs={**UNTIERED, "min.insync.replicas": "2"})
        await place(node, in_sync=[ME])
        node.node.broker.partitions.get(TopicPartition("t", 0)).append(memoryview(batch(b"a")))
        store = node.store
    async with running(tmp_path / "data", store) as node:
        state = node.node.broker.partitions.get(TopicPartition("t", 0)).state
        assert (state.min_in_sync, state.high_watermark, state.log_end) == (2, 0, 1)


async def test_acknowledgements_that_wait_for_a_follower_are_sent_when_it_leaves_the_in_sync_set(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "data") as node:
        await node.create("t", configs={"remote.storage.enable": "false"})
        metadata, led = metadata_log(node), node.node.broker.partitions.get(TopicPartition("t", 0))
        known = metadata.image.topic("t")
        assert known is not None
        both, alone = pb.ReplicaList(nodes=[ME, OTHER]), pb.ReplicaList(nodes=[ME])
        for change in (
            pb.PartitionChangeRecord(topic_id=known.topic_id, index=0, leader=ME, replicas=both, isr=both),
            pb.PartitionChangeRecord(topic_id=known.topic_id, index=0, isr=alone),
        ):
            await metadata.propose([pb.MetadataRecord(partition_change=change)])
            if change.HasField("leader"):
                appended = led.append(memoryview(batch(b"a")))
                assert appended.committed is not None
                assert not appended.committed.done()
        assert appended.committed is not None
        await asyncio.wait_for(appended.committed, 60)
        assert led.state.high_watermark == 1
