"""Reads a topic's history straight from the bucket, without a node.

    with ColdBucket.open("s3://bucket/prefix") as bucket:
        for message in bucket.read("orders"):
            ...

The bucket holds offloaded records only: a node offloads closed segments, and `tidelog topic seal` offloads all
records. Partitions come one after the other, each in offset order. `ColdBucket` blocks. `AsyncColdBucket` has the same methods
for asyncio, and works in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from itertools import islice

from grpc_api.sdk.decoding import messages
from grpc_api.sdk.values import Message, Start, checked_start, start_ms
from storage_tiers.cold.offline.bucket import Bucket, Topic
from storage_tiers.cold.offline.partition import PartitionReader
from storage_tiers.cold.stores.location import StoreLocation
from storage_tiers.cold.stores.open import open_blocking_store
from storage_tiers.cold.stores.port import BlockingObjectStore
from storage_tiers.errors import InvalidPartitions, OffsetOutOfRange
from storage_tiers.types import OffsetRange

#: Records that the thread passes to the loop at a time.
MESSAGES_A_TURN = 1000
_ADVICE = "give cluster_id"


class ColdBucket:
    """Made by `open`. If the store holds several clusters and none was named, a topic is read from the only cluster that has
    it. Raises InvalidRequest, naming the clusters, if several have it."""

    def __init__(self, store: BlockingObjectStore, cluster_id: str | None = None, *, name: str = "the store") -> None:
        self._bucket = Bucket(store, name)
        self._cluster_id = cluster_id

    @classmethod
    @contextmanager
    def open(
        cls, store: str, *, cluster_id: str | None = None, s3_endpoint: str | None = None, s3_region: str | None = None
    ) -> Iterator[ColdBucket]:
        """`store` is the URL of the node's store. Raises InvalidRequest if it holds no cluster, or not the named one."""
        opened = open_blocking_store(StoreLocation.parse(store, endpoint=s3_endpoint, region=s3_region))
        try:
            bucket = Bucket(opened, store)
            there = bucket.clusters() if cluster_id is None else []
            yield cls(opened, None if len(there) > 1 else bucket.cluster(cluster_id), name=store)
        finally:
            opened.close()

    @property
    def cluster_id(self) -> str:
        """Raises InvalidRequest if the store holds several clusters and none was named."""
        return self._cluster_id or self._bucket.cluster(advice=_ADVICE)

    def topics(self) -> list[str]:
        """Every topic in the bucket, including deleted ones until they are swept."""
        return list(self._bucket.topic_names(self.cluster_id))

    def ranges(self, topic: str) -> dict[int, OffsetRange]:
        """The offsets [base, end) that the bucket holds of each partition."""
        found = self._topic(topic)
        manifests = {each: self._bucket.live_manifest(found.ids(each)) for each in found.partitions}
        return {each: OffsetRange(manifest.log_start, manifest.end) for each, manifest in manifests.items()}

    def read(
        self, topic: str, *, partitions: Sequence[int] | None = None, start: Start = "earliest"
    ) -> Iterator[Message]:
        """The records from `start` to the end of each partition's manifest, which is read when that partition's turn comes."""
        found = self._topic(topic)
        wanted = found.partitions if partitions is None else tuple(dict.fromkeys(partitions))
        missing = set(wanted) - set(found.partitions)
        if missing:
            raise InvalidPartitions(f"{topic} has partitions 0 to {found.partitions[-1]}, not {min(missing)}")
        start = checked_start(start)
        _check_start(start, wanted, topic)
        for partition in wanted:
            yield from self._partition(found, partition, start)

    def _topic(self, name: str) -> Topic:
        return self._bucket.topic(self._cluster_id or self._bucket.cluster(None, [name], advice=_ADVICE), name)

    def _partition(self, topic: Topic, partition: int, start: Start) -> Iterator[Message]:
        reads = PartitionReader(self._bucket, self._bucket.live_manifest(topic.ids(partition)))
        offset = _first_offset(reads, partition, start)
        for piece in reads.pieces(offset):
            yield from messages(topic.name, partition, piece.records, offset, piece.aborted)


class AsyncColdBucket:
    """Made by `open`."""

    def __init__(self, bucket: ColdBucket) -> None:
        self._bucket = bucket

    @classmethod
    @asynccontextmanager
    async def open(
        cls, store: str, *, cluster_id: str | None = None, s3_endpoint: str | None = None, s3_region: str | None = None
    ) -> AsyncIterator[AsyncColdBucket]:
        """As `ColdBucket.open`."""
        opening = ColdBucket.open(store, cluster_id=cluster_id, s3_endpoint=s3_endpoint, s3_region=s3_region)
        bucket = await asyncio.to_thread(opening.__enter__)
        try:
            yield cls(bucket)
        finally:
            await asyncio.to_thread(opening.__exit__, None, None, None)

    async def topics(self) -> list[str]:
        return await asyncio.to_thread(self._bucket.topics)

    async def ranges(self, topic: str) -> dict[int, OffsetRange]:
        return await asyncio.to_thread(self._bucket.ranges, topic)

    async def read(
        self, topic: str, *, partitions: Sequence[int] | None = None, start: Start = "earliest"
    ) -> AsyncIterator[Message]:
        messages = self._bucket.read(topic, partitions=partitions, start=start)
        while turn := await asyncio.to_thread(lambda: list(islice(messages, MESSAGES_A_TURN))):
            for message in turn:
                yield message


def _check_start(start: Start, partitions: Sequence[int], topic: str) -> None:
    if isinstance(start, datetime):
        start_ms(start)
    elif isinstance(start, Mapping):
        missing = set(partitions) - set(start)
        if missing:
            raise InvalidPartitions(f"no offset is given for partition {min(missing)} of {topic}")


def _first_offset(reads: PartitionReader, partition: int, start: Start) -> int:
    manifest = reads.manifest
    if start == "earliest":
        return manifest.log_start
    if isinstance(start, datetime):
        found = reads.first_offset_at(start_ms(start))
        return manifest.end if found is None else found
    if not isinstance(start, Mapping):
        return manifest.end
    offset = start[partition]
    if not manifest.log_start <= offset <= manifest.end:
        raise OffsetOutOfRange(
            f"{manifest.ids}: the bucket holds offsets [{manifest.log_start}, {manifest.end}), not {offset}; "
            "start within them, or seal the topic first"
        )
    return offset
