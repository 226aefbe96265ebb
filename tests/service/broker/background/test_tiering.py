"""When segments are offloaded and evicted: with the store away, with blocked commits, with topics that change."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from grpc_api.contract.topics import AlterOp, ConfigAlteration, Resource, ResourceKind
from service.broker.partition.partition import Partition
from storage_tiers.clock import SystemClock
from storage_tiers.cold.manifest.model import State
from storage_tiers.cold.manifest.saved_manifest import FILE_NAME
from storage_tiers.cold.process import protocol
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.cold.stores.port import FileBody, ObjectInfo
from storage_tiers.errors import (
    FencedWriter,
    LeaderNotAvailable,
    RequestTimedOut,
    StorageError,
    TierUnavailable,
    UnknownTopicOrPartition,
)
from storage_tiers.files import OsFiles
from storage_tiers.hot.producer_state import ProducerStateManager
from storage_tiers.hot.reading import LogReader
from storage_tiers.types import TopicPartition
from tests.service.broker.support import TIERED, Running, batch, manifest_of, running, until
from tests.support.faulty_store import FaultyStore
from tests.support.thread_gates import SlowFiles

T0 = TopicPartition("t", 0)
KEPT = {**TIERED, "local.retention.bytes": "-2", "local.retention.ms": "-2"}


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path / "data") as started:
        yield started


async def filled(node: Running, configs: dict[str, str] | None = None) -> Partition:
    await node.create("t", configs=TIERED if configs is None else configs)
    for i in range(40):
        await node.append("t", b"%03d" % i * 50)
    return node.node.broker.partitions.get(T0)


async def alter(node: Running, key: str, value: str) -> None:
    change = ConfigAlteration(key, AlterOp.SET, value)
    await node.core.configs.alter_configs(Resource(ResourceKind.TOPIC, "t"), [change])


def log_start_in_the_bucket(led: Partition) -> int:
    return -1 if led.log.tier is None else led.log.tier.log_start


# --- the store away ---------------------------------------------------------------------------------------------------
async def test_below_log_start_the_disk_is_freed_while_the_store_is_unreachable(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore(SystemClock()), down=True)
    async with running(tmp_path / "data", store, new_cluster=True) as node:
        led = await filled(node)
        assert await node.log.delete_records(T0, 30) == 30
        await until(lambda: 0 < led.log.hot.local_start_offset <= 30)
        assert node.tier.access is not None
        assert node.tier.access.writer is None
        store.down = False
        await node.seal("t")
        assert [record.offset for record in await node.read_all("t", start=30)] == list(range(30, 40))


async def test_nothing_is_evicted_because_of_an_uncompared_manifest(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as node:
        await filled(node, KEPT)
        await node.seal("t")
        store = node.store
    store.down = True
    async with running(tmp_path / "data", store) as node:
        led = node.node.broker.partitions.get(T0)
        await alter(node, "local.retention.ms", "1")
        node.node.work.tiering.kick(led)
        await until(lambda: led not in node.node.work.tiering._local_retention)
        assert led.log.tier is not None
        assert led.log.hot.local_start_offset == 0
        store.down = False
        await node.evicted("t")


async def test_deleting_records_before_the_store_was_asked_may_be_repeated(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as node:
        await filled(node)
        await node.seal("t")
        store = node.store
    store.down = True
    async with running(tmp_path / "data", store) as node:
        with pytest.raises(TierUnavailable):
            await node.log.delete_records(T0, 17)
        led = node.node.broker.partitions.get(T0)
        assert led.log.log_start_offset == 17
        store.down = False
        await until(lambda: node.node.work.tiering.has_compared(led))
        assert await node.log.delete_records(T0, 17) == 17
        assert log_start_in_the_bucket(led) == 17


async def test_below_log_start_the_disk_is_freed_while_offloads_are_paused(node: Running) -> None:
    gates = [node.store.hold(number, "put", "segments/") for number in range(1, 5)]
    for number in range(5):
        await node.create(f"t{number}", configs=TIERED)
        for i in range(20):
            await node.append(f"t{number}", b"%03d" % i * 50)
    for gate in gates:
        await gate.reached.wait()  # every offload slot is taken
    led = node.node.broker.partitions.get(TopicPartition("t4", 0))
    assert await node.log.delete_records(led.partition, 10) == 10
    await until(lambda: led.log.hot.local_start_offset > 0)
    for gate in gates:
        gate.open()


# --- blocked commits --------------------------------------------------------------------------------------------------
async def test_records_deleted_during_their_offload_are_hidden_in_the_bucket_too(node: Running) -> None:
    gate = node.store.hold(1, "put", "manifests/")
    led = await filled(node)
    await gate.reached.wait()
    deleting = asyncio.ensure_future(node.log.delete_records(T0, 17))
    await until(lambda: led.log.log_start_offset == 17)
    assert not deleting.done()
    gate.open()
    assert await deleting == 17
    assert led.log.tier is not None
    assert led.log.tier.log_start == min(17, led.log.tier.end)
    await node.seal("t")
    await until(lambda: log_start_in_the_bucket(led) == 17)


async def test_segments_that_may_be_offloaded_are_not_called_deleted(node: Running) -> None:
    gate = node.store.hold(1, "put", "manifests/", after=True)
    node.store.lose_answer(1, "put", "manifests/")
    led = await filled(node)
    await gate.reached.wait()
    deleting = asyncio.ensure_future(node.log.delete_records(T0, 17))
    await until(lambda: led.log.log_start_offset == 17)
    node.store.down = True
    gate.open()
    with pytest.raises(TierUnavailable, match="may have reached the bucket; retry"):
        await deleting
    node.store.down = False
    await until(lambda: led.log.tiered_end > 17)
    assert await node.log.delete_records(T0, 17) == 17
    assert log_start_in_the_bucket(led) == 17


async def test_sealing_a_deleted_topic_reports_it(node: Running) -> None:
    gate = node.store.hold(1, "put", "manifests/")
    await filled(node)
    sealing = asyncio.ensure_future(node.log.seal("t", wait=True, timeout_ms=60_000))
    await gate.reached.wait()
    await node.core.topics.delete(["t"])
    with pytest.raises(UnknownTopicOrPartition):
        await sealing
    gate.open()


async def test_no_work_begins_once_the_node_closes(node: Running) -> None:
    gate = node.store.hold(1, "put", "manifests/")
    led = await filled(node)
    await gate.reached.wait()
    node.node.work.tiering.kick(led)  # asks for another look once the work under way ends
    await node.node.work.tiering.close()
    await asyncio.sleep(0)
    assert led not in node.node.work.tiering._offloading
    assert led not in node.node.work.tiering._local_retention
    gate.open()


# --- what must not happen -----------------------------------------------------------------------------------------------
async def test_a_segment_without_batches_is_an_error_and_stops_no_other(
    node: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.create("t", configs=TIERED)
    led = node.node.broker.partitions.get(T0)
    monkeypatch.setattr(LogReader, "offload_source", lambda *_: None)
    for i in range(40):
        await node.append("t", b"%03d" % i * 50)
    with pytest.raises(RequestTimedOut):
        await node.log.seal("t", wait=True, timeout_ms=300)
    assert led.log.tier is None


async def test_an_unexpected_failure_is_logged_and_work_continues(
    node: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await node.create("t", configs=TIERED)
    snapshot_paths = LogReader.snapshot_paths
    failed: list[int] = []

    def once(reader: LogReader, offset: int) -> tuple[str, str]:
        if not failed:
            failed.append(offset)
            raise ValueError("a defect")
        return snapshot_paths(reader, offset)

    monkeypatch.setattr(LogReader, "snapshot_paths", once)
    for i in range(40):
        await node.append("t", b"%03d" % i * 50)
    await node.seal("t")
    assert failed
    assert "a defect" in caplog.text


async def test_a_manifest_marked_deleted_does_not_cause_eviction(node: Running) -> None:
    led = await filled(node, KEPT)
    await node.seal("t")
    manifest, known = await manifest_of(led), led.log.tier
    gone = replace(manifest, commit=manifest.commit + 1, state=State.DELETED, segments=(), sidecar=None)
    with pytest.raises(FencedWriter):
        await node.node.work.tiering.accept(led, gone)
    assert led.log.tier is known


# --- topics of other kinds --------------------------------------------------------------------------------------------
async def test_closed_segments_of_a_topic_that_is_not_tiered_are_flushed(node: Running) -> None:
    led = await filled(node, {"internal.segment.bytes": "2000", "remote.storage.enable": "false"})
    hot = led.log.hot
    await until(lambda: hot.recovery_point >= hot.active_start_offset > 0)


async def test_a_topic_that_is_no_longer_tiered_keeps_its_history_over_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as node:
        await filled(node)
        await node.seal("t")
        await node.evicted("t")
        await alter(node, "remote.storage.enable", "false")
        await node.append("t", b"local")
        store = node.store
    async with running(tmp_path / "data", store) as node:
        led = node.node.broker.partitions.get(T0)
        assert [record.offset for record in await node.read_all("t")] == list(range(41))
        await until(lambda: node.node.work.tiering.has_compared(led))
        assert await node.log.delete_records(T0, 17) == 17
        assert log_start_in_the_bucket(led) == 17
        await alter(node, "remote.storage.enable", "true")
        await node.seal("t")
        await node.evicted("t")
        assert [record.offset for record in await node.read_all("t", start=17)] == list(range(17, 41))


async def test_a_partition_with_a_lost_saved_manifest_recovers_from_the_bucket(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as node:
        led = await filled(node)
        await node.seal("t")
        await node.evicted("t")
        await node.append("t", b"local")
        store, saved = node.store, Path(led.log.hot.directory) / FILE_NAME
    saved.unlink()
    store.down = True
    async with running(tmp_path / "data", store) as node:
        with pytest.raises(LeaderNotAvailable):
            await node.read("t", 0, wait_ms=0)
        assert node.node.ground.readiness.reports.recovering() == ["t-0"]
        store.down = False
        led = node.node.broker.partitions.get(T0)
        await until(lambda: led.read_error is None)
        assert [record.offset for record in await node.read_all("t")] == list(range(41))


@pytest.mark.parametrize("damage", ["gone", "cut", "zeroed"])
async def test_records_lost_in_a_local_segment_are_served_from_the_bucket(tmp_path: Path, damage: str) -> None:
    async with running(tmp_path / "data") as node:
        await filled(node, KEPT)
        await node.seal("t")
        store = node.store
    damaged = sorted((tmp_path / "data" / "t-0").glob("*.log"))[2]
    size = damaged.stat().st_size
    damaged.unlink()
    if damage != "gone":
        damaged.touch()
        os.truncate(damaged, size if damage == "zeroed" else size // 2)
    async with running(tmp_path / "data", store) as node:
        led = node.node.broker.partitions.get(T0)
        assert led.log.hot.local_start_offset == 0
        assert [record.offset for record in await node.read_all("t")] == list(range(40))


async def test_a_damaged_log_holds_no_other_partition_up(tmp_path: Path) -> None:
    """The rounds that visit every partition come upon a closed segment that can no longer be read."""
    often = {"segment.ms": "500", "retention.ms": "-1"}
    async with running(tmp_path / "data") as node:
        await filled(node, {**TIERED, **often, "remote.storage.enable": "false", "retention.bytes": "100000"})
        store = node.store
    first = tmp_path / "data" / "t-0" / f"{0:020d}.log"
    first.write_bytes(bytes(first.stat().st_size))
    first.with_suffix(".index").unlink()
    async with running(tmp_path / "data", store) as node:
        led = node.node.broker.partitions.get(T0)
        with pytest.raises(StorageError):
            led.log.hot.segments()
        await node.create("u", configs={**TIERED, **often})
        await node.append("u", b"a")
        other = node.node.broker.partitions.get(TopicPartition("u", 0))
        await until(lambda: other.log.tiered_end == 1)
        await node.append("u", b"b")
        await until(lambda: other.log.tiered_end == 2)
        await node.node.broker.retention.tick()
        assert node.node.ground.ending.fatal is None


class SlowlySyncedFiles(OsFiles):
    """Segments stay unsynced until an offload begins, or for 0.3 s if none does. `synced` is by path, in bytes."""

    def __init__(self) -> None:
        self.offloading = threading.Event()
        self.synced: dict[str, int] = {}

    def fsync(self, fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        size = os.fstat(fd).st_size
        if path.endswith(".log") and "/t-0/" in path:
            self.offloading.wait(0.3)
        super().fsync(fd)
        self.synced[path] = size


class DiskAskingStore(FaultyStore):
    """Records for every offloaded segment how many bytes of its file were synced by then, and how many it needed."""

    def __init__(self, files: SlowlySyncedFiles) -> None:
        super().__init__(MemoryStore(SystemClock()))
        self.files = files
        self.offloads: list[tuple[int, int]] = []

    async def put(
        self, key: str, body: bytes | FileBody, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        if key.endswith(".log") and isinstance(body, FileBody):
            synced = self.files.synced.get(os.path.realpath(body.path), 0)
            self.offloads.append((synced, body.position + body.length))
            self.files.offloading.set()
        return await super().put(key, body, if_absent=if_absent, if_match=if_match)


async def test_segments_are_flushed_before_they_are_offloaded(tmp_path: Path) -> None:
    """Otherwise a power loss could take back records that the bucket holds, and their offsets would be assigned again."""
    files = SlowlySyncedFiles()
    store = DiskAskingStore(files)
    async with running(tmp_path / "data", store, files=files) as node:
        await filled(node, {**KEPT, "internal.segment.bytes": str(1 << 20)})
        await node.seal("t")
    assert store.offloads
    assert [offload for offload in store.offloads if offload[0] < offload[1]] == []


async def test_removing_segments_does_not_block_the_loop(tmp_path: Path) -> None:
    files = SlowFiles(once=True)
    async with running(tmp_path / "data", files=files) as node:
        led = await filled(node, {**TIERED, "remote.storage.enable": "false"})
        await until(lambda: led not in node.node.work.tiering._local_retention)
        files.held = "t-0"
        assert await node.log.delete_records(T0, 30) == 30
        await asyncio.to_thread(files.reached.wait, 60)
        assert (await node.append("t", b"a")).base_offset == 40
        assert [record.offset for record in await node.read("t", 39)] == [39, 40]
        files.may_go.set()
        await until(lambda: led not in node.node.work.tiering._local_retention)
        left = sorted(os.listdir(led.log.hot.directory))
        assert left[0] == f"{led.log.hot.local_start_offset:020d}.index"
        assert not [name for name in left if name.endswith(".deleted")]


# --- damaged on the disk ----------------------------------------------------------------------------------------------
async def test_bytes_damaged_by_the_disk_do_not_get_a_good_checksum(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Segments before the damaged one are offloaded and evicted; the error advises to delete its records, which unblocks it."""
    async with running(tmp_path / "data") as node:
        led = await filled(node, {**TIERED, "remote.log.copy.disable": "true"})
        hot = led.log.hot
        third = sorted(Path(hot.directory).glob("*.log"))[2]
        base = int(third.stem)
        damaged = bytearray(third.read_bytes())
        damaged[100] ^= 1
        third.write_bytes(damaged)
        await alter(node, "remote.log.copy.disable", "false")
        await until(lambda: "partition.work_failed" in caplog.text)
        (said,) = [record.getMessage() for record in caplog.records if "partition.work_failed" in record.getMessage()]
        assert f"the batch at byte 0 of {third}, the first from offset {base} on" in said
        advised = re.search(r"delete the records below offset (\d+)", said)
        assert advised is not None
        end = int(advised[1])
        assert end == base + 1
        assert led.log.tiered_end == base
        await until(lambda: hot.local_start_offset == base)  # offloaded segments are evicted a moment later
        assert third.exists()
        assert await node.log.delete_records(T0, end) == end
        await node.seal("t")
        await node.evicted("t")
        assert [record.offset for record in await node.read_all("t", start=end)] == list(range(end, 40))


async def producers(node: Running, count: int) -> None:
    """Appends one batch from each of `count` producers."""
    for number in range(count):
        await node.append_batch("t", batch(b"x", producer_id=1000 + number, producer_epoch=0, base_sequence=0))


async def test_any_number_of_producers_passes_to_the_tier_process(
    node: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshot of the producers is longer than a frame may be."""
    await node.create("t")
    await producers(node, 500)
    monkeypatch.setattr(protocol, "MAX_FRAME_BYTES", 16_000)
    await node.seal("t")
    manifest = await manifest_of(node.node.broker.partitions.get(T0))
    assert node.tier.hydrator is not None
    assert manifest.sidecar is not None
    state = await node.tier.hydrator.newest_state(manifest.sidecar, manifest.end)
    assert len(ProducerStateManager.restore(state.producer_state, now_ms=0).producers) == 500


@pytest.mark.parametrize("damage", ["missing", "flipped", "of a later offset"])
async def test_a_snapshot_that_was_damaged_is_written_again_before_it_is_offloaded(tmp_path: Path, damage: str) -> None:
    store = FaultyStore(MemoryStore(SystemClock()), down=True)
    async with running(tmp_path / "data", store, new_cluster=True) as node:
        await node.create("t")
        await producers(node, 20)
        led = node.node.broker.partitions.get(T0)
        led.log.hot.roll()
        await node.node.work.flusher.flush(led)
        path = Path(led.log.hot.reader.snapshot_paths(20)[0])
        whole = path.read_bytes()
        if damage == "missing":
            path.unlink()
        elif damage == "of a later offset":  # put there from a copy
            await producers(node, 25)
            path.write_bytes(led.log.hot.end.producers.snapshot())
        else:
            path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        store.down = False
        await node.seal("t")
        assert path.read_bytes() == whole
