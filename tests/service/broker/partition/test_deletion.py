"""A topic is deleted and created again under its name while the broker works on the old one: the new one stays untouched."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import pytest

from service.broker.partition.partition import Partition
from storage_tiers.cold.manifest.saved_manifest import FILE_NAME
from storage_tiers.errors import LogError, UnknownTopicOrPartition
from storage_tiers.types import TopicPartition
from tests.service.broker.support import TIERED, Running, manifest_of, running, until
from tests.support.faulty_store import Gate

T0 = TopicPartition("t", 0)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path / "data") as started:
        yield started


async def tiered(node: Running) -> Partition:
    """Puts forty records in the bucket and none on the disk; a new topic would choose the same segment names."""
    await node.create("t", configs=TIERED)
    for i in range(40):
        await node.append("t", b"%03d" % i * 50)
    await node.seal("t")
    await node.evicted("t")
    return node.node.broker.partitions.get(T0)


async def created_again(node: Running, gate: Gate) -> Partition:
    """Waits until the old topic's commit blocks in the store, then makes another topic of its name, with records."""
    await gate.reached.wait()
    await node.core.topics.delete(["t"])
    await node.create("t", configs={**TIERED, "remote.storage.enable": "false"})
    for i in range(40):
        await node.append("t", b"new%d" % i * 50)
    return node.node.broker.partitions.get(T0)


async def ends(work: Awaitable[object]) -> LogError | None:
    try:
        await work
    except LogError as error:
        return error
    return None


async def check_untouched(node: Running, new: Partition) -> None:
    assert FILE_NAME not in os.listdir(new.log.hot.directory)
    assert new.log.hot.local_start_offset == 0
    assert [record.value for record in await node.read_all("t")] == [b"new%d" % i * 50 for i in range(40)]
    assert node.node.ground.ending.fatal is None


async def test_deleting_records_of_a_topic_deleted_meanwhile_is_refused_and_leaves_its_successor_alone(
    node: Running,
) -> None:
    await tiered(node)
    gate = node.store.hold(1, "put", "manifests/")
    work = asyncio.ensure_future(ends(node.log.delete_records(T0, 17)))
    new = await created_again(node, gate)
    gate.open()
    assert isinstance(await work, UnknownTopicOrPartition)
    await check_untouched(node, new)


async def test_retention_of_a_topic_deleted_meanwhile_leaves_its_successor_alone(node: Running) -> None:
    old = await tiered(node)
    old.log.hot.raise_log_start(20)
    gate = node.store.hold(1, "put", "manifests/")
    work = asyncio.ensure_future(node.node.broker.retention.tick())
    new = await created_again(node, gate)
    gate.open()
    await work
    await check_untouched(node, new)


async def test_retention_continues_when_a_topic_is_deleted_meanwhile(node: Running) -> None:
    """The topic's directory is gone when retention would save the committed manifest in it."""
    old = await tiered(node)
    old.log.hot.raise_log_start(20)
    gate = node.store.hold(1, "put", "manifests/")
    work = asyncio.ensure_future(node.node.broker.retention.tick())
    await gate.reached.wait()
    await node.core.topics.delete(["t"])
    gate.open()
    await work
    assert node.node.ground.ending.fatal is None


async def test_work_is_not_begun_on_a_deleted_partition(node: Running) -> None:
    old = await tiered(node)
    gone = await manifest_of(old)
    await node.core.topics.delete(["t"])
    works = node.node.work.tiering._offloading, node.node.work.tiering._local_retention
    await until(lambda: all(old not in work for work in works))
    node.node.work.tiering.kick(old)
    assert all(old not in work for work in works)
    with pytest.raises(UnknownTopicOrPartition):
        await node.node.work.tiering.accept(old, gone)
