"""The in-sync replicas of a partition that a node goes on leading: what they hold back, and what goes when they change."""

from __future__ import annotations

import asyncio
from pathlib import Path

from service.metadata import records_pb2 as pb
from storage_tiers.types import TopicPartition
from tests.service.broker.support import batch, running

ME, OTHER = 1, 2


async def test_acknowledgements_that_wait_for_a_follower_go_when_it_is_in_sync_no_more(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as node:
        await node.create("t", configs={"remote.storage.enable": "false"})
        metadata, led = node.node.ground.metadata, node.node.broker.partitions.get(TopicPartition("t", 0))
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
        await asyncio.wait_for(appended.committed, 10)
        assert led.state.high_watermark == 1
