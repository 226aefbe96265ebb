"""The HTTP server: /healthz (whether the process answers), /readyz (whether the node serves, and the reason if not), /metrics
(for Prometheus), /stats (the node's counters as JSON).

It is written without an HTTP library: loading one takes a tenth of a node's start, and the pages need little of HTTP.

Bounds: at most the given number of connections. A further connection replaces the oldest idle one, so clients that send
nothing or do not read their answers cannot block health checks. A head has at most MAX_HEAD_BYTES. A page is sent in pieces of
PIECE_BYTES, so that unsent bytes of a shared page are kept once.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from grpc_api.contract.topics import text_of
from grpc_api.listening import listen
from service.lifecycle.readiness import Readiness
from service.observability.exposition import OPEN_METRICS, TEXT, prefers_open_metrics
from service.process.coalescing import Coalesced
from service.serve.http_head import MAX_HEAD_BYTES, BadRequest, PageRequest, parse_head
from storage_tiers import events
from storage_tiers.errors import InvalidConfig
from storage_tiers.turns import TurnScheduler

log = logging.getLogger(__name__)

Result = TypeVar("Result")

PIECE_BYTES = 64 << 10
#: Seconds for which a connection may be silent before its next request.
IDLE_S = 75.0
#: Seconds for which answers in progress may continue when the server stops.
STOP_S = 1.0
#: After a refused request, the seconds and bytes for which the rest of the request is discarded. A connection that is closed
#: with unread bytes is reset, and its client may then lose the answer.
LINGER_S, LINGER_BYTES = 1.0, 1 << 20
_PLAIN, _JSON = "text/plain; charset=utf-8", "application/json; charset=utf-8"
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}

#: Returns the body of `/metrics` in text format, or in OpenMetrics if True is passed. Returns None before the node serves.
Scrape = Callable[[bool], Awaitable[bytes] | None]
Stats = Callable[[], Awaitable[Mapping[str, object]]]


class PageAnswer(NamedTuple):
    status: int
    body: bytes
    kind: str = _PLAIN


@dataclass(eq=False, slots=True)
class _HttpConnection:
    """An open connection. `works` says whether its answer is being built, but not whether the answer is being sent, because the
    client may never read it. `reads` says whether it waits for a request."""

    writer: asyncio.StreamWriter
    task: asyncio.Task[None]
    works: bool = False
    reads: bool = False

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        self.works = True
        try:
            yield
        finally:
            self.works = False


class Together(Generic[Result]):
    """Coalesces concurrent requests for the same result, so that sixty scrapes at a time need the memory of one page. Only a
    few of them continue in each turn of the loop, because sending a page takes a millisecond."""

    def __init__(self) -> None:
        self._turns = TurnScheduler()
        self._results = Coalesced[bool, Result]()

    async def made(self, kind: bool, making: Callable[[], Awaitable[Result]]) -> Result:
        """The result of that kind. It is completed even if all its requests are cancelled."""
        result = await self._results.made(kind, making)
        await self._turns.begin()
        return result


async def _nothing() -> None:
    """The page of a node that does not serve yet."""


class HttpServer:
    """The pages of a node, which `serve_http` starts. `port` is the bound port."""

    def __init__(self, readiness: Readiness, stats: Stats, scrape: Scrape, limit: int) -> None:
        self._readiness = readiness
        self._stats = stats
        self._scrape = scrape
        self._limit = limit
        self._pages, self._counts = Together[bytes | None](), Together[Mapping[str, object]]()
        #: The open connections, the oldest first.
        self._open: list[_HttpConnection] = []
        self._listener: asyncio.Server | None = None
        self._stopping = False
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Raises OSError if the address cannot be bound."""
        self._listener = await asyncio.start_server(self._serve, sock=listen(host, port), limit=MAX_HEAD_BYTES)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Closes the listener. Answers in progress may continue for STOP_S."""
        self._stopping = True
        if self._listener is not None:
            self._listener.close()
        for each in self._open:
            if each.reads:
                each.writer.transport.abort()
        tasks = [each.task for each in self._open]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=STOP_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    # --- connections --------------------------------------------------------------------------------------------------
    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection."""
        task = asyncio.current_task()
        assert task is not None
        self._make_room()
        connection = _HttpConnection(writer, task)
        self._open.append(connection)
        try:
            # `drain` returns once the kernel has everything, so that closing leaves no bytes in this process.
            writer.transport.set_write_buffer_limits(0)
            while not self._stopping and await self._answer_next(connection, reader):
                pass
            writer.close()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            writer.transport.abort()
        except asyncio.CancelledError:
            # Only `stop` cancels this task. A streams server reports a cancelled connection as an error.
            writer.transport.abort()
        finally:
            self._drop(connection)

    def _make_room(self) -> None:
        """Makes room for one more connection. Drops unsent bytes, because the client may never read them."""
        leaving = sorted(self._open, key=lambda each: each.works)
        for each in leaving[: max(0, len(leaving) + 1 - self._limit)]:
            each.writer.transport.abort()
            self._drop(each)

    def _drop(self, connection: _HttpConnection) -> None:
        with suppress(ValueError):  # it has left for another connection
            self._open.remove(connection)

    async def _answer_next(self, connection: _HttpConnection, reader: asyncio.StreamReader) -> bool:
        """Answers the next request. Returns whether another may follow."""
        connection.reads = True
        try:
            async with asyncio.timeout(IDLE_S):
                request = parse_head(await reader.readuntil(b"\r\n\r\n"))
                await reader.readexactly(request.body)
        except (BadRequest, asyncio.LimitOverrunError):
            connection.reads = False
            await _send(connection.writer, PageAnswer(400, b"the request is malformed or too large\n"), keeps=False)
            await _linger(connection.writer, reader)
            return False
        connection.reads = False
        async with connection.at_work():
            page = await self._page(request)
        await _send(connection.writer, page, keeps=request.keeps, has_body=request.method != "HEAD")
        return request.keeps

    # --- pages --------------------------------------------------------------------------------------------------------
    async def _page(self, request: PageRequest) -> PageAnswer:
        if request.method not in ("GET", "HEAD"):
            return PageAnswer(405, b"GET only\n")
        try:
            match request.path:
                case "/healthz":
                    return PageAnswer(200, b"ok\n")
                case "/readyz":
                    return PageAnswer(200 if self._readiness.ready else 503, self._readiness.body().encode(), _JSON)
                case "/metrics":
                    return await self._metrics(open_metrics=prefers_open_metrics(request.accept))
                case "/stats":
                    return PageAnswer(200, json.dumps(await self._counts.made(False, self._stats)).encode(), _JSON)
        except Exception as error:  # noqa: BLE001 - a defect of one page leaves the others
            events.error(log, "request.defect", server="http", api=request.path, defect=error)
            return PageAnswer(500, b"the node failed; its log has the reason\n")
        return PageAnswer(404, b"the pages are /healthz, /readyz, /metrics, /stats\n")

    async def _metrics(self, *, open_metrics: bool) -> PageAnswer:
        body = await self._pages.made(open_metrics, lambda: self._scrape(open_metrics) or _nothing())
        if body is None:
            return PageAnswer(503, b"the node does not serve yet; retry\n")
        return PageAnswer(200, body, OPEN_METRICS if open_metrics else TEXT)


async def _send(writer: asyncio.StreamWriter, page: PageAnswer, *, keeps: bool, has_body: bool = True) -> None:
    lines = (
        f"HTTP/1.1 {page.status} {_REASONS[page.status]}",
        f"Content-Type: {page.kind}",
        f"Content-Length: {len(page.body)}",
        f"Connection: {'keep-alive' if keeps else 'close'}",
    )
    body = memoryview(page.body if has_body else b"")
    writer.write("\r\n".join((*lines, "", "")).encode() + body[:PIECE_BYTES])
    await writer.drain()
    for first in range(PIECE_BYTES, len(body), PIECE_BYTES):
        writer.write(bytes(body[first : first + PIECE_BYTES]))
        await writer.drain()


async def _linger(writer: asyncio.StreamWriter, reader: asyncio.StreamReader) -> None:
    """Ends the answers, and discards what the client still sends."""
    writer.write_eof()
    left = LINGER_BYTES
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            while left > 0 and (taken := await reader.read(PIECE_BYTES)):
                left -= len(taken)


async def serve_http(
    readiness: Readiness, stats: Stats, scrape: Scrape, host: str, port: int, *, connections: int = 64
) -> HttpServer:
    """Listens on `host`:`port` (an empty host: every address; port 0: a free one) with at most `connections` connections. A
    further connection replaces an idle one. Raises InvalidConfig if the address cannot be bound."""
    server = HttpServer(readiness, stats, scrape, connections)
    try:
        await server.start(host, port)
    except OSError as error:
        raise InvalidConfig(
            f"cannot listen on {text_of(host, port)} for HTTP: {error.strerror}; stop the process using it, or choose another "
            "--http-listener"
        ) from None
    return server
