"""The HTTP server beside clients that misbehave: their mistakes get an answer, and no line in the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Mapping

import pytest

from service.lifecycle.readiness import Readiness
from service.serve.http import HttpServer, Together, serve_http
from storage_tiers.turns import SLICE_S, TurnScheduler


async def _stats() -> Mapping[str, object]:
    raise RuntimeError("a defect")


#: Bytes, far more than the buffers of two sockets hold.
LARGE = bytes(32 << 20)
PLACES = 4
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


def _scrape(open_metrics: bool) -> Awaitable[bytes]:
    async def large() -> bytes:
        return LARGE

    return large()


@pytest.fixture
async def server() -> AsyncIterator[HttpServer]:
    started = await serve_http(Readiness(), _stats, _scrape, "127.0.0.1", 0, connections=PLACES)
    yield started
    await started.stop()


async def _answer(server: HttpServer, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request)
    line = await reader.readline()
    writer.close()
    return line


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 20_000 + b"\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\nzz",
    ],
    ids=["long path", "many headers", "two lengths"],
)
async def test_a_malformed_request_is_answered_and_leaves_no_line(
    server: HttpServer, caplog: pytest.LogCaptureFixture, request_: bytes
) -> None:
    assert b" 400 " in await _answer(server, request_)
    assert [record for record in caplog.records if record.levelno >= logging.INFO] == []


async def test_a_defect_of_the_node_is_logged(server: HttpServer, caplog: pytest.LogCaptureFixture) -> None:
    assert b" 500 " in await _answer(server, b"GET /stats HTTP/1.1\r\nHost: x\r\n\r\n")
    assert any(record.exc_info and isinstance(record.exc_info[1], RuntimeError) for record in caplog.records)


@pytest.mark.parametrize("said", [b"", HEALTH[:10], HEALTH, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"])
async def test_idle_connections_block_no_new_one(server: HttpServer, said: bytes) -> None:
    """The idle connections are silent, or have sent part of a request, got an answer, or left a large answer unread."""
    strangers = []
    for _ in range(3 * PLACES):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1)
        writer.write(said)
        strangers.append((reader, writer))
        if said.startswith(b"GET /metrics"):
            await reader.readexactly(1)  # its answer has begun
    assert b" 200 " in await _answer(server, HEALTH)
    # The oldest connections were closed.
    with pytest.raises((EOFError, ConnectionError)):
        await strangers[0][0].readexactly(len(LARGE))
    for _, writer in strangers:
        writer.close()


async def test_connections_stay_within_the_limit(server: HttpServer) -> None:
    """Only the oldest connection is closed."""
    held = []
    for _ in range(PLACES + 1):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(HEALTH)
        assert b" 200 " in await reader.readuntil(b"ok\n")
        held.append((reader, writer))
    async with asyncio.timeout(60):
        with pytest.raises((EOFError, ConnectionError)):
            await held[0][0].readexactly(1)
    for reader, writer in held[1:]:
        writer.write(HEALTH)
        assert b" 200 " in await reader.readuntil(b"ok\n")
        writer.close()


@pytest.mark.parametrize("asked_before", [False, True])
async def test_a_connection_with_an_answer_in_progress_is_kept(asked_before: bool) -> None:
    """The connection with the slow request is the oldest. The later ones are idle, before or after an answer."""
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> Mapping[str, object]:
        asked.set()
        await go_on.wait()
        return {}

    async def small() -> bytes:
        return b"small"

    server = await serve_http(Readiness(), slow, lambda _: small(), "127.0.0.1", 0, connections=PLACES)
    try:
        answer = asyncio.create_task(_answer(server, b"GET /stats HTTP/1.1\r\nHost: x\r\n\r\n"))
        await asked.wait()
        strangers = []
        for _ in range(3 * PLACES):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            strangers.append((reader, writer))
            if asked_before:
                writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
                await reader.readuntil(b"small")
        assert b" 200 " in await _answer(server, HEALTH)
        go_on.set()
        assert b" 200 " in await answer
        for _, writer in strangers:
            writer.close()
    finally:
        await server.stop()


async def test_requests_that_ask_together_share_one_page() -> None:
    """A page of ten thousand partitions takes many megabytes, and sixty connections may request it at once."""
    go_on = asyncio.Event()
    made: list[bytes] = []

    async def page() -> bytes:
        this = b"page %d" % len(made)
        made.append(this)
        await go_on.wait()
        return this

    together = Together[bytes]()
    asking = [asyncio.create_task(together.made(False, page)) for _ in range(4)]
    other = asyncio.create_task(together.made(True, page))
    await asyncio.sleep(0)
    asking.pop(0).cancel()
    go_on.set()
    assert await asyncio.gather(*asking) == [made[0]] * 3
    assert await other == made[1]
    assert await together.made(False, page) == b"page 2", "a later request gets a page of its own"


async def test_a_shared_page_is_sent_to_some_clients_in_each_turn_of_the_loop() -> None:
    async def page() -> bytes:
        return b"page"

    now, turn = 0.0, 0
    sent: list[int] = []

    def seconds() -> float:
        return now

    async def client() -> None:
        nonlocal now
        await together.made(False, page)
        now += SLICE_S
        sent.append(turn)

    together = Together[bytes]()
    together._turns = TurnScheduler(seconds)
    clients = [asyncio.create_task(client()) for _ in range(5)]
    while len(sent) < len(clients):
        await asyncio.sleep(0)
        turn += 1
    assert len(set(sent)) == len(sent)
