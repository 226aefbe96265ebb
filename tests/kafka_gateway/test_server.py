"""The server on real sockets: order, connection closes, bounds. Kafka's behaviour was recorded from a 4.2.1 broker."""

from __future__ import annotations

import asyncio
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from kafka_gateway.dispatcher import REQUESTS_A_TURN
from kafka_gateway.settings import GatewaySettings, Limits
from storage_tiers.types import TopicPartition
from tests.kafka_gateway.kio_frames import record_batch, response
from tests.kafka_gateway.server_support import (
    BATCH,
    PARTITION,
    PATIENCE_S,
    Client,
    connected,
    fetch,
    metadata,
    produce,
    serving,
    until,
)


async def test_produced_records_are_fetched(tmp_path: Path) -> None:
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
        client.send(fetch(1, wait_ms=600_000), produce(2, partition=1))
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
async def test_a_large_batch_is_produced_and_fetched(tmp_path: Path, size: int) -> None:
    batch = record_batch(bytes(size))
    async with serving(tmp_path) as (_, server), connected(server) as client:
        client.send(produce(1, batch=batch), produce(2, batch=batch))
        assert [await client.correlation(), await client.correlation()] == [1, 2]
        client.send(fetch(3))
        body = await client.receive()
        assert body is not None
        assert len(response("fetch", 11, body).responses[0].partitions[0].records) == 2 * len(batch)
        assert server.held_bytes == 0


async def test_thousands_of_requests_in_one_segment_are_handled_in_shares(tmp_path: Path) -> None:
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


# --- connection closes -------------------------------------------------------------------------------------------------
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
        # The server closes on an unserved API as soon as the header arrives, without waiting for the body.
        struct.pack(">ihh", 1000, 999, 0),
    ],
    ids=lambda bad: bad[:12].hex(),
)  # fmt: skip
async def test_errors_that_close_the_connection_do_so_after_earlier_answers(tmp_path: Path, bad: bytes) -> None:
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
async def test_garbage_harms_no_other_client(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    async with serving(tmp_path) as (core, server), connected(server) as good:
        for _ in range(10):
            async with connected(server) as client:
                size = chance.randrange(60)
                key, version = chance.choice(sorted(server._dispatcher.apis)), chance.randrange(12)
                head = struct.pack(">ihhi", 8 + size, key, version, 1) if chance.random() < 0.8 else b""
                client.send(head + chance.randbytes(size))
                good.send(produce(1))
                assert await good.correlation() == 1
        await until(lambda: server.connections == 1)
        assert core.partitions[PARTITION].next_offset == 10


async def test_a_request_that_the_core_gives_up_is_answered(tmp_path: Path) -> None:
    async with serving(tmp_path) as (core, server), connected(server) as client:
        client.send(fetch(1, wait_ms=600_000))
        await until(lambda: bool(core.partitions[PARTITION].waiters))
        for task in asyncio.all_tasks():
            if "_fetch_later" in repr(task.get_coro()):
                task.cancel()
        body = await client.receive()
        assert body is not None
        assert int(response("fetch", 11, body).error_code) == 7
        assert (await client.ask("metadata", 9, topics=None)).topics


# --- shutdown ----------------------------------------------------------------------------------------------------------
async def test_stopping_answers_pending_requests_and_closes(tmp_path: Path) -> None:
    async with serving(tmp_path) as (core, server), connected(server) as producer, connected(server) as consumer:
        committed = core.partitions[PARTITION].committed = asyncio.get_running_loop().create_future()
        producer.send(produce(1, acks=-1))
        consumer.send(fetch(2, offset=1, wait_ms=600_000))
        await until(lambda: core.partitions[PARTITION].next_offset == 1 and server.counters.requests == 2)
        stopping = asyncio.create_task(server.stop())
        asyncio.get_running_loop().call_later(0.02, committed.set_result, None)
        assert await producer.correlation() == 1
        assert await producer.receive() is None
        assert await consumer.receive() is None
        await stopping
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", server.port)


async def test_stopping_is_bounded_in_time(tmp_path: Path) -> None:
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

        lowest, highest, _, metrics = server._dispatcher.apis[0]
        monkeypatch.setattr(
            server._dispatcher, "apis", {**server._dispatcher.apis, 0: (lowest, highest, broken, metrics)}
        )
        client.send(produce(1))
        assert await client.receive() is None
        assert "a bug" in caplog.text
        assert server.counters.failures == 1
        other.send(metadata(2))
        assert await other.correlation() == 2


@pytest.mark.parametrize("watched_by_loop", [0, 8])
async def test_a_turn_that_breaks_still_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watched_by_loop: int
) -> None:
    """Otherwise records that coordinators decided in it would stay out of the log until the next turn."""
    monkeypatch.setattr("kafka_gateway.server.WATCHED_BY_LOOP", watched_by_loop)
    async with serving(tmp_path) as (core, server), connected(server) as client, connected(server) as other:
        written: list[str] = []

        def breaks(*_: object) -> None:
            core.turns.add(lambda: written.append("at the end"))
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(server, "_readable", breaks)
            client.send(metadata(1))
            await until(lambda: bool(written))
        other.send(metadata(2))
        assert await other.correlation() == 2


async def test_limits_are_kafkas_defaults() -> None:
    settings = GatewaySettings()
    assert settings.limits == Limits(request_max_bytes=100 << 20)
    assert settings.connections_max_idle_ms == 600_000


@pytest.mark.parametrize("seed", range(4))
async def test_requests_are_answered_in_order_for_any_split_into_pieces(tmp_path: Path, seed: int) -> None:
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
