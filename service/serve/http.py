"""The HTTP server: /healthz (the process answers), /readyz (it serves, or the reason why not), /metrics (for Prometheus),
/stats (its counters, as JSON)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from grpc_api.contract.topics import text_of
from grpc_api.listening import listen
from service.lifecycle.readiness import Readiness
from service.observability.exposition import OPEN_METRICS, TEXT, prefers_open_metrics
from storage_tiers.errors import InvalidConfig

if TYPE_CHECKING:
    from aiohttp import web


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
    """Bounds concurrent connections. A new connection replaces the oldest idle one, so clients that stay silent or do not read
    their answers cannot block health checks."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._working: set[asyncio.BaseProtocol] = set()

    def make_room(self, server: web.Server) -> None:
        """Makes room for one more connection. Connections accepted in one turn of the loop may exceed the limit by the listen
        backlog."""
        here = [each for each in server.connections if each.transport and not each.transport.is_closing()]
        here.sort(key=lambda each: each in self._working)
        for leaving in here[: max(0, len(here) + 1 - self._limit)]:
            assert leaving.transport is not None
            # Drops unsent bytes as well, because the client may never read them.
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


def _is_no_parse_error(record: logging.LogRecord) -> bool:
    """Drops aiohttp's records of requests that it cannot parse. aiohttp logs each as an error with a traceback, so any client
    could fill the log. Such requests are answered with 400. Records of the node's own failures are kept."""
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
    further one replaces an idle one. Raises InvalidConfig if the address cannot be bound."""
    from aiohttp import web

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        return web.Response(
            text=readiness.body(), status=200 if readiness.ready else 503, content_type="application/json"
        )

    limit = _ConnectionLimit(connections)

    async def counters(request: web.Request) -> web.Response:
        async with limit.at_work(request):
            return web.json_response(await stats())

    async def metrics(request: web.Request) -> web.Response:
        open_metrics = prefers_open_metrics(request.headers.get("Accept", ""))
        scraping = scrape(open_metrics)
        if scraping is None:
            return web.Response(text="the node does not serve yet; retry\n", status=503)
        kind = OPEN_METRICS if open_metrics else TEXT
        async with limit.at_work(request):
            return web.Response(body=await scraping, headers={"Content-Type": kind})

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
