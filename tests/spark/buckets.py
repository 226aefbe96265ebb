"""Buckets for tests of readers: the project's own writer puts topics of real batches into a directory or S3 store."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql.types import StructType

from pyspark_tidelog import DefaultSource
from storage_tiers.cold.manifest.cluster_file import ClusterState, Holder, encode_cluster
from storage_tiers.cold.manifest.commit import CommitSettings, SharedStore
from storage_tiers.cold.manifest.model import Ids, Manifest, ManifestWriter, State
from storage_tiers.cold.manifest.topic_file import TopicState, encode_topic
from storage_tiers.cold.segments.offloader import ExtendJob
from storage_tiers.cold.segments.partition_tier import PartitionTier
from storage_tiers.cold.stores.port import BlockingObjectStore
from storage_tiers.records.batch import Codec, headers
from storage_tiers.records.builder import NewRecord, build_batch
from storage_tiers.types import AbortedTransaction, EpochEntry, TopicId
from tests.support.blocking_adapter import BlockingAdapter
from tests.support.clock import ManualClock, SeededRng

CLUSTER = "ckQWLXMZQKGqoUySTmrTXA"
#: Options for the tests' JVMs: fast start, and no threads for optimisations that pay off only after minutes.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
START_MS = 1_700_000_000_000


def topic_id_of(name: str, generation: int = 0) -> TopicId:
    return TopicId((name.encode() + bytes([generation]) * 16)[:15] + bytes([generation]))


@dataclass
class Bucket:
    """Writes through the store's own port; each call of `extend` is one commit of one segment."""

    store: BlockingObjectStore
    directory: Path
    cluster: str = CLUSTER
    clock: ManualClock = field(default_factory=lambda: ManualClock(START_MS))
    tiers: dict[tuple[str, TopicId, int], PartitionTier] = field(default_factory=dict)
    written: int = 0

    def create_cluster(self) -> None:
        state = ClusterState(self.cluster, 1, Holder(1, "directory", "start"))
        self.store.put(f"{self.cluster}/cluster.json", encode_cluster(state))

    def publish(
        self,
        topic: str,
        partitions: int,
        *,
        generation: int = 0,
        state: State = State.LIVE,
        earlier: Sequence[TopicId] = (),
    ) -> None:
        found = TopicState(
            self.cluster, topic, topic_id_of(topic, generation), state, partitions, 1, earlier=tuple(earlier)
        )
        self.store.put(f"{self.cluster}/topics/{topic}/topic.json", encode_topic(found))

    def tier(self, topic: str, partition: int = 0, generation: int = 0) -> PartitionTier:
        topic_id = topic_id_of(topic, generation)
        place = (topic, topic_id, partition)
        if place not in self.tiers:
            self.tiers[place] = PartitionTier(
                SharedStore.of_one(
                    BlockingAdapter(self.store),
                    self.clock,
                    SeededRng(len(self.tiers) + 1),
                    CommitSettings(attempts=2),
                ),
                Ids(self.cluster, topic, topic_id, partition),
                ManifestWriter(1, 1),
            )
        return self.tiers[place]

    def extend(
        self,
        topic: str,
        data: bytes,
        *,
        partition: int = 0,
        generation: int = 0,
        base: int | None = None,
        end: int | None = None,
        aborted: Sequence[AbortedTransaction] = (),
        log_start: int = 0,
    ) -> Manifest:
        """Offloads whole batches as the partition's next segment."""
        job = self._job(data, base, end, aborted, log_start)
        return asyncio.run(self.tier(topic, partition, generation).extend(job))

    def replace(self, topic: str, data: bytes, base: int, end: int) -> Manifest:
        """Replaces the segments [base, end) of partition 0 with one, made of whole batches."""
        tier = self.tier(topic)
        assert tier.manifest is not None
        old = [segment for segment in tier.manifest.segments if base <= segment.base and segment.end <= end]
        return asyncio.run(tier.replace(self._job(data, base, end), old))

    def _job(
        self,
        data: bytes,
        base: int | None,
        end: int | None,
        aborted: Sequence[AbortedTransaction] = (),
        log_start: int = 0,
    ) -> ExtendJob:
        found = [header for _, header in headers(data)]
        self.written += 1
        path = self.directory / f"{self.written}.log"
        path.write_bytes(data)
        producers = self.directory / f"{self.written}.snapshot"
        producers.write_bytes(b"")
        self.clock.advance(1)
        return ExtendJob(
            path=str(path),
            position=0,
            length=len(data),
            base=found[0].base_offset if base is None else base,
            end=found[-1].next_offset if end is None else end,
            leader_epoch=1,
            last_record_epoch=1,
            epochs=(EpochEntry(1, 0),),
            producer_snapshot=str(producers),
            aborted=tuple(aborted),
            log_start=log_start,
        )

    def expire(self, topic: str, log_start: int, *, partition: int = 0) -> Manifest:
        return asyncio.run(self.tier(topic, partition).expire(log_start))

    def pin(self, topic: str, name: str) -> Manifest:
        return asyncio.run(self.tier(topic).pin(name))

    def sweep(self, topic: str, *, partition: int = 0) -> None:
        """Deletes at once every object that no manifest names."""
        asyncio.run(self.tier(topic, partition).sweep(0))


def numbered(
    base: int,
    count: int,
    *,
    per_batch: int = 10,
    codec: Codec = Codec.NONE,
    value_bytes: int = 0,
    step_ms: int = 1000,
    **batch: int,
) -> bytes:
    """Batches of records whose fields contain their offset; timestamps are `step_ms` apart."""
    found = []
    for first in range(base, base + count, per_batch):
        offsets = range(first, min(first + per_batch, base + count))
        records = [record(offset, value_bytes=value_bytes, step_ms=step_ms) for offset in offsets]
        found.append(build_batch(records, base_offset=first, leader_epoch=1, codec=codec, **batch))  # type: ignore[arg-type]
    return b"".join(found)


def record(offset: int, *, value_bytes: int = 0, step_ms: int = 1000) -> NewRecord:
    value = f"value {offset}".encode().ljust(value_bytes, b".")
    return NewRecord(f"key {offset}".encode(), value, (), START_MS + offset * step_ms)


def options(store: Path | str, topics: str, **more: str) -> Mapping[str, str]:
    return {"store": str(store), "topics": topics, **{name.replace("__", "."): value for name, value in more.items()}}


def read(options: Mapping[str, str], schema: StructType | None = None) -> list[dict[str, Any]]:
    """The rows that Spark would get, task by task, without a JVM; planned partitions are pickled, as in Spark."""
    source = DefaultSource(options)
    schema = source.schema() if schema is None else schema
    reader = pickle.loads(pickle.dumps(source.reader(schema)))
    rows: list[dict[str, Any]] = []
    for partition in pickle.loads(pickle.dumps(reader.partitions())):
        for batch in reader.read(partition):
            rows.extend(batch.to_pylist())
    return rows


def offsets(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    return [row["offset"] for row in rows]
