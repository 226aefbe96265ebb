"""Measures what a partition's history costs a node: memory of the broker's process, elapsed time of the periodic rounds, and
the store requests of commits, of an idle cluster and of a cold read.

Histories are synthetic, nodes are real. For memory, a node in its own process opens a thousand partitions whose logs begin
where their manifests end. Commits are modelled (`commit_model`). Other requests are counted at the store of a node in this
process.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.brokers import resident_megabytes
from benchmarks.commit_model import DEEP, REAL, run
from benchmarks.history import COUNTS, ROUNDS, synthetic
from benchmarks.table import JUDGED, Table
from service.serve.rounds import rounds
from storage_tiers.clock import SystemClock, SystemRng
from storage_tiers.cold.manifest.json import encode
from storage_tiers.cold.manifest.model import Ids
from storage_tiers.cold.manifest.saved_manifest import write_manifest
from storage_tiers.cold.offline.bucket import Bucket
from storage_tiers.cold.offline.partition import PartitionReader
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.cold.stores.port import BlockingObjectStore, ObjectBody
from storage_tiers.files import OsFiles
from storage_tiers.hot.data_dir import read_topic_id
from storage_tiers.hot.log import HotLog
from storage_tiers.hot.log_ground import LogGround
from storage_tiers.hot.settings import LogSettings
from storage_tiers.types import EpochEntry, TopicPartition
from tests.service.broker.support import TIERED, Running, running
from tests.support.clients import create, produce, seal
from tests.support.node import Node

PARTITIONS = 1000
#: Segments of each partition. With 0, partitions are not tiered.
SEGMENTS = (0, 24, 720)
#: Partitions of the cluster whose requests are counted, and other objects put into its store to lengthen the listing.
IDLE_PARTITIONS, OBJECTS = 200, 50_000
_LIMIT_S = 60.0
_SETTLING_S = 8
_HOUR_S = 3600


def measure(table: Table, directory: Path, *, rounds: int) -> None:
    untiered = 0.0
    for segments in SEGMENTS:
        resident = _resident_megabytes(directory / str(segments), segments)
        table.add(JUDGED, f"broker with {PARTITIONS:,} partitions of {segments} segments", "MB", resident)
        if segments:
            each = (resident - untiered) * 1e6 / 1024 / PARTITIONS
            table.add(JUDGED, f"a partition of {segments} segments, beyond an untiered one", "KiB", each)
        else:
            untiered = resident
        shutil.rmtree(directory / str(segments))
    for row, unit, value in asyncio.run(requests(directory / "requests")):
        table.add(JUDGED, row, unit, value)
    for row, unit, value in _commits():
        table.add(JUDGED, row, unit, value)
    asyncio.run(_by_partitions(table, directory / "partitions", rounds))


def _commits() -> Sequence[tuple[str, str, float]]:
    """Rows about 100,000 modelled commits: how many objects (manifest and pages) a commit writes, on average and at most."""
    rows: list[tuple[str, str, float]] = []
    models = (("full pages", REAL, 60_000, 2_000), ("two levels of pages", DEEP, 50_000, 5_000))
    for name, bounds, live, grace in models:
        puts = run(100_000, bounds=bounds, live=live, grace=grace)
        rows.append((f"a commit's PUTs of the manifest, {name}: amortised", "PUTs", puts.amortised))
        rows.append((f"a commit's PUTs of the manifest, {name}: at most", "PUTs", puts.most))
    return rows


# --- rounds -----------------------------------------------------------------------------------------------------------
async def _by_partitions(table: Table, directory: Path, rounds: int) -> None:
    """Measures the elapsed time of each periodic round when it finds nothing to do."""
    async with running(directory) as node:
        for count in COUNTS:
            more = count - len(node.node.broker.partitions)
            await node.create(f"t{count}", more, {"retention.ms": str(10**12)})
            for partition in node.node.broker.partitions:
                partition.log.apply(synthetic(24, partition.ids)[0])
            node.node.broker.sweeping._listed_at = node.node.ground.host.clock.monotonic()
            ticks = dict(zip(ROUNDS, _rounds(node), strict=True))
            for _ in range(rounds):
                for name, tick in ticks.items():
                    began = time.perf_counter()
                    await tick()
                    took_us = (time.perf_counter() - began) * 1e6
                    table.add(JUDGED, f"{name}, {count:,} partitions", "µs a partition", took_us / count)


def _rounds(node: Running) -> Sequence[Callable[[], Awaitable[None]]]:
    async def tier() -> None:
        for partition in node.node.broker.partitions:
            partition.tier_due_ms = 0
        await node.node.work.tiering.tick(list(node.node.broker.partitions))

    return node.node.broker.retention.tick, node.node.broker.sweeping.tick, tier


# --- memory -----------------------------------------------------------------------------------------------------------
def _resident_megabytes(directory: Path, segments: int) -> float:
    node = Node(directory)
    try:
        node.start()
        # One partition is tiered in any case, so that the fixed cost of tiering is not counted as a partition's cost.
        create(node, "one", 1, {})
        produce(node, "one", 10)
        seal(node, "one")
        create(node, "t", PARTITIONS, {} if segments else {"remote.storage.enable": "false"})
        node.stop()
        if segments:
            _give_history(node, segments)
        node.start()
        _wait(lambda: _counted(node, "remotelogmetadatacount") == PARTITIONS * segments + 1, "manifests to be known")
        compared = PARTITIONS + 1 if segments else 1
        _wait(
            lambda: _counted(node, 'tier_questions_total{question="LoadManifest"}') >= compared,
            "manifests to be compared with the store",
        )
        return _least_resident_megabytes(node)
    finally:
        node.kill()


class _Unsynced(OsFiles):
    """Files without fsync: a benchmark's preparation needs no durability."""

    def fsync(self, fd: int) -> None:
        pass

    def fsync_dir(self, path: str) -> None:
        pass


def _give_history(node: Node, segments: int) -> None:
    """Makes each partition's log begin where a synthetic manifest ends, and writes that manifest to the store and beside the
    log."""
    (cluster_id,) = re.findall(r"cluster\.id=(\S+)", (node.data_dir / "meta.properties").read_text())
    files, clock, rng = _Unsynced(), SystemClock(), SystemRng()
    for number in range(PARTITIONS):
        path = node.partition_dir("t", number)
        topic_id = read_topic_id(str(path))
        assert topic_id is not None
        manifest, _ = synthetic(segments, Ids(cluster_id, "t", topic_id, number))
        log = HotLog.open(
            LogGround(str(path), TopicPartition("t", number), topic_id, files, clock, rng),
            LogSettings(),
            recovery_point=0,
            log_start_offset=0,
            clean=True,
        )
        log.truncate_fully_and_start_at(manifest.end, epochs=(EpochEntry(0, 0),))
        log.close(clean=True)
        write_manifest(files, str(path), manifest)
        stored = node.store_path / manifest.ids.manifest_key
        stored.parent.mkdir(parents=True, exist_ok=True)
        stored.write_bytes(encode(manifest))


def _least_resident_megabytes(node: Node) -> float:
    """The lowest resident memory within _SETTLING_S. The node returns freed memory to the system with a delay of seconds."""
    taken: list[float] = []
    for _ in range(_SETTLING_S):
        taken.append(resident_megabytes(node.pid, children=False))
        time.sleep(1)
    return min(taken)


def _counted(node: Node, name: str) -> float:
    _, text = node.get("/metrics", timeout=30)
    found = [line.rpartition(" ")[2] for line in text.splitlines() if line.partition(" ")[0].endswith(name)]
    return sum(map(float, found))


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {_LIMIT_S:g} s for {what}")
        time.sleep(0.1)


# --- requests ---------------------------------------------------------------------------------------------------------
async def requests(directory: Path) -> Sequence[tuple[str, str, float]]:
    """Returns the rows about requests to the store: those of a sweep's listing, of an idle partition in an hour, and of a cold
    read."""
    rows: list[tuple[str, str, float]] = []
    async with running(directory, broker={"log.retention.check.interval.ms": "300000"}) as node:
        await node.create("t", IDLE_PARTITIONS, TIERED)
        for number in range(IDLE_PARTITIONS):
            await node.append("t", b"x" * 100, partition=number)
        await node.seal("t")
        for number in range(OBJECTS):
            await node.store.put(f"{node.node.cluster_id}/readers/r/{number:06}", b"")
        # The first two rounds that list a key also examine it. Later rounds only list it.
        for _ in range(3):
            await _listing(node)
        listed = len([key async for key in node.store.list("")])
        made = await _listing(node)
        rows.append(("sweep of a cluster", "LISTs a 1,000 objects", made.count("list") / (listed / 1000)))
        rows.append(("sweep of a cluster, unfinished uploads", "LISTs", made.count("unfinished_uploads")))
        node.store.calls.clear()
        await _an_hours_rounds(node)
        asked = [key for _, key in node.store.calls if "/topics/" in key]
        rows.append(("an idle partition", "requests an hour", len(asked) / IDLE_PARTITIONS))
        rows += await _cold_read(node)
    return rows


async def _listing(node: Running) -> list[str]:
    node.node.broker.sweeping._listed_at = None
    node.store.calls.clear()
    await node.node.broker.sweeping.tick()
    return [operation for operation, _ in node.store.calls]


async def _an_hours_rounds(node: Running) -> None:
    """Runs every kind of periodic work as often as it runs in an hour, but at most 3,600 times. Too little real time passes for
    the daily listing to become due."""
    for worker in rounds(node.node):
        for _ in range(min(_HOUR_S, round(_HOUR_S / worker.period_s))):
            await worker.tick()


async def _cold_read(node: Running) -> Sequence[tuple[str, str, float]]:
    """Reads one record of a 32 MiB segment of 16 KiB batches: through the broker, which has only the partition's manifest in
    memory, and from the bucket alone, by offset and by time."""
    await node.create("cold", configs={**TIERED, "internal.segment.bytes": str(32 << 20)})
    for number in range(2048):
        await node.append("cold", number.to_bytes(2, "big") * 8000)
    await node.seal("cold")
    await node.evicted("cold")
    hydrator = node.tier.hydrator
    assert hydrator is not None
    hydrator.known.forget(node.node.broker.partitions.get(TopicPartition("cold", 0)).ids)
    node.store.calls.clear()
    before = hydrator.cache.used_bytes
    assert await node.read("cold", 1000)
    gets = sum(operation == "get" for operation, _ in node.store.calls)
    rows: list[tuple[str, str, float]] = [
        ("cold read of one record, broker", "GETs", gets),
        ("cold read of one record, broker: data fetched", "KiB", (hydrator.cache.used_bytes - before) / 1024),
    ]
    memory = node.store.store
    assert isinstance(memory, MemoryStore)
    ids = node.node.broker.partitions.get(TopicPartition("cold", 0)).ids
    for how in ("by offset", "by time"):
        counted = _Counted(memory.blocking())
        bucket = Bucket(counted)
        reader = PartitionReader(bucket, bucket.live_manifest(ids))
        if how == "by offset":
            next(reader.pieces(1000))
        else:
            reader.first_offset_at(0)
        rows.append((f"cold read of one record, bucket alone, {how}", "GETs", counted.gets))
        rows.append((f"cold read of one record, bucket alone, {how}: data fetched", "KiB", counted.data_bytes / 1024))
    return rows


class _Counted:
    """A store that counts its GETs, and the bytes of segments that they fetch."""

    def __init__(self, store: BlockingObjectStore) -> None:
        self._store = store
        self.gets = self.data_bytes = 0

    def get(self, key: str, start: int = 0, length: int | None = None) -> ObjectBody:
        body = self._store.get(key, start, length)
        self.gets += 1
        self.data_bytes += len(body.data) if key.endswith(".log") else 0
        return body

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)
