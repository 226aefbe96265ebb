"""A compacted topic in both tiers, compared with a dictionary. The tiers are cleaned one pass at a time in any order, and a
slow reader continues through passes, evictions and restarts. At the end the reader agrees with the dictionary, if it needs less
than `delete.retention.ms`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from grpc_api.contract.log import Fetch, FetchPartition, Isolation
from grpc_api.contract.ready import settled
from service.broker.background.cleaner.cleaning import _dirtier, _Dirty
from service.fsck.bucket import FsckScope
from service.fsck.bucket import check_bucket as fsck
from storage_tiers.clock import SystemClock
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.policy.compaction import CleaningPlan
from storage_tiers.records.batch import headers
from storage_tiers.records.decoder import decode
from storage_tiers.types import TopicPartition
from tests.service.broker.background.cleaner.cleaning_support import by_hand, clean_bucket, clean_local, evict, set_time
from tests.service.broker.background.cleaner.test_cleaning import COMPACTED, led, table
from tests.service.broker.background.cleaner.test_cleaning_tiers import Life, check_bucket, committed, in_bucket
from tests.service.broker.support import Running
from tests.storage_tiers.hot.support import START_MS, take
from tests.support.faulty_store import FaultyStore

#: Bytes of one step of the slow reader: a batch or two.
PACE_BYTES = 300


class Pace(NamedTuple):
    """The weights of cleaning each tier and of evicting among all steps, and `delete.retention.ms`. With 0 ms the slow reader
    may miss a tombstone, as in Kafka."""

    local: int
    bucket: int
    evict: int
    retention_ms: int


#: In some of these paces one tier lags behind the other.
PACES = (Pace(3, 3, 2, 1000), Pace(0, 6, 0, 1000), Pace(6, 1, 2, 1000), Pace(6, 2, 2, 0))


class Scan:
    """A reader of committed records: its position and its table."""

    def __init__(self, began_ms: int) -> None:
        self.began_ms = began_ms
        self.position = 0
        self.seen: dict[str, str] = {}

    async def step(self, node: Running, most_bytes: int) -> bool:
        """One fetch; False at the last stable offset."""
        if self.position >= led(node).state.last_stable_offset:
            return False
        wanted = FetchPartition(TopicPartition("t", 0), self.position, most_bytes)
        asked = Fetch([wanted], 20_000, 1, most_bytes, Isolation.READ_COMMITTED)
        (answer,) = await settled(node.log.fetch(asked))
        assert answer.error is None and answer.aborted is not None
        data = take(answer.slices)
        *_, (at, last) = headers(data)
        for each in decode(data[: at + last.size], aborted=answer.aborted):
            if each.offset >= self.position:
                assert each.key is not None
                self.seen.pop(each.key.decode(), None)
                if each.value is not None:
                    self.seen[each.key.decode()] = each.value.decode()
        self.position = last.next_offset
        return True


class PacedLife(Life):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.keys = [f"k{number}" for number in range(16)]
        self.pace = PACES[seed % len(PACES)]
        self.now_ms = START_MS
        self.slow = Scan(self.now_ms)

    async def wait(self) -> None:
        retention_ms = self.pace.retention_ms
        self.now_ms += self.random.choice((1, retention_ms // 3, retention_ms))
        set_time(self.node, self.now_ms)
        if self.now_ms - self.slow.began_ms >= retention_ms:
            self.slow = Scan(self.now_ms)

    async def hold_back(self) -> None:
        """Stops offloads until the next seal."""
        hot = led(self.node).log.hot
        hot.reconfigure(replace(hot.settings, remote_copy_disable=True))

    async def seal(self) -> None:
        hot = led(self.node).log.hot
        hot.reconfigure(replace(hot.settings, remote_copy_disable=False))
        await super().seal()

    async def clean_local(self) -> None:
        await self.close()
        await clean_local(self.node)
        await self.check()

    async def clean_bucket(self) -> None:
        await clean_bucket(self.node)
        await self.check()

    async def evict(self) -> None:
        if led(self.node).log.tier is not None:
            await evict(self.node)
            await self.check()

    async def check(self) -> None:
        """Asserts that a reader that begins now gets all records committed below the last stable offset."""
        stable, fast = led(self.node).state.last_stable_offset, Scan(self.now_ms)
        while await fast.step(self.node, 1 << 20):
            pass
        expected = dict(self.told[offset] for offset in sorted(self.told) if offset < stable)
        assert fast.seen == {key: value for key, value in expected.items() if value is not None}

    async def read_on(self) -> None:
        await self.slow.step(self.node, PACE_BYTES)

    async def read_to_the_end(self) -> None:
        await self.end()
        while await self.slow.step(self.node, PACE_BYTES):
            pass
        assert self.slow.seen == self.newest
        self.slow = Scan(self.now_ms)

    async def read_over_an_eviction(self) -> None:
        """Runs a scan that reads a part of the local log and continues in the bucket."""
        self.slow = Scan(self.now_ms)
        while self.slow.position < led(self.node).log.hot.local_start_offset:
            await self.read_on()
        for _ in range(self.random.randrange(1, 6)):
            await self.read_on()
        await self.evict()
        await self.read_to_the_end()

    def steps(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """All possible steps, each repeated by its weight."""
        found = [self.write] * 5 + [self.write_in_transaction] * 4 + [self.end] * 2 + [self.close] * 2
        found += [self.seal] * 2 + [self.hold_back] + [self.wait] * 3 + [self.evict] * self.pace.evict
        found += [self.clean_local] * self.pace.local + [self.clean_bucket] * self.pace.bucket
        return found + (
            [self.read_on] * 5 + [self.read_to_the_end, self.read_over_an_eviction] if self.pace.retention_ms else []
        )


@pytest.mark.parametrize("seed", range(8))
async def test_a_reader_at_any_pace_agrees_with_a_dictionary(tmp_path: Path, seed: int) -> None:
    memory, life = MemoryStore(SystemClock()), PacedLife(seed)
    bucket, steps = FaultyStore(memory), life.steps()
    for _ in range(3):
        async with by_hand(tmp_path / "data", bucket) as life.node:
            if not life.written:
                configs = {"internal.segment.bytes": "900", "local.retention.ms": "-1", "retention.ms": "-1"}
                retention = {"delete.retention.ms": str(life.pace.retention_ms)}
                await life.node.create("t", configs={**COMPACTED, **configs, **retention})
            set_time(life.node, life.now_ms)
            for _ in range(120):
                await life.random.choice(steps)()
            await life.read()
            await life.seal()
            assert table(await committed(life.node)) == life.newest
        assert in_bucket(memory, life.node.node.cluster_id) == life.newest
        report = fsck(memory.blocking(), FsckScope(), now_ms=SystemClock().unix_ms())
        assert [finding for finding in report.findings if finding.damage] == []
    await check_bucket(tmp_path / "new", bucket, life.node.node.cluster_id, life.newest)


def test_an_overdue_log_is_cleaned_before_a_dirtier_one() -> None:
    where: Any = None

    def dirty(ratio: int, overdue_ms: int = 0) -> _Dirty:
        return _Dirty(where, CleaningPlan(0, 9, 100 - ratio, ratio, overdue_ms, 0.0), is_remote=False)

    low, high, overdue = dirty(10), dirty(90), dirty(1, overdue_ms=5)
    assert _dirtier(None, low) is _dirtier(low, low) is low
    assert _dirtier(low, high) is _dirtier(high, low) is high
    assert _dirtier(high, overdue) is _dirtier(overdue, high) is overdue
