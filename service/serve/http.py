"""The HTTP server: /healthz (whether the process answers), /readyz (whether the node serves, and the reason if not), /metrics
(for Prometheus), /stats (the node's counters as JSON)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

from grpc_api.contract.topics import text_of
from grpc_api.listening import listen
from service.lifecycle.readiness import Readiness
from service.observability.exposition import OPEN_METRICS, TEXT, prefers_open_metrics
from service.process.coalescing import Coalesced
from storage_tiers.errors import InvalidConfig
from storage_tiers.turns import TurnScheduler

if TYPE_CHECKING:
    from aiohttp import web


Result = TypeVar("Result")


class HttpServer:
    """A running HTTP server for health checks and metrics. `port` is its bound port."""

    def __init__(self, runner: web.AppRunner, listener: asyncio.Server) -> None:
        self._runner = runner
        self._listener = listener
        self.port: int = listener.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._listener.close()
        await self._runner.cleanup()


class _ConnectionLimit:
    """Limits concurrent connections. A new connection replaces the oldest idle one, so clients that send nothing or do not read
    their answers cannot block health checks."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._working: set[asyncio.BaseProtocol] = set()

    def make_room(self, server: web.Server) -> None:
        """Makes room for one more connection. Connections that are accepted in one turn of the loop may exceed the limit by the
        listen backlog."""
        here = [each for each in server.connections if each.transport and not each.transport.is_closing()]
        here.sort(key=lambda each: each in self._working)
        for leaving in here[: max(0, len(here) + 1 - self._limit)]:
            assert leaving.transport is not None
            # This also drops unsent bytes, because the client may never read them.
            leaving.transport.abort()

    @asynccontextmanager
    async def at_work(self, request: web.Request) -> AsyncIterator[None]:
        """Marks the connection as busy while its answer is built, but not while the answer is sent, because the client may
        never read it."""
        self._working.add(request.protocol)
        try:
            yield
        finally:
            self._working.discard(request.protocol)


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


def _is_no_parse_error(record: logging.LogRecord) -> bool:
    """Filters out aiohttp's log records about requests that it cannot parse. aiohttp logs each of them as an error with a
    traceback, so any client could fill the log. Such requests are answered with 400. Records of the node's own failures are
    kept."""
    from aiohttp.http_exceptions import HttpProcessingError

    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


log = logging.getLogger(__name__)
log.addFilter(_is_no_parse_error)

#: Returns the body of `/metrics` in text format, or in OpenMetrics if True is passed. Returns None before the node serves.
Scrape = Callable[[bool], Awaitable[bytes] | None]


async def serve_http(
    readiness: Readiness,
    stats: Callable[[], Awaitable[Mapping[str, object]]],
    scrape: Scrape,
    host: str,
    port: int,
    *,
    connections: int = 64,
) -> HttpServer:
    """Listens on `host`:`port` (an empty host: every address; port 0: a free one) with at most `connections` connections. A
    further connection replaces an idle one. Raises InvalidConfig if the address cannot be bound."""
    from aiohttp import web

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        return web.Response(
            text=readiness.body(), status=200 if readiness.ready else 503, content_type="application/json"
        )

    limit = _ConnectionLimit(connections)
    pages, counts = Together[bytes | None](), Together[Mapping[str, object]]()

    async def counters(request: web.Request) -> web.Response:
        async with limit.at_work(request):
            return web.json_response(await counts.made(False, stats))

    async def metrics(request: web.Request) -> web.Response:
        open_metrics = prefers_open_metrics(request.headers.get("Accept", ""))
        kind = OPEN_METRICS if open_metrics else TEXT
        async with limit.at_work(request):
            page = await pages.made(open_metrics, lambda: scrape(open_metrics) or _nothing())
        if page is None:
            return web.Response(text="the node does not serve yet; retry\n", status=503)
        return web.Response(body=page, headers={"Content-Type": kind})

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/stats", counters)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, logger=log)
    await runner.setup()
    server = runner.server
    assert server is not None

    def welcome() -> asyncio.Protocol:
        limit.make_room(server)
        return server()

    try:
        return HttpServer(runner, await asyncio.get_running_loop().create_server(welcome, sock=listen(host, port)))
    except OSError as error:
        await runner.cleanup()
        raise InvalidConfig(
            f"cannot listen on {text_of(host, port)} for HTTP: {error.strerror}; stop the process using it, or choose another "
            "--http-listener"
        ) from None
