"""One broker and its tier: each request gets one response, within bounds, and the process lives as long as it has work."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from storage_tiers.cold.manifest.cluster_file import Holder
from storage_tiers.cold.manifest.model import State
from storage_tiers.cold.manifest.topic_file import TopicState
from storage_tiers.cold.process.cluster_operations import (
    MarkTopicDeleted,
    OpenCluster,
    Probe,
    PublishTopic,
    ReadCluster,
    ReadTopic,
)
from storage_tiers.cold.process.operations import (
    Claim,
    DeletePartition,
    Expire,
    Extend,
    FetchChunk,
    FetchObject,
    LoadManifest,
    RaiseLogStart,
    RaisePriority,
    Stats,
    Sweep,
)
from storage_tiers.cold.process.settings import CHUNK_BYTES, MIB
from storage_tiers.cold.segments.offloader import ExtendJob
from storage_tiers.cold.stores.bodies import hand_over
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.cold.stores.port import Sink
from storage_tiers.errors import (
    FencedWriter,
    InvalidRequest,
    LogError,
    StorageError,
    StoreRefused,
    TierCorrupt,
    TierObjectMissing,
    TierUnavailable,
)
from storage_tiers.records.checksum import crc32c
from tests.storage_tiers.cold.support import IDS, TOPIC_ID, EagerClock
from tests.storage_tiers.tier.downloaded import BYTES, CRCS, chunk, files
from tests.storage_tiers.tier.support import PATIENT, QUICK, WRITER, batch, broker, until


# --- downloads --------------------------------------------------------------------------------------------------------
async def test_a_chunk_is_verified_and_whole(tmp_path: Path) -> None:
    async with broker(tmp_path) as b:
        await b.store.put("a", b"before" + BYTES + b"after")
        ready = await b.client.ask(FetchChunk("a", 6, len(BYTES), CRCS))
        assert Path(ready.path).read_bytes() == BYTES and ready.size == len(BYTES)
        assert files(tmp_path) == [Path(ready.path)]


async def test_each_question_gets_a_file_of_its_own(tmp_path: Path) -> None:
    """The requester deletes its file, which must not take another requester's bytes away."""
    async with broker(tmp_path) as b:
        await b.store.put("a", BYTES)
        ready = await asyncio.gather(*(b.client.ask(FetchObject("a", 0, len(BYTES))) for _ in range(5)))
        assert len(set(ready)) == 5 and {Path(each.path).read_bytes() for each in ready} == {BYTES}


@pytest.mark.parametrize("damage", ["flipped", "short", "empty", "missing"])
async def test_a_damaged_object_leaves_no_file(tmp_path: Path, damage: str) -> None:
    async with broker(tmp_path) as b:
        bad = {"flipped": BYTES[:-1] + bytes([BYTES[-1] ^ 8]), "short": BYTES[:-1], "empty": b""}
        if damage in bad:
            await b.store.put("a", bad[damage])
        with pytest.raises(TierObjectMissing if damage == "missing" else TierCorrupt):
            await b.client.ask(chunk())
        assert files(tmp_path) == []
        if damage in ("short", "empty"):
            with pytest.raises(TierCorrupt):
                await b.client.ask(FetchObject("a", 0, len(BYTES)))


async def test_a_transient_store_error_is_retried(tmp_path: Path) -> None:
    async with broker(tmp_path) as b:
        await b.store.put("a", BYTES)
        b.store.fail(1, "get")
        b.store.lose_answer(2, "get")
        assert (await b.client.ask(chunk())).size == len(BYTES)
        assert b.store.count("get") == 3
        counters = await b.client.refresh_counters()
        assert counters is not None and counters.retries == 2 and counters.store_calls == {"get": 3}


async def test_a_store_that_is_down_fails_at_the_deadline(tmp_path: Path) -> None:
    async with broker(tmp_path, settings=QUICK) as b:
        await b.store.put("a", BYTES)
        b.store.down = True
        with pytest.raises(TierUnavailable, match="within 1 s"):
            await b.client.ask(chunk())
        assert "within 1 s" in (b.client.trouble or "")
        await b.client.refresh_counters()
        assert b.client.trouble is not None, "its counters need no store"
        b.store.down = False
        assert (await b.client.ask(chunk())).size == len(BYTES)
        assert b.client.trouble is None


@pytest.mark.parametrize(
    ("error", "is_trouble"), [(StoreRefused("denied"), True), (TierObjectMissing("no such key"), False)]
)
async def test_a_store_that_refuses_is_in_trouble_one_that_lacks_a_key_is_not(
    tmp_path: Path, error: LogError, is_trouble: bool
) -> None:
    async with broker(tmp_path) as b:
        b.store.fail(1, "get", error=error)
        with pytest.raises(type(error)):
            await b.client.ask(chunk())
        assert ("denied" in (b.client.trouble or "")) is is_trouble


async def test_a_store_that_hangs_fails_at_the_deadline(tmp_path: Path) -> None:
    async with broker(tmp_path, settings=QUICK) as b:
        await b.store.put("a", BYTES)
        b.store.hold(1, "get")
        with pytest.raises(TierUnavailable, match="within 1 s"):
            await b.client.ask(chunk())


async def test_bytes_and_connections_in_flight_are_bounded(tmp_path: Path) -> None:
    settings = dataclasses.replace(PATIENT, download_connections=4, download_bytes_in_flight=3 * CHUNK_BYTES)
    store = Watched()
    async with broker(tmp_path, store=store, settings=settings) as b:
        whole = bytes(CHUNK_BYTES)
        crcs = (crc32c(whole[:MIB]),) * 4
        for number in range(12):
            await b.store.put(f"large-{number}", whole)
            await b.store.put(f"small-{number}", b"x")
        large = [b.client.ask(FetchChunk(f"large-{n}", 0, CHUNK_BYTES, crcs)) for n in range(12)]
        await asyncio.gather(*large)
        assert store.most == 3
        store.most = 0
        small = [b.client.ask(FetchChunk(f"small-{n}", 0, 1, (crc32c(b"x"),))) for n in range(12)]
        await asyncio.gather(*small)
        assert store.most == 4
        counters = await b.client.refresh_counters()
        assert counters is not None and counters.most_bytes_in_flight == 3 * CHUNK_BYTES


class Watched(MemoryStore):
    """Counts concurrent gets."""

    def __init__(self) -> None:
        super().__init__(EagerClock())
        self.now = self.most = 0

    async def get(self, key: str, start: int = 0, length: int | None = None):  # type: ignore[no-untyped-def]
        self.now += 1
        self.most = max(self.most, self.now)
        for _ in range(20):
            await asyncio.sleep(0)
        self.now -= 1
        return await super().get(key, start, length)

    async def get_into(self, key: str, start: int, length: int, sink: Sink) -> None:
        hand_over((await self.get(key, start, length)).data, sink)


async def test_urgent_downloads_overtake_read_ahead(tmp_path: Path) -> None:
    settings = dataclasses.replace(PATIENT, download_connections=1)
    async with broker(tmp_path, settings=settings) as b:
        order: list[str] = []
        for key in "abcd":
            await b.store.put(key, BYTES)

        async def fetch(key: str, urgent: bool) -> None:
            await b.client.ask(chunk(key, urgent=urgent))
            order.append(key)

        gate = b.store.hold(1, "get", "a")
        asking = [asyncio.create_task(fetch("a", True))]
        await gate.reached.wait()
        asking += [asyncio.create_task(fetch(key, key == "d")) for key in "bcd"]
        await until(lambda: b.client.stats.asked["FetchChunk"] == 4)
        await b.client.ask(Stats())  # the process has read all four
        await b.client.ask(RaisePriority("c", 0, len(BYTES)))  # a reader waits for chunk c now
        gate.open()
        await asyncio.gather(*asking)
        assert order == ["a", "d", "c", "b"]


async def test_a_cache_directory_that_refuses_is_a_storage_error(tmp_path: Path) -> None:
    async with broker(tmp_path) as b:
        await b.store.put("a", BYTES)
        (tmp_path / "cache").rmdir()
        (tmp_path / "cache").write_bytes(b"no directory")
        with pytest.raises(StorageError, match="Not a directory"):
            await b.client.ask(chunk())
        (tmp_path / "cache").unlink()
        assert (await b.client.ask(chunk())).size == len(BYTES)


async def test_questions_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    async with broker(tmp_path) as b:
        for question in (
            FetchChunk("a", 0, 0, ()),
            FetchChunk("a", 0, CHUNK_BYTES + 1, (0,) * 5),
            FetchChunk("a", 0, 10, (1, 2)),
        ):
            with pytest.raises(InvalidRequest):
                await b.client.ask(question)


# --- manifests --------------------------------------------------------------------------------------------------------
async def test_through_the_client_a_partition_is_offloaded_expired_swept_and_deleted(tmp_path: Path) -> None:
    async with broker(tmp_path) as b:
        await b.client.ask(Probe("probes/"))
        assert await b.client.ask(ReadCluster(IDS.cluster_id)) is None
        holder = Holder(1, "disk", "start")
        assert await b.client.ask(OpenCluster(IDS.cluster_id, holder, 0)) == 1
        with pytest.raises(FencedWriter):
            await b.client.ask(OpenCluster(IDS.cluster_id, Holder(1, "disk", "other"), 0))
        found = await b.client.ask(ReadCluster(IDS.cluster_id))
        assert found is not None and found.holder == holder

        assert await b.client.ask(LoadManifest(IDS, WRITER)) is None
        assert (await b.client.ask(RaiseLogStart(IDS, WRITER, 5))).commit == 0  # no manifest, so nothing to raise
        assert (await b.client.ask(Claim(IDS, WRITER, 1))).leader_epoch == 1
        manifest = await b.offload(batch(0, 10), 0, 10)
        assert await b.client.ask(LoadManifest(IDS, WRITER)) == manifest
        assert (await b.client.ask(RaiseLogStart(IDS, WRITER, 4))).log_start == 4
        manifest = await b.offload(batch(10, 10), 10, 20)
        manifest = await b.client.ask(Expire(IDS, WRITER, 15))
        assert (manifest.log_start, len(manifest.segments), len(manifest.removed)) == (15, 1, 1)
        report = await b.client.ask(Sweep(IDS, WRITER, 0))
        assert report.removed == 2
        assert (await b.client.ask(DeletePartition(IDS, WRITER))).state is State.DELETED
        with pytest.raises(FencedWriter, match="deleted"):
            await b.offload(batch(20, 10), 20, 30)
        counters = await b.client.refresh_counters()
        assert counters is not None and counters.bytes_uploaded > 0 and counters.store_calls["put"] > 5


async def test_an_extension_by_another_writer_shows_where_the_next_begins(tmp_path: Path) -> None:
    async with broker(tmp_path) as b:
        manifest = await b.offload(batch(0, 10), 0, 10)
        path = tmp_path / "x.log"
        path.write_bytes(batch(5, 10))
        producers = path.with_suffix(".snapshot")
        producers.write_bytes(b"")
        job = ExtendJob(str(path), 0, path.stat().st_size, 5, 15, 1, 1, (), str(producers))
        assert await b.client.ask(Extend(IDS, WRITER, job)) == manifest


async def test_topic_files_are_published_read_and_marked_deleted(tmp_path: Path) -> None:
    async with broker(tmp_path) as b:
        topic = TopicState(IDS.cluster_id, "t", TOPIC_ID, State.LIVE, 3, 1, {"retention.ms": "-1"})
        assert await b.client.ask(ReadTopic(IDS.cluster_id, "t")) is None
        published = await b.client.ask(PublishTopic(topic))
        assert (published.topic_id, published.configs) == (TOPIC_ID, {"retention.ms": "-1"})
        assert await b.client.ask(ReadTopic(IDS.cluster_id, "t")) == published
        assert (await b.client.ask(MarkTopicDeleted(topic))).state is State.DELETED
        with pytest.raises(FencedWriter):
            await b.client.ask(PublishTopic(topic))


async def test_a_commit_past_its_deadline_is_cut_off(tmp_path: Path) -> None:
    async with broker(tmp_path, settings=dataclasses.replace(PATIENT, commit_deadline_s=1.0)) as b:
        b.store.hold(1, "put", "manifests/")
        with pytest.raises(TierUnavailable, match="outcome is unknown"):
            await b.client.ask(Claim(IDS, WRITER, 1))
        assert (await b.client.ask(Claim(IDS, WRITER, 1))).leader_epoch == 1


async def test_offloads_at_once_are_bounded(tmp_path: Path) -> None:
    async with broker(tmp_path, settings=dataclasses.replace(PATIENT, offloads=1)) as b:
        first, second = (dataclasses.replace(IDS, partition=number) for number in (1, 2))
        gate = b.store.hold(1, "put", "segments/00001")
        one = asyncio.create_task(b.offload(batch(0), 0, 1, ids=first))
        await gate.reached.wait()
        two = asyncio.create_task(b.offload(batch(0), 0, 1, ids=second))
        await until(lambda: b.client.stats.asked["Extend"] == 2)
        await b.client.ask(Stats())
        assert b.store.count("put", "segments/00002") == 0
        gate.open()
        await asyncio.gather(one, two)
