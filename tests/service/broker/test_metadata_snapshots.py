"""The metadata's snapshot in the bucket, written while tier processes come and go."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from storage_tiers.cold.process.operations import PutSnapshot
from tests.service.broker.support import Running, running


async def snapshots_of(node: Running) -> list[str]:
    return [info.key async for info in node.store.list(f"{node.node.ground.metadata.image.cluster_id}/metadata/")]


async def test_a_tier_process_that_ends_meanwhile_takes_no_snapshot_with_it(
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
        async with asyncio.timeout(20):
            while not await snapshots_of(node):
                await asyncio.sleep(0.005)
        assert len(written) == 1, "the first one had to be sent again"
