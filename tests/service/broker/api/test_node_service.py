"""A node's reports about its disk, the producers that wrote to it, and its quorum."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from grpc_api.contract.node import ActiveProducer
from storage_tiers.errors import UnknownTopicOrPartition
from storage_tiers.types import TopicPartition
from tests.service.broker.support import Running, batch, filled, running


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path / "data") as started:
        yield started


async def test_the_directory_has_the_local_bytes(node: Running, tmp_path: Path) -> None:
    await filled(node)
    await node.create("a", partitions=2)
    await node.append("a", b"value")
    (directory,) = node.node.broker.core.node.log_directories()
    assert directory.path == str((tmp_path / "data").absolute())
    assert 0 < directory.usable_bytes <= directory.total_bytes
    sizes = {replica.partition: replica.size_bytes for replica in directory.replicas}
    assert list(sizes) == [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("t", 0)]
    files = (tmp_path / "data" / "t-0").glob("*.log")
    assert sizes[TopicPartition("t", 0)] == sum(file.stat().st_size for file in files) > 0
    assert (sizes[TopicPartition("a", 0)], sizes[TopicPartition("a", 1)]) == (len(batch(b"value")), 0)
    await node.seal("t")
    await node.evicted("t")
    (directory,) = node.node.broker.core.node.log_directories()
    assert {r.partition: r.size_bytes for r in directory.replicas}[TopicPartition("t", 0)] == 0


async def test_a_replica_is_described_when_it_is_read(node: Running) -> None:
    """Looking at thousands of replicas takes 10 ms if it is done in one go."""
    await node.create("t")
    (directory,) = node.node.broker.core.node.log_directories()
    await node.append("t", b"value")
    assert [replica.size_bytes for replica in directory.replicas] == [len(batch(b"value"))]


async def test_producers_are_those_that_wrote_with_an_id(node: Running) -> None:
    await node.create("t")
    await node.append("t", b"nobody")
    partition = TopicPartition("t", 0)
    assert node.node.broker.core.node.producers(partition) == []
    await node.append_batch("t", batch(b"a", b"b", producer_id=7, producer_epoch=1, base_sequence=0))
    await node.append_batch("t", batch(b"c", producer_id=7, producer_epoch=1, base_sequence=2))
    assert node.node.broker.core.node.producers(partition) == [ActiveProducer(7, 1, 2, 1_700_000_000_000, -1, -1)]
    with pytest.raises(UnknownTopicOrPartition):
        node.node.broker.core.node.producers(TopicPartition("t", 1))


async def test_the_high_watermark_of_the_quorum_follows_the_metadata(node: Running) -> None:
    before = node.node.broker.core.node.quorum()
    await node.create("t")
    after = node.node.broker.core.node.quorum()
    assert (after.leader_id, after.leader_epoch) == (node.node.ground.settings.node_id, before.leader_epoch)
    assert after.high_watermark > before.high_watermark > 1
    assert after.now_ms >= before.now_ms
