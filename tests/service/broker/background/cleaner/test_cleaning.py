"""A node that compacts its topics, with and without a bucket: what it cleans and leaves alone, also across restarts and
uploads."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpc_api.contract.groups import OffsetFetch
from service.broker.background.cleaner.cleaning import Cleaning
from service.broker.partition.partition import Partition
from service.broker.partition.phase import Use
from storage_tiers.child_process import Started, start_child
from storage_tiers.clock import SystemClock
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.compaction.clean_point import FILE_NAME
from storage_tiers.errors import StorageError
from storage_tiers.files import OsFiles
from storage_tiers.hot.log import HotLog
from storage_tiers.hot.swap import RewrittenSegment, SegmentSwap
from storage_tiers.hot.swapping import Swapping
from storage_tiers.records.decoder import Record
from storage_tiers.types import TopicPartition
from tests.service.broker.coordinators.test_groups import CALLER, commit, coordinated
from tests.service.broker.coordinators.test_groups import offsets as committed
from tests.service.broker.support import Running, manifest_of, running, until
from tests.storage_tiers.compaction.support import batch
from tests.support.faulty_store import FaultyStore

#: The cleaner hardly ever rests.
EAGER = {"log.cleaner.backoff.ms": "1"}
COMPACTED = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "2000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
}
LOCAL = {**COMPACTED, "remote.storage.enable": "false"}


def led(node: Running, topic: str = "t") -> Partition:
    return node.node.broker.partitions.get(TopicPartition(topic, 0))


def cleaning(node: Running) -> Cleaning:
    return node.node.broker.cleaning


async def put(node: Running, *pairs: tuple[str, str | None], topic: str = "t") -> None:
    await node.append_batch(topic, batch(*pairs))


async def closed(node: Running, topic: str = "t") -> None:
    partition = led(node, topic)
    partition.log.hot.roll()
    await node.node.work.flusher.flush(partition)


def table(records: list[Record]) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in records:
        assert each.key is not None
        if each.value is None:
            found.pop(each.key.decode(), None)
        else:
            found[each.key.decode()] = each.value.decode()
    return found


async def offsets(node: Running, topic: str = "t") -> list[int]:
    return [each.offset for each in await node.read_all(topic)]


def store() -> FaultyStore:
    return FaultyStore(MemoryStore(SystemClock()))


async def test_a_compacted_topic_keeps_the_newest_record_of_each_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "service.broker.background.cleaner.cleaning")
    async with running(tmp_path / "data", store(), broker=EAGER) as node:
        await node.create("t", configs=LOCAL)
        for number in range(200):
            await put(node, (f"k{number % 7}", f"{number}"), (f"gone{number % 7}", None))
        await closed(node)
        await until(lambda: cleaned_to(node) == 400)
        assert led(node).log.hot.size_bytes < 2000 < 16_000 < led(node).log.hot.appended_bytes
        assert table(await node.read_all("t")) == {f"k{number % 7}": f"{number}" for number in range(193, 200)}
        await put(node, ("k0", "new"))
        await closed(node)
        await until(lambda: cleaned_to(node) == 401)
        assert led(node).log.hot.segment_count == 2, "small segments have become one"
        expected = {f"k{number % 7}": f"{number}" for number in range(193, 200)} | {"k0": "new"}
        assert table(await node.read_all("t")) == expected
    assert "log.cleaned" in caplog.text
    async with running(tmp_path / "data", store(), broker=EAGER) as node:
        assert table(await node.read_all("t")) == expected
        await put(node, ("k1", "later"))
        assert await node.end("t") == 402


async def test_clean_segments_are_not_read_again_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path / "data", store(), broker=EAGER) as node:
        await node.create("t", configs=LOCAL)
        for number in range(10):
            await put(node, ("a", f"{number}"))
        await closed(node)
        await until(lambda: os.path.exists(os.path.join(led(node).log.hot.directory, FILE_NAME)))
    async with running(tmp_path / "data", store(), broker={"log.cleaner.enable": "false"}) as node:
        assert cleaning(node)._plan(led(node)) is None
        led(node).log.hot.truncate_to(5)
        await put(node, ("a", "5"), ("b", "1"))
        await closed(node)
        plan = cleaning(node)._plan(led(node))
        assert plan is not None
        assert plan.dirty_start == led(node).log.hot.local_start_offset, "a log that was cut is not known to be clean"


async def test_a_log_is_cleaned_once_enough_of_it_is_dirty_or_a_record_is_too_old(tmp_path: Path) -> None:
    async with running(tmp_path / "data", store(), broker={"log.cleaner.enable": "false"}) as node:
        for topic, configs in (
            ("never", {"min.cleanable.dirty.ratio": "1"}),
            ("young", {"min.compaction.lag.ms": str(10**17)}),
            ("old", {"min.cleanable.dirty.ratio": "1", "max.compaction.lag.ms": "1"}),
            ("due", {}),
        ):
            await node.create(topic, configs={**LOCAL, **configs})
            await put(node, ("a", "1"), ("a", "2"), topic=topic)
            await closed(node, topic)
        plans = {topic: cleaning(node)._plan(led(node, topic)) for topic in ("never", "young", "old", "due")}
        is_due = {topic: plan is not None and plan.is_due for topic, plan in plans.items()}
        assert is_due == {"never": False, "young": False, "old": True, "due": True}
        assert plans["old"] is not None
        assert plans["old"].is_overdue
        assert plans["young"] is None, "a record that is too young is not dirty yet"
        found = await cleaning(node)._dirtiest()
        assert found is not None
        assert found[0] is led(node, "old")


async def test_a_topic_created_again_during_its_cleaning_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cleaner has rewritten the old topic's segments in a directory that now belongs to the new topic."""
    swap, begin = Cleaning._swap, Swapping.begin
    begun: list[Swapping] = []
    abandoned: list[list[Swapping]] = []

    def noted(self: Swapping, new: RewrittenSegment) -> SegmentSwap | None:
        begun.append(self)
        return begin(self, new)

    async def after_a_deletion(self: Cleaning, *arguments: Any, **named: Any) -> None:
        monkeypatch.setattr(Cleaning, "_swap", swap)
        await node.core.topics.delete(["t"])
        await node.create("t", configs=LOCAL)
        await put(node, ("new", "1"))
        await closed(node)
        try:
            await swap(self, *arguments, **named)
        finally:
            abandoned.append(list(begun))

    monkeypatch.setattr(Swapping, "begin", noted)
    monkeypatch.setattr(Cleaning, "_swap", after_a_deletion)
    async with running(tmp_path / "data", store(), broker=EAGER) as node:
        await node.create("t", configs=LOCAL)
        await put(node, ("a", "1"), ("a", "2"), ("b", "1"))
        await closed(node)
        await until(lambda: bool(abandoned))
        await put(node, ("new", "2"))
        await closed(node)
        await until(lambda: cleaned_to(node) == 2)
        assert table(await node.read_all("t")) == {"new": "2"}
    assert abandoned == [[]]


async def test_a_topic_that_is_no_longer_compacted_keeps_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap = Cleaning._swap
    ended: list[HotLog] = []

    async def after_a_change(self: Cleaning, *arguments: Any, **named: Any) -> None:
        hot = led(node).log.hot
        hot.reconfigure(replace(hot.settings, cleanup_compact=False, cleanup_delete=True))
        try:
            await swap(self, *arguments, **named)
        finally:
            ended.append(hot)

    monkeypatch.setattr(Cleaning, "_swap", after_a_change)
    async with running(tmp_path / "data", store(), broker=EAGER) as node:
        await node.create("t", configs=LOCAL)
        await put(node, ("a", "1"), ("a", "2"), ("b", "1"))
        await closed(node)
        await until(lambda: bool(ended))
        assert await offsets(node) == [0, 1, 2]
        assert not [name for name in os.listdir(led(node).log.hot.directory) if name.endswith(".swap")]


async def test_the_next_segments_are_written_during_a_swap_and_removed_if_it_is_aborted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap = Cleaning._swap
    rewritten: list[int] = []

    async def after_a_change(
        self: Cleaning, partition: Partition, hot: HotLog, new: RewrittenSegment, below: int
    ) -> None:
        rewritten.append(new.base)
        await until(lambda: any(int(name.split(".")[0]) > new.base for name in cleaned_files(hot)))
        hot.reconfigure(replace(hot.settings, cleanup_compact=False, cleanup_delete=True))
        await swap(self, partition, hot, new, below)

    monkeypatch.setattr(Cleaning, "_swap", after_a_change)
    async with running(tmp_path / "data", store(), broker=EAGER) as node:
        await node.create("t", configs=LOCAL)
        for number in range(100):
            await put(node, (f"k{number}", "x" * 40), ("often", "x" * 40))
        await closed(node)
        await until(lambda: bool(rewritten) and not cleaned_files(led(node).log.hot))
        assert await offsets(node) == list(range(200))
    assert rewritten == [0]


def cleaned_files(hot: HotLog) -> list[str]:
    return [name for name in os.listdir(hot.directory) if name.endswith(".cleaned")]


async def a_superseded_record_is_cleaned(data: Path) -> None:
    """Asserts that a new node's cleaner removes a superseded record."""
    async with running(data, store(), broker=EAGER) as node:
        await node.create("t", configs=LOCAL)
        await put(node, ("a", "1"), ("a", "2"))
        await closed(node)
        await until(lambda: cleaned_to(node) == 2)
        assert await offsets(node) == [1]


async def test_a_cleaner_that_dies_is_started_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.broker.background.cleaner.cleaning.RETRY_MS", 1)
    started: list[int | None] = []

    async def doomed_at_first(module: str, arguments: Sequence[str]) -> Started:
        made = await start_child(module, arguments)
        started.append(made.process.process_id)
        if len(started) == 1:
            await made.process.ended(0)
        return made

    monkeypatch.setattr("service.broker.background.cleaner.cleaner_process.start_child", doomed_at_first)
    await a_superseded_record_is_cleaned(tmp_path / "data")
    assert len(started) >= 2
    assert "the cleaner process ended" in caplog.text


async def test_a_cleaner_that_hangs_is_ended_and_started_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.broker.background.cleaner.cleaning.RETRY_MS", 1)
    monkeypatch.setattr("service.broker.background.cleaner.cleaner_process.SILENCE_S", 1.0)
    started: list[int] = []

    async def paused_at_first(module: str, arguments: Sequence[str]) -> Started:
        made = await start_child(module, arguments)
        assert made.process.process_id is not None
        started.append(made.process.process_id)
        if len(started) == 1:
            os.kill(started[0], signal.SIGSTOP)
        else:  # the second process may need more than 1 s to start
            monkeypatch.setattr("service.broker.background.cleaner.cleaner_process.SILENCE_S", 120.0)
        return made

    monkeypatch.setattr("service.broker.background.cleaner.cleaner_process.start_child", paused_at_first)
    await a_superseded_record_is_cleaned(tmp_path / "data")
    assert len(started) >= 2
    assert "the cleaner process has not answered for 1 s" in caplog.text


@pytest.mark.parametrize("refused", [".timeindex.cleaned", ".log.cleaned", ".index.cleaned"])
async def test_a_swap_that_the_disk_refuses_half_way_ends_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """Some files of the swap have their new names; the next start completes the swap with the others."""
    rename, give_up = OsFiles.rename, Cleaning._give_up
    given_up: list[HotLog] = []

    def refuses(self: OsFiles, source: str, target: str) -> None:
        if source.endswith(refused):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(self, source, target)

    async def noted(self: Cleaning, hot: HotLog) -> None:
        await give_up(self, hot)
        given_up.append(hot)

    monkeypatch.setattr(Cleaning, "_give_up", noted)
    async with running(tmp_path / "data", store(), broker=EAGER) as node:
        await node.create("t", configs=LOCAL)
        monkeypatch.setattr(OsFiles, "rename", refuses)
        await put(node, ("a", "1"), ("a", "2"), ("b", "1"))
        await closed(node)
        await until(lambda: led(node).life.refusal(Use.WRITE) is not None and bool(given_up))
        with pytest.raises(StorageError, match="restart the node"):
            await put(node, ("c", "1"))
        monkeypatch.setattr(OsFiles, "rename", rename)
    async with running(tmp_path / "data", store(), broker=EAGER) as node:
        assert table(await node.read_all("t")) == {"a": "2", "b": "1"}
        await put(node, ("c", "1"))


# --- beside the bucket ------------------------------------------------------------------------------------------------
async def test_tombstones_stay_while_the_bucket_holds_older_values(tmp_path: Path) -> None:
    """Otherwise the bucket's value would be the newest again."""
    async with running(tmp_path / "data", store(), broker=EAGER) as node:
        await node.create("t", configs={**COMPACTED, "local.retention.bytes": "1"})
        await put(node, ("a", "in the bucket"), ("b", "1"))
        await node.seal("t")
        await node.evicted("t")
        await node.create("u", configs=LOCAL)
        led(node).log.hot.reconfigure(replace(led(node).log.hot.settings, remote_copy_disable=True))
        for _ in range(3):
            await put(node, ("a", None), ("b", "2"))
            await closed(node)
        await until(lambda: cleaned_to(node) == 8)
        for topic in ("t", "u"):
            await put(node, ("b", "3"), topic=topic)
            await put(node, ("a", None), topic=topic)
            await closed(node, topic)
        await until(lambda: cleaned_to(node) == 10)
        assert table(await node.read_all("t")) == {"b": "3"}
        assert await offsets(node) == [0, 1, 8, 9]
        await until(lambda: cleaned_to(node, "u") == 2)
        await put(node, ("c", "1"), topic="u")
        await closed(node, "u")
        await until(lambda: cleaned_to(node, "u") == 3)
        assert await offsets(node, "u") == [0, 2], "the bucket knows nothing of it"


async def test_tombstones_stay_in_a_run_without_the_store_that_holds_older_values(tmp_path: Path) -> None:
    bucket = store()
    async with running(tmp_path / "data", bucket, broker={"log.cleaner.enable": "false"}) as node:
        await node.create("t", configs={**COMPACTED, "retention.ms": "-1", "local.retention.ms": "999999999999"})
        await put(node, ("a", "in the bucket"))
        await node.seal("t")
        led(node).log.hot.reconfigure(replace(led(node).log.hot.settings, remote_copy_disable=True))
        await put(node, ("a", None))
        await closed(node)
        assert led(node).log.tiered_end == 1
    async with running(tmp_path / "data", broker=EAGER, store_url="none") as node:
        for number in range(2):
            await put(node, ("b", f"{number}"))
            await closed(node)
            await until(lambda end=number + 3: cleaned_to(node) == end)  # type: ignore[misc]
        assert await offsets(node) == [1, 3], "the bucket's value of a would be the newest"


async def test_cleaned_segments_are_offloaded_and_evicted(tmp_path: Path) -> None:
    async with running(tmp_path / "data", store(), broker=EAGER) as node:
        await node.create("t", configs={**COMPACTED, "remote.log.copy.disable": "true"})
        for number in range(300):
            await put(node, (f"k{number % 3}", f"{number}"))
            if number % 100 == 50:
                await put(node, (f"k{number % 3}", None))
        await closed(node)
        await until(lambda: cleaned_to(node) == 303)
        expected = {"k0": "297", "k1": "298", "k2": "299"}
        assert table(await node.read_all("t")) == expected
        settings = led(node).log.hot.settings
        led(node).log.hot.reconfigure(replace(settings, remote_copy_disable=False, local_retention_bytes=1))
        await node.seal("t")
        await node.evicted("t")
        assert led(node).log.hot.local_start_offset == 303
        manifest = await manifest_of(led(node))
        assert (manifest.log_start, manifest.end) == (0, 303)
        assert sum(segment.bytes for segment in manifest.segments) < 2000
        assert table(await node.read_all("t")) == expected


async def test_segments_are_swapped_between_uploads(tmp_path: Path) -> None:
    bucket = store()
    async with running(tmp_path / "data", bucket, broker=EAGER) as node:
        await node.create("t", configs={**COMPACTED, "retention.ms": "-1", "local.retention.ms": "-1"})
        for number in range(400):
            await put(node, (f"k{number % 5}", f"{number}"))
            if number % 40 == 0:
                await closed(node)
                await asyncio.sleep(0)
        await node.seal("t")
        await until(lambda: cleaned_to(node) == 400)
        expected = {f"k{number % 5}": f"{number}" for number in range(395, 400)}
        assert table(await node.read_all("t")) == expected
        manifest = await manifest_of(led(node))
        assert manifest.end == 400
    async with running(tmp_path / "new", bucket, take_over=node.node.cluster_id) as node:
        await until(lambda: not led(node).is_recovering)
        assert table(await node.read_all("t")) == expected


def cleaned_to(node: Running, topic: str = "t") -> int:
    point = cleaning(node)._points.get(led(node, topic).log.hot)
    return 0 if point is None else point.offset


async def test_the_offsets_topic_is_compacted_and_loads(tmp_path: Path) -> None:
    broker = {**EAGER, "offsets.topic.num.partitions": "1", "log.cleaner.min.cleanable.ratio": "0.01"}
    bucket = store()
    async with running(tmp_path / "data", bucket, broker=broker) as node:
        await node.create("t")
        groups = await coordinated(node, "g")
        for number in range(300):
            await commit(groups, number % 10)
        await commit(groups, 7)
        await closed(node, "__consumer_offsets")
        await until(lambda: cleaned_to(node, "__consumer_offsets") > 250)
        assert len(await node.read_all("__consumer_offsets")) < 60
    async with running(tmp_path / "data", bucket, broker=broker) as node:
        found = await (await coordinated(node, "g")).fetch_offsets(OffsetFetch("g", None), CALLER)
        assert committed(found) == {"t": [7]}
