"""Deleting the objects of a deleted topic: the requests that it makes, and the keys that it spares."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from storage_tiers.clock import SystemClock
from storage_tiers.cold.manifest import keys
from storage_tiers.cold.stores.memory import MemoryStore
from tests.service.broker.support import TIERED, Running, running
from tests.support.faulty_store import FaultyStore

CALM = {"tidelog.tier.delete.grace.ms": "3600000"}
PARTITIONS = 20


async def deleted(node: Running) -> str:
    """Makes a wide topic with objects of each partition, and deletes it. Returns the prefix of its keys."""
    await node.create("t", PARTITIONS, TIERED)
    for number in range(PARTITIONS):
        await node.append("t", b"record", partition=number)
    await node.seal("t")
    (prefix,) = {str(led.ids.prefix) for led in node.node.broker.partitions}
    await node.core.topics.delete(["t"])
    await node.node.work.topic_files.tick()
    return prefix


def names(node: Running, prefix: str) -> list[str]:
    store = node.store.store
    assert isinstance(store, MemoryStore)
    return [info.key.removeprefix(prefix) for info in store.blocking().list(prefix)]


async def swept(node: Running, prefix: str = "") -> Counter[str]:
    """Counts the requests that a round made below `prefix`: other rounds of the node list other keys meanwhile."""
    node.store.calls.clear()
    await node.node.work.topic_files.sweep()
    return Counter(operation for operation, key in node.store.calls if key.startswith(prefix))


async def test_a_wide_topic_costs_one_listing(tmp_path: Path) -> None:
    async with running(tmp_path / "data", broker=CALM) as node:
        prefix = await deleted(node)
        assert len([name for name in names(node, prefix) if name.startswith("segments/")]) == 2 * PARTITIONS
        assert await swept(node) == Counter(), "nothing is requested before the grace has passed"
        assert node.node.ground.metadata.image.deleting
        node.node.work.topic_files._grace_ms = lambda: 0
        made = await swept(node, prefix)
        assert (made["list"], made["unfinished_uploads"]) == (1, 1)
        assert made["get"] <= 2 * PARTITIONS
        assert names(node, prefix) == [f"manifests/{number:05}.json" for number in range(PARTITIONS)]
        assert not node.node.ground.metadata.image.deleting


async def test_keys_outside_the_topics_partitions_stay(tmp_path: Path) -> None:
    """The objects of another topic id of that name, the topic's file, and unknown keys stay."""
    store = FaultyStore(MemoryStore(SystemClock()))
    async with running(tmp_path / "data", store, CALM) as node:
        prefix = await deleted(node)
        await node.create("t", configs=TIERED)
        await node.append("t", b"new")
        await node.seal("t")
        above = prefix.rpartition("/topics/")[0] + "/topics/t/"
        kept = {name for name in names(node, above) if not name.startswith(prefix.removeprefix(above))}
        await store.put(f"{prefix}notes.txt", b"of an operator")
        node.node.work.topic_files._grace_ms = lambda: 0
        await swept(node)
        left = {name for name in names(node, above) if "manifests/" not in name}
        assert left == {name for name in kept if "manifests/" not in name} | {prefix.removeprefix(above) + "notes.txt"}
        assert [record.value for record in await node.read_all("t")] == [b"new"]


async def test_a_missing_manifest_is_marked_deleted_again_before_any_sweep(tmp_path: Path) -> None:
    async with running(tmp_path / "data", broker=CALM) as node:
        prefix = await deleted(node)
        key = f"{prefix}manifests/00003.json"
        node.node.work.topic_files._grace_ms = lambda: 0
        document = (await node.store.get(key)).data
        assert b'"deleted"' in document
        await node.store.delete([key])
        await swept(node)
        assert any(name.startswith("segments/00003/") for name in names(node, prefix)), (
            "not because a manifest is missing"
        )
        await swept(node)
        assert b'"deleted"' in (await node.store.get(key)).data
        assert all(isinstance(keys.parse(prefix + name), keys.ManifestKey) for name in names(node, prefix))
