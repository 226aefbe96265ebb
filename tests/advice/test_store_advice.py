"""Advice about a store, followed: the records in it are read again, and the node continues."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from service.metadata import frames
from storage_tiers.clock import SystemClock
from storage_tiers.cold.manifest import clusters, commit, documents, keys, model, pages, transitions
from storage_tiers.cold.manifest import json as manifest_json
from storage_tiers.cold.manifest.json import decode, encode
from storage_tiers.cold.manifest.model import Author, ManifestWriter
from storage_tiers.cold.manifest.snapshot_files import newest_snapshot
from storage_tiers.cold.stores.memory import BlockingMemoryStore, MemoryStore
from storage_tiers.cold.stores.port import FileBody
from storage_tiers.errors import (
    FencedWriter,
    InvalidRequest,
    LogError,
    StorageError,
    StoreRefused,
    TierCorrupt,
)
from storage_tiers.records.checksum import crc32c
from tests.advice.support import configure, leads
from tests.service.broker.support import filled, running, until
from tests.service.takeover.support import copied, left_behind, taking
from tests.storage_tiers.cold.support import IDS, stored_manifest, tier_of
from tests.storage_tiers.cold.test_repair import World, world
from tests.support.faulty_store import FaultyStore

__all__ = ["world"]  # a fixture


# --- which store, which cluster ---------------------------------------------------------------------------------------
async def test_another_store_is_corrected(tmp_path: Path) -> None:
    """`--store` names another bucket: local records are served meanwhile, and nothing is lost once `--store` names the right
    bucket."""
    async with running(tmp_path) as node:
        await filled(node, 20)
        await node.seal("t")
        right = node.store
    async with running(tmp_path, FaultyStore(MemoryStore(SystemClock()))) as node:
        await until(lambda: "correct --store" in json.loads(node.node.ground.readiness.body())["store"])
        assert "delete nothing" in json.loads(node.node.ground.readiness.body())["store"]
        await node.append("t", b"meanwhile" * 100)
        assert not [call for call in node.store.calls if call[0] == "delete" and "probe-" not in call[1]]
    async with running(tmp_path, right) as node:
        await leads(node, "t")
        await node.seal("t")
        assert [record.offset for record in await node.read_all("t")] == list(range(21))


async def test_the_error_of_an_unknown_cluster_names_the_clusters_of_the_store(tmp_path: Path) -> None:
    left, before = await left_behind(tmp_path / "lost")
    store = FaultyStore(left)
    with pytest.raises(StoreRefused, match="Name one of those") as said:
        async with running(tmp_path / "new", store, take_over="typo"):
            pass
    assert not (tmp_path / "new").exists()
    named = re.search(r"it holds (\S+) with", str(said.value))
    assert named is not None and named[1] == before.cluster_id
    async with running(tmp_path / "new", store, take_over=named[1]) as node:
        await leads(node, "t")
        assert await node.end("t") == 10


async def test_a_cluster_file_that_is_missing_is_put_back(tmp_path: Path) -> None:
    left, before = await left_behind(tmp_path / "lost")
    key = keys.cluster_key(before.cluster_id)
    kept = left.blocking().get(key).data
    await left.delete([key])
    async with taking(tmp_path / "new", left, before.cluster_id) as start:
        with pytest.raises(StoreRefused, match="correct --store or the cluster id, or put the file back"):
            await start.run()
    await left.put(key, kept)
    async with taking(tmp_path / "new", left, before.cluster_id) as start:
        _, points = await start.run()
    assert [point.claimed.end for point in points] == [10, 10, 0]


async def test_the_intended_one_of_two_take_overs_is_repeated(tmp_path: Path) -> None:
    left, before = await left_behind(tmp_path / "lost")
    store = FaultyStore(left)
    store.fail(1, "put", "cluster.json", LogError("cut"))
    async with taking(tmp_path / "first", store, before.cluster_id) as start:
        with pytest.raises(LogError, match="cut"):
            await start.run()
    async with taking(tmp_path / "second", store, before.cluster_id) as start:
        await start.run()
    async with taking(tmp_path / "first", store, before.cluster_id) as start:
        with pytest.raises(FencedWriter, match="stop that one and begin again on another, empty --data-dir"):
            await start.run()
    async with taking(tmp_path / "third", store, before.cluster_id) as start:
        _, points = await start.run()
    assert [point.claimed.end for point in points] == [10, 10, 0]


async def test_a_bucket_with_objects_of_different_moments_is_put_back(tmp_path: Path) -> None:
    left, before = await left_behind(tmp_path / "lost")
    ids = model.Ids(before.cluster_id, "t", before.topic_ids["t"], 0)
    kept = left.blocking().get(ids.manifest_key).data
    manifest = decode(kept, ids)
    await left.delete([ids.manifest_key])
    await left.put(
        ids.manifest_key,
        encode(transitions.delete(manifest, Author(ManifestWriter(1, 1), "f" * 32, 0, lambda: "0" * 32))),
    )
    async with taking(tmp_path / "new", left, before.cluster_id) as start:
        with pytest.raises(StoreRefused, match="Put it back as it was, then start again"):
            await start.run()
    await left.delete([ids.manifest_key])
    await left.put(ids.manifest_key, kept)
    async with taking(tmp_path / "new", left, before.cluster_id) as start:
        _, points = await start.run()
    assert [point.claimed.end for point in points] == [10, 10, 0]


async def test_a_damaged_snapshot_is_moved_out_and_the_previous_one_is_used(tmp_path: Path) -> None:
    left, before = await left_behind(tmp_path / "lost")
    found = await newest_snapshot(left, before.cluster_id)
    assert found is not None
    data = bytearray(left.blocking().get(found.key).data)
    data[len(data) // 2] ^= 1
    await left.delete([found.key])
    await left.put(found.key, bytes(data))
    store = await copied(left)
    async with taking(tmp_path / "new", store, before.cluster_id) as start:
        with pytest.raises(LogError, match="Move this object out of the prefix") as said:
            await start.run()
    named = str(said.value).split(":")[0]
    assert named == found.key
    await store.put("elsewhere/snapshot", store.blocking().get(named).data)
    await store.delete([named])
    async with taking(tmp_path / "new", store, before.cluster_id) as start:
        _, points = await start.run()
        image = start.metadata.image
    assert [point.claimed.end for point in points] == [10, 10, 0]
    assert image.topic_ids == before.topic_ids
    assert image.topic_config("t") == before.topic_config("t")
    assert image.next_producer_id >= before.next_producer_id
    assert frames.decode(bytes(data)) is None


@pytest.mark.parametrize("chosen", ["prefix", "--new-cluster"])
async def test_a_prefix_full_of_other_things_is_left_or_shared(tmp_path: Path, chosen: str) -> None:
    memory = MemoryStore(SystemClock())
    for number in range(4):
        await memory.put(f"other{number}/x", b"theirs")
    store = FaultyStore(memory)
    with mock.patch.object(clusters, "MAX_FOLDERS", 3):
        with pytest.raises(StoreRefused, match="choose a prefix of its own for tidelog, or start with --new-cluster"):
            async with running(tmp_path / "data", store):
                pass
        more = chosen == "--new-cluster"
        own = store if more else FaultyStore(MemoryStore(SystemClock()))
        async with running(tmp_path / "data", own, new_cluster=more) as node:
            await filled(node, 5)
            await node.seal("t")
            assert [record.offset for record in await node.read_all("t")] == list(range(5))
    assert memory.blocking().get("other0/x").data == b"theirs"


async def test_a_topic_file_that_went_backwards_is_put_back(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await filled(node, 20)
        await node.seal("t")
        key = keys.topic_file_key(node.node.cluster_id, "t")
        older = (await node.store.get(key)).data
        await configure(node, "t", {"max.message.bytes": "54321"})
        await until(lambda: b"54321" in memory(node.store).get(key).data)
        newest = (await node.store.get(key)).data
        await node.store.delete([key])
        await node.store.put(key, older)
        await configure(node, "t", {"max.message.bytes": "65432"})
        with pytest.raises(LogError, match="put the bucket back as it was"):
            await node.node.work.topic_files.publish_now("t")
        await node.store.delete([key])
        await node.store.put(key, newest)
        await node.node.work.topic_files.publish_now("t")
        assert b"65432" in (await node.store.get(key)).data
        assert [record.offset for record in await node.read_all("t")] == list(range(20))


def memory(store: FaultyStore) -> BlockingMemoryStore:
    assert isinstance(store.store, MemoryStore)
    return store.store.blocking()


# --- manifests --------------------------------------------------------------------------------------------------------
async def test_a_full_manifest_accepts_segments_after_retention_is_shortened(world: World) -> None:
    with mock.patch.multiple(pages, MAX_SEGMENTS=4, MAX_PAGES=4, MAX_PAGE_SEGMENTS=4, MAX_PAGE_REFS=4):
        with pytest.raises(StorageError, match="shorten its retention if those records may be deleted"):
            await world.extend(1000)
        full = world.manifests[-1]
        await world.tier.expire(full.end - 10)
        world.clock.advance(3 * 24 * 3600)
        for _ in range(8):
            await world.tier.sweep(24 * 3_600_000)
            world.clock.advance(3 * 24 * 3600)
        await world.extend(5)
    manifest = stored_manifest(world.store.blocking())
    assert (manifest.log_start, manifest.end) == (full.end - 10, full.end + 50)


@pytest.mark.parametrize("reads", [False, True], ids=["may not read it", "may not change it"])
async def test_files_of_a_newer_version_are_readable_after_the_upgrade(world: World, reads: bool) -> None:
    """The manifest is refused and left unchanged; a version that knows its format continues with all of it. (The test raises
    the format that this version knows.)"""
    saved = await world.extend(3)
    newer, blocking = documents.FORMAT + 1, world.store.blocking()
    with mock.patch.object(manifest_json, "LEAST_READER", documents.LEAST_READER if reads else newer):
        written = encode(replace(saved, format=newer))
    blocking.delete([IDS.manifest_key])
    blocking.put(IDS.manifest_key, written)
    world.tier = tier_of(world.store, world.clock, seed=4)
    with pytest.raises(StoreRefused, match="upgrade"):
        await world.tier.extend(world.local.job(saved.end, 10))
    assert blocking.get(IDS.manifest_key).data == written
    with mock.patch.object(documents, "FORMAT", newer), mock.patch.object(commit, "FORMAT", newer):
        await world.tier.load()
        world.manifests.append(saved)
        manifest = await world.tier.extend(world.local.job(saved.end, 10))
        assert (manifest.segments[:3], manifest.end) == (saved.segments, 40)


async def test_names_of_pins_are_free_again_once_they_are_removed(world: World) -> None:
    await world.extend(2)
    await world.tier.pin("audit")
    with pytest.raises(InvalidRequest, match="remove it first, or choose another name"):
        await world.tier.pin("audit")
    await world.tier.pin("audit.2")
    await world.tier.unpin("audit")
    await world.tier.pin("audit")
    for number in range(model.MAX_PINS - 2):
        await world.tier.pin(f"p{number}")
    with pytest.raises(InvalidRequest, match="remove one"):
        await world.tier.pin("one.more")
    await world.tier.unpin("p0")
    manifest = await world.tier.pin("one.more")
    assert len(manifest.pins) == model.MAX_PINS and manifest.segments == world.manifests[-1].segments


async def test_objects_to_be_swept_are_deleted_first(world: World) -> None:
    saved = await world.extend(2)
    with pytest.raises(InvalidRequest, match="delete it first"):
        await world.tier.sweep_deleted(0)
    assert [world.store.blocking().get(segment.key) for segment in saved.segments]
    await world.tier.delete_partition()
    world.clock.advance(3 * 24 * 3600)
    await world.tier.sweep_deleted(1000)
    assert not [info.key for info in world.store.blocking().list("") if "/segments/" in info.key]


async def test_a_file_that_changed_before_it_was_uploaded_is_put_back(tmp_path: Path) -> None:
    path, content = tmp_path / "segment.log", bytes(range(256)) * 40
    path.write_bytes(content)
    body = FileBody(str(path), 256, 5000, crc32c(content[256:5256]))
    store = MemoryStore(SystemClock())
    path.write_bytes(content[:3000] + b"?" + content[3001:])
    with pytest.raises(TierCorrupt, match="put the file back from a copy") as said:
        await store.put("key", body)
    assert [info.key async for info in store.list("")] == []
    named = str(said.value).split(" [")[0]
    shutil.copy(path, tmp_path / "damaged")
    Path(named).write_bytes(content)
    await store.put("key", body)
    assert (await store.get("key")).data == content[256:5256]
