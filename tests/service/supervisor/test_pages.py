"""The supervisor's pages beside clients that stay silent, or do not read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from socket import SO_RCVBUF, SOL_SOCKET, socket

import pytest

from service.supervisor import pages as module
from service.supervisor.pages import CONNECTIONS, Pages, Watched

#: Bytes: more than the kernel takes from a server whose client does not read.
LARGE = b"".join(b'# TYPE m%d gauge\nm%d{text="%s"} 1\n' % (each, each, b"x" * 1000) for each in range(10_000))


class Broker:
    """A broker's HTTP listener, and its waiting requests; `gate` holds the answers back."""

    def __init__(self) -> None:
        self.asked = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.asked += 1
        await self.gate.wait()
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + LARGE)
        writer.close()


@asynccontextmanager
async def serving(broker: Broker) -> AsyncIterator[tuple[Pages, int]]:
    behind = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    at = f"127.0.0.1:{behind.sockets[0].getsockname()[1]}"
    pages = Pages(lambda: {1: Watched(at, 0)}, lambda: False, lambda into: None)
    async with behind, await asyncio.start_server(pages.serve, "127.0.0.1", 0) as server:
        yield pages, server.sockets[0].getsockname()[1]


async def get(port: int, path: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET %s HTTP/1.1\r\n\r\n" % path.encode())
    answer = await reader.read()
    writer.close()
    return answer


async def test_silent_clients_do_not_prevent_a_health_check() -> None:
    async with serving(Broker()) as (pages, port):
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS)]
        assert (await get(port, "/healthz")).startswith(b"HTTP/1.1 200 OK")
        assert await silent[0][0].read() == b"", "the oldest one has made room"
        assert len(pages._open) < CONNECTIONS
        for _, writer in silent:
            writer.close()


async def test_a_client_that_does_not_read_is_cut_off_with_all_that_it_was_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An orderly close would keep the page in memory until the client reads it, and a client may never read it."""
    monkeypatch.setattr(module, "PATIENCE_S", 2.0)
    async with serving(Broker()) as (pages, port):
        loop = asyncio.get_running_loop()
        with socket() as client:
            client.setsockopt(SOL_SOCKET, SO_RCVBUF, 4096)
            client.setblocking(False)
            await loop.sock_connect(client, ("127.0.0.1", port))
            await loop.sock_sendall(client, b"GET /metrics HTTP/1.1\r\n\r\n")
            while not pages._open:
                await asyncio.sleep(0.01)
            (transport,) = (each.transport for each in pages._open)
            while pages._open:
                assert transport.get_write_buffer_size() <= module.PIECE_BYTES
                await asyncio.sleep(0.01)
            assert transport.get_write_buffer_size() == 0
            received = 0
            while part := await loop.sock_recv(client, 1 << 20):
                received += len(part)
            assert received < len(LARGE)


async def test_clients_that_ask_together_share_one_page() -> None:
    broker = Broker()
    broker.gate.clear()
    async with serving(broker) as (pages, port):
        asking = [asyncio.create_task(get(port, "/metrics")) for _ in range(10)]
        while sum(pages._open.values()) < len(asking):
            await asyncio.sleep(0.01)
        broker.gate.set()
        assert len({await each for each in asking}) == 1
        assert broker.asked == 1
