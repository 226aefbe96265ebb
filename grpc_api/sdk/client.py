"""The asyncio client of a node: producers, readers, consumer groups and administration.

    async with Client.connect("127.0.0.1:9093") as client:
        async with client.producer() as producer:
            await producer.send("orders", b"book", key=b"alice")
        async with client.consumer("billing", ["orders"]) as consumer:
            async for message in consumer:
                ...

Every method raises LogErrors (`storage_tiers.errors`). An error's message states the remedy for people, and its `advice` states
it for programs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime

from grpc_api.bootstrap import target_of
from grpc_api.channel import NodeChannel, open_channel
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
from grpc_api.remote import RemoteCore
from grpc_api.sdk.checking import checked_addresses, checked_configs, checked_group, checked_offsets, checked_topic
from grpc_api.sdk.consumer import GroupConsumer
from grpc_api.sdk.group_admin import GroupAdmin
from grpc_api.sdk.producer import Producer, ThreadedUse
from grpc_api.sdk.reader import Reader
from grpc_api.sdk.transactional import TransactionalProducer
from grpc_api.sdk.values import (
    ConsumerOptions,
    GroupInfo,
    ProducerOptions,
    ReaderOptions,
    Start,
    checked_start,
    start_ms,
)
from storage_tiers.clock import Clock, Rng, SystemClock, SystemRng
from storage_tiers.errors import InvalidRequest, LogError, UnknownTopicOrPartition
from storage_tiers.types import TopicPartition

DEFAULT_PRODUCER = ProducerOptions()
DEFAULT_READER = ReaderOptions()
DEFAULT_CONSUMER = ConsumerOptions()
SEAL_TIMEOUT_S = 60.0
#: As in Kafka's clients.
TRANSACTION_TIMEOUT_S = 60.0


class Client:
    """Made by `connect`. Use it only on the loop where it was made."""

    def __init__(self, node: NodeChannel) -> None:
        self._node = node
        self._core = RemoteCore(node)
        self._groups = GroupAdmin(node, self._core.groups)

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, address: str, *, clock: Clock | None = None, rng: Rng | None = None, timeout_s: float = 30.0
    ) -> AsyncIterator[Client]:
        """A client of the node whose gRPC listener is at `address` (HOST:PORT), until the block ends. Several addresses of one
        cluster are separated by commas: the client uses the first that answers, and changes to another when that node is
        lost. Raises LeaderNotAvailable if nothing listens there or answers within `timeout_s`; InvalidRequest at once for a
        listener that does not speak gRPC."""
        addresses = checked_addresses(address)
        async with open_channel(await target_of(addresses)) as channel:
            client = cls(NodeChannel(channel, ",".join(addresses), clock or SystemClock(), rng or SystemRng()))
            await client._core.topics.open(timeout_s)
            try:
                yield client
            finally:
                await client._core.close()

    # --- records ------------------------------------------------------------------------------------------------------
    @asynccontextmanager
    async def producer(self, options: ProducerOptions = DEFAULT_PRODUCER) -> AsyncIterator[Producer]:
        """A producer for the block, which ends once every record is acknowledged or has failed."""
        producer = self.open_producer(options)
        try:
            yield producer
        finally:
            await producer.close()

    @asynccontextmanager
    async def transactional_producer(
        self,
        transactional_id: str,
        options: ProducerOptions = DEFAULT_PRODUCER,
        *,
        timeout_s: float = TRANSACTION_TIMEOUT_S,
    ) -> AsyncIterator[TransactionalProducer]:
        """A producer of transactions for the block. It fences an earlier producer of this transactional id and aborts its
        open transaction. The node aborts a transaction that is open for more than `timeout_s`."""
        producer = self.open_transactional_producer(transactional_id, options, timeout_s)
        try:
            await producer.start()
            yield producer
        finally:
            await producer.close()

    def open_transactional_producer(
        self, transactional_id: str, options: ProducerOptions, timeout_s: float, threads: ThreadedUse | None = None
    ) -> TransactionalProducer:
        """A producer that its caller starts and closes."""
        return TransactionalProducer(
            self._node, self._core, transactional_id, options, timeout_s=timeout_s, threads=threads
        )

    def open_producer(self, options: ProducerOptions, threads: ThreadedUse | None = None) -> Producer:
        """A producer that its caller closes."""
        return Producer(self._core.routes, self._core.topics, options, threads)

    def reader(
        self,
        topic: str,
        *,
        partitions: Sequence[int] | None = None,
        start: Start = "earliest",
        options: ReaderOptions = DEFAULT_READER,
    ) -> Reader:
        """An iterator over the records of a topic, or of some of its partitions. Without `partitions` it includes partitions
        added later, unless the option `until_end` is set."""
        return Reader(
            self._core.routes,
            self._core.log,
            self._core.topics,
            topic=topic,
            partitions=partitions,
            start=start,
            options=options,
        )

    @asynccontextmanager
    async def consumer(
        self, group: str, topics: Sequence[str], options: ConsumerOptions = DEFAULT_CONSUMER
    ) -> AsyncIterator[GroupConsumer]:
        """A member of the consumer group for the block; it joins at the first request for records. At the end of the block it
        commits, unless `auto_commit_s` is None, and leaves. If the block raises, the records that it took last do not count as
        processed. A static member (`instance_id`) does not leave."""
        consumer = self.open_consumer(group, topics, options)
        try:
            yield consumer
        except BaseException:
            await consumer.close(processed=False)
            raise
        await consumer.close()

    def open_consumer(self, group: str, topics: Sequence[str], options: ConsumerOptions) -> GroupConsumer:
        """A consumer that its caller closes."""
        if isinstance(topics, str) or not topics:
            raise InvalidRequest(f"a consumer subscribes to one topic or several, as ['orders'], not to {topics!r}")
        return GroupConsumer(
            self._node, self._core, checked_group(group), [checked_topic(each) for each in topics], options
        )

    async def offsets(self, topic: str, at: str | datetime) -> dict[int, int | None]:
        """Each partition's first offset ("earliest"), end ("latest"), or first offset at or after a moment (a datetime or ISO
        8601 text); None if there is none."""
        moment = checked_start(at)
        if isinstance(moment, Mapping):
            raise InvalidRequest("this looks up offsets for 'earliest', 'latest' or a time; it takes no offsets")
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
        """Deletes the records below `before_offset` (-1: all) in both tiers; returns the new first offset."""
        with self._naming_missing(topic):
            return await self._core.log.delete_records(TopicPartition(topic, partition), before_offset)

    # --- topics -------------------------------------------------------------------------------------------------------
    def topics(self) -> list[TopicDescription]:
        """All topics, from this client's copy of the metadata, which the node keeps up to date."""
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
        """Creates a topic; -1 means the node's default."""
        (made,) = await self._core.topics.create(
            [NewTopic(name, partitions, replication_factor, checked_configs(configs or {}))]
        )
        if isinstance(made, LogError):
            raise made
        return self.topic(name)

    async def delete_topic(self, name: str) -> None:
        with self._naming_missing(name):
            (gone,) = await self._core.topics.delete([name])
            if isinstance(gone, LogError):
                raise gone

    async def add_partitions(self, name: str, count: int) -> TopicDescription:
        """Raises the number of partitions to `count` in all."""
        with self._naming_missing(name):
            await self._core.topics.create_partitions(name, count, None)
        return self.topic(name)

    async def configs(self, topic: str) -> dict[str, ConfigEntry]:
        with self._naming_missing(topic):
            entries = await self._core.configs.describe_configs(Resource(ResourceKind.TOPIC, topic))
        return {entry.name: entry for entry in entries}

    async def alter_configs(self, topic: str, changes: Mapping[str, str | None]) -> None:
        """Changes all of these configs or none. A value of None resets a config to its default."""
        alterations = [
            ConfigAlteration(name, AlterOp.DELETE if value is None else AlterOp.SET, value)
            for name, value in checked_configs(changes).items()
        ]
        with self._naming_missing(topic):
            await self._core.configs.alter_configs(Resource(ResourceKind.TOPIC, topic), alterations)

    @contextmanager
    def _naming_missing(self, topic: str) -> Iterator[None]:
        """Raises an error that names the topic and `create_topic` if the cluster lacks the topic. The node's own refusal names
        at most a partition."""
        try:
            yield
        except UnknownTopicOrPartition as refused:
            (found,) = self._core.topics.describe([topic])
            raise (found if isinstance(found, LogError) else refused) from None

    # --- groups -------------------------------------------------------------------------------------------------------
    async def groups(self) -> Mapping[str, str]:
        """All consumer groups, with their states."""
        return await self._groups.list()

    async def group(self, name: str) -> GroupInfo:
        return await self._groups.describe(checked_group(name))

    async def delete_group(self, name: str) -> None:
        """Deletes a group without members, and its offsets."""
        await self._groups.delete(checked_group(name))

    async def group_offsets(self, name: str) -> dict[TopicPartition, int]:
        """The offsets that the group has committed; each is the next one to read."""
        return await self._groups.offsets(checked_group(name))

    async def alter_group_offsets(self, name: str, offsets: Mapping[TopicPartition, int | None]) -> None:
        """Moves offsets of a group without members; None deletes an offset. After an error, some offsets may have been moved;
        `group_offsets` shows which."""
        await self._groups.alter_offsets(checked_group(name), checked_offsets(offsets))

    # --- the bucket ---------------------------------------------------------------------------------------------------
    async def seal(self, topic: str, *, timeout_s: float = SEAL_TIMEOUT_S) -> Sequence[SealedPartition]:
        """Returns once every current record of the topic is in the bucket. Raises RequestTimedOut after `timeout_s`."""
        with self._naming_missing(topic):
            return await self._core.log.seal(topic, wait=True, timeout_ms=round(timeout_s * 1000))

    async def cold_manifests(self, topic: str) -> Sequence[ColdManifest | LogError]:
        """Each partition's manifest in the bucket, or the error that makes it unavailable."""
        with self._naming_missing(topic):
            return await self._core.cold.manifests(topic)

    async def cold_segments(self, topic: str, partition: int) -> AsyncIterator[ColdSegment]:
        """The segments of a partition in the bucket, in offset order."""
        start = 0
        while True:
            with self._naming_missing(topic):
                segments = await self._core.cold.segments(TopicPartition(topic, partition), start)
            if not segments:
                return
            for each in segments:
                yield each
            start = segments[-1].end
