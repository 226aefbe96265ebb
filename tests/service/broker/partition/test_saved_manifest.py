"""The saved copy of a manifest: always the newest one seen, whole, and of the topic that this directory belongs to."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from service.broker.partition.partition import Partition
from storage_tiers.cold.manifest.model import RECENT_COMMITS, CommitId, Manifest
from storage_tiers.cold.manifest.saved_manifest import FILE_NAME, read_manifest
from storage_tiers.errors import UnknownTopicOrPartition
from storage_tiers.files import OsFiles
from storage_tiers.types import TopicPartition
from tests.service.broker.support import TIERED, Running, manifest_of, running, until

T0 = TopicPartition("t", 0)
#: Seconds in which a forbidden event would have time to happen.
CHANCE_S = 0.2


class HeldFiles(OsFiles):
    """Blocks the next save of a manifest, in its thread, until `may_go`: before the rename, or with `early` before the open."""

    def __init__(self) -> None:
        self.armed = self.early = False
        self.reached = threading.Event()
        self.may_go = threading.Event()

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, truncate: bool = False) -> int:
        if self.early and os.path.basename(path).startswith(FILE_NAME):
            self._hold()
        return super().open(path, create=create, exclusive=exclusive, truncate=truncate)

    def rename(self, source: str, target: str) -> None:
        if not self.early and os.path.basename(target) == FILE_NAME:
            self._hold()
        super().rename(source, target)

    def _hold(self) -> None:
        if self.armed:
            self.armed = False
            self.reached.set()
            assert self.may_go.wait(60)


@pytest.fixture
def files() -> Iterator[HeldFiles]:
    held = HeldFiles()
    yield held
    held.may_go.set()


@pytest.fixture
async def node(tmp_path: Path, files: HeldFiles) -> AsyncIterator[Running]:
    async with running(tmp_path / "data", files=files) as started:
        yield started


async def offloaded(node: Running) -> tuple[Partition, Manifest]:
    """A partition with no work left, and its manifest."""
    await node.create("t", configs=TIERED)
    for i in range(40):
        await node.append("t", b"%03d" % i * 50)
    await node.seal("t")
    await node.evicted("t")
    led = node.node.broker.partitions.get(T0)
    return led, await manifest_of(led)


def later(manifest: Manifest, commits: int) -> Manifest:
    """A manifest as it may look after `commits` more commits."""
    numbers = range(manifest.commit + 1, manifest.commit + commits + 1)
    recent = (*manifest.recent, *(CommitId(number, f"{number:032x}") for number in numbers))[-RECENT_COMMITS:]
    return replace(manifest, commit=manifest.commit + commits, recent=recent)


def saved(node: Running, led: Partition) -> int:
    manifest = read_manifest(led.log.hot.directory, led.ids)
    assert manifest is not None
    return manifest.commit


@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1)])
async def test_the_newer_of_two_concurrently_saved_manifests_stays(
    node: Running, files: HeldFiles, first: int, second: int
) -> None:
    led, manifest = await offloaded(node)
    files.armed = True
    accepting = [asyncio.ensure_future(node.node.work.tiering.accept(led, later(manifest, first)))]
    await asyncio.to_thread(files.reached.wait, 60)
    accepting.append(asyncio.ensure_future(node.node.work.tiering.accept(led, later(manifest, second))))
    await asyncio.wait({accepting[1]}, timeout=CHANCE_S)
    files.may_go.set()
    await asyncio.gather(*accepting)
    assert led.log.tier is not None
    assert led.log.tier.commit == saved(node, led) == manifest.commit + 2


async def test_a_manifest_counts_only_once_it_is_saved(node: Running, files: HeldFiles) -> None:
    led, manifest = await offloaded(node)
    files.armed = True
    accepting = asyncio.ensure_future(node.node.work.tiering.accept(led, later(manifest, 1)))
    await asyncio.to_thread(files.reached.wait, 60)
    assert led.log.tier is not None and led.log.tier.commit == manifest.commit
    files.may_go.set()
    await accepting
    assert led.log.tier.commit == manifest.commit + 1


async def test_a_pending_save_of_a_manifest_completes_before_the_node_ends(node: Running, files: HeldFiles) -> None:
    """A later save would replace the manifest that the next start on the directory has saved."""
    led, manifest = await offloaded(node)
    files.armed = True
    accepting = asyncio.ensure_future(node.node.work.tiering.accept(led, later(manifest, 1)))
    await asyncio.to_thread(files.reached.wait, 60)
    accepting.cancel()
    closing = asyncio.ensure_future(node.node.work.tiering.close())
    done, _ = await asyncio.wait({closing}, timeout=CHANCE_S)
    assert not done
    files.may_go.set()
    await closing
    assert saved(node, led) == manifest.commit + 1


async def test_a_cancelled_save_does_not_leave_an_older_manifest(node: Running, files: HeldFiles) -> None:
    led, manifest = await offloaded(node)
    files.armed = files.early = True
    leaving = asyncio.ensure_future(node.node.work.tiering.accept(led, later(manifest, 1)))
    await asyncio.to_thread(files.reached.wait, 60)
    leaving.cancel()
    staying = asyncio.ensure_future(node.node.work.tiering.accept(led, later(manifest, 2)))
    await asyncio.wait({staying}, timeout=CHANCE_S)
    files.may_go.set()
    await staying
    await node.node.work.tiering.close()
    assert led.log.tier is not None
    assert led.log.tier.commit == saved(node, led) == manifest.commit + 2


async def test_a_manifest_is_saved_even_if_its_caller_was_cancelled(node: Running, files: HeldFiles) -> None:
    led, manifest = await offloaded(node)
    files.armed = True
    leaving = asyncio.ensure_future(node.node.work.tiering.accept(led, later(manifest, 1)))
    await asyncio.to_thread(files.reached.wait, 60)
    leaving.cancel()
    files.may_go.set()
    await node.node.work.tiering.close()
    assert led.log.tier is not None
    assert led.log.tier.commit == saved(node, led) == manifest.commit + 1


@contextmanager
def busy_threads() -> Iterator[None]:
    """Keeps the loop's default executor busy until the block ends."""
    freed = threading.Event()
    threads = ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(threads)
    threads.submit(freed.wait, 20)
    try:
        yield
    finally:
        freed.set()


async def test_a_manifest_that_is_saved_late_touches_no_other_topic_of_the_name(node: Running) -> None:
    led, manifest = await offloaded(node)
    with busy_threads():
        accepting = asyncio.ensure_future(node.node.work.tiering.accept(led, later(manifest, 1)))
        await until(lambda: bool(node.node.work.tiering._manifests._saving))
        await node.core.topics.delete(["t"])
        await node.create("t", configs={"remote.storage.enable": "false"})
    with pytest.raises(UnknownTopicOrPartition):
        await accepting
    new = node.node.broker.partitions.get(T0)
    assert FILE_NAME not in os.listdir(new.log.hot.directory)
