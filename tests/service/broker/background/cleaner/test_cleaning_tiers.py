"""A compacted topic in both tiers, compared with a dictionary through random writes, offloads, evictions, cleanings and
restarts. A reader from the log's start always agrees with the dictionary, and so does a reader of the bucket alone."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from grpc_api.contract.log import Fetch, FetchPartition, Isolation
from grpc_api.contract.ready import settled
from grpc_api.sdk.cold import ColdBucket
from service.broker.partition.append_origin import AppendOrigin
from service.fsck.bucket import FsckScope
from service.fsck.bucket import check_bucket as fsck
from storage_tiers.clock import SystemClock
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.records.batch import headers, read_header
from storage_tiers.records.builder import ControlKind
from storage_tiers.records.decoder import Record, decode
from storage_tiers.types import TopicPartition
from tests.service.broker.background.cleaner.test_cleaning import COMPACTED, EAGER, closed, led, put, table
from tests.service.broker.support import Running, running, until
from tests.storage_tiers.compaction.support import batch
from tests.storage_tiers.hot.support import marker, take
from tests.support.faulty_store import FaultyStore

KEYS = [f"k{number}" for number in range(8)]


class Life:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.keys = KEYS
        self.node: Running
        self.written = 0
        #: By offset: the records written without a transaction or in a committed one.
        self.told: dict[int, tuple[str, str | None]] = {}
        #: `sequences`: by producer, its next sequence. `open`: by producer, the records of its open transaction.
        self.sequences = {7: 0, 8: 0}
        self.open: dict[int, dict[int, tuple[str, str | None]]] = {}

    @property
    def newest(self) -> dict[str, str]:
        found = dict(self.told[offset] for offset in sorted(self.told))
        return {key: value for key, value in found.items() if value is not None}

    def pairs(self) -> list[tuple[str, str | None]]:
        pairs: list[tuple[str, str | None]] = []
        for _ in range(self.random.randrange(1, 6)):
            self.written += 1
            value = None if self.random.random() < 0.35 else f"{self.written}" * self.random.randrange(1, 30)
            pairs.append((self.random.choice(self.keys), value))
        return pairs

    async def write(self) -> None:
        pairs, base = self.pairs(), led(self.node).log.hot.end_offset
        await put(self.node, *pairs)
        self.told.update(enumerate(pairs, base))

    async def write_in_transaction(self) -> None:
        producer = self.random.choice(list(self.sequences))
        pairs, base = self.pairs(), led(self.node).log.hot.end_offset
        made = batch(*pairs, producer=(producer, 0, self.sequences[producer]), transactional=True)
        led(self.node).append_validated(memoryview(made), read_header(made), origin=AppendOrigin.COORDINATOR)
        self.sequences[producer] += len(pairs)
        self.open.setdefault(producer, {}).update(enumerate(pairs, base))

    async def end(self) -> None:
        """Commits or aborts the open transactions."""
        for producer in list(self.open):
            kind = self.random.choice(list(ControlKind))
            led(self.node).append_validated(
                memoryview(end := marker(kind, producer)), read_header(end), origin=AppendOrigin.COORDINATOR
            )
            written = self.open.pop(producer)
            if kind is ControlKind.COMMIT:
                self.told.update(written)

    async def close(self) -> None:
        await closed(self.node)

    async def seal(self) -> None:
        await self.end()
        await self.node.seal("t")

    async def evict(self) -> None:
        """Changes the number of bytes that the local log keeps."""
        hot = led(self.node).log.hot
        hot.reconfigure(replace(hot.settings, local_retention_bytes=self.random.choice((1, 500, 3000))))
        self.node.node.broker.cleaning._due_ms = 0

    async def read(self) -> None:
        await self.end()
        assert table(await committed(self.node)) == self.newest


async def committed(node: Running) -> list[Record]:
    """The records that a consumer of committed records reads."""
    found: list[Record] = []
    start, end = 0, led(node).log.hot.end_offset
    while start < end:
        wanted = FetchPartition(TopicPartition("t", 0), start, 1 << 20)
        answering = node.log.fetch(Fetch([wanted], 20_000, 1, 1 << 20, Isolation.READ_COMMITTED))
        (answer,) = await settled(answering)
        assert answer.error is None and answer.aborted is not None
        data = take(answer.slices)
        *_, (at, last) = headers(data)
        found += [each for each in decode(data[: at + last.size], aborted=answer.aborted) if each.offset >= start]
        start = last.next_offset
    return found


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
        assert table(await committed(node)) == newest


@pytest.mark.parametrize("seed", range(6))
async def test_both_tiers_agree_with_a_dictionary(tmp_path: Path, seed: int) -> None:
    memory, life = MemoryStore(SystemClock()), Life(seed)
    bucket = FaultyStore(memory)
    steps = (
        [life.write] * 8
        + [life.write_in_transaction] * 6
        + [life.end] * 2
        + [life.close] * 2
        + [life.seal] * 2
        + [life.evict]
        + [life.read] * 2
    )
    for _ in range(3):
        async with running(tmp_path / "data", bucket, broker=EAGER) as life.node:
            if not life.written:
                await life.node.create("t", configs={**COMPACTED, "internal.segment.bytes": "900"})
            for _ in range(60):
                await life.random.choice(steps)()
            await life.read()
            await life.seal()
            await life.read()
            await life.node.node.work.topic_files.tick()
        assert in_bucket(memory, life.node.node.cluster_id) == life.newest
        report = fsck(memory.blocking(), FsckScope(), now_ms=SystemClock().unix_ms())
        assert [finding for finding in report.findings if finding.damage] == []
    await check_bucket(tmp_path / "new", bucket, life.node.node.cluster_id, life.newest)
