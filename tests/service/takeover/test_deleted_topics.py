"""A fully deleted topic stays deleted, even if somebody restores all of its objects by hand."""

from __future__ import annotations

from pathlib import Path

from storage_tiers.clock import SystemClock
from storage_tiers.cold.stores.memory import MemoryStore
from tests.service.broker.support import TIERED, running, until
from tests.service.takeover.support import SNAPSHOTS, taking
from tests.support.faulty_store import FaultyStore


async def test_objects_that_were_put_back_do_not_bring_a_topic_back(tmp_path: Path) -> None:
    memory = MemoryStore(SystemClock())
    settings = {**SNAPSHOTS, "tidelog.tier.delete.grace.ms": "1000"}
    async with running(tmp_path / "old", FaultyStore(memory), settings) as node:
        cluster = node.node.cluster_id
        await node.create("t", 1, TIERED)
        await node.append("t", b"x" * 500)
        await node.seal("t")
        topic_id = node.node.ground.metadata.image.topic_ids["t"]
        there = {info.key: (await memory.get(info.key)).data for info in memory.blocking().list(f"{cluster}/topics/t/")}
        await node.core.topics.delete(["t"])
        await until(lambda: topic_id in node.node.ground.metadata.image.gone)
        snapshots = node.tier.snapshots
        assert snapshots is not None
        await until(lambda: snapshots._written is node.node.ground.metadata.image)
    for key, data in there.items():
        memory.blocking().delete([key])
        await memory.put(key, data)
    async with taking(tmp_path / "new", memory, cluster) as start:
        await start.run()
        image = start.metadata.image
        assert (dict(image.topics), list(image.deleting), image.gone) == ({}, [topic_id], (topic_id,))
    async with running(tmp_path / "new", FaultyStore(memory), settings) as node:
        await until(lambda: not node.node.ground.metadata.image.deleting, 40)
        left = [info.key for info in memory.blocking().list(f"{cluster}/topics/t/") if "/segments/" in info.key]
        assert left == []
