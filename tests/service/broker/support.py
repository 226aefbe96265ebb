"""A whole node in this process: a real directory, a real metadata log, and the tier on a memory store behind a socket pair."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from grpc_api.contract.coordinator_errors import CoordinatorLoading, CoordinatorNotAvailable, NotCoordinator
from grpc_api.contract.core import Core
from grpc_api.contract.log import (
    Append,
    Appended,
    Fetch,
    Fetched,
    FetchPartition,
    Log,
    OffsetQuery,
    OffsetSpec,
)
from grpc_api.contract.ready import settled
from grpc_api.contract.topics import NewTopic
from service.broker.partition import assignment
from service.broker.partition.partition import Partition
from service.build.ground import Host
from service.build.tier import Tier
from service.lifecycle.readiness import Readiness
from service.lifecycle.supervisor import supervised
from service.metadata.log import MetadataLog
from service.node import Node
from service.serve.rounds import rounds
from service.settings.node_settings import NodeSettings
from storage_tiers.clock import Clock, SystemClock, SystemRng
from storage_tiers.cold.manifest.model import Manifest
from storage_tiers.cold.stores.location import StoreLocation
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.cold.stores.port import ObjectStore
from storage_tiers.errors import LogError
from storage_tiers.files import Files, OsFiles
from storage_tiers.records.batch import BatchHeader, headers
from storage_tiers.records.builder import NewRecord, build_batch
from storage_tiers.records.decoder import Record, decode_batch
from storage_tiers.types import TimestampOffset, TopicPartition
from tests.support.faulty_store import FaultyStore
from tests.support.local_tier import LocalLauncher

Answer = TypeVar("Answer")

#: Seconds that a step of a starved machine may take. No test waits them out.
PATIENCE_S = 60
#: Opening a thousand partitions may take a busy machine longer than a client waits.
assignment.OPENING_PATIENCE_S = PATIENCE_S
#: Small segments; the local disk keeps nothing that the bucket holds.
TIERED = {"internal.segment.bytes": "2000", "local.retention.bytes": "1", "retention.ms": "-1"}


class Driven:
    """A core with short methods for the calls that tests make."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.log: Log = core.log

    async def create(self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        wanted = NewTopic(topic, partitions, 1, configs or {})
        (made,) = await self.core.topics.create([wanted])
        if isinstance(made, LogError):
            raise made

    async def append(self, topic: str, *values: bytes, partition: int = 0, **fields: object) -> Appended:
        return await self.append_batch(topic, batch(*values, **fields), partition=partition)

    async def append_batch(self, topic: str, data: bytes, *, partition: int = 0) -> Appended:
        appends = [Append(TopicPartition(topic, partition), memoryview(data))]
        (answer,) = await settled(self.log.append(appends))
        if isinstance(answer, LogError):
            raise answer
        if answer.committed is not None:
            await answer.committed
        return answer

    async def fetch(self, *wanted: FetchPartition, wait_ms: int = 0, max_bytes: int = 1 << 20) -> list[Fetched]:
        answers = await settled(self.log.fetch(Fetch(wanted, wait_ms, 1, max_bytes)))
        return list(answers)

    async def read(self, topic: str, offset: int, partition: int = 0, wait_ms: int = 5000) -> list[Record]:
        """The records of one fetch at `offset`, without those below it."""
        wanted = FetchPartition(TopicPartition(topic, partition), offset, 1 << 20)
        (answer,) = await self.fetch(wanted, wait_ms=wait_ms)
        if answer.error is not None:
            raise answer.error
        return [record for record in records(answer) if record.offset >= offset]

    async def read_all(self, topic: str, partition: int = 0, start: int = 0) -> list[Record]:
        """All records from `start` to the high watermark."""
        end = await self.end(topic, partition)
        found: list[Record] = []
        while start < end:
            (answer,) = await self.fetch(
                FetchPartition(TopicPartition(topic, partition), start, 1 << 20), wait_ms=20_000
            )
            if answer.error is not None:
                raise answer.error
            assert answer.slices, f"nothing at offset {start} of {end}"
            batches = taken(answer)
            found += [each for _, inside in batches for each in inside if each.offset >= start]
            start = batches[-1][0].next_offset  # a compacted batch may have no record
        return found

    async def end(self, topic: str, partition: int = 0) -> int:
        """The high watermark."""
        wanted = OffsetQuery(TopicPartition(topic, partition), OffsetSpec.LATEST)
        (answer,) = await self.log.list_offsets([wanted])
        assert isinstance(answer, TimestampOffset), answer
        return answer.offset


class Running(Driven):
    """A node with its store."""

    def __init__(self, node: Node, store: FaultyStore) -> None:
        super().__init__(node.broker.core)
        self.node = node
        self.store = store

    @property
    def tier(self) -> Tier:
        """The node's tier; the node must have a store."""
        assert self.node.tier is not None
        return self.node.tier

    async def seal(self, topic: str) -> None:
        await self.log.seal(topic, wait=True, timeout_ms=20_000)

    async def evicted(self, topic: str, partition: int = 0) -> None:
        """Returns once none of the partition's records is on the local disk."""
        hot = self.node.broker.partitions.get(TopicPartition(topic, partition)).log.hot
        await until(lambda: hot.local_start_offset == hot.end_offset)


async def manifest_of(led: Partition) -> Manifest:
    """The newest manifest of a partition that the node has seen."""
    assert led.log.tier is not None and led.log.cold is not None
    return await led.log.cold.manifest()


async def filled(node: Running, count: int = 40, configs: dict[str, str] | None = None) -> None:
    await node.create("t", configs={**TIERED, **(configs or {})})
    for i in range(count):
        await node.append("t", b"%03d" % i * 50)


def batch(*values: bytes, **fields: object) -> bytes:
    made = [NewRecord(b"k", value, timestamp=1_700_000_000_000 + i) for i, value in enumerate(values)]
    return build_batch(made, **fields)  # type: ignore[arg-type]


def records(answer: Fetched) -> list[Record]:
    """Decodes the whole batches of an answer and releases its files."""
    return [record for _, inside in taken(answer) for record in inside]


def taken(answer: Fetched) -> list[tuple[BatchHeader, list[Record]]]:
    """The whole batches of an answer with their records; releases its files."""
    data = b"".join(os.pread(piece.file.fd, piece.length, piece.position) for piece in answer.slices)
    answer.release_all()
    return [(header, list(decode_batch(data[at : at + header.size]))) for at, header in headers(data)]


async def once_loaded(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    """Repeats the request while the coordinator is made and loaded, as clients do; returns the answer."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await ask()
            except (CoordinatorNotAvailable, CoordinatorLoading, NotCoordinator):
                await asyncio.sleep(0.005)


def metadata_log(node: Running) -> MetadataLog:
    """The node's own metadata log."""
    own = node.node.ground.own_log
    assert own is not None
    return own


async def until(condition: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def running(
    directory: Path,
    store: FaultyStore | None = None,
    broker: Mapping[str, str] | None = None,
    files: Files | None = None,
    clock: Clock | None = None,
    store_url: str = "memory://node",
    **more: object,
) -> AsyncIterator[Running]:
    """Runs a node. `broker` holds broker configs, `more` further settings. The store outlives the node."""
    clock = clock or SystemClock()
    store = store or FaultyStore(MemoryStore(clock))

    async def open_store(_: StoreLocation) -> ObjectStore:
        return store

    stop = asyncio.Event()
    settings = NodeSettings(data_dir=directory, store=store_url, broker=broker or {}, **more)  # type: ignore[arg-type]
    node = await Node.open(
        settings,
        Readiness(),
        stop,
        Host(files or OsFiles(), clock, SystemRng(), LocalLauncher(open_store, clock, SystemRng())),
    )
    try:
        async with supervised(rounds(node), clock):
            access = asyncio.get_running_loop().create_task(node.run_store_access())
            await until(lambda: node.ground.readiness.probed or access.done())
            yield Running(node, store)
            access.cancel()
    finally:
        await node.close()
