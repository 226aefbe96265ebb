"""The log start on disk and in the bucket: it is durable before anything is removed for it, whatever fails in between."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from grpc_api.contract.topics import AlterOp, ConfigAlteration, Resource, ResourceKind
from storage_tiers.cold.manifest.model import Manifest
from storage_tiers.cold.manifest.saved_manifest import read_manifest
from storage_tiers.errors import StorageError, UnknownTopicOrPartition
from storage_tiers.files import OsFiles
from storage_tiers.hot.checkpoints import CLEAN_SHUTDOWN, LOG_STARTS, read_offsets
from storage_tiers.records.decoder import Record
from storage_tiers.types import TopicPartition
from tests.service.broker.support import TIERED, Running, running, until

T0 = TopicPartition("t", 0)


class HeldFiles(OsFiles):
    """Counts the renames to each file name; the first rename to `held` blocks until `may_go`."""

    def __init__(self) -> None:
        self.named: Counter[str] = Counter()
        self.held = ""
        self.reached = threading.Event()
        self.may_go = threading.Event()

    def rename(self, source: str, target: str) -> None:
        name = os.path.basename(target)
        if name == self.held:
            self.held = ""
            self.reached.set()
            assert self.may_go.wait(60)
        self.named[name] += 1
        super().rename(source, target)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path / "data") as started:
        yield started


def checkpointed(node: Running) -> int:
    return read_offsets(os.path.join(node.node.ground.data.path, LOG_STARTS)).get(T0, 0)


async def test_a_log_start_that_cannot_be_written_hides_nothing_and_may_be_requested_again(
    node: Running, tmp_path: Path
) -> None:
    await node.create("t")
    for _ in range(5):
        await node.append("t", b"a")
    in_the_way = tmp_path / "data" / (LOG_STARTS + ".tmp")
    in_the_way.mkdir()
    with pytest.raises(StorageError):
        await node.log.delete_records(T0, 3)
    led = node.node.broker.partitions.get(T0)
    assert (led.log.log_start_offset, checkpointed(node)) == (0, 0)
    in_the_way.rmdir()
    assert await node.log.delete_records(T0, 3) == 3
    assert checkpointed(node) == 3


async def test_deleting_records_of_many_partitions_takes_few_writes(tmp_path: Path) -> None:
    """Appends do not wait for these writes, because the disk may be slow."""
    files = HeldFiles()
    async with running(tmp_path / "data", files=files) as node:
        await node.create("t", 30)
        for number in range(30):
            await node.append("t", b"a", b"b", partition=number)
        files.held = LOG_STARTS
        wanted = [node.log.delete_records(TopicPartition("t", number), 1) for number in range(20)]
        deleting = asyncio.gather(*wanted)
        await asyncio.to_thread(files.reached.wait, 60)
        more = asyncio.gather(*(node.log.delete_records(TopicPartition("t", number), 1) for number in range(20, 30)))
        again = asyncio.ensure_future(node.log.delete_records(T0, 2))
        checkpointing = asyncio.ensure_future(node.node.broker.maintenance.checkpoint())
        assert (await node.append("t", b"c")).base_offset == 2
        assert node.node.broker.partitions.get(T0).log.log_start_offset == 0
        files.may_go.set()
        assert (await deleting, await more) == ([1] * 20, [1] * 10)
        assert await again == 2
        await checkpointing
        assert files.named[LOG_STARTS] == 2
        found = read_offsets(os.path.join(node.node.ground.data.path, LOG_STARTS))
        assert found == {TopicPartition("t", number): 2 if number == 0 else 1 for number in range(30)}


async def test_a_topic_created_again_while_the_log_start_of_the_old_one_is_written_keeps_its_records(
    tmp_path: Path,
) -> None:
    files = HeldFiles()
    async with running(tmp_path / "data", files=files) as node:
        await node.create("t")
        await node.append("t", *[b"old"] * 5)
        files.held = LOG_STARTS
        deleting = asyncio.ensure_future(node.log.delete_records(T0, 4))
        await asyncio.to_thread(files.reached.wait, 60)
        await node.core.topics.delete(["t"])
        creating = asyncio.ensure_future(node.create("t"))
        await asyncio.sleep(0)
        files.may_go.set()
        with pytest.raises(UnknownTopicOrPartition):
            await deleting
        await creating
        await node.append("t", b"a", b"b")
        assert checkpointed(node) == 0
        store = node.store
    async with running(tmp_path / "data", store) as node:
        assert [record.value for record in await node.read("t", 0)] == [b"a", b"b"]


async def test_retention_writes_the_log_starts_of_all_partitions(node: Running) -> None:
    await node.create("t", 3, configs={"internal.segment.bytes": "2000", "remote.storage.enable": "false"})
    for partition in range(3):
        for _ in range(40):
            await node.append("t", b"a" * 200, partition=partition)
    shorter = ConfigAlteration("retention.bytes", AlterOp.SET, "3000")
    await node.core.configs.alter_configs(Resource(ResourceKind.TOPIC, "t"), [shorter])
    await node.node.broker.retention.tick()
    found = read_offsets(os.path.join(node.node.ground.data.path, LOG_STARTS))
    partitions = [node.node.broker.partitions.get(TopicPartition("t", number)) for number in range(3)]
    assert all(partition.log.log_start_offset > 0 for partition in partitions)
    assert found == {partition.partition: partition.log.log_start_offset for partition in partitions}


async def test_the_manifest_drops_segments_inside_a_page(node: Running) -> None:
    """With more segments than a manifest holds, the oldest are in a manifest page, and retention removes some of those."""
    await node.create("t", configs={**TIERED, "internal.segment.bytes": "300"})
    for i in range(140):
        await node.append("t", b"%03d" % i * 70)
    await node.seal("t")
    led = node.node.broker.partitions.get(T0)

    def manifest() -> Manifest:
        found = read_manifest(led.log.hot.directory, led.ids)
        assert found is not None
        return found

    (page, *_) = manifest().live_pages
    await node.node.broker.partitions.raise_log_starts({led: page.base + 10})
    await node.node.broker.retention.tick()
    assert page.end > page.base + 10
    assert manifest().log_start == page.base + 10
    assert manifest().live_pages[0].base == page.base + 10
    assert manifest().removed
    await until(lambda: led.log.hot.local_start_offset == led.log.end_offset)
    assert [record.offset for record in await node.read_all("t", start=10)] == list(range(10, 140))


async def test_retention_asks_for_pages_only_when_the_oldest_segment_has_expired(node: Running) -> None:
    """At first the limit keeps even the oldest segment. Then a few segments expire, which takes one request for all pages."""
    await node.create("t", configs={**TIERED, "internal.segment.bytes": "300"})
    for i in range(140):
        await node.append("t", b"%03d" % i * 70)
    await node.seal("t")
    led, client = node.node.broker.partitions.get(T0), node.tier.client
    assert client is not None
    assert led.log.tier is not None
    assert led.log.tier.paged
    total = led.log.tier.bytes

    async def read(retention_bytes: int) -> dict[str, int]:
        """The requests about pages that a retention round makes, counted by name."""
        limit = ConfigAlteration("retention.bytes", AlterOp.SET, str(retention_bytes))
        await node.core.configs.alter_configs(Resource(ResourceKind.TOPIC, "t"), [limit])
        before = client.stats.asked.copy()
        await node.node.broker.retention.tick()
        return {name: count for name, count in (client.stats.asked - before).items() if "Page" in name}

    assert await read(total) == {}
    assert led.log.log_start_offset == 0
    assert await read(total - 3 * (total // 140)) == {"PlanPages": 1}
    assert led.log.log_start_offset == 3
    assert led.log.tier.oldest is not None
    assert led.log.tier.oldest.end == 4


async def test_a_log_start_above_the_end_after_a_clean_stop_deletes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The checkpoint was edited or damaged. Neither tier may lose records because of it, not even after a later crash."""
    async with running(tmp_path / "data") as node:
        await node.create("t", configs={"retention.ms": "-1"})
        await node.append("t", b"0", b"1")
        await node.seal("t")
        await node.append("t", b"2", b"3")
        store = node.store
    path = tmp_path / "data" / LOG_STARTS
    path.write_text("0\n1\nt 0 4000000\n")
    for attempt in range(2):
        async with running(tmp_path / "data", store) as node:
            partition = node.node.broker.partitions.get(T0)
            assert [each.offset for each in await read_once_led(node)] == [0, 1, 2, 3]
            assert (partition.log.log_start_offset, await node.end("t")) == (0, 4)
            await until(lambda: read_offsets(str(path)).get(T0, 0) == 0)
        (tmp_path / "data" / CLEAN_SHUTDOWN).unlink()
        assert ("log.start_impossible" in caplog.text) == (attempt == 0)
        caplog.clear()


async def test_a_log_start_above_the_end_after_a_crash_is_kept_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The node may have deleted records up to that log start before a power loss took them from the disk."""
    local = {"remote.storage.enable": "false"}
    async with running(tmp_path / "data") as node:
        await node.create("t", configs=local)
        await node.append("t", b"0", b"1")
        store = node.store
    (tmp_path / "data" / LOG_STARTS).write_text("0\n1\nt 0 7\n")
    (tmp_path / "data" / CLEAN_SHUTDOWN).unlink()
    async with running(tmp_path / "data", store) as node:
        assert await node.end("t") == 7
    assert "the log ends at 2, below its log start 7" in caplog.text


async def read_once_led(node: Running) -> list[Record]:
    partition = node.node.broker.partitions.get(T0)
    await until(lambda: not partition.is_recovering)
    return await node.read_all("t")
