"""Log start on disk and in the bucket: durable before anything is removed for it, whatever fails in between."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from grpc_api.contract.topics import AlterOp, ConfigAlteration, Resource, ResourceKind
from storage_tiers.cold.manifest import Root
from storage_tiers.errors import StorageError
from storage_tiers.hot.checkpoints import LOG_STARTS, read_offsets
from storage_tiers.types import TopicPartition
from tests.service.broker.support import TIERED, Running, running, until

T0 = TopicPartition("t", 0)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path / "data") as started:
        yield started


def checkpointed(node: Running) -> int:
    return read_offsets(os.path.join(node.node.data.path, LOG_STARTS)).get(T0, 0)


async def test_a_log_start_that_cannot_be_written_hides_nothing_and_may_be_asked_again(
    node: Running, tmp_path: Path
) -> None:
    await node.create("t")
    for _ in range(5):
        await node.append("t", b"a")
    in_the_way = tmp_path / "data" / (LOG_STARTS + ".tmp")
    in_the_way.mkdir()
    with pytest.raises(StorageError):
        await node.log.delete_records(T0, 3)
    led = node.node.partitions.get(T0)
    assert (led.log.log_start_offset, checkpointed(node)) == (0, 0)
    in_the_way.rmdir()
    assert await node.log.delete_records(T0, 3) == 3
    assert checkpointed(node) == 3


async def test_retention_writes_the_log_starts_of_all_partitions(node: Running) -> None:
    await node.create("t", 3, configs={"internal.segment.bytes": "2000", "remote.storage.enable": "false"})
    for partition in range(3):
        for _ in range(40):
            await node.append("t", b"a" * 200, partition=partition)
    shorter = ConfigAlteration("retention.bytes", AlterOp.SET, "3000")
    await node.core.configs.alter_configs(Resource(ResourceKind.TOPIC, "t"), [shorter])
    await node.node.maintenance.retain()
    found = read_offsets(os.path.join(node.node.data.path, LOG_STARTS))
    partitions = [node.node.partitions.get(TopicPartition("t", number)) for number in range(3)]
    assert all(partition.log.log_start_offset > 0 for partition in partitions)
    assert found == {partition.partition: partition.log.log_start_offset for partition in partitions}


async def test_the_manifest_drops_ranges_that_lie_in_a_page(node: Running) -> None:
    """More ranges than a root holds: the oldest stand in a page, of which retention takes some."""
    await node.create("t", configs={**TIERED, "internal.segment.bytes": "300"})
    for i in range(140):
        await node.append("t", b"%03d" % i * 70)
    await node.seal("t")
    led = node.node.partitions.get(T0)

    def root() -> Root:
        assert led.log.root is not None
        return led.log.root

    (page, *_) = root().live_pages
    node.node.partitions.raise_log_starts({led: page.base + 10})
    await node.node.maintenance.retain()
    assert page.end > page.base + 10
    assert root().log_start == page.base + 10
    assert root().live_pages[0].base == page.base + 10
    assert root().removed
    await until(lambda: led.log.hot.local_start_offset == led.log.end_offset)
    assert [record.offset for record in await node.read_all("t", start=10)] == list(range(10, 140))
