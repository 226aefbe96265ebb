"""The asyncio client of a node: producers, readers, and everything an application asks of topics.

    async with Client.connect("127.0.0.1:9093") as client:
        async with client.producer() as producer:
            await producer.send("orders", b"book", key=b"alice")
        async for message in client.reader("orders", start="earliest"):
            ...

Every method raises LogErrors (`storage_tiers.errors`), whose sentence says what to do and whose `advice` what a program can.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from grpc_api.channel import open_channel
from grpc_api.contract.cold import ColdManifest, ColdSegment
from grpc_api.contract.log import OffsetQuery, OffsetSpec, SealedPartition
from grpc_api.contract.topics import (
    AlterOp,
    ConfigAlteration,
    ConfigEntry,
    NewTopic,
    Resource,
    ResourceKind,
    TopicDescription,
)
from grpc_api.preflight import require_grpc
from grpc_api.remote import RemoteCore
from grpc_api.sdk.checking import checked_address, checked_configs
from grpc_api.sdk.producer import Producer, ThreadedUse
from grpc_api.sdk.reader import Reader
from grpc_api.sdk.values import ProducerOptions, ReaderOptions, Start, checked_start, start_ms
from storage_tiers.clock import Clock, Rng, SystemClock, SystemRng
from storage_tiers.errors import InvalidRequest, LogError
from storage_tiers.types import TopicPartition

DEFAULT_PRODUCER = ProducerOptions()
DEFAULT_READER = ReaderOptions()
SEAL_TIMEOUT_S = 60.0


class Client:
    """Made by `connect`. Used on the loop that it was made on."""

    def __init__(self, channel: Any, address: str, clock: Clock, rng: Rng) -> None:
        self._channel = channel
        self._address = address
        self._clock = clock
        self._rng = rng
        self._core = RemoteCore(channel, address, clock, rng)

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, address: str, *, clock: Clock | None = None, rng: Rng | None = None, timeout_s: float = 30.0
    ) -> AsyncIterator[Client]:
        """A client of the node whose gRPC listener is at `address` (HOST:PORT), until the block ends. LeaderNotAvailable if
        nobody listens there, or nothing is answered within `timeout_s`; InvalidRequest at once if it speaks no gRPC."""
        await require_grpc(checked_address(address))
        async with open_channel(address) as channel:
            client = cls(channel, address, clock or SystemClock(), rng or SystemRng())
            await client._core.topics.open(timeout_s)
            try:
                yield client
            finally:
                await client._core.log.close()
                await client._core.topics.close()

    # --- records ------------------------------------------------------------------------------------------------------
    @asynccontextmanager
    async def producer(self, options: ProducerOptions = DEFAULT_PRODUCER) -> AsyncIterator[Producer]:
        """A producer until the block ends, and everything it was given with it."""
        producer = self.open_producer(options)
        try:
            yield producer
        finally:
            await producer.close()

    def open_producer(self, options: ProducerOptions, threads: ThreadedUse | None = None) -> Producer:
        """A producer that its caller closes."""
        return Producer(self._channel, self._address, self._core.topics, options, self._clock, self._rng, threads)

    def reader(
        self,
        topic: str,
        *,
        partitions: Sequence[int] | None = None,
        start: Start = "earliest",
        options: ReaderOptions = DEFAULT_READER,
    ) -> Reader:
        """An iterator over the topic's records, or some of its partitions'. All partitions include those added later."""
        return Reader(
            self._channel,
            self._address,
            self._core.log,
            self._core.topics,
            self._clock,
            self._rng,
            topic=topic,
            partitions=partitions,
            start=start,
            options=options,
        )

    async def offsets(self, topic: str, at: str | datetime) -> dict[int, int | None]:
        """For each partition its first offset ("earliest"), its end ("latest"), or the first offset at or after a moment, also
        one in ISO 8601 (None: there is none)."""
        moment = checked_start(at)
        if isinstance(moment, Mapping):
            raise InvalidRequest("offsets are asked for at 'earliest', 'latest' or a time, not at offsets")
        timestamp = start_ms(moment) if isinstance(moment, datetime) else int(OffsetSpec[moment.upper()])
        partitions = [part.partition for part in self.topic(topic).partitions]
        answers = await self._core.log.list_offsets(
            [OffsetQuery(TopicPartition(topic, each), timestamp) for each in partitions]
        )
        found: dict[int, int | None] = {}
        for partition, answer in zip(partitions, answers, strict=True):
            if isinstance(answer, LogError):
                raise answer
            found[partition] = None if answer is None else answer.offset
        return found

    async def delete_records(self, topic: str, partition: int, before_offset: int) -> int:
        """Forgets records below `before_offset` (-1: all that there are), in both tiers; the new first offset."""
        return await self._core.log.delete_records(TopicPartition(topic, partition), before_offset)

    # --- topics -------------------------------------------------------------------------------------------------------
    def topics(self) -> list[TopicDescription]:
        """All topics, from metadata that the node keeps up to date here."""
        return [each for each in self._core.topics.describe() if not isinstance(each, LogError)]

    def topic(self, name: str) -> TopicDescription:
        (found,) = self._core.topics.describe([name])
        if isinstance(found, LogError):
            raise found
        return found

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
    ) -> TopicDescription:
        """-1: the node's defaults."""
        (made,) = await self._core.topics.create(
            [NewTopic(name, partitions, replication_factor, checked_configs(configs or {}))]
        )
        if isinstance(made, LogError):
            raise made
        return self.topic(name)

    async def delete_topic(self, name: str) -> None:
        (gone,) = await self._core.topics.delete([name])
        if isinstance(gone, LogError):
            raise gone

    async def add_partitions(self, name: str, count: int) -> TopicDescription:
        """`count` is the new number of all of them."""
        await self._core.topics.create_partitions(name, count, None)
        return self.topic(name)

    async def configs(self, topic: str) -> dict[str, ConfigEntry]:
        entries = await self._core.configs.describe_configs(Resource(ResourceKind.TOPIC, topic))
        return {entry.name: entry for entry in entries}

    async def alter_configs(self, topic: str, changes: Mapping[str, str | None]) -> None:
        """All of them or none. None: back to the default."""
        alterations = [
            ConfigAlteration(name, AlterOp.DELETE if value is None else AlterOp.SET, value)
            for name, value in checked_configs(changes).items()
        ]
        await self._core.configs.alter_configs(Resource(ResourceKind.TOPIC, topic), alterations)

    # --- the bucket ---------------------------------------------------------------------------------------------------
    async def seal(self, topic: str, *, timeout_s: float = SEAL_TIMEOUT_S) -> Sequence[SealedPartition]:
        """Returns once every record that the topic has now is in the bucket. RequestTimedOut after `timeout_s`."""
        return await self._core.log.seal(topic, wait=True, timeout_ms=round(timeout_s * 1000))

    async def cold_manifests(self, topic: str) -> Sequence[ColdManifest | LogError]:
        """What the bucket holds of each partition."""
        return await self._core.cold.manifests(topic)

    async def cold_segments(self, topic: str, partition: int) -> AsyncIterator[ColdSegment]:
        """The segments of a partition in the bucket, in offset order."""
        start = 0
        while segments := await self._core.cold.segments(TopicPartition(topic, partition), start):
            for each in segments:
                yield each
            start = segments[-1].end
