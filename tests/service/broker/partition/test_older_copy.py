"""An older copy of one partition's directory is restored, and the copy ends above the last recovery point. Nothing on
the disk shows that records are missing, except that the directory is another one. With a store, the node compares the
copy with the bucket before it accepts appends.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from service.broker.partition.directory_identities import FILE_NAME
from service.build.ground import Host
from service.lifecycle.readiness import Readiness
from service.node import Node
from service.settings.node_settings import NodeSettings
from storage_tiers.clock import SystemClock, SystemRng
from storage_tiers.errors import LeaderNotAvailable
from storage_tiers.files import OsFiles
from storage_tiers.hot.checkpoints import CLEAN_SHUTDOWN, RECOVERY_POINTS
from storage_tiers.types import TopicPartition
from tests.service.broker.support import TIERED, Running, running, until

T0 = TopicPartition("t", 0)


def another_directory(directory: Path, copy: Path) -> None:
    shutil.rmtree(directory)
    shutil.copytree(copy, directory)


def other_files(directory: Path, copy: Path) -> None:
    for path in directory.iterdir():
        path.unlink()
    for path in copy.iterdir():
        shutil.copy2(path, directory / path.name)


async def an_older_copy(root: Path, put_back: Callable[[Path, Path], None]) -> Running:
    """The bucket holds 20 records and the copy 10; the process died, and the last checkpoint was at 5."""
    data = root / "data"
    async with running(data) as node:
        await node.create("t", configs=TIERED)
        await node.create("u", configs=TIERED)
        for i in range(10):
            await node.append("t", b"%03d" % i)
    shutil.copytree(data / "t-0", root / "copy")
    async with running(data, node.store) as node:
        for i in range(10, 20):
            await node.append("t", b"%03d" % i)
        await node.seal("t")
    (data / RECOVERY_POINTS).write_text("0\n2\nt 0 5\nu 0 0\n")
    (data / CLEAN_SHUTDOWN).unlink()
    put_back(data / "t-0", root / "copy")
    return node


@pytest.mark.parametrize("put_back", [another_directory, other_files])
async def test_it_refuses_appends_before_its_comparison(
    tmp_path: Path, put_back: Callable[[Path, Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    node = await an_older_copy(tmp_path, put_back)
    node.store.down = True
    for number in range(2):
        async with running(tmp_path / "data", node.store) as node:
            with pytest.raises(LeaderNotAvailable):
                await node.append("t", b"under an offset that was given")
            assert (await node.append("u", b"where it was")).base_offset == number
            assert node.node.ground.readiness.reports.recovering() == ["t-0"]
            await node.node.broker.partitions.checkpoint()
    assert "partitions.moved" in caplog.text
    node.store.down = False
    async with running(tmp_path / "data", node.store) as node:
        led = node.node.broker.partitions.get(T0)
        await until(lambda: led.write_error is None)
        assert [record.value for record in await node.read_all("t")] == [b"%03d" % i for i in range(20)]
        assert (await node.append("t", b"next")).base_offset == 20
    caplog.clear()
    node.store.down = True
    async with running(tmp_path / "data", node.store) as node:
        assert (await node.append("t", b"its place is known now")).base_offset == 21
    assert "partitions.moved" not in caplog.text


async def test_a_complete_copy_continues(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as node:
        await node.create("t", configs=TIERED)
        for i in range(10):
            await node.append("t", b"%03d" % i)
    shutil.copytree(tmp_path / "data" / "t-0", tmp_path / "copy")
    another_directory(tmp_path / "data" / "t-0", tmp_path / "copy")
    async with running(tmp_path / "data", node.store) as node:
        await until(lambda: node.node.broker.partitions.get(T0).write_error is None)
        assert (await node.append("t", b"next")).base_offset == 10


async def test_with_unknown_earlier_states_all_partitions_are_compared(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as node:
        await node.create("t", configs=TIERED)
        await node.append("t", b"a")
    (tmp_path / "data" / FILE_NAME).write_bytes(b"0\n9\n")
    node.store.down = True
    async with running(tmp_path / "data", node.store) as node:
        with pytest.raises(LeaderNotAvailable):
            await node.append("t", b"b")
        node.store.down = False
        await until(lambda: node.node.broker.partitions.get(T0).write_error is None)


async def test_a_missing_store_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:

    async def node() -> Node:
        settings = NodeSettings(data_dir=tmp_path / "data", store="none")
        host = Host(OsFiles(), SystemClock(), SystemRng())
        return await Node.open(settings, Readiness(), asyncio.Event(), host)

    started = await node()
    await Running(started, None).create("t")  # type: ignore[arg-type]
    await started.close()
    shutil.copytree(tmp_path / "data" / "t-0", tmp_path / "copy")
    for moved in (False, True):
        if moved:
            another_directory(tmp_path / "data" / "t-0", tmp_path / "copy")
        started = await node()
        assert ("partitions.moved" in caplog.text) == moved
        assert started.broker.partitions.get(T0).write_error is None
        await started.close()
