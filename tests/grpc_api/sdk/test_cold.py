"""Reads of the records that a node left in a store, with no node running: the memory store outlives the node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from grpc_api.sdk.client import Client
from grpc_api.sdk.cold import AsyncColdBucket, ColdBucket
from grpc_api.sdk.values import Message, ProducerOptions
from storage_tiers.clock import SystemClock
from storage_tiers.cold.manifest.cluster_file import ClusterState, Holder, encode_cluster
from storage_tiers.cold.manifest.model import State
from storage_tiers.cold.manifest.topic_file import TopicState, delete_topic, publish_topic
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.cold.stores.port import BlockingObjectStore
from storage_tiers.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidRequest,
    OffsetOutOfRange,
    TierCorrupt,
    UnknownTopicOrPartition,
)
from storage_tiers.types import TopicId
from tests.grpc_api.support import Served, served
from tests.service.broker.support import TIERED, until
from tests.support.faulty_store import FaultyStore

BEGIN_MS = 1_700_000_000_000
COUNT = 300


class Left:
    """A store, and the records of topic `t` in it."""

    def __init__(self, store: BlockingObjectStore, cluster_id: str) -> None:
        self.store = store
        self.cluster_id = cluster_id
        self.bucket = ColdBucket(store, cluster_id)

    def values(self, **fields: object) -> list[int]:
        return [int(message.value or b"") for message in self.bucket.read("t", **fields)]  # type: ignore[arg-type]


@pytest.fixture
async def left(tmp_path: Path) -> AsyncIterator[Left]:
    memory = MemoryStore(SystemClock())
    async with served(tmp_path / "data", FaultyStore(memory)) as node:
        await fill(node)
        cluster_id = node.node.node.cluster_id
    yield Left(memory.blocking(), cluster_id)


async def fill(node: Served) -> None:
    async with Client.connect(node.address) as client:
        await client.create_topic("t", partitions=2, configs={**TIERED, "internal.segment.bytes": "20000"})
        async with client.producer(ProducerOptions(batch_bytes=2000, compression="zstd")) as producer:
            for number in range(COUNT):
                await producer.send("t", b"%0400d" % number, partition=number % 2, timestamp=BEGIN_MS + 1000 * number)
            await producer.flush()
        await client.seal("t")
        await until(lambda: node.published("t"))


def moment(second: int) -> datetime:
    return datetime.fromtimestamp(BEGIN_MS / 1000 + second, UTC)


async def test_everything_is_read_in_offset_order_partition_by_partition(left: Left) -> None:
    assert left.bucket.topics() == ["t"]
    assert left.bucket.ranges("t") == {0: (0, COUNT // 2), 1: (0, COUNT // 2)}
    found = list(left.bucket.read("t"))
    assert [(message.partition, message.offset) for message in found] == [
        (partition, offset) for partition in (0, 1) for offset in range(COUNT // 2)
    ]
    assert found[-1] == Message("t", 1, 149, BEGIN_MS + 299_000, None, b"%0400d" % 299, ())


@pytest.mark.parametrize(
    ("start", "first"),
    [("earliest", 1), ({1: 40}, 81), (moment(100), 101), (moment(0), 1), (moment(-5), 1)],
)
async def test_reading_begins_at_the_given_position(left: Left, start: object, first: int) -> None:
    assert left.values(partitions=[1], start=start) == list(range(first, COUNT, 2))


async def test_after_the_end_there_is_nothing(left: Left) -> None:
    for start in ("latest", {0: 150, 1: 150}, moment(10_000)):
        assert left.values(start=start) == []


async def test_asyncio_reads_the_same(left: Left) -> None:
    bucket = AsyncColdBucket(left.bucket)
    assert await bucket.topics() == ["t"]
    assert (await bucket.ranges("t"))[1] == (0, 150)
    found = [message async for message in bucket.read("t", start={0: 149, 1: 0})]
    assert [message.offset for message in found] == [149, *range(150)]


async def test_log_start_hides_deleted_records(tmp_path: Path) -> None:
    memory = MemoryStore(SystemClock())
    async with served(tmp_path / "data", FaultyStore(memory)) as node:
        await fill(node)
        async with Client.connect(node.address) as client:
            await client.delete_records("t", 0, 37)
        bucket = ColdBucket(memory.blocking(), node.node.node.cluster_id)
        assert bucket.ranges("t")[0] == (37, 150)
        assert next(bucket.read("t")).offset == 37
        assert next(bucket.read("t", partitions=[0], start=moment(0))).offset == 37
        with pytest.raises(OffsetOutOfRange, match="37"):
            next(bucket.read("t", partitions=[0], start={0: 36}))


async def test_among_several_clusters_the_one_with_the_topic_is_read(tmp_path: Path) -> None:
    memory = MemoryStore(SystemClock())
    for cluster in ("one", "two"):
        holder = Holder(1, "d", "s")
        await memory.put(f"{cluster}/cluster.json", encode_cluster(ClusterState(cluster, 1, holder)))
    bucket = ColdBucket(memory.blocking())
    both = TopicState("one", "both", TopicId(b"1" * 16), State.LIVE, 1, 1)
    for state in (both, replace(both, cluster_id="two"), replace(both, cluster_id="two", topic="t")):
        await publish_topic(memory, state)
    assert bucket.ranges("t") == {0: (0, 0)}
    with pytest.raises(InvalidRequest, match="clusters one, two, 2 of which have 'both': give cluster_id"):
        bucket.ranges("both")
    with pytest.raises(InvalidRequest, match="clusters one, two: give cluster_id"):
        bucket.topics()
    await delete_topic(memory, both)
    assert bucket.ranges("both") == {0: (0, 0)}
    assert ColdBucket(memory.blocking(), "two").topics() == ["both", "t"]


async def test_missing_things_are_named(left: Left) -> None:
    with pytest.raises(UnknownTopicOrPartition, match="nothing"):
        next(left.bucket.read("nothing"))
    with pytest.raises(InvalidPartitions, match="0 to 1"):
        next(left.bucket.read("t", partitions=[2]))
    with pytest.raises(InvalidPartitions, match="no offset"):
        next(left.bucket.read("t", start={0: 1}))
    with pytest.raises(OffsetOutOfRange, match="151"):
        next(left.bucket.read("t", start={0: 151, 1: 0}))
    with pytest.raises(InvalidConfig, match="time zone"):
        next(left.bucket.read("t", start=datetime(2024, 1, 1)))
    with pytest.raises(InvalidRequest, match="yesterday"):
        next(left.bucket.read("t", start="yesterday"))


async def test_damage_is_never_served(left: Left) -> None:
    (key,) = [
        info.key
        for info in left.store.list("")
        if "/segments/00001/00000000000000000000" in info.key and ".log" in info.key
    ]
    damaged = bytearray(left.store.get(key).data)
    damaged[len(damaged) // 2] ^= 1
    left.store.put(key, bytes(damaged))
    with pytest.raises(TierCorrupt, match="bytes were changed in the bucket"):
        left.values(partitions=[1])
    left.store.put(key, bytes(damaged[:-10]))
    with pytest.raises(TierCorrupt, match="ends before"):
        left.values(partitions=[1])
    left.store.delete([key])
    with pytest.raises(TierCorrupt, match="gone"):
        left.values(partitions=[1])


def test_a_store_without_one_cluster_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with pytest.raises(InvalidRequest, match="no tidelog cluster"), ColdBucket.open(f"file://{tmp_path}/store"):
        raise AssertionError("nothing is there")
