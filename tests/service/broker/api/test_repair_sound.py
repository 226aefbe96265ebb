"""Objects lost under a sound manifest, repaired through a node that keeps running."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from grpc_api.contract.log import Append, Appended
from grpc_api.contract.ready import settled
from service.serve.rounds import rounds
from storage_tiers.cold.process.operations import Repair
from storage_tiers.cold.process.question import Question
from storage_tiers.errors import TierUnavailable
from storage_tiers.types import OffsetRange
from tests.service.broker.background.test_store_lineage import (
    T0,
    configure,
    grown,
    led,
    manifest_bytes,
    manifest_of,
    put_back,
)
from tests.service.broker.support import batch, filled, running, until


async def test_a_lost_segment_is_offloaded_again_from_the_local_log(tmp_path: Path) -> None:
    async with grown(tmp_path) as (node, _):
        manifest, end = manifest_of(node), led(node).log.hot.end_offset
        for segment in manifest.segments[-2:]:
            await node.store.delete([segment.key])
        dry = await node.core.cold.repair(T0, apply=False)
        lost = manifest.segments[-2].base
        assert f"offsets [{lost}, {end}) are offloaded again from the local log" in dry.summary
        done = await node.core.cold.repair(T0, apply=True)
        assert (done.summary, done.commit) == (dry.summary, manifest.commit + 1)
        await until(lambda: led(node).log.tiered_end == end and led(node) not in node.node.work.tiering.lineage)
        assert (await node.core.cold.repair(T0, apply=True)).summary == ""
        await configure(node, {"local.retention.ms": "1"})
        await node.evicted("t")
        assert [record.offset for record in await node.read_all("t")] == list(range(end))


async def test_segments_needed_by_a_repair_are_not_evicted_during_it(tmp_path: Path) -> None:
    """The bucket held the lost segment a moment ago, but the repair is about to drop it from the manifest."""
    async with grown(tmp_path) as (node, _):
        manifest, end = manifest_of(node), led(node).log.hot.end_offset
        await node.store.delete([manifest.segments[-1].key])
        held = node.store.hold(1, "head", manifest.segments[0].key)
        repairing = asyncio.ensure_future(node.core.cold.repair(T0, apply=True))
        await held.reached.wait()
        with pytest.raises(TierUnavailable, match="is being repaired"):
            await node.core.cold.repair(T0, apply=True)
        await configure(node, {"local.retention.ms": "1"})
        for worker in rounds(node.node):
            if worker.name in ("tiering", "retention"):
                await worker.tick()
        await node.append("t", b"meanwhile")
        assert led(node).log.hot.local_start_offset == 0
        held.open()
        assert (await repairing).commit > manifest.commit
        await node.seal("t")
        await node.evicted("t")
        assert [record.offset for record in await node.read_all("t")] == list(range(end + 1))


@pytest.mark.parametrize("damage", ["evicted", "a manifest that cannot be read"])
async def test_commits_known_to_the_disk_are_requested(tmp_path: Path, damage: str) -> None:
    """The manifest and every object are gone, and the saved manifest is gone or unreadable."""
    async with grown(tmp_path) as (node, _):
        key, store = led(node).ids.manifest_key, node.store
        if damage == "evicted":
            await configure(node, {"local.retention.ms": "1"})
            await node.evicted("t")
        await until(lambda: led(node).log.tiered_end == led(node).log.hot.end_offset)
        assert await manifest_bytes(node)
        await store.delete([info.key async for info in store.list(led(node).ids.segments_prefix)])
        await put_back(node, key, None)
        # Otherwise the node could offload the whole local log again before the repair, and nothing would be missing.
        await configure(node, {"remote.log.copy.disable": "true"})
    saved = tmp_path / "t-0/tiered-manifest.json"
    saved.write_bytes(saved.read_bytes()[:-20]) if damage != "evicted" else saved.unlink()
    store.down = True
    async with running(tmp_path, store) as node:
        store.down = False
        for apply in (False, True):
            if apply:
                await until(lambda: node.tier.access is not None and node.tier.access.is_open, 60)
            answer = await node.core.cold.repair(T0, apply=apply)
            assert "newest version" in answer.refused and "manifest back" in answer.refused


async def test_partitions_without_commits_miss_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await filled(node, 3, {"remote.log.copy.disable": "true"})
        await node.create("empty")
        await node.create("local", configs={"remote.storage.enable": "false"})
        for name in ("t", "empty", "local"):
            for apply in (False, True):
                assert (await node.core.cold.repair(T0._replace(topic=name), apply=apply)).refused == ""
                found = await node.core.cold.repair_topic(name, apply=False)
                assert (found.refused, found.summary) == ("", "")


async def test_uncommitted_segments_are_no_evidence(tmp_path: Path) -> None:
    """An uncommitted record may still be truncated, so a repair must not count on it in place of a lost segment."""
    async with grown(tmp_path) as (node, _):
        hot = led(node).log.hot
        await until(lambda: led(node).log.tiered_end == hot.end_offset)
        committed = hot.end_offset
        led(node).state.set_in_sync({2: committed})
        (answer,) = await settled(node.log.append([Append(T0, memoryview(batch(b"z" * 1500)))]))
        assert isinstance(answer, Appended) and hot.end_offset == committed + 1
        asked: list[Repair] = []
        client = node.tier.client
        assert client is not None
        ask = client.ask

        async def heard(question: Question[Any]) -> Any:
            if isinstance(question, Repair):
                asked.append(question)
            return await ask(question)

        client.ask = heard  # type: ignore[method-assign]
        assert (await node.core.cold.repair(T0, apply=False)).refused == ""
        assert [each.local.held for each in asked] == [OffsetRange(0, committed)]
