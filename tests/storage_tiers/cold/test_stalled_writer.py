"""A stalled writer: an offload or a commit held back past the grace period while others sweep, expire and delete.

No referenced object is ever missing, and no deleted object comes back.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from storage_tiers.cold.manifest.model import Manifest, State
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.cold.stores.port import FileBody, ObjectInfo, ObjectStore
from storage_tiers.errors import FencedWriter, PreconditionFailed
from storage_tiers.records.checksum import crc32c
from tests.storage_tiers.cold.support import (
    DAY,
    IDS,
    EagerClock,
    Local,
    stored_live,
    stored_manifest,
    tier_of,
)
from tests.support.faulty_store import FaultyStore


class World:
    def __init__(self, directory: Path) -> None:
        self.clock = EagerClock()
        self.memory = MemoryStore(self.clock)
        self.store = FaultyStore(self.memory)
        self.local = Local(directory)
        self.writer = tier_of(self.store, self.clock)
        self.sweeper = tier_of(self.memory, self.clock, seed=99, incarnation=None, node=-1)

    def keys(self) -> list[str]:
        return [info.key for info in self.memory.blocking().list(IDS.segments_prefix)]

    async def past_the_grace(self) -> None:
        self.clock.advance(DAY / 1000 + 1)

    def check(self) -> Manifest:
        """Asserts that every object the manifest names exists, byte for byte; returns the manifest."""
        blocking = self.memory.blocking()
        manifest = stored_manifest(blocking)
        for segment in stored_live(blocking, manifest):
            data = blocking.get(segment.key).data
            assert (len(data), crc32c(data)) == (segment.length, segment.crc32c)
            assert blocking.head(segment.sidecar_key).size > 0
        if manifest.sidecar is not None:
            assert blocking.head(manifest.sidecar.key).size > 0
        return manifest


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("earlier", [0, 10], ids=["without a manifest", "with one"])
@pytest.mark.parametrize("held", [".log", ".idx", "/manifests/"])
async def test_an_offload_swept_while_its_writer_stalls_is_repeated(world: World, held: str, earlier: int) -> None:
    if earlier:
        await world.writer.extend(world.local.job(0, earlier))
    gate = world.store.hold(1, "put", held, after=held != "/manifests/")
    extension = asyncio.create_task(world.writer.extend(world.local.job(earlier, 10)))
    await gate.reached.wait()
    offloaded = set(world.keys())
    await world.past_the_grace()
    report = await world.sweeper.sweep(DAY)
    # Without a manifest, no object counts as an orphan.
    assert report.orphans == ({".idx": 1, ".log": 2, "/manifests/": 2}[held] if earlier else 0)
    gate.open()
    manifest = await extension
    assert manifest == world.check()
    assert manifest.end == earlier + 10
    if earlier:
        assert manifest.segments[-1].key not in offloaded, "the tombstoned segment is offloaded again under another key"


async def test_an_offload_whose_keys_are_tombstoned_but_not_deleted_yet_is_completed(world: World) -> None:
    """The sweeper stalls between its commit and the deletion, when the writer's verification still finds the objects."""
    await world.writer.extend(world.local.job(0, 1))
    gate = world.store.hold(1, "put", "/manifests/")
    extension = asyncio.create_task(world.writer.extend(world.local.job(1, 9)))
    await gate.reached.wait()
    await world.past_the_grace()
    slow = FaultyStore(world.memory)
    deletion = slow.hold(1, "delete")
    sweep = asyncio.create_task(tier_of(slow, world.clock, seed=5, incarnation=None).sweep(DAY))
    await deletion.reached.wait()
    assert len(stored_manifest(world.memory.blocking()).tombstoned) == 2
    gate.open()
    manifest = await extension
    deletion.open()
    await sweep
    assert world.check().end == manifest.end == 10


async def test_an_offload_whose_keys_are_tombstoned_after_verification_is_completed(world: World) -> None:
    other = tier_of(world.memory, world.clock, seed=7)
    gate = world.store.hold(1, "put", "/manifests/")
    extension = asyncio.create_task(world.writer.extend(world.local.job(0, 10)))
    await gate.reached.wait()
    await other.claim(1)
    second = world.store.hold(1, "put", "/manifests/")
    gate.open()
    await second.reached.wait()
    assert world.store.count("head") == 2, "the objects were verified on the manifest of the first swap"
    await world.past_the_grace()
    await world.sweeper.sweep(DAY)
    assert world.keys() == []
    second.open()
    assert (await extension).end == 10
    assert world.check().end == 10


@pytest.mark.parametrize(
    "bounds",
    [{"MAX_SEGMENTS": 2}, {"MAX_SEGMENTS": 4, "MAX_PAGES": 3, "MAX_PAGE_SEGMENTS": 2, "UNFOLDABLE": 1}],
    ids=["in a page", "in a page of a page"],
)
async def test_a_key_referenced_while_the_sweeper_stalls_is_not_tombstoned(
    world: World, bounds: dict[str, Any]
) -> None:
    """After the sweeper listed an object as unreferenced and before it tombstones it, a commit references it in a page."""
    await world.writer.extend(world.local.job(0, 1))
    gate = world.store.hold(1, "put", "/manifests/")
    extension = asyncio.create_task(world.writer.extend(world.local.job(1, 1)))
    await gate.reached.wait()
    await world.past_the_grace()
    slow = FaultyStore(world.memory)
    tombstone = slow.hold(1, "put", "/manifests/")
    sweep = asyncio.create_task(tier_of(slow, world.clock, seed=5, incarnation=None).sweep(DAY))
    await tombstone.reached.wait()
    gate.open()
    await extension
    with mock.patch.multiple("storage_tiers.cold.manifest.pages", **bounds):
        for base in range(2, 12):
            await world.writer.extend(world.local.job(base, 1))
    manifest = world.check()
    (page,) = (ref for ref in manifest.live_pages if ref.base <= 1 < ref.end)
    assert page.level == (len(bounds) > 1), "the stalled segment is in the manifest by now"
    tombstone.open()
    await sweep
    assert world.check().end == 12
    assert len(world.keys()) == 24


async def test_retention_and_sweep_pass_by_a_stalled_extension(world: World) -> None:
    await world.writer.extend(world.local.job(0, 10))
    other = tier_of(world.memory, world.clock, seed=7)
    gate = world.store.hold(1, "put", "/manifests/")
    extension = asyncio.create_task(world.writer.extend(world.local.job(10, 10)))
    await gate.reached.wait()
    await other.expire(10)
    await world.past_the_grace()
    await world.sweeper.sweep(DAY)
    gate.open()
    manifest = await extension
    assert (manifest.log_start, manifest.end) == (10, 20), "a delayed writer does not bring log start back"
    assert [segment.base for segment in stored_live(world.memory.blocking(), world.check())] == [10]
    assert len(world.keys()) == 3, "the swept segment is gone except for its sidecar, which was the newest"
    await world.past_the_grace()
    await world.sweeper.sweep(DAY)
    assert sorted(world.keys()) == sorted([manifest.segments[0].key, manifest.segments[0].sidecar_key])


async def test_a_delayed_expiration_takes_effect_once(world: World) -> None:
    for base in (0, 10):
        await world.writer.extend(world.local.job(base, 10))
    gate = world.store.hold(1, "put", "/manifests/")
    expiration = asyncio.create_task(world.writer.expire(10))
    await gate.reached.wait()
    other = tier_of(world.memory, world.clock, seed=7)
    await other.extend(world.local.job(20, 10))
    await other.expire(15)
    gate.open()
    await expiration
    manifest = world.check()
    assert (manifest.log_start, manifest.end) == (15, 30)
    assert [item.segment.base for item in manifest.removed if item.segment] == [0]


@pytest.mark.parametrize("held", [".log", ".idx", "/manifests/"])
async def test_a_partition_deleted_while_its_writer_stalls_stays_deleted(world: World, held: str) -> None:
    await world.writer.extend(world.local.job(0, 10))
    gate = world.store.hold(1, "put", held)
    extension = asyncio.create_task(world.writer.extend(world.local.job(10, 10)))
    await gate.reached.wait()
    controller = tier_of(world.memory, world.clock, seed=7)
    await controller.delete_partition()
    await world.past_the_grace()
    assert (await controller.sweep_deleted(DAY)).done
    assert world.keys() == []
    gate.open()
    with pytest.raises(FencedWriter, match="deleted"):
        await extension
    assert stored_manifest(world.memory.blocking()).state is State.DELETED
    assert world.keys() == [], "the writer removed its offloaded objects again"


class Remembering(FaultyStore):
    """Records conditional writes, so that a test can deliver one of them again."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.sent: list[tuple[str, bytes | FileBody, str]] = []

    async def put(
        self, key: str, body: bytes | FileBody, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        if if_match is not None:
            self.sent.append((key, body, if_match))
        return await super().put(key, body, if_absent=if_absent, if_match=if_match)


async def test_a_commit_that_arrives_after_the_grace_is_refused(world: World) -> None:
    """The first write fails and is retried. It arrives a day later, after a sweep, and is refused: the version has changed."""
    await world.writer.extend(world.local.job(0, 10))
    store = Remembering(world.memory)
    store.fail(1, "put", "/manifests/")
    manifest = await tier_of(store, world.clock, seed=3).extend(world.local.job(10, 10))
    assert manifest.end == 20 and len(store.sent) == 2
    assert store.sent[0][2] == store.sent[1][2], "on the same version of the manifest"
    await world.past_the_grace()
    await world.sweeper.sweep(DAY)
    key, body, etag = store.sent[0]
    with pytest.raises(PreconditionFailed):
        world.memory.blocking().put(key, body, if_match=etag)
    assert world.check().end == 20
