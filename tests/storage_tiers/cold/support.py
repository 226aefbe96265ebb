"""Shared by the cold tier's tests: a clock that never waits, segments of real batches, one partition's writers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from storage_tiers.clock import Clock
from storage_tiers.cold.manifest import lookup
from storage_tiers.cold.manifest.commit import CommitSettings, ReadSaved, SharedStore
from storage_tiers.cold.manifest.json import decode, decode_page
from storage_tiers.cold.manifest.model import (
    Ids,
    Manifest,
    ManifestPage,
    ManifestWriter,
    PageRef,
    RemoteSegment,
    Section,
)
from storage_tiers.cold.segments.offloader import ExtendJob
from storage_tiers.cold.segments.partition_tier import PartitionTier
from storage_tiers.cold.segments.sidecar_builder import SidecarBytes
from storage_tiers.cold.stores.memory import BlockingMemoryStore
from storage_tiers.cold.stores.port import ObjectStore
from storage_tiers.hot.producer_state import ProducerStateManager
from storage_tiers.records.builder import NewRecord, build_batch
from storage_tiers.types import EpochEntry, TopicId
from tests.support.clock import ManualClock, SeededRng

HOUR = 3_600_000
DAY = 24 * HOUR
TOPIC_ID = TopicId(bytes(range(16)))
IDS = Ids("ckQWLXMZQKGqoUySTmrTXA", "flights", TOPIC_ID, 3)


class EagerClock(ManualClock):
    """A clock whose `sleep` returns after one turn of the event loop and advances the time."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)
        self.advance(seconds)


async def inline(function: Callable[[], SidecarBytes]) -> SidecarBytes:
    """Runs thread work inline, so that schedules are reproducible."""
    return function()


def segment_of(
    ids: Ids, base: int, end: int, uuid: int, *, timestamp: int = 1_700_000_000_000, size: int = 1000
) -> RemoteSegment:
    """A remote segment of plausible size (bytes), without objects in a store."""
    name = f"{uuid:032x}"
    sections = tuple(Section(kind, at * 4096, 4096, 0xC0FFEE00 + at) for at, kind in enumerate(("index", "checks")))
    return RemoteSegment(
        base,
        end,
        ids.segment_key(base, 1, name),
        0,
        size,
        ids.sidecar_key(base, 1, name),
        sections,
        timestamp,
        timestamp,
        base,
        end - base,
        size,
        0xDEADBEEF,
    )


def batches(base: int, count: int, *, epoch: int = 1, timestamp: int = 1_700_000_000_000, text: str = "") -> bytes:
    """`count` batches of one record each; the record's value is `text` and its offset."""
    return b"".join(
        build_batch(
            [NewRecord(b"k", f"{text}@{offset}".encode(), timestamp=timestamp + offset)],
            base_offset=offset,
            leader_epoch=epoch,
        )
        for offset in range(base, base + count)
    )


def no_producers(end: int) -> bytes:
    """Kafka's snapshot of no producers, as the batches here have none."""
    return ProducerStateManager().snapshot()


@dataclass
class Local:
    """Local segments to offload from."""

    directory: Path
    written: int = 0
    #: The producer snapshot at an end offset; the default is a text that names the offset.
    snapshot: Callable[[int], bytes] = lambda end: b"producers@%d" % end

    def job(
        self, base: int, count: int, *, epoch: int = 1, text: str = "", log_start: int = 0, data: bytes | None = None
    ) -> ExtendJob:
        content = batches(base, count, epoch=epoch, text=text) if data is None else data
        self.written += 1
        path = self.directory / f"{base:020}-{self.written}.log"
        path.write_bytes(content)
        producers = self.directory / f"{base:020}-{self.written}.snapshot"
        producers.write_bytes(self.snapshot(base + count))
        return ExtendJob(
            path=str(path),
            position=0,
            length=len(content),
            base=base,
            end=base + count,
            leader_epoch=epoch,
            last_record_epoch=epoch,
            epochs=(EpochEntry(1, 0), EpochEntry(epoch, base)) if epoch > 1 else (EpochEntry(1, 0),),
            producer_snapshot=str(producers),
            log_start=log_start,
        )


def tier_of(
    store: ObjectStore,
    clock: Clock,
    *,
    node: int = 1,
    incarnation: int | None = 1,
    seed: int = 1,
    ids: Ids = IDS,
    attempts: int = 8,
    read_saved: ReadSaved | None = None,
) -> PartitionTier:
    return PartitionTier(
        SharedStore.of_one(store, clock, SeededRng(seed), CommitSettings(attempts=attempts)),
        ids,
        ManifestWriter(node, incarnation),
        run_blocking=inline,
        read_saved=read_saved,
    )


def stored_manifest(store: BlockingMemoryStore, ids: Ids = IDS) -> Manifest:
    return decode(store.get(ids.manifest_key).data, ids)


def stored_live(store: BlockingMemoryStore, manifest: Manifest) -> list[RemoteSegment]:
    """Every live segment, with pages read from the store."""
    return list(lookup.live_segments(manifest, lambda ref: decode_page(store.get(ref.key).data, manifest.ids, ref)))


def page_loader(store: BlockingMemoryStore, ids: Ids = IDS) -> lookup.LoadPage:
    def load(ref: PageRef) -> ManifestPage:
        return decode_page(store.get(ref.key).data, ids, ref)

    return load


async def settled(condition: Callable[[], bool], turns: int = 10_000) -> None:
    """Yields to the event loop until the condition holds; raises AssertionError after `turns` turns."""
    for _ in range(turns):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("the condition never came true")


Action = Callable[[], Awaitable[object]]
