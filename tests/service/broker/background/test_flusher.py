"""Flushing while the disk fails: unsynced records are never reported as synced, and no caller waits for ever."""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
from pathlib import Path

import pytest

from grpc_api.contract.log import Append, Appended
from grpc_api.contract.ready import settled
from storage_tiers.errors import LeaderNotAvailable, StorageError
from storage_tiers.files import OsFiles
from storage_tiers.hot.checkpoints import CLEAN_SHUTDOWN
from storage_tiers.types import TopicPartition
from tests.service.broker.support import batch, running, until

T0 = TopicPartition("t", 0)


class FailingFiles(OsFiles):
    """Fails the calls named in `failing`."""

    def __init__(self) -> None:
        self.failing: set[str] = set()

    def fsync(self, fd: int) -> None:
        if "fsync" in self.failing:
            raise OSError(errno.EIO, "fsync refused")
        super().fsync(fd)

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, truncate: bool = False) -> int:
        if "open" in self.failing:
            raise OSError(errno.EMFILE, "open refused")
        return super().open(path, create=create, exclusive=exclusive, truncate=truncate)

    def fsync_dir(self, path: str) -> None:
        if "fsync_dir" in self.failing:
            raise OSError(errno.EMFILE, "open refused")
        super().fsync_dir(path)


async def test_a_failed_fsync_is_final_until_the_next_start(tmp_path: Path) -> None:
    files = FailingFiles()
    async with running(tmp_path / "data", files=files) as node:
        await node.create("t", configs={"flush.messages": "1"})
        await node.create("u")
        files.failing = {"fsync"}
        (answer,) = await settled(node.log.append([Append(T0, memoryview(batch(b"a")))]))
        assert isinstance(answer, Appended)
        assert answer.committed is not None
        with pytest.raises(StorageError, match="restart the node"):
            await answer.committed
        files.failing = set()
        led = node.node.broker.partitions.get(T0)
        for again in (node.node.work.flusher.flush(led), node.append("t", b"b")):
            with pytest.raises(StorageError, match="restart the node"):
                await again
        node.node.work.flusher.request(led)
        await until(lambda: led not in node.node.work.flusher._running)
        assert (led.log.hot.recovery_point, led.state.high_watermark) == (0, 0)
        await node.append("u", b"c")
        store = node.store
    assert not (tmp_path / "data" / CLEAN_SHUTDOWN).exists()
    async with running(tmp_path / "data", store) as node:
        assert [record.value for record in await node.read_all("u")] == [b"c"]
        await node.append("t", b"d")


async def test_a_flush_that_cannot_begin_fails_its_waiters(tmp_path: Path) -> None:
    files = FailingFiles()
    async with running(tmp_path / "data", files=files) as node:
        await node.create("t", configs={"internal.segment.bytes": "300", "remote.storage.enable": "false"})
        for _ in range(20):
            await node.append("t", b"a" * 100)
        led = node.node.broker.partitions.get(T0)
        files.failing = {"open"}
        async with asyncio.timeout(60):
            with pytest.raises(StorageError):
                await node.node.work.flusher.flush(led)
        files.failing = set()


class HeldFsync(OsFiles):
    """Blocks the next fsync of a log, in its thread, until `may_go`."""

    def __init__(self) -> None:
        self.armed = False
        self.reached = threading.Event()
        self.may_go = threading.Event()

    def fsync(self, fd: int) -> None:
        if self.armed:
            self.armed = False
            self.reached.set()
            assert self.may_go.wait(60)
        super().fsync(fd)


async def test_a_flush_ends_when_its_log_is_discarded(tmp_path: Path) -> None:
    """The bucket's log may be shorter, so the offsets to flush may never exist again."""
    files = HeldFsync()
    async with running(tmp_path / "data", files=files) as node:
        await node.create("t")
        await node.append("t", *[b"a"] * 10)
        led = node.node.broker.partitions.get(T0)
        files.armed = True
        flushing = asyncio.ensure_future(node.node.work.flusher.flush(led))
        await asyncio.to_thread(files.reached.wait, 60)
        asyncio.get_running_loop().call_soon(files.may_go.set)
        await asyncio.sleep(0)
        led.recover(LeaderNotAvailable("the bucket holds less"))
        led.log.hot.truncate_fully_and_start_at(4)
        led.begin_at(4)
        led.reconciled()
        async with asyncio.timeout(60):
            await flushing
        assert (await node.append("t", b"b")).base_offset == 4
        await node.node.work.flusher.flush(led)
        assert led.log.hot.recovery_point == 5


async def test_a_transient_error_does_not_refuse_writes_until_the_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A brief lack of file descriptors: the flush fails, is logged once and retried, and then acknowledges the append."""
    files = FailingFiles()
    caplog.set_level(logging.INFO)
    async with running(tmp_path / "data", files=files) as node:
        await node.create("t", configs={"flush.messages": "1", "internal.segment.bytes": "300"})
        led = node.node.broker.partitions.get(T0)
        await node.append("t", b"a" * 100)
        led.log.hot.roll()
        files.failing = {"open", "fsync_dir"}
        (answer,) = await settled(node.log.append([Append(T0, memoryview(batch(b"b")))]))
        assert isinstance(answer, Appended) and answer.committed is not None
        await until(lambda: "partition.work_failed" in caplog.text and "work=flushing" in caplog.text)
        assert led.write_error is None and not answer.committed.done()
        files.failing = set()
        await asyncio.wait_for(answer.committed, 60)
        assert "work=flushing" in caplog.text.partition("partition.resumes")[2]
        await node.append("t", b"c")
        assert caplog.text.count("work=flushing error") == 1
