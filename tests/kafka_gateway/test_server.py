"""The server on real sockets: order, endings, bounds. What Kafka 4.2.1 does to a connection was recorded from one."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from grpc_api.contract.topics import NewTopic
from kafka_gateway.admission import ConnectionLimits
from kafka_gateway.connection import Limits
from kafka_gateway.gateway_settings import GatewaySettings
from kafka_gateway.server import REQUESTS_A_TURN, GatewayServer, serve
from storage_tiers.types import TopicPartition
from tests.kafka_gateway.kio_wire import milliseconds, record_batch, request_frame, response
from tests.kafka_gateway.memory_core import MemoryCore

BATCH = record_batch(b"x" * 100)
PARTITION = TopicPartition("topic", 0)
#: Beyond what any of these tests may take; every wait is for a condition.
PATIENCE_S = 20


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, *frames: bytes) -> None:
        self.writer.write(b"".join(frames))

    async def receive(self) -> bytes | None:
        """An answer without its size; None once the server has closed the connection."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                size = struct.unpack(">i", await self.reader.readexactly(4))[0]
                return await self.reader.readexactly(size)
            except (asyncio.IncompleteReadError, ConnectionError):
                return None

    async def correlation(self) -> int | None:
        body = await self.receive()
        return None if body is None else int.from_bytes(body[:4], "big")

    async def ask(self, schema: str, version: int, /, **values: Any) -> Any:
        self.send(request_frame(schema, version, **values))
        body = await self.receive()
        assert body is not None
        return response(schema, version, body)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def serving(directory: Path, **settings: Any) -> AsyncIterator[tuple[MemoryCore, GatewayServer]]:
    core = MemoryCore(str(directory))
    await core.create([NewTopic("topic", partitions=2)])
    server = await serve(core, GatewaySettings(**settings))
    core.port = server.port
    yield core, server
    await server.stop()
    # A thread that sends gives its file back on the loop, when the one who read it may long have left.
    await until(lambda: all(partition.file.users == 1 for partition in core.partitions.values()))
    core.close()


@contextlib.asynccontextmanager
async def connected(server: GatewayServer) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    yield Client(reader, writer)
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


def produce(correlation: int = 1, *, acks: int = 1, partition: int = 0, batch: bytes | None = BATCH) -> bytes:
    data = [{"name": "topic", "partition_data": [{"index": partition, "records": batch}]}]
    return request_frame("produce", 9, correlation=correlation, acks=acks, topic_data=data)


def fetch(
    correlation: int = 1, *, partition: int = 0, offset: int = 0, wait_ms: int = 0, max_bytes: int = 1 << 26
) -> bytes:
    rows = [{"partition": partition, "fetch_offset": offset, "partition_max_bytes": max_bytes}]
    return request_frame(
        "fetch",
        11,
        correlation=correlation,
        replica_id=-1,
        max_wait=milliseconds(wait_ms),
        min_bytes=1,
        session_epoch=-1,
        topics=[{"topic": "topic", "partitions": rows}],
    )


def metadata(correlation: int = 1) -> bytes:
    return request_frame("metadata", 9, correlation=correlation, topics=None)


async def test_what_is_produced_is_fetched(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, server), connected(server) as client:
        client.send(produce(1), produce(2), fetch(3))
        assert [await client.correlation() for _ in range(2)] == [1, 2]
        body = await client.receive()
        assert body is not None
        records = response("fetch", 11, body).responses[0].partitions[0].records
        assert records == BATCH + (1).to_bytes(8, "big") + BATCH[8:]


async def test_a_request_in_single_bytes_is_a_request(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, server), connected(server) as client:
        for byte in produce(5) + metadata(6):
            client.send(bytes([byte]))
            await client.writer.drain()
            await asyncio.sleep(0)
        assert [await client.correlation(), await client.correlation()] == [5, 6]


async def test_answers_leave_in_the_order_of_the_requests(tmp_path: Path) -> None:
    async with serving(tmp_path) as (core, server), connected(server) as client:
        committed = core.partitions[PARTITION].committed = asyncio.get_running_loop().create_future()
        client.send(produce(1, acks=-1), produce(2, acks=-1, partition=1), produce(3), metadata(4), produce(5))
        await until(lambda: core.partitions[PARTITION].next_offset == 2)
        # The metadata waits for the produces, and the last produce for the metadata.
        assert core.partitions[TopicPartition("topic", 1)].next_offset == 1
        committed.set_result(None)
        assert [await client.correlation() for _ in range(5)] == [1, 2, 3, 4, 5]


async def test_a_waiting_fetch_holds_up_its_connection_and_no_other(tmp_path: Path) -> None:
    async with serving(tmp_path) as (core, server), connected(server) as client, connected(server) as other:
        client.send(fetch(1, wait_ms=60_000), produce(2, partition=1))
        await until(lambda: bool(core.partitions[PARTITION].waiters))
        other.send(produce(3))
        assert await other.correlation() == 3
        assert [await client.correlation(), await client.correlation()] == [1, 2]


async def test_produces_without_answers_leave_no_trace_in_the_answers(tmp_path: Path) -> None:
    async with serving(tmp_path) as (core, server), connected(server) as client:
        client.send(produce(1, acks=0), produce(2, acks=0), metadata(3))
        assert await client.correlation() == 3
        assert core.partitions[PARTITION].next_offset == 2


@pytest.mark.parametrize("size", [1 << 20, 3 << 20])
async def test_a_large_batch_goes_in_and_out(tmp_path: Path, size: int) -> None:
    batch = record_batch(bytes(size))
    async with serving(tmp_path) as (_, server), connected(server) as client:
        client.send(produce(1, batch=batch), produce(2, batch=batch))
        assert [await client.correlation(), await client.correlation()] == [1, 2]
        client.send(fetch(3))
        body = await client.receive()
        assert body is not None
        assert len(response("fetch", 11, body).responses[0].partitions[0].records) == 2 * len(batch)
        assert server.held_bytes == 0


async def test_thousands_of_requests_in_one_segment_are_taken_in_shares(tmp_path: Path) -> None:
    async with serving(tmp_path) as (core, server), connected(server) as client, connected(server) as other:
        count = 20 * REQUESTS_A_TURN
        await other.ask("metadata", 9, topics=None)
        client.send(*(produce(place, acks=0) for place in range(count)), metadata(count))
        await until(lambda: core.partitions[PARTITION].next_offset > 0)
        other.send(metadata(7))
        assert await other.correlation() == 7
        assert core.partitions[PARTITION].next_offset < count
        assert await client.correlation() == count
        assert core.partitions[PARTITION].next_offset == count


# --- what ends a connection --------------------------------------------------------------------------------------------
def raw(key: int, version: int, body: bytes = b"\0\4test") -> bytes:
    return struct.pack(">ihhi", 8 + len(body), key, version, 9) + body


@pytest.mark.parametrize(
    "bad",
    [
        raw(999, 0), raw(-1, 0), raw(4, 0), raw(52, 0), raw(10, 0),
        *(raw(0, version) for version in (-1, 0, 1, 2, 14)),
        *(raw(1, version) for version in (3, 19)),
        raw(22, 6), raw(3, 14),
        struct.pack(">i", 0), struct.pack(">i", -1), struct.pack(">i", 104_857_601), b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", struct.pack(">ih", 2, 18), struct.pack(">ihi", 6, 18, 0),
        raw(3, 1, b"\0\4test\0\0"), raw(3, 1, b"\0\4test\x7f\xff\xff\xf0"), raw(3, 1, b"\0\x99test"),
        raw(0, 9, b"\0\4test\0\0\0\1"), raw(18, 3, b"\0\4test\0\0\0"),
        produce(1, acks=0, partition=9),
        # An unserved request is not waited for: only its first bytes have arrived.
        struct.pack(">ihh", 1000, 999, 0),
    ],
    ids=lambda bad: bad[:12].hex(),
)  # fmt: skip
async def test_what_kafka_closes_the_connection_for_is_closed_after_the_answers_before_it(
    tmp_path: Path, bad: bytes
) -> None:
    async with serving(tmp_path) as (core, server), connected(server) as client:
        client.send(produce(1), bad, produce(2))
        assert await client.correlation() == 1
        assert await client.receive() is None
        assert core.partitions[PARTITION].next_offset == 1
        await until(lambda: server.connections == 0)


async def test_an_ending_connection_still_gets_the_answers_that_wait(tmp_path: Path) -> None:
    async with serving(tmp_path) as (core, server), connected(server) as client:
        committed = core.partitions[PARTITION].committed = asyncio.get_running_loop().create_future()
        client.send(produce(1, acks=-1), raw(999, 0))
        await until(lambda: core.partitions[PARTITION].next_offset == 1)
        committed.set_result(None)
        assert await client.correlation() == 1
        assert await client.receive() is None


@pytest.mark.parametrize("version", [5, 99, -1])
async def test_an_unknown_version_of_api_versions_leaves_the_connection_open(tmp_path: Path, version: int) -> None:
    async with serving(tmp_path) as (_, server), connected(server) as client:
        client.send(raw(18, version, b"\0\4test\0\5test\x041.0\0"))
        assert await client.receive() == struct.pack(">ihi3h", 9, 35, 1, 18, 0, 4)
        assert (await client.ask("api_versions", 0)).api_keys


async def test_trailing_bytes_are_ignored_as_kafka_does(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, server), connected(server) as client:
        client.send(raw(3, 1, b"\0\4test\0\0\0\0abc"), raw(18, 0, b"\0\4testabc"))
        assert [await client.correlation(), await client.correlation()] == [9, 9]


@pytest.mark.parametrize("seed", range(20))
async def test_garbage_harms_nobody(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    async with serving(tmp_path) as (core, server), connected(server) as good:
        for _ in range(10):
            async with connected(server) as client:
                size = chance.randrange(60)
                key, version = chance.choice(sorted(server._apis)), chance.randrange(12)
                head = struct.pack(">ihhi", 8 + size, key, version, 1) if chance.random() < 0.8 else b""
                client.send(head + chance.randbytes(size))
                good.send(produce(1))
                assert await good.correlation() == 1
        await until(lambda: server.connections == 1)
        assert core.partitions[PARTITION].next_offset == 10


async def test_a_request_that_the_core_gives_up_is_answered(tmp_path: Path) -> None:
    async with serving(tmp_path) as (core, server), connected(server) as client:
        client.send(fetch(1, wait_ms=60_000))
        await until(lambda: bool(core.partitions[PARTITION].waiters))
        for task in asyncio.all_tasks():
            if "_fetch_later" in repr(task.get_coro()):
                task.cancel()
        body = await client.receive()
        assert body is not None
        assert int(response("fetch", 11, body).error_code) == 7
        assert (await client.ask("metadata", 9, topics=None)).topics


# --- bounds ------------------------------------------------------------------------------------------------------------
async def test_a_client_that_does_not_read_stops_being_served(tmp_path: Path) -> None:
    batch = record_batch(bytes(1 << 20))
    async with serving(tmp_path) as (core, server), connected(server) as client:
        client.send(produce(1, batch=batch))
        assert await client.correlation() == 1
        before = server.counters.requests
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.send(*(fetch(place) for place in range(100)))
        await until(lambda: server.counters.requests > before)
        started = -1
        while started != server.counters.requests:
            started = server.counters.requests
            await asyncio.sleep(0.05)
        assert server.counters.requests - before < 50
        # Whoever else is there is served meanwhile.
        async with connected(server) as other:
            other.send(metadata(7))
            assert await other.correlation() == 7
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert [await client.correlation() for _ in range(100)] == list(range(100))
        await until(lambda: core.partitions[PARTITION].file.users == 1)


async def test_requests_that_are_not_whole_have_a_bound_together(tmp_path: Path) -> None:
    async with serving(tmp_path, receiving_bytes=3 << 20) as (_, server), connected(server) as quiet:
        quiet.send(produce(1, batch=record_batch(bytes(2 << 20)))[: 3 << 19])
        await until(lambda: server.held_bytes > 0)
        async with connected(server) as greedy:
            greedy.send(produce(2, batch=record_batch(bytes(9 << 20)))[: 4 << 20])
            assert await greedy.receive() is None
        assert server.connections == 1


async def test_requests_that_never_get_whole_lock_nobody_out(tmp_path: Path) -> None:
    begun = produce(1, batch=record_batch(bytes(2 << 20)))
    async with serving(tmp_path, receiving_bytes=9 << 19) as (_, server), connected(server) as stalled:
        stalled.send(begun[: 5 << 18])
        await until(lambda: server.held_bytes > 0)
        async with connected(server) as stalled_later:
            stalled_later.send(begun[: 5 << 18])
            await until(lambda: server.counters.received_bytes >= 2 * (5 << 18))
            async with connected(server) as honest:
                honest.send(produce(2, batch=record_batch(bytes(900_000))))
                assert await honest.correlation() == 2
                assert await stalled.receive() is None


async def test_the_buffer_of_a_quiet_client_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafka_gateway.server.SWEEP_S", 0.02)
    batch = record_batch(bytes(200_000))
    async with serving(tmp_path) as (_, server), connected(server) as client:
        for half in (slice(0, 100_000), slice(100_000, None)):
            received = server.counters.received_bytes
            client.send(produce(1, batch=batch)[half])
            await until(lambda: server.counters.received_bytes > received)  # noqa: B023
        assert await client.correlation() == 1
        await until(lambda: server.held_bytes == 0)
        client.send(produce(2, batch=batch))
        assert await client.correlation() == 2


async def test_more_connections_than_allowed_wait_until_one_closes(tmp_path: Path) -> None:
    async with serving(tmp_path, connections=ConnectionLimits(total=2)) as (_, server):
        async with connected(server) as first, connected(server):
            await first.ask("metadata", 9, topics=None)
            await until(lambda: server.connections == 2)
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            third = Client(reader, writer)
            third.send(metadata(3))
            first.writer.close()
            assert await third.correlation() == 3
            writer.close()
        await until(lambda: server.connections == 0)


async def test_one_connection_too_many_of_an_address_is_closed_until_the_bound_is_raised(tmp_path: Path) -> None:
    async with serving(tmp_path, connections=ConnectionLimits(per_address=1)) as (_, server):
        async with connected(server) as first:
            await first.ask("metadata", 9, topics=None)
            async with connected(server) as second:
                assert await second.receive() is None
            server.limit_connections(ConnectionLimits(per_address=1, overrides={"127.0.0.1": 2}))
            async with connected(server) as third:
                third.send(metadata(3))
                assert await third.correlation() == 3
                assert server.connections == 2
        await until(lambda: server.connections == 0)


async def test_connections_beyond_the_rate_wait_for_the_next_second(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, connections=ConnectionLimits(a_second=1)) as (_, server),
        connected(server) as first,
        connected(server) as second,
    ):
        for client in (first, second):
            client.send(metadata(3))
            assert await client.correlation() == 3


async def test_an_idle_connection_is_closed_and_a_waiting_one_is_not(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, connections_max_idle_ms=50) as (core, server),
        connected(server) as idle,
        connected(server) as waiting,
    ):
        waiting.send(fetch(1, wait_ms=60_000))
        assert await idle.receive() is None
        assert server.connections == 1
        async with connected(server) as other:
            other.send(produce(2))
            assert await other.correlation() == 2
        assert await waiting.correlation() == 1
        assert core.partitions[PARTITION].next_offset == 1


# --- clients that go ---------------------------------------------------------------------------------------------------
async def test_a_client_that_goes_ends_its_waiting_fetch(tmp_path: Path) -> None:
    async with serving(tmp_path) as (core, server):
        async with connected(server) as client:
            client.send(fetch(1, wait_ms=60_000))
            await until(lambda: bool(core.partitions[PARTITION].waiters))
        await until(lambda: server.connections == 0)
        assert all(waiter.done() for waiter in core.partitions[PARTITION].waiters)


async def test_what_a_client_sent_before_it_went_is_taken(tmp_path: Path) -> None:
    async with serving(tmp_path) as (core, server):
        async with connected(server) as client:
            client.send(fetch(1, wait_ms=60_000), *(produce(place, acks=0) for place in range(2, 12)))
        await until(lambda: server.connections == 0)
        assert core.partitions[PARTITION].next_offset == 10


async def test_files_are_released_when_the_client_goes_while_they_are_sent(tmp_path: Path) -> None:
    batch = record_batch(bytes(8 << 20))
    async with serving(tmp_path) as (core, server):
        file = core.partitions[PARTITION].file
        async with connected(server) as client:
            client.send(produce(1, batch=batch), produce(2, batch=batch))
            assert [await client.correlation(), await client.correlation()] == [1, 2]
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            client.send(fetch(3))
            await until(lambda: file.users == 2)
            client.writer.transport.abort()
        await until(lambda: server.connections == 0)
        # A thread that sends lets go of it when it is done.
        await until(lambda: file.users == 1)


async def test_small_answers_overtake_a_large_one_that_a_thread_sends(tmp_path: Path) -> None:
    batch = record_batch(bytes(16 << 20))
    async with serving(tmp_path) as (core, server), connected(server) as client, connected(server) as other:
        sender, file = server._sender, core.partitions[PARTITION].file
        client.send(produce(1, batch=batch), metadata(2))
        assert [await client.correlation(), await client.correlation()] == [1, 2]
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        for round_number in range(3):
            client.send(fetch(3), metadata(4))
            # Its socket is full, and what it sends next waits for it.
            await until(lambda: sender.sends_in_threads > 0 and file.users == 2)
            other.send(metadata(5))
            assert await other.correlation() == 5
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            body = await client.receive()
            assert body is not None
            assert len(response("fetch", 11, body).responses[0].partitions[0].records) == len(batch)
            assert await client.correlation() == 4
            assert sender.sends_in_threads > round_number
        await until(lambda: file.users == 1)


# --- the end -----------------------------------------------------------------------------------------------------------
async def test_stopping_finishes_what_is_worth_an_answer_and_closes(tmp_path: Path) -> None:
    async with serving(tmp_path) as (core, server), connected(server) as producer, connected(server) as consumer:
        committed = core.partitions[PARTITION].committed = asyncio.get_running_loop().create_future()
        producer.send(produce(1, acks=-1))
        consumer.send(fetch(2, offset=1, wait_ms=60_000))
        await until(lambda: core.partitions[PARTITION].next_offset == 1 and server.counters.requests == 2)
        stopping = asyncio.create_task(server.stop())
        asyncio.get_running_loop().call_later(0.02, committed.set_result, None)
        assert await producer.correlation() == 1
        assert await producer.receive() is None
        assert await consumer.receive() is None
        await stopping
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", server.port)


async def test_stopping_does_not_wait_longer_than_it_may(tmp_path: Path) -> None:
    async with serving(tmp_path, stop_timeout_ms=10) as (core, server), connected(server) as client:
        core.partitions[PARTITION].committed = asyncio.get_running_loop().create_future()
        client.send(produce(1, acks=-1))
        await until(lambda: core.partitions[PARTITION].next_offset == 1)
        async with asyncio.timeout(PATIENCE_S):
            await server.stop()
        assert await client.receive() is None


async def test_a_handler_that_breaks_ends_its_connection_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as (_, server), connected(server) as client, connected(server) as other:

        def broken(*_: Any) -> Any:
            raise ZeroDivisionError("a bug")

        lowest, highest, _, meter = server._apis[0]
        monkeypatch.setattr(server, "_apis", {**server._apis, 0: (lowest, highest, broken, meter)})
        client.send(produce(1))
        assert await client.receive() is None
        assert "a bug" in caplog.text
        assert server.counters.failures == 1
        other.send(metadata(2))
        assert await other.correlation() == 2


async def test_limits_are_kafkas_defaults() -> None:
    settings = GatewaySettings()
    assert settings.limits == Limits(request_max_bytes=100 << 20)
    assert settings.connections_max_idle_ms == 600_000


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_clients_send_in_whatever_pieces_is_answered_in_order(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    limits = Limits(unsent_bytes=2000, requests_in_flight=3)
    async with serving(tmp_path, limits=limits) as (core, server):
        loop = asyncio.get_running_loop()

        def commit_later() -> None:
            core.partitions[PARTITION].committed = committed = loop.create_future()
            loop.call_later(chance.random() / 200, committed.set_result, None)

        async def converse() -> None:
            async with connected(server) as client:
                expected, stream = [], b""
                for correlation in range(1, 60):
                    kind = chance.choice((0, 1, -1, "fetch", "wait", "metadata"))
                    if kind == "fetch":
                        stream += fetch(correlation, max_bytes=chance.choice((200, 5000)))
                    elif kind == "wait":
                        stream += fetch(correlation, partition=1, wait_ms=2)
                    elif kind == "metadata":
                        stream += metadata(correlation)
                    else:
                        stream += produce(correlation, acks=int(kind))
                    expected += [] if kind == 0 else [correlation]
                reading = asyncio.create_task(_read_slowly(client, len(expected), chance))
                while stream:
                    size = chance.choice((1, 3, 50, 400, 5000))
                    commit_later()
                    client.send(stream[:size])
                    stream = stream[size:]
                    await asyncio.sleep(0)
                assert await reading == expected

        await asyncio.gather(*(converse() for _ in range(6)))
        assert all(partition.file.users == 1 for partition in core.partitions.values())


async def _read_slowly(client: Client, answers: int, chance: random.Random) -> list[int | None]:
    found = []
    for _ in range(answers):
        found.append(await client.correlation())
        if chance.random() < 0.2:
            await asyncio.sleep(0.001)
    return found
