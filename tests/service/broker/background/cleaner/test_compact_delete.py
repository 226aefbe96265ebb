"""`cleanup.policy=compact,delete`: segments that compaction has rewritten expire as others do."""

from __future__ import annotations

import time
from pathlib import Path

from service.fsck.bucket import FsckScope
from service.fsck.bucket import check_bucket as fsck
from storage_tiers.clock import SystemClock
from storage_tiers.cold.stores.memory import MemoryStore
from tests.service.broker.api.test_configs_act import alter
from tests.service.broker.background.cleaner.test_cleaning import (
    COMPACTED,
    EAGER,
    LOCAL,
    cleaned_to,
    closed,
    led,
    put,
    store,
    table,
)
from tests.service.broker.background.cleaner.test_cleaning_bucket import bucket_cleaned_to
from tests.service.broker.support import manifest_of, running, until
from tests.storage_tiers.compaction.support import batch
from tests.storage_tiers.hot.support import START_MS
from tests.support.faulty_store import FaultyStore

BOTH = {"cleanup.policy": "compact,delete", "retention.ms": "-1"}
BROKER = {**EAGER, "log.retention.check.interval.ms": "10"}


async def test_local_segments_are_compacted_and_expire(tmp_path: Path) -> None:
    async with running(tmp_path / "data", store(), broker=BROKER) as node:
        await node.create("t", configs={**LOCAL, **BOTH})
        hot = led(node).log.hot
        for number in range(30):
            await put(node, (f"k{number % 3}", f"{number}"))
        await closed(node)
        await until(lambda: cleaned_to(node) == 30)
        assert [each.offset for each in await node.read_all("t")] == [27, 28, 29]
        assert hot.log_start_offset == 0, "compaction deletes no offsets"
        await alter(node, retention_ms="3600000")  # the records are of 2023
        await until(lambda: hot.log_start_offset == 30)
        now = int(time.time() * 1000)
        for number in range(30, 60):
            await node.append_batch("t", batch((f"k{number % 3}", f"{number}"), timestamps=[now]))
        await closed(node)
        await until(lambda: cleaned_to(node) == 60)
        assert [each.offset for each in await node.read_all("t", start=30)] == [57, 58, 59]
        assert hot.log_start_offset == 30
        await node.append_batch("t", batch(("k0", "the newest segment stays"), timestamps=[now]))
        await alter(node, retention_bytes="1")
        await until(lambda: hot.log_start_offset == 60)
        assert [each.offset for each in await node.read_all("t", start=60)] == [60]


async def test_the_buckets_segments_are_compacted_and_expire(tmp_path: Path) -> None:
    memory = MemoryStore(SystemClock())
    broker = {**BROKER, "tidelog.tier.delete.grace.ms": "1"}
    async with running(tmp_path / "data", FaultyStore(memory), broker=broker) as node:
        await node.create("t", configs={**COMPACTED, **BOTH, "local.retention.ms": "1"})
        for number in range(30):
            await put(node, (f"k{number % 3}", f"{number}"))
            if number % 10 == 9:
                await node.seal("t")
        now = int(time.time() * 1000)
        for number, timestamp in enumerate((START_MS, now)):
            await node.append_batch("t", batch(("new", f"{number}"), timestamps=[timestamp]))
            await node.seal("t")
        await until(lambda: bucket_cleaned_to(node) == 31)
        await node.evicted("t")
        expected = {"k0": "27", "k1": "28", "k2": "29", "new": "1"}
        assert table(await node.read_all("t")) == expected
        assert (await manifest_of(led(node))).log_start == 0, "compaction deletes no offsets"
        rewritten = (await manifest_of(led(node))).segments[0]
        assert (rewritten.base, rewritten.records) == (0, 4)
        await alter(node, retention_ms="3600000")
        await until(lambda: (tier := led(node).log.tier) is not None and tier.segments == 1)
        manifest = await manifest_of(led(node))
        assert [(each.base, each.end) for each in manifest.segments] == [(31, 32)]
        assert table(await node.read_all("t", start=31)) == {"new": "1"}
        await until(lambda: rewritten.key not in {each.key for each in memory.blocking().list("")})
    assert fsck(memory.blocking(), FsckScope(), now_ms=SystemClock().unix_ms()).findings == []
