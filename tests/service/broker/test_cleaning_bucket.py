"""The bucket's segments are compacted as the local ones are: what stays of them, and what hides what in the other tier."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from service.broker.background.cleaning import _ALL, CleanerSettings, Cleaning
from service.broker.partition.partition import Partition
from storage_tiers.clock import SystemClock
from storage_tiers.cold.segments import sidecar
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.records.batch import read_header
from storage_tiers.records.builder import ControlKind
from tests.service.broker.support import Running, manifest_of, running, until
from tests.service.broker.test_cleaning import COMPACTED, EAGER, cleaning, closed, led, put, store, table
from tests.storage_tiers.compaction.support import batch
from tests.storage_tiers.hot.support import marker
from tests.support.faulty_store import FaultyStore


async def test_tombstones_are_weighed_against_the_bucket_again_at_the_exchange(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something may have been offloaded since the order was given."""
    hidden_below, asked = Cleaning._hidden_below, list[int]()

    def everything_at_first(self: Cleaning, partition: Partition) -> int:
        asked.append(_ALL if not asked else hidden_below(self, partition))
        return asked[-1]

    monkeypatch.setattr(Cleaning, "_hidden_below", everything_at_first)
    async with running(tmp_path / "data", store(), broker={"log.cleaner.enable": "false"}) as node:
        await node.create("t", configs={**COMPACTED, "local.retention.bytes": "1"})
        await put(node, ("a", "in the bucket"), ("b", "1"))
        await node.seal("t")
        await node.evicted("t")
        led(node).log.hot.reconfigure(replace(led(node).log.hot.settings, remote_copy_disable=True))
        await put(node, ("a", None), ("b", "2"))
        await closed(node)
        await put(node, ("c", "1"))
        await closed(node)
        before = led(node).log.hot.segments()
        due = cleaning(node)._local(led(node))
        assert due is not None
        await cleaning(node)._try(due, CleanerSettings(True, 1, 1 << 20, 0.5, 1e12))
        assert asked == [_ALL, 0]
        assert led(node).log.hot.segments() == before, "the exchange is given up"
        await cleaning(node)._process.end()


async def test_a_rewritten_segment_has_the_state_and_the_aborted_transactions_of_the_last_it_replaces(
    tmp_path: Path,
) -> None:
    memory = MemoryStore(SystemClock())
    async with running(tmp_path / "data", FaultyStore(memory), broker=EAGER) as node:
        await node.create("t", configs={**COMPACTED, "local.retention.bytes": "1", "delete.retention.ms": "60000"})
        for number in range(20):
            producer = number % 3
            made = batch(("a", f"{number}" * 40), producer=(producer, 0, number // 3), transactional=True)
            led(node).append_coordinated(memoryview(made), read_header(made))
            kind = ControlKind.ABORT if number % 2 else ControlKind.COMMIT
            led(node).append_coordinated(memoryview(end := marker(kind, producer)), read_header(end))
            await node.seal("t")
        await until(lambda: bucket_cleaned_to(node) >= 36)
        manifest = await manifest_of(led(node))
    store_of = memory.blocking()
    states = {
        item.segment.end: sidecar.parse(store_of.get(item.segment.sidecar_key).data)
        for item in sorted(manifest.removed, key=lambda each: -each.at.commit)
        if item.segment is not None
    }
    rewritten = [segment for segment in manifest.segments if segment.end in states]
    assert rewritten
    for segment in rewritten:
        found = sidecar.parse(store_of.get(segment.sidecar_key).data)
        assert (found.epochs, found.producer_snapshot) == (
            states[segment.end].epochs,
            states[segment.end].producer_snapshot,
        )
    first = sidecar.parse(store_of.get(rewritten[0].sidecar_key).data)
    assert first.aborted, "their markers stay for a minute"


async def test_the_buckets_segments_are_compacted_and_become_few(tmp_path: Path) -> None:
    bucket = store()
    async with running(tmp_path / "data", bucket, broker=EAGER) as node:
        await node.create("t", configs={**COMPACTED, "local.retention.bytes": "1"})
        for number in range(300):
            await put(node, (f"k{number % 7}", f"{number}"), ("gone", f"{number}"))
            if number % 30 == 0:
                await node.seal("t")
        await put(node, ("gone", None))
        await node.seal("t")
        await node.evicted("t")
        for number in range(2):  # the newest segment of the bucket stays as it is
            await put(node, ("last", f"{number}"))
            await node.seal("t")
        await node.evicted("t")
        await until(lambda: bucket_cleaned_to(node) == 602)
        expected = {f"k{number % 7}": f"{number}" for number in range(293, 300)} | {"last": "1"}
        assert table(await node.read_all("t")) == expected
        manifest = await manifest_of(led(node))
        assert (manifest.log_start, manifest.end) == (0, 603)
        assert not manifest.pages
        assert len(manifest.segments) <= 6
        assert sum(segment.records for segment in manifest.segments) <= 12
        assert len(manifest.removed) >= 15, "their objects are swept after the grace"
    async with running(tmp_path / "data", bucket, broker=EAGER) as node:
        assert table(await node.read_all("t")) == expected
    async with running(tmp_path / "new", bucket, take_over=node.node.cluster_id) as node:
        await until(lambda: not led(node).is_recovering)
        assert table(await node.read_all("t")) == expected


def bucket_cleaned_to(node: Running, topic: str = "t") -> int:
    cold = cleaning(node)._cold
    assert cold is not None
    return cold.cleaned_to(led(node, topic))
