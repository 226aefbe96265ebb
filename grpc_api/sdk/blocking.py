"""The client for programs without an event loop: the same calls, blocking.

One background thread runs the asyncio clients; any number of threads may use one BlockingClient and its producers. One
thread at a time may use a reader or a consumer. Options, errors and guarantees are those of the asyncio client.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import grpc.aio

from grpc_api.contract.cold import ColdManifest, ColdSegment
from grpc_api.contract.log import SealedPartition
from grpc_api.contract.topics import ConfigEntry, TopicDescription
from grpc_api.sdk.client import (
    DEFAULT_CONSUMER,
    DEFAULT_PRODUCER,
    DEFAULT_READER,
    SEAL_TIMEOUT_S,
    TRANSACTION_TIMEOUT_S,
    Client,
)
from grpc_api.sdk.consumer import GroupConsumer
from grpc_api.sdk.producer import Producer, ThreadedUse
from grpc_api.sdk.reader import Reader
from grpc_api.sdk.record_handles import RecordHandle, RecordHandles
from grpc_api.sdk.transactional import OngoingTransaction, TransactionalProducer
from grpc_api.sdk.values import (
    ConsumerOptions,
    GroupInfo,
    Header,
    Message,
    ProducerOptions,
    ReaderOptions,
    Sent,
    Start,
)
from storage_tiers.errors import LogError
from storage_tiers.types import TopicPartition

Answer = TypeVar("Answer")

#: Records that a reader takes from the loop at a time.
MESSAGES_A_TURN = 500


class _Loop:
    """An event loop in a thread, one for all clients of the process and for its whole life: gRPC has one poller, which logs
    errors when a loop that it used is closed."""

    _shared: _Loop | None = None
    _starting = threading.Lock()

    @classmethod
    def shared(cls) -> _Loop:
        with cls._starting:
            if cls._shared is None:
                cls._shared = cls()
            return cls._shared

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        # Never released: otherwise the poller ends with the last channel, in any thread, and closes the socket that this loop
        # uses. The loop then logs a bad file descriptor. This call comes first on the loop, because the first call binds the
        # poller to its loop.
        self.loop.call_soon(grpc.aio.init_grpc_aio)
        self._thread = threading.Thread(target=self.loop.run_forever, name="tidelog-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Answer], timeout_s: float | None = None) -> Answer:
        """Runs the coroutine on the loop. After `timeout_s` it is cancelled, and TimeoutError is raised."""
        future = asyncio.run_coroutine_threadsafe(_within(work, timeout_s), self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


async def _within(work: Coroutine[Any, Any, Answer], timeout_s: float | None) -> Answer:
    async with asyncio.timeout(timeout_s):
        return await work


class BlockingProducer:
    """Made by `BlockingClient.producer`. `opening` makes the asyncio producer; it is called on the loop."""

    def __init__(self, loop: _Loop, opening: Callable[[ThreadedUse], Producer]) -> None:
        self._loop = loop
        self._room = threading.Condition()
        handles = RecordHandles()
        threads = ThreadedUse(partial(RecordHandle, handles), handles.ending, self._has_room)
        self._producer = loop.run(_now(opening, threads))

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Future[Sent]:
        """Adds a record to its batch; blocks only when the buffer is full, until half of it is free. The future returns the
        record's partition and offset, or raises the LogError with which it failed. It cannot be cancelled."""
        try:
            handle = self._producer.put(topic, value, key, headers, partition, timestamp)
            if handle is None:
                handle = self._put_once_there_is_room(topic, value, key, headers, partition, timestamp)
        except LogError as error:
            refused: Future[Sent] = Future()
            refused.set_exception(error)
            return refused
        accepted: Future[Sent] = handle
        return accepted

    def _put_once_there_is_room(self, *record: Any) -> Any:
        """As the producer's `put`, but waits while the buffer is full."""
        with self._room:
            while (handle := self._producer.put(*record)) is None:
                self._room.wait()
        return handle

    def _has_room(self) -> None:
        with self._room:
            self._room.notify_all()

    def flush(self) -> None:
        """Returns once every record sent so far is acknowledged or has failed."""
        self._loop.run(self._producer.flush())

    def _close(self) -> None:
        self._loop.run(self._producer.close())


class BlockingTransaction:
    """Made by `BlockingTransactionalProducer.transaction`; over at the end of its block."""

    def __init__(self, loop: _Loop, records: BlockingProducer, opened: OngoingTransaction) -> None:
        self._loop = loop
        self._records = records
        self._opened = opened

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Future[Sent]:
        """As `BlockingProducer.send`. Readers of committed records see the record once the transaction is committed."""
        self._opened.check()
        return self._records.send(topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp)

    def send_offsets(
        self, group: str | BlockingGroupConsumer, offsets: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """Commits a group's offsets with the transaction, as in the asyncio client."""
        member = group if isinstance(group, str) else group._consumer
        self._loop.run(self._opened.send_offsets(member, offsets))


class BlockingTransactionalProducer:
    """Made by `BlockingClient.transactional_producer`. One transaction at a time."""

    def __init__(self, loop: _Loop, opening: Callable[[ThreadedUse], TransactionalProducer]) -> None:
        self._loop = loop
        self._records = BlockingProducer(loop, self._opened(opening))

    def _opened(self, opening: Callable[[ThreadedUse], TransactionalProducer]) -> Callable[[ThreadedUse], Producer]:
        def opened(threads: ThreadedUse) -> Producer:
            self._producer = opening(threads)
            return self._producer.records

        return opened

    @contextmanager
    def transaction(self) -> Iterator[BlockingTransaction]:
        """A transaction for the block: committed at its end, aborted if the block raises, as in the asyncio client."""
        block = self._producer.transaction()
        opened = self._loop.run(block.__aenter__())
        try:
            yield BlockingTransaction(self._loop, self._records, opened)
        except BaseException as error:
            self._loop.run(block.__aexit__(type(error), error, error.__traceback__))
            raise
        self._loop.run(block.__aexit__(None, None, None))

    def _start(self) -> None:
        self._loop.run(self._producer.start())

    def _close(self) -> None:
        self._loop.run(self._producer.close())


class BlockingReader:
    """Made by `BlockingClient.reader`: `for message in reader`. `position` is the next offset of each partition that has
    been read from."""

    def __init__(self, loop: _Loop, reader: Reader) -> None:
        self._loop = loop
        self._reader = reader
        self._held: deque[Message] = deque()
        self.position: dict[int, int] = {}

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        message = self.poll(None)
        if message is None:
            raise StopIteration
        return message

    def poll(self, timeout_s: float | None) -> Message | None:
        """The next record; None if none arrives within `timeout_s`, or at the end with `until_end`."""
        if not self._held:
            try:
                self._held.extend(self._loop.run(self._reader.take(MESSAGES_A_TURN), timeout_s))
            except TimeoutError:
                return None
        if not self._held:
            return None
        message = self._held.popleft()
        self.position[message.partition] = message.offset + 1
        return message

    def seek(self, start: Start, partition: int | None = None) -> None:
        """Continues from `start`, in this partition or in all partitions."""
        self._loop.run(self._reader.seek(start, partition))
        kept = [message for message in self._held if partition not in (None, message.partition)]
        self._held = deque(kept)

    def close(self) -> None:
        self._loop.run(self._reader.close())


class BlockingGroupConsumer:
    """Made by `BlockingClient.consumer`: `for message in consumer`. It takes records straight from the asyncio consumer, which
    changes its held records only while this thread waits for it."""

    def __init__(self, loop: _Loop, consumer: GroupConsumer) -> None:
        self._loop = loop
        self._consumer = consumer

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        while (message := self.poll(None)) is None:
            pass
        return message

    def poll(self, timeout_s: float | None) -> Message | None:
        """The next record; None if none arrives within `timeout_s`."""
        if self._consumer.is_disturbed or not self._consumer.handover:
            try:
                self._loop.run(self._consumer.fill(), timeout_s)
            except TimeoutError:
                return None
        return self._consumer.handover.next()

    def take(self, most: int = MESSAGES_A_TURN, timeout_s: float | None = None) -> list[Message]:
        """Up to `most` records, as soon as there is at least one; an empty list if none arrives within `timeout_s`."""
        return self._loop.run(self._consumer.take(most, timeout_s))

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that this member reads now."""
        return self._consumer.assignment

    @property
    def position(self) -> Mapping[TopicPartition, int]:
        """The next offset of each partition, below which the program has processed everything."""
        return self._consumer.position

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commits the offsets of all records taken so far, or these offsets."""
        self._loop.run(self._consumer.commit(offsets))

    def _close(self, *, processed: bool) -> None:
        self._loop.run(self._consumer.close(processed=processed))


class BlockingClient:
    """Made by `connect`."""

    def __init__(self, loop: _Loop, client: Client) -> None:
        self._loop = loop
        self._client = client

    @classmethod
    @contextmanager
    def connect(cls, address: str, *, timeout_s: float = 30.0) -> Iterator[BlockingClient]:
        """A client of the node whose gRPC listener is at `address` (HOST:PORT, or several as in `Client.connect`), until the
        block ends."""
        loop = _Loop.shared()
        connection = Client.connect(address, timeout_s=timeout_s)
        client = loop.run(connection.__aenter__())
        try:
            yield cls(loop, client)
        finally:
            loop.run(connection.__aexit__(None, None, None))

    # --- records ------------------------------------------------------------------------------------------------------
    @contextmanager
    def producer(self, options: ProducerOptions = DEFAULT_PRODUCER) -> Iterator[BlockingProducer]:
        """A producer for the block, which ends once every record is acknowledged or has failed."""
        producer = BlockingProducer(self._loop, partial(self._client.open_producer, options))
        try:
            yield producer
        finally:
            producer._close()

    @contextmanager
    def transactional_producer(
        self,
        transactional_id: str,
        options: ProducerOptions = DEFAULT_PRODUCER,
        *,
        timeout_s: float = TRANSACTION_TIMEOUT_S,
    ) -> Iterator[BlockingTransactionalProducer]:
        """A producer of transactions for the block, as in the asyncio client. One thread at a time begins and ends
        them."""
        opening = partial(self._client.open_transactional_producer, transactional_id, options, timeout_s)
        producer = BlockingTransactionalProducer(self._loop, opening)
        try:
            producer._start()
            yield producer
        finally:
            producer._close()

    @contextmanager
    def reader(
        self,
        topic: str,
        *,
        partitions: Sequence[int] | None = None,
        start: Start = "earliest",
        options: ReaderOptions = DEFAULT_READER,
    ) -> Iterator[BlockingReader]:
        made = self._client.reader(topic, partitions=partitions, start=start, options=options)
        reader = BlockingReader(self._loop, made)
        try:
            yield reader
        finally:
            reader.close()

    @contextmanager
    def consumer(
        self, group: str, topics: Sequence[str], options: ConsumerOptions = DEFAULT_CONSUMER
    ) -> Iterator[BlockingGroupConsumer]:
        """A member of the consumer group for the block, as in the asyncio client. One thread at a time uses it."""
        opened = self._loop.run(_now(self._client.open_consumer, group, topics, options))
        consumer = BlockingGroupConsumer(self._loop, opened)
        try:
            yield consumer
        except BaseException:
            consumer._close(processed=False)
            raise
        consumer._close(processed=True)

    def offsets(self, topic: str, at: str | datetime) -> dict[int, int | None]:
        return self._loop.run(self._client.offsets(topic, at))

    def delete_records(self, topic: str, partition: int, before_offset: int) -> int:
        return self._loop.run(self._client.delete_records(topic, partition, before_offset))

    # --- topics -------------------------------------------------------------------------------------------------------
    def topics(self) -> list[TopicDescription]:
        return self._loop.run(_now(self._client.topics))

    def topic(self, name: str) -> TopicDescription:
        return self._loop.run(_now(self._client.topic, name))

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
    ) -> TopicDescription:
        return self._loop.run(
            self._client.create_topic(
                name, partitions=partitions, replication_factor=replication_factor, configs=configs
            )
        )

    def delete_topic(self, name: str) -> None:
        self._loop.run(self._client.delete_topic(name))

    def add_partitions(self, name: str, count: int) -> TopicDescription:
        return self._loop.run(self._client.add_partitions(name, count))

    def configs(self, topic: str) -> dict[str, ConfigEntry]:
        return self._loop.run(self._client.configs(topic))

    def alter_configs(self, topic: str, changes: Mapping[str, str | None]) -> None:
        self._loop.run(self._client.alter_configs(topic, changes))

    # --- groups -------------------------------------------------------------------------------------------------------
    def groups(self) -> Mapping[str, str]:
        return self._loop.run(self._client.groups())

    def group(self, name: str) -> GroupInfo:
        return self._loop.run(self._client.group(name))

    def delete_group(self, name: str) -> None:
        self._loop.run(self._client.delete_group(name))

    def group_offsets(self, name: str) -> dict[TopicPartition, int]:
        return self._loop.run(self._client.group_offsets(name))

    def alter_group_offsets(self, name: str, offsets: Mapping[TopicPartition, int | None]) -> None:
        self._loop.run(self._client.alter_group_offsets(name, offsets))

    # --- the bucket ---------------------------------------------------------------------------------------------------
    def seal(self, topic: str, *, timeout_s: float = SEAL_TIMEOUT_S) -> Sequence[SealedPartition]:
        return self._loop.run(self._client.seal(topic, timeout_s=timeout_s))

    def cold_manifests(self, topic: str) -> Sequence[ColdManifest | LogError]:
        return self._loop.run(self._client.cold_manifests(topic))

    def cold_segments(self, topic: str, partition: int) -> list[ColdSegment]:
        return self._loop.run(_all_segments(self._client, topic, partition))


async def _now(call: Callable[..., Answer], *arguments: Any) -> Answer:
    """Runs a synchronous call on the loop's thread, where the client belongs."""
    return call(*arguments)


async def _all_segments(client: Client, topic: str, partition: int) -> list[ColdSegment]:
    return [each async for each in client.cold_segments(topic, partition)]
