"""Partitions follow the metadata, even where the disk refuses one of them."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from service.broker.partition.assignment import DISCARDS_A_TURN
from service.configs.keys import ConfigKey
from service.configs.resolve import Resolver
from service.metadata.image import MetadataImage
from storage_tiers.cold.manifest.saved_manifest import FILE_NAME as SAVED_MANIFEST
from storage_tiers.errors import LeaderNotAvailable, StorageError, UnknownTopicOrPartition
from storage_tiers.files import OsFiles
from storage_tiers.hot.checkpoints import HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS
from storage_tiers.types import TopicPartition
from tests.service.broker.api.test_configs_act import alter
from tests.service.broker.support import TIERED, running, until
from tests.support.thread_gates import SlowFiles


class UnmovableFiles(OsFiles):
    """Refuses to rename directories."""

    def rename(self, source: str, target: str) -> None:
        if Path(source).is_dir():
            raise OSError(errno.EIO, "rename refused")
        super().rename(source, target)


async def test_a_partition_that_could_not_be_made_is_made_later(tmp_path: Path) -> None:
    in_the_way = tmp_path / "data" / "t-1"
    async with running(tmp_path / "data") as node:
        in_the_way.write_text("no directory")
        await node.create("t", 3)
        await node.create("u")
        await node.append("t", b"a")
        await node.append("u", b"b")
        with pytest.raises(StorageError, match="could not be opened"):
            await node.append("t", b"c", partition=1)
        await node.node.broker.assignment.retry()
        in_the_way.unlink()
        await node.node.broker.assignment.retry()
        for partition in (1, 2):
            assert (await node.append("t", b"d", partition=partition)).base_offset == 0
        assert [record.value for record in await node.read("t", 0)] == [b"a"]


async def test_a_directory_that_cannot_be_moved_holds_no_other_topic_up(tmp_path: Path) -> None:
    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    async with running(tmp_path / "data", files=UnmovableFiles()) as node:
        await node.create("t")
        await node.core.topics.delete(["t"])
        await node.create("u")
        await node.append("u", b"a")
        with pytest.raises(UnknownTopicOrPartition):
            await node.append("t", b"b")
        assert node.node.broker.partitions.find(TopicPartition("t", 0)) is None
        assert node.node.ground.ending.fatal is None
    assert not unhandled


async def test_others_are_served_while_partitions_are_made(tmp_path: Path) -> None:
    files = SlowFiles()
    async with running(tmp_path / "data", files=files) as node:
        await node.create("other")
        files.held = "t-0"
        creating = asyncio.ensure_future(node.create("t"))
        await asyncio.to_thread(files.reached.wait, 60)
        await node.append("other", b"a")
        with pytest.raises(UnknownTopicOrPartition):
            await node.append("t", b"b")
        files.may_go.set()
        await creating
        await node.append("t", b"c")


async def test_a_topic_that_is_deleted_and_created_again_while_its_log_is_created_is_the_new_one(
    tmp_path: Path,
) -> None:
    files = SlowFiles()
    async with running(tmp_path / "data", files=files) as node:
        files.held = "t-0"
        first = asyncio.ensure_future(node.create("t"))
        await asyncio.to_thread(files.reached.wait, 60)
        await node.core.topics.delete(["t"])
        second = asyncio.ensure_future(node.create("t"))
        files.held = ""
        files.may_go.set()
        await asyncio.gather(first, second)
        topic = node.node.ground.metadata.image.topic("t")
        assert topic is not None
        assert node.node.broker.partitions.get(TopicPartition("t", 0)).topic_id == topic.topic_id
        assert (await node.append("t", b"a")).base_offset == 0
        store = node.store
    async with running(tmp_path / "data", store) as node:
        assert [record.value for record in await node.read("t", 0)] == [b"a"]


async def test_a_topics_configs_are_resolved_once_for_all_its_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic may have ten thousand partitions, and the event loop serves no request while it resolves configs."""
    value, resolved = Resolver.topic_value, list[str]()

    def noted(self: Resolver, image: MetadataImage, own: Mapping[str, str], key: ConfigKey) -> Any:
        resolved.append(key.name)
        return value(self, image, own, key)

    monkeypatch.setattr(Resolver, "topic_value", noted)
    async with running(tmp_path / "data", store_url="none") as node:
        await node.create("t", 5)
        topic = node.node.ground.metadata.image.topic("t")
        assert topic is not None
        resolved.clear()
        node.node.broker.assignment._gain(topic)
        assert resolved.count("min.insync.replicas") <= 1
        resolved.clear()
        await alter(node, None, min_insync_replicas="2")
        assert resolved.count("min.insync.replicas") == 1


async def test_a_node_that_cannot_apply_its_metadata_stops(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as node:

        def fail(_: object) -> None:
            raise ValueError("a defect")

        node.node.broker.assignment.apply = fail  # type: ignore[method-assign, assignment]
        await node.create("t")
        assert node.node.ground.ending.fatal is not None
        assert node.node.ground.ending.stop.is_set()


async def test_checkpoints_of_a_deleted_topic_are_dropped_before_its_name_is_reused(tmp_path: Path) -> None:
    """This holds even if the disk first refuses to forget it: a log start that came back would hide new records."""
    in_the_way = tmp_path / "data" / (LOG_STARTS + ".tmp")
    async with running(tmp_path / "data") as node:
        await node.create("t")
        await node.append("t", *[b"old"] * 5)
        await node.log.delete_records(TopicPartition("t", 0), 4)
        await node.core.topics.delete(["t"])
        in_the_way.mkdir()
        with pytest.raises(StorageError, match="was created, but none of its partitions"):
            await node.create("t")
        in_the_way.rmdir()
        await node.node.broker.assignment.retry()
        await node.append("t", b"a", b"b")
        store = node.store
    async with running(tmp_path / "data", store) as node:
        assert [record.value for record in await node.read("t", 0)] == [b"a", b"b"]


class CountedFiles(OsFiles):
    """Counts the renames to each file name."""

    def __init__(self) -> None:
        self.named: Counter[str] = Counter()

    def rename(self, source: str, target: str) -> None:
        self.named[os.path.basename(target)] += 1
        super().rename(source, target)


async def test_a_wide_topic_that_is_created_again_costs_one_write_of_each_checkpoint(tmp_path: Path) -> None:
    files = CountedFiles()
    async with running(tmp_path / "data", files=files) as node:
        await node.create("t", 20)
        for number in range(20):
            await node.append("t", b"a", b"b", partition=number)
            await node.log.delete_records(TopicPartition("t", number), 1)
        await node.node.broker.maintenance.checkpoint()
        await node.core.topics.delete(["t"])
        files.named.clear()
        await node.create("t", 20)
        assert [files.named[name] for name in (RECOVERY_POINTS, HIGH_WATERMARKS, LOG_STARTS)] == [1, 1, 1]
        store = node.store
    for number in range(20):
        shutil.rmtree(tmp_path / "data" / f"t-{number}")
    files.named.clear()
    async with running(tmp_path / "data", store, files=files) as node:
        assert files.named[RECOVERY_POINTS] == 1
        await until(lambda: node.node.ground.readiness.reports.recovering() == [])
        assert (await node.append("t", b"c", partition=19)).base_offset == 0


class SlowlyMovedFiles(OsFiles):
    """Counts the directories renamed in each turn of the event loop."""

    def __init__(self) -> None:
        self.turns = 0
        self.moved: Counter[int] = Counter()

    def rename(self, source: str, target: str) -> None:
        if os.path.isdir(source):
            self.moved[self.turns] += 1
        super().rename(source, target)


async def test_a_wide_topic_is_deleted_a_few_directories_a_turn(tmp_path: Path) -> None:
    files = SlowlyMovedFiles()

    async def count() -> None:
        while True:
            files.turns += 1
            await asyncio.sleep(0)

    async with running(tmp_path / "data", files=files) as node:
        await node.create("t", 100)
        counting = asyncio.ensure_future(count())
        await node.core.topics.delete(["t"])
        with pytest.raises(UnknownTopicOrPartition):
            await node.append("t", b"a", partition=99)
        await node.create("t", 100)
        counting.cancel()
        assert sum(files.moved.values()) == 100
        assert max(files.moved.values()) <= DISCARDS_A_TURN
        assert (await node.append("t", b"a", partition=99)).base_offset == 0


async def test_a_partition_with_an_unreadable_saved_manifest_refuses_appends_until_it_is_readable(
    tmp_path: Path,
) -> None:
    """The log is already open, but the node does not know which of its records the bucket holds."""
    saved = tmp_path / "data" / "t-0" / SAVED_MANIFEST
    async with running(tmp_path / "data") as node:
        await node.create("t", configs=TIERED)
        await node.append("t", b"a")
        await node.seal("t")
    saved.rename(tmp_path / "aside")
    saved.mkdir()
    async with running(tmp_path / "data", node.store) as node:
        assert node.node.broker.assignment.unopened == 1
        with pytest.raises(LeaderNotAvailable):
            await node.append("t", b"too early")
        saved.rmdir()
        (tmp_path / "aside").rename(saved)
        await node.node.broker.assignment.retry()
        assert node.node.broker.assignment.unopened == 0
        assert (await node.append("t", b"b")).base_offset == 1
        assert [record.value for record in await node.read_all("t")] == [b"a", b"b"]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_topic_deleted_during_a_retry_of_its_partition_leaves_nothing(tmp_path: Path, fails: bool) -> None:
    in_the_way, files = tmp_path / "data" / "t-1", SlowFiles()
    async with running(tmp_path / "data", files=files) as node:
        in_the_way.write_text("no directory")
        await node.create("t", 2)
        in_the_way.unlink()
        files.held, files.fails = "t-1", fails
        retrying = asyncio.ensure_future(node.node.broker.assignment.retry())
        await asyncio.to_thread(files.reached.wait, 60)
        await node.core.topics.delete(["t"])
        files.may_go.set()
        await retrying
        assert node.node.broker.assignment.unopened == 0
        with pytest.raises(UnknownTopicOrPartition):
            await node.append("t", b"a", partition=1)
        await until(lambda: not list((tmp_path / "data").glob("t-*")))


async def test_files_of_a_deleted_topic_that_cannot_be_removed_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path / "data") as node:
        await node.create("t")
        (tmp_path / "data" / "t-0" / "a directory").mkdir()
        await node.core.topics.delete(["t"])
        await until(lambda: "partition.left_behind" in caplog.text)
    assert "never retrieved" not in caplog.text


async def test_a_topic_with_a_failed_partition_can_be_deleted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved = tmp_path / "data" / "t-0" / SAVED_MANIFEST
    async with running(tmp_path / "data") as node:
        await node.create("t", configs=TIERED)
        await node.append("t", b"a")
        await node.seal("t")
    saved.unlink()
    saved.mkdir()
    async with running(tmp_path / "data", node.store) as node:
        assert node.node.broker.assignment.unopened == 1
        saved.rmdir()
        await node.core.topics.delete(["t"])
        await until(lambda: not list((tmp_path / "data").glob("t-*")))
        assert node.node.broker.assignment.unopened == 0
    assert "left_behind" not in caplog.text
