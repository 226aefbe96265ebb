"""The metadata snapshot in the bucket, written while tier processes come and go."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from service.broker.background.metadata_snapshots import FILE_NAME
from storage_tiers.cold.process.cluster_operations import PutSnapshot
from storage_tiers.errors import FencedWriter, StoreBehind, TierUnavailable
from tests.service.broker.support import Running, running, until


async def snapshots_of(node: Running) -> list[str]:
    return [info.key async for info in node.store.list(f"{node.node.ground.metadata.image.cluster_id}/metadata/")]


async def test_a_tier_process_that_ends_meanwhile_loses_no_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, broker={"tidelog.metadata.snapshot.interval.ms": "1000"}) as node:
        client = node.tier.client
        assert client is not None
        ask, written = client.ask, []

        async def ask_after_an_end(question: Any, **more: Any) -> object:
            if isinstance(question, PutSnapshot):
                written.append(question)
                if client.on_end is not None:
                    client.on_end()
            return await ask(question, **more)

        monkeypatch.setattr(client, "ask", ask_after_an_end)
        await node.create("t")
        async with asyncio.timeout(60):
            while not await snapshots_of(node):
                await asyncio.sleep(0.005)
        assert len(written) == 1, "the first one was retried"


class Asked:
    """Counts the snapshots that are sent, and fails them with `failure` if it is set."""

    def __init__(self, node: Running, monkeypatch: pytest.MonkeyPatch) -> None:
        client = node.tier.client
        assert client is not None
        self.failure: Exception | None = None
        self.count = 0
        self._ask = client.ask
        monkeypatch.setattr(client, "ask", self)

    async def __call__(self, question: Any) -> object:
        if not isinstance(question, PutSnapshot):
            return await self._ask(question)
        self.count += 1
        if self.failure is not None:
            raise self.failure
        return await self._ask(question)


async def written_anew(node: Running, ticks: int = 3) -> None:
    """Runs `ticks` rounds, each of them due."""
    snapshots = node.tier.snapshots
    assert snapshots is not None
    for _ in range(ticks):
        snapshots._next = 0.0
        await snapshots.tick()


async def test_unchanged_metadata_are_not_written_again_and_leave_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, broker={"tidelog.metadata.snapshot.interval.ms": "3600000"}) as node:
        await until(lambda: node.tier.access is not None and node.tier.access.is_open)
        asked = Asked(node, monkeypatch)
        await node.create("t")
        await written_anew(node)
        count = asked.count
        assert count >= 1
        await written_anew(node)
        assert asked.count == count
        assert not list(tmp_path.rglob(FILE_NAME))
        await node.create("u")
        asked.failure = TierUnavailable("the store is away")
        await written_anew(node)
        assert asked.count == count + 3, "the failed snapshot is still due"
        asked.failure = None
        await written_anew(node)
        assert asked.count == count + 4
        assert not list(tmp_path.rglob(FILE_NAME))


async def test_nothing_is_written_to_a_store_that_went_backwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, broker={"tidelog.metadata.snapshot.interval.ms": "3600000"}) as node:
        access = node.tier.access
        assert access is not None
        await until(lambda: access.is_open)
        asked = Asked(node, monkeypatch)
        await node.create("t")
        before = asked.count
        access.behind = StoreBehind("shows an older cluster.json")
        await written_anew(node)
        assert asked.count == before
        access.behind = None
        await written_anew(node)
        assert asked.count == before + 1


async def test_a_fenced_node_also_stops_when_it_writes_a_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, broker={"tidelog.metadata.snapshot.interval.ms": "3600000"}) as node:
        await until(lambda: node.tier.access is not None and node.tier.access.is_open)
        asked = Asked(node, monkeypatch)
        await node.create("t")
        asked.failure = FencedWriter("another start has gone on")
        with pytest.raises(FencedWriter):
            await written_anew(node)
