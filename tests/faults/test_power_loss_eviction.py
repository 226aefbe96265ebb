"""A whole node under power loss: offloading and eviction through the broker, cut after every operation on its disk.

Whatever may be left: no local record is gone unless the saved manifest says that the bucket holds it (I3); a node that
starts on it serves every record that the bucket held at that moment; and while the store is away it assigns no offset twice
(I2).
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import pytest

from service.directory.beginning import belongs
from storage_tiers.clock import SystemClock
from storage_tiers.cold.manifest.json import decode
from storage_tiers.cold.manifest.model import Ids
from storage_tiers.cold.manifest.saved_manifest import FILE_NAME, read_manifest
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.errors import LogError
from storage_tiers.hot.data_dir import read_topic_id
from storage_tiers.types import TopicPartition
from tests.faults.power_loss import RecordingFiles, Tree, cuts, materialise, sites
from tests.service.broker.support import TIERED, running, until
from tests.support.faulty_store import FaultyStore

SEED = int(os.environ.get("TIDELOG_FAULT_SEED", "20240601"))
PARTITION = TopicPartition("t", 0)


@dataclass(frozen=True)
class Held:
    """The bucket's objects at one moment, by key."""

    objects: dict[str, bytes]

    def manifest_end(self) -> int:
        found = [key for key in self.objects if "/manifests/" in key]
        return decode(self.objects[found[0]]).end if found else 0

    async def store(self) -> FaultyStore:
        memory = MemoryStore(SystemClock())
        for key, data in self.objects.items():
            memory.blocking().put(key, data)
        return FaultyStore(memory)


@dataclass
class Run:
    files: RecordingFiles
    values: list[bytes]


class NotingStore(FaultyStore):
    """Notes the bucket's content after each write."""

    files: RecordingFiles

    async def put(self, key: str, *args: object, **options: object) -> object:  # type: ignore[override]
        done = await super().put(key, *args, **options)  # type: ignore[arg-type]
        await self.note()
        return done

    async def note(self) -> None:
        objects = {info.key: (await self.get(info.key)).data async for info in self.list("")}
        self.files.note(Held(objects))


async def workload(root: Path) -> Run:
    run = Run(RecordingFiles(str(root)), [])
    store = NotingStore(MemoryStore(SystemClock()))
    store.files = run.files

    async def write(node: object, count: int) -> None:
        for _ in range(count):
            run.values.append(b"%04d" % len(run.values) * 50)
            await node.append("t", run.values[-1])  # type: ignore[attr-defined]

    async with running(root, store=store, files=run.files) as node:
        await node.create("t", configs=TIERED)
        await write(node, 30)
        await node.seal("t")
        await node.evicted("t")
        await write(node, 15)
    async with running(root, store=store, files=run.files) as node:
        await write(node, 15)
        await node.seal("t")
        await node.evicted("t")
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return asyncio.run(workload(Path(os.path.realpath(tmp_path_factory.mktemp("recorded")))))


def evicted_without_a_manifest(root: Path, cluster_id: str) -> str | None:
    """The violation of I3 in the partition's directory, or None."""
    directory = root / str(PARTITION)
    if not directory.is_dir():
        return None
    bases = sorted(int(name.removesuffix(".log")) for name in os.listdir(directory) if name.endswith(".log"))
    if not bases or bases[0] == 0:
        return None
    topic_id = read_topic_id(str(directory))
    assert topic_id is not None
    try:
        saved = read_manifest(str(directory), Ids(cluster_id, PARTITION.topic, topic_id, PARTITION.partition))
    except LogError as error:
        return f"the log begins at {bases[0]} and {FILE_NAME} is unreadable: {error}"
    if saved is None or saved.end < bases[0]:
        return f"the log begins at {bases[0]}, the saved manifest ends at {saved and saved.end}"
    return None


def cluster_of(run: Run) -> str:
    lines = (Path(run.files.root) / "meta.properties").read_text().splitlines()
    return next(line.removeprefix("cluster.id=") for line in lines if line.startswith("cluster.id="))


def first_violation(run: Run, place: Path, *, limit: int, drop: Collection[str] = ()) -> str | None:
    cluster_id = cluster_of(run)
    for count, _, trees in cuts(run.files.operations, drop=drop, seed=SEED, limit=limit):
        for tree in trees:
            if bases_above_zero(tree):
                wrong = evicted_without_a_manifest(Path(materialise(tree, str(place))), cluster_id)
                if wrong is not None:
                    return f"after operation {count}, {run.files.operations[count - 1]!r:.100}: {wrong}"
    return None


def bases_above_zero(tree: Tree) -> bool:
    logs = [path for path in tree if path.startswith(f"{PARTITION}/") and path.endswith(".log")]
    return bool(logs) and not any(path.endswith(f"/{0:020}.log") for path in logs)


def test_the_run_reaches_the_intended_situations(run: Run) -> None:
    held = [promise for _, promise, _ in cuts(run.files.operations, limit=1) if promise is not None]
    assert held[0].manifest_end() == 0
    assert held[-1].manifest_end() == len(run.values) == 60
    assert sum("write_manifest" in site for site in sites(run.files.operations)) == 2, "the file and its directory"
    assert evicted_without_a_manifest(Path(run.files.root), cluster_of(run)) is None


@pytest.mark.parametrize("limit", [2, pytest.param(15, marks=pytest.mark.faults)])
def test_nothing_is_evicted_before_the_manifest_is_saved(run: Run, tmp_path: Path, limit: int) -> None:
    assert first_violation(run, tmp_path / "disk", limit=limit) is None


def test_the_saved_manifest_needs_its_fsyncs(run: Run, tmp_path: Path) -> None:
    saves = [site for site in sites(run.files.operations) if "write_manifest" in site]
    assert len(saves) == 2, "the file and its directory"
    needless = [site for site in saves if first_violation(run, tmp_path / "disk", limit=12, drop=(site,)) is None]
    assert needless == []


#: A node on the replayed tree would otherwise wait for the store, because the tree is in another directory than the original.
SERVED = {"tidelog.store.unclaimed": "serve", "tidelog.store.claim.wait.ms": "1"}


async def check_start(held: Held | None, run: Run, root: Path) -> None:
    """With the store away, appends get offsets at or above all that the bucket holds; with it back, all of that is read."""
    end = held.manifest_end() if held is not None else 0
    store = await (held or Held({})).store()
    store.down = True
    if not belongs(str(root)):
        assert end == 0, "a directory of which something was offloaded belongs to a cluster"
        return  # the node waits for the store, and accepts nothing
    async with running(root, store=store, broker=SERVED) as node:
        if node.node.broker.partitions.find(PARTITION) is None:
            assert end == 0, "a partition that has been offloaded is known"
            return
        try:
            appended = await node.append("t", b"after the power loss")
        except LogError:
            appended = None
        assert appended is None or appended.base_offset >= end
    store.down = False
    async with running(root, store=store) as node:
        led = node.node.broker.partitions.get(PARTITION)
        await until(lambda: not led.is_recovering)
        found = await node.read_all("t")
        assert [record.value for record in found][:end] == run.values[:end]
        assert [record.offset for record in found] == list(range(len(found)))


@pytest.mark.parametrize("starts", [15, pytest.param(120, marks=[pytest.mark.faults, pytest.mark.timeout(900)])])
async def test_a_node_that_starts_after_the_loss_has_everything_offloaded(
    run: Run, tmp_path: Path, starts: int
) -> None:
    print(f"TIDELOG_FAULT_SEED={SEED}")
    rng = random.Random(SEED + starts)
    chosen = set(rng.sample(range(1, len(run.files.operations) + 1), min(starts, len(run.files.operations))))
    tried = 0
    for count, promise, trees in cuts(run.files.operations, seed=SEED, limit=3):
        if count in chosen:
            tree = rng.choice(list(trees))
            root = Path(materialise(tree, str(tmp_path / str(count))))
            try:
                await check_start(promise, run, root)
            except AssertionError as error:
                raise AssertionError(f"after operation {count}, {run.files.operations[count - 1]!r:.100}") from error
            tried += 1
    assert tried == len(chosen) > 0
