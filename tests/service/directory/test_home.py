"""A data directory that was copied, restored or moved: the node accepts no records before it has compared with the store."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from service.directory.home import FILE_NAME, HomeGuard, home_of, moved, read_home
from storage_tiers.clock import SystemClock
from storage_tiers.cold.manifest.json import decode
from storage_tiers.errors import FencedWriter, LeaderNotAvailable, OffsetNotAvailable, StorageError
from storage_tiers.files import OsFiles
from storage_tiers.hot import file_identity as place
from storage_tiers.hot.file_identity import file_identity
from storage_tiers.types import TopicPartition
from tests.service.broker.support import TIERED, Running, manifest_of, running, until

SERVE = {"tidelog.store.claim.wait.ms": "0", "tidelog.store.unclaimed": "serve"}
REFUSE = {"tidelog.store.claim.wait.ms": "0"}
VALUES = [b"%03d" % number * 50 for number in range(30)]


async def written(node: Running) -> None:
    await node.create("t", configs={**TIERED, "local.retention.bytes": "-1", "local.retention.ms": "-1"})
    for value in VALUES:
        await node.append("t", value)


def replaced_by_a_copy(directory: Path) -> None:
    """Replaces the directory as a restore does: the same bytes under the same path."""
    copy = directory.with_name("copy")
    shutil.copytree(directory, copy)
    shutil.rmtree(directory)
    copy.rename(directory)


def end_of(node: Running) -> int:
    return node.node.broker.partitions.get(TopicPartition("t", 0)).log.end_offset


async def test_an_unmoved_directory_leads_at_once_without_a_store(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as node:
        await written(node)
    node.store.down = True
    for _ in range(2):
        async with running(tmp_path / "data", node.store, REFUSE) as again:
            assert again.node.ground.readiness.reports.holding() == ""
            await again.append("t", b"a")


def test_a_directory_that_took_the_cluster_over_is_not_called_moved(tmp_path: Path) -> None:
    clock = SystemClock()
    guard = HomeGuard(str(tmp_path), lambda: str(tmp_path), lambda: 0, OsFiles(), clock, wait_ms=0, unclaimed="refuse")
    assert not guard.look(new=False, taken_over=True, has_store=True, had_store=True)
    assert guard.holding == (
        "the data directory has just taken over the cluster: the node accepts no records before it has claimed the store"
    )


async def test_a_copy_serves_reads_and_refuses_appends_until_the_store_is_claimed(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    async with running(directory) as node:
        await written(node)
        await node.seal("t")
    replaced_by_a_copy(directory)
    node.store.down = True
    async with running(directory, node.store, REFUSE) as copy:
        readiness = copy.node.ground.readiness
        readiness.recovered = True  # as the application does once the servers listen
        with pytest.raises(LeaderNotAvailable, match="copied, restored or moved"):
            await copy.append("t", b"a")
        with pytest.raises(LeaderNotAvailable):
            await copy.log.delete_records(TopicPartition("t", 0), 5)
        assert [record.value for record in await copy.read_all("t")] == VALUES
        with pytest.raises(OffsetNotAvailable):
            await copy.read("t", 1000)
        await until(lambda: readiness.probed)
        assert not readiness.ready
        assert "copied, restored or moved" in json.loads(readiness.body())["holding"]

        node.store.down = False
        await until(lambda: readiness.ready)
        await until(lambda: copy.node.home.away is None)
        appended = await copy.append("t", b"a")
        assert appended.base_offset == len(VALUES)
    node.store.down = True
    async with running(directory, node.store, REFUSE) as again:
        await again.append("t", b"b")  # this path is the directory's home now


async def test_a_copy_refuses_appends_until_its_manifest_is_claimed(tmp_path: Path) -> None:
    """Until then the original can commit, and its commits would discard the records that the copy had accepted."""
    directory = tmp_path / "data"
    async with running(directory) as node:
        await written(node)
        await node.seal("t")
    replaced_by_a_copy(directory)
    key = node.node.broker.partitions.get(TopicPartition("t", 0)).log.cold.ids.manifest_key  # type: ignore[union-attr]
    claiming = node.store.hold(1, "put", key)
    async with running(directory, node.store, REFUSE) as copy:
        led = copy.node.broker.partitions.get(TopicPartition("t", 0))
        async with asyncio.timeout(60):
            await claiming.reached.wait()
        with pytest.raises(LeaderNotAvailable):
            await copy.append("t", b"too early")
        claiming.open()
        await until(lambda: copy.node.home.away is None)
        assert (await copy.append("t", b"a")).base_offset == len(VALUES)
        shown, seen = decode((await node.store.get(key)).data, led.log.cold.ids), led.log.tier  # type: ignore[union-attr]
        writer = copy.tier.access.writer
        assert writer is not None and seen is not None
        assert shown.incarnation == writer.incarnation
        assert (seen.commit, (await manifest_of(led)).commit) == (shown.commit, shown.commit)
        # One claim is enough.
        copy.node.home.away = "is a copy still"
        await copy.node.work.tiering._compare(led)
        assert decode((await node.store.get(key)).data).commit == shown.commit


async def test_a_copy_with_a_failing_disk_counts_as_moved_until_compared(tmp_path: Path) -> None:
    """Otherwise the next start would lead at once, even on a log older than the bucket."""
    directory = tmp_path / "data"
    async with running(directory) as node:
        await written(node)
        await node.seal("t")
    replaced_by_a_copy(directory)
    node.store.down = True
    async with running(directory, node.store, REFUSE) as copy:
        led = copy.node.broker.partitions.get(TopicPartition("t", 0))
        led.fail(StorageError("the disk has failed"))
        assert [record.value for record in await copy.read_all("t")] == VALUES
        comparing = node.store.hold(1, "get", led.log.cold.ids.manifest_key if led.log.cold else "")
        node.store.down = False
        async with asyncio.timeout(60):
            await comparing.reached.wait()
        copy.node.home.tick(claimed=True, recovers=copy.node.is_recovering, settled=copy.node.has_settled)
        assert copy.node.home.away is not None
        comparing.open()
        await until(lambda: copy.node.home.away is None)
        assert copy.node.work.tiering.has_compared(led)
        with pytest.raises(StorageError, match="the disk has failed"):
            await copy.append("t", b"a")


async def test_an_older_copy_assigns_no_offset_twice(tmp_path: Path) -> None:
    """The copy is of the same incarnation and ends above all its checkpoints: only its changed location gives it away."""
    directory, older = tmp_path / "data", tmp_path / "older"
    async with running(directory) as node:
        await written(node)
        await node.node.broker.partitions.checkpoint()
        shutil.copytree(directory, older, ignore=shutil.ignore_patterns("*.tmp"))
        for value in VALUES:
            await node.append("t", value)
        await node.seal("t")
    shutil.rmtree(directory)
    older.rename(directory)
    (directory / ".kafka_cleanshutdown").unlink(missing_ok=True)
    node.store.down = True
    async with running(directory, node.store, REFUSE) as copy:
        for _ in range(3):
            with pytest.raises(LeaderNotAvailable):
                await copy.append("t", b"again")
        node.store.down = False
        await until(lambda: copy.node.home.away is None)
        assert (await copy.append("t", b"later")).base_offset == 2 * len(VALUES)
        found = [record.value for record in await copy.read_all("t")]
        assert found == [*VALUES, *VALUES, b"later"]


async def test_with_unclaimed_serve_a_copy_serves_after_the_wait(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    async with running(directory) as node:
        await written(node)
    replaced_by_a_copy(directory)
    node.store.down = True
    async with running(directory, node.store, SERVE) as copy:
        await until(lambda: copy.node.ground.readiness.reports.holding() == "")
        await copy.append("t", b"a")
        await copy.create("u")
        await copy.append("u", b"a")
        assert copy.node.home.away is not None  # the next start must ask again


async def test_a_node_without_a_store_leads_at_once(tmp_path: Path) -> None:
    async with running(tmp_path / "data", store_url="none") as node:
        await node.create("t")
    replaced_by_a_copy(tmp_path / "data")
    async with running(tmp_path / "data", store_url="none") as node:
        await node.append("t", b"a")


def edited(field: str, value: object) -> Callable[[dict[str, object]], None]:
    return lambda tree: tree.update({field: value})


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (None, None),
        (edited("machine", "other"), "another machine"),
        (edited("directory", {"device": 1, "inode": 2, "born_ns": 3}), "another location"),
        (edited("log", {"device": 1, "inode": 2, "born_ns": 3}), "another metadata log"),
        (edited("log_name", "of an earlier snapshot"), None),
        (edited("directory", "damaged"), "no home.json"),
        (edited("entries", 1000), "an older metadata log"),
    ],
)
async def test_a_copy_is_detected(
    tmp_path: Path, change: Callable[[dict[str, object]], None] | None, difference: str | None
) -> None:
    async with running(tmp_path) as node:
        log_path = node.node.ground.metadata.path
    entries = node.node.ground.metadata.last_index
    path = tmp_path / FILE_NAME
    tree = json.loads(path.read_text())
    if change is not None:
        change(tree)
    path.write_text(json.dumps(tree))
    found = moved(read_home(str(tmp_path)), str(tmp_path), log_path, entries)
    assert (difference is None) == (found is None)
    assert difference is None or difference in str(found)


def test_an_identity_without_birth_time_is_device_and_inode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "_statx", lambda: None)
    status = os.stat(tmp_path)
    assert file_identity(str(tmp_path)) == (status.st_dev, status.st_ino, None)


def test_the_birth_time_of_a_file_does_not_change(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"")
    first = file_identity(str(path))
    path.write_bytes(b"more")
    os.utime(path, (1, 1))
    assert file_identity(str(path)) == first
    if first.born_ns is not None:
        assert abs(first.born_ns - os.stat(tmp_path).st_mtime_ns) < 3600 * 10**9
    assert home_of(str(tmp_path), str(path), 0).log == first


async def test_a_copy_beside_a_running_original_loses_nothing_that_it_acknowledges(tmp_path: Path) -> None:
    """The copy accepts records once every manifest carries its incarnation: the original can commit no more, and stops."""
    directory, copied = tmp_path / "data", tmp_path / "copy"
    async with running(directory) as node:
        await written(node)
        await node.create("new", configs=TIERED)
        await node.seal("t")
        # The copy rewrites both topics' files: the original must have nothing left to write to them.
        await node.node.work.topic_files.publish_now("new")
        shutil.copytree(directory, copied)
        async with running(copied, node.store) as copy:
            await until(lambda: copy.node.home.away is None)
            for topic in ("t", "new"):
                await node.append(topic, b"of the original")
                await copy.append(topic, b"of the copy")
                await node.log.seal(topic, wait=False, timeout_ms=0)
                await until(lambda: isinstance(node.node.ground.ending.fatal, FencedWriter))
                node.node.ground.ending.fatal = None
                await copy.seal(topic)
            assert [record.value for record in await copy.read_all("t")] == [*VALUES, b"of the copy"]
            assert [record.value for record in await copy.read_all("new")] == [b"of the copy"]
