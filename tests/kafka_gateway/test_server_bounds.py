"""Bounds of the gateway, and clients that leave, over real sockets: no client holds up others or leaves anything behind."""

from __future__ import annotations

import asyncio
import select
import struct
from pathlib import Path

import pytest

from kafka_gateway import sender as sending
from kafka_gateway.connection import PRODUCE
from kafka_gateway.settings import ConnectionLimits
from tests.kafka_gateway.kio_frames import record_batch, response
from tests.kafka_gateway.server_support import (
    PARTITION,
    Client,
    connected,
    fetch,
    metadata,
    produce,
    serving,
    until,
)
from tests.kafka_gateway.test_waiting_groups import join, with_groups


async def test_a_client_that_does_not_read_stops_being_served(tmp_path: Path) -> None:
    batch = record_batch(bytes(1 << 20))
    async with serving(tmp_path) as (core, server), connected(server) as client:
        client.send(produce(1, batch=batch))
        assert await client.correlation() == 1
        before = server.counters.requests
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.send(*(fetch(place) for place in range(100)))
        await until(lambda: server.counters.requests > before)
        (session,) = server._sessions.values()
        # The client accepts no bytes, and the unsent responses let no further request start: a stable state.
        await until(lambda: session.connection.congested and bool(session.events & select.EPOLLOUT))
        assert server.counters.requests - before < 50
        # Other clients are served meanwhile.
        async with connected(server) as other:
            other.send(metadata(7))
            assert await other.correlation() == 7
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert [await client.correlation() for _ in range(100)] == list(range(100))
        await until(lambda: core.partitions[PARTITION].file.users == 1)


async def test_incomplete_requests_have_one_bound_together(tmp_path: Path) -> None:
    async with serving(tmp_path, request_memory_bytes=3 << 20) as (_, server), connected(server) as quiet:
        quiet.send(produce(1, batch=record_batch(bytes(2 << 20)))[: 3 << 19])
        await until(lambda: server.held_bytes > 0)
        async with connected(server) as greedy:
            greedy.send(produce(2, batch=record_batch(bytes(9 << 20)))[: 4 << 20])
            assert await greedy.receive() is None
        assert server.connections == 1


async def test_incomplete_requests_lock_no_client_out(tmp_path: Path) -> None:
    begun = produce(1, batch=record_batch(bytes(2 << 20)))
    async with serving(tmp_path, request_memory_bytes=9 << 19) as (_, server), connected(server) as stalled:
        stalled.send(begun[: 5 << 18])
        await until(lambda: server.held_bytes > 0)
        async with connected(server) as stalled_later:
            stalled_later.send(begun[: 5 << 18])
            await until(lambda: server.counters.received_bytes >= 2 * (5 << 18))
            async with connected(server) as honest:
                honest.send(produce(2, batch=record_batch(bytes(900_000))))
                assert await honest.correlation() == 2
                assert await stalled.receive() is None


async def test_incomplete_requests_of_one_address_close_no_other_addresses_connection(tmp_path: Path) -> None:
    """Many connections of one address fill the pool; the largest request of all is another address's."""
    large = produce(4, batch=record_batch(bytes(700_000)))
    unfinished = struct.pack(">ihhi", 64 << 10, 0, 9, 1) + bytes(60_000)
    async with serving(tmp_path, request_memory_bytes=4 << 20) as (_, server), connected(server) as producer:
        producer.send(large[:500_000])
        await until(lambda: server.counters.received_bytes >= 500_000)
        peers = []
        for _ in range(20):
            _, writer = await asyncio.open_connection("127.0.0.1", server.port, local_addr=("127.0.0.2", 0))
            writer.write(unfinished)
            peers.append(writer)
        await until(lambda: server.counters.connections_closed > 0)
        producer.send(large[500_000:])
        assert await producer.correlation() == 4
        for writer in peers:
            writer.close()
        await until(lambda: server.connections == 1)
        assert server.held_bytes == sum(server._memory.held_by_address.values())
        assert set(server._memory.held_by_address) <= {"127.0.0.1"}


async def test_the_buffer_of_an_idle_client_is_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_connections_of_an_address_beyond_its_bound_are_closed_until_the_bound_is_raised(tmp_path: Path) -> None:
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
        waiting.send(fetch(1, wait_ms=600_000))
        assert await idle.receive() is None
        assert server.connections == 1
        async with connected(server) as other:
            other.send(produce(2))
            assert await other.correlation() == 2
        assert await waiting.correlation() == 1
        assert core.partitions[PARTITION].next_offset == 1


# --- clients that go ---------------------------------------------------------------------------------------------------
async def test_a_client_that_leaves_ends_its_delayed_fetch(tmp_path: Path) -> None:
    async with serving(tmp_path) as (core, server):
        async with connected(server) as client:
            client.send(fetch(1, wait_ms=600_000))
            await until(lambda: bool(core.partitions[PARTITION].waiters))
        await until(lambda: server.connections == 0)
        assert all(waiter.done() for waiter in core.partitions[PARTITION].waiters)


async def test_requests_received_before_the_client_left_are_handled(tmp_path: Path) -> None:
    async with serving(tmp_path) as (core, server):
        async with connected(server) as client:
            client.send(fetch(1, wait_ms=600_000), *(produce(place, acks=0) for place in range(2, 12)))
        await until(lambda: server.connections == 0)
        assert core.partitions[PARTITION].next_offset == 10


async def test_a_client_that_leaves_ends_the_waits_of_its_requests(tmp_path: Path) -> None:
    async with serving(tmp_path) as (core, server):
        core.partitions[PARTITION].committed = asyncio.get_running_loop().create_future()
        async with connected(server) as client:
            client.send(produce(1, acks=-1))
            await until(lambda: server.pending_replies(PRODUCE) == 1)
            (session,) = server._sessions.values()
            ((_, wait),) = session.futures.values()
        await until(lambda: server.connections == 0)
        assert wait.done()


async def test_the_loop_watches_few_connections_itself_and_none_of_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafka_gateway.server.WATCHED_BY_LOOP", 1)
    async with serving(tmp_path) as (_, server):
        for _ in range(2):
            async with connected(server) as first:
                await until(lambda: server.connections == 1)
                assert [session.by_loop for session in server._sessions.values()] == [True]
                async with connected(server) as second:
                    await until(lambda: server.connections == 2)
                    assert [session.by_loop for session in server._sessions.values()] == [False, False]
                    for client in (first, second):
                        client.send(metadata(1))
                        assert await client.correlation() == 1
            await until(lambda: server.connections == 0)


@pytest.mark.parametrize("size", [2_000, 200_000], ids=["read at once", "read in slices"])
async def test_the_memory_of_a_request_that_waited_is_given_back_with_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """The buffer of a large request stays with the connection until the next sweep."""
    monkeypatch.setattr("kafka_gateway.server.SWEEP_S", 0.05)
    async with with_groups(tmp_path) as (_, server), connected(server) as client:
        client.send(join("g", metadata=bytes(size)))
        assert await client.receive() is not None
        await until(lambda: server.held_bytes == 0)


@pytest.mark.parametrize("watched_by_loop", [0, 8])
async def test_no_record_is_lost_when_a_client_without_acknowledgements_closes_right_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watched_by_loop: int
) -> None:
    """As in Kafka, all records before the end of the stream are appended, in however many turns."""
    monkeypatch.setattr("kafka_gateway.server.WATCHED_BY_LOOP", watched_by_loop)
    async with serving(tmp_path) as (core, server):
        async with connected(server) as client:
            client.send(*(produce(number, acks=0) for number in range(2_000)))
        await until(lambda: server.connections == 0)
        assert core.partitions[PARTITION].next_offset == 2_000


async def test_files_are_released_when_the_client_leaves_during_their_sending(tmp_path: Path) -> None:
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
        # A sending thread releases the file when it is done.
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
            # The socket is full, so the rest of the response waits for room.
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


@pytest.mark.parametrize("version", [11, 12])
async def test_large_answers_alone_do_not_keep_a_thread_sending(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread costs the reader a hand-over per answer, so it sends only while other clients get small answers. In version 12
    a few bytes follow the file."""
    monkeypatch.setattr(sending, "QUIET_S", 600.0)
    batch = record_batch(bytes(1 << 20))
    async with serving(tmp_path) as (_, server), connected(server) as client:
        sender = server._sender
        client.send(produce(1, batch=batch), metadata(2))
        assert [await client.correlation(), await client.correlation()] == [1, 2]
        small_at = sender.small_at
        for number in range(1, 6):
            client.send(fetch(3, version=version))
            body = await client.receive()
            assert body is not None and len(body) > len(batch)
            assert sender.sends_in_threads >= number
            assert sender.small_at == small_at
        client.send(metadata(4))
        assert await client.correlation() == 4
        assert sender.small_at > small_at
