"""A compacted topic in both tiers beside a dictionary: random writes, offloads, evictions, cleanings and restarts. A reader
from the log's start always has what the dictionary says, and so has one that has nothing but the bucket."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from grpc_api.sdk.cold import ColdBucket
from service.fsck.bucket import FsckScope
from service.fsck.bucket import check_bucket as fsck
from storage_tiers.clock import SystemClock
from storage_tiers.cold.stores.memory import MemoryStore
from tests.service.broker.support import Running, running, until
from tests.service.broker.test_cleaning import COMPACTED, EAGER, closed, led, put, table
from tests.support.faulty_store import FaultyStore

KEYS = [f"k{number}" for number in range(8)]


class Life:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.node: Running
        self.newest: dict[str, str] = {}
        self.written = 0

    async def write(self) -> None:
        pairs: list[tuple[str, str | None]] = []
        for _ in range(self.random.randrange(1, 6)):
            key = self.random.choice(KEYS)
            self.written += 1
            value = None if self.random.random() < 0.35 else f"{self.written}" * self.random.randrange(1, 30)
            pairs.append((key, value))
            if value is None:
                self.newest.pop(key, None)
            else:
                self.newest[key] = value
        await put(self.node, *pairs)

    async def close(self) -> None:
        await closed(self.node)

    async def seal(self) -> None:
        await self.node.seal("t")

    async def evict(self) -> None:
        """From here on the local log keeps another number of bytes."""
        hot = led(self.node).log.hot
        hot.reconfigure(replace(hot.settings, local_retention_bytes=self.random.choice((1, 500, 3000))))
        self.node.node.broker.cleaning._due_ms = 0

    async def read(self) -> None:
        assert table(await self.node.read_all("t")) == self.newest


def in_bucket(memory: MemoryStore, cluster_id: str) -> dict[str, str]:
    """The table as the SDK reads it without a broker."""
    found: dict[str, str] = {}
    for message in ColdBucket(memory.blocking(), cluster_id).read("t"):
        assert message.key is not None
        if message.value is None:
            found.pop(message.key.decode(), None)
        else:
            found[message.key.decode()] = message.value.decode()
    return found


async def check_bucket(path: Path, bucket: FaultyStore, cluster_id: str, newest: Mapping[str, str]) -> None:
    async with running(path, bucket, take_over=cluster_id, broker={"log.cleaner.enable": "false"}) as node:
        await until(lambda: not led(node).is_recovering)
        assert table(await node.read_all("t")) == newest


@pytest.mark.parametrize("seed", range(6))
async def test_both_tiers_say_what_a_dictionary_says(tmp_path: Path, seed: int) -> None:
    memory, life = MemoryStore(SystemClock()), Life(seed)
    bucket = FaultyStore(memory)
    steps = [life.write] * 12 + [life.close] * 2 + [life.seal] * 2 + [life.evict] + [life.read] * 2
    for _ in range(3):
        async with running(tmp_path / "data", bucket, broker=EAGER) as life.node:
            if not life.written:
                await life.node.create("t", configs={**COMPACTED, "internal.segment.bytes": "900"})
            for _ in range(60):
                await life.random.choice(steps)()
            await life.read()
            await life.node.seal("t")
            await life.read()
            await life.node.node.work.topic_files.tick()
        assert in_bucket(memory, life.node.node.cluster_id) == life.newest
        report = fsck(memory.blocking(), FsckScope(), now_ms=SystemClock().unix_ms())
        assert [finding for finding in report.findings if finding.damage] == []
    await check_bucket(tmp_path / "new", bucket, life.node.node.cluster_id, life.newest)
