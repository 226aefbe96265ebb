"""Serves the supervisor's HTTP pages, without an HTTP library, to keep this process small.

    /healthz   the supervisor answers
    /readyz    200 if every broker answers 200 there; the body has each broker's answer
    /stats     every broker's counters, by its id
    /metrics   the metrics of all brokers, each sample with the label `broker`, and those of the shared tier process

Bounds: at most CONNECTIONS connections with one request each, of at most MOST_BYTES. A connection ends after PATIENCE_S, even
if its client does not read. A further connection replaces the oldest one that waits for its client, so that silent clients do
not prevent health checks. Concurrent requests for a page share one result, which is sent in pieces of PIECE_BYTES.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from service.configs.listeners import host_and_port
from service.observability.exposition import TEXT, Exposition, labels_of
from service.process.coalescing import Coalesced
from service.supervisor.merging import merged

CONNECTIONS = 64
MOST_BYTES = 16 << 10
PATIENCE_S = 5.0
#: Seconds within which a broker must answer; a broker that is stopped or busy for longer is not ready.
ANSWER_S = 2.0
PIECE_BYTES = 64 << 10


class Page(NamedTuple):
    status: int
    body: bytes
    kind: str = "text/plain; charset=utf-8"


class Watched(NamedTuple):
    """A broker: the address of its HTTP listener, None while it does not serve, and the number of its restarts."""

    http: str | None
    restarts: int


class Pages:
    """`brokers` returns each broker by its id; `stopping` returns whether the supervisor is stopping; `shared` puts the
    metrics of the brokers' shared tier process."""

    def __init__(
        self,
        brokers: Callable[[], Mapping[int, Watched]],
        stopping: Callable[[], bool],
        shared: Callable[[Exposition], None],
    ) -> None:
        self._brokers = brokers
        self._stopping = stopping
        self._shared = shared
        #: The open connections, the oldest first, and whether each waits for its page.
        self._open: dict[asyncio.StreamWriter, bool] = {}
        #: The pages that are being made, by path.
        self._pages = Coalesced[str, Page]()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection."""
        if len(self._open) >= CONNECTIONS:
            leaving = min(self._open, key=self._open.__getitem__)
            leaving.transport.abort()
            del self._open[leaving]
        self._open[writer] = False
        try:
            # `drain` returns once the kernel has everything, so that closing leaves no bytes in this process.
            writer.transport.set_write_buffer_limits(0)
            async with asyncio.timeout(PATIENCE_S):
                await self._answer(reader, writer)
            writer.close()
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.transport.abort()
        finally:
            self._open.pop(writer, None)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        method, path, *_ = head.split(b"\r\n", 1)[0].decode("ascii", "replace").split(" ")
        self._wait_for_page(writer, True)
        page = Page(405, b"GET only\n")
        if method in ("GET", "HEAD"):
            path = path.partition("?")[0]
            page = await self._pages.made(path, partial(self._page, path))
        self._wait_for_page(writer, False)
        headers = {"Content-Type": page.kind, "Content-Length": len(page.body), "Connection": "close"}
        lines = (
            f"HTTP/1.1 {page.status} {_REASONS[page.status]}",
            *(f"{key}: {text}" for key, text in headers.items()),
        )
        writer.write("\r\n".join((*lines, "", "")).encode())
        await writer.drain()
        for first in range(0, 0 if method == "HEAD" else len(page.body), PIECE_BYTES):
            writer.write(page.body[first : first + PIECE_BYTES])
            await writer.drain()

    def _wait_for_page(self, writer: asyncio.StreamWriter, waits: bool) -> None:
        if writer in self._open:
            self._open[writer] = waits

    async def _page(self, path: str) -> Page:
        match path:
            case "/healthz":
                return Page(200, b"ok\n")
            case "/readyz":
                return await self._ready()
            case "/metrics":
                return await self._metrics()
            case "/stats":
                answers = await self._asked("/stats")
                body = {str(broker): _object(answer) for broker, answer in answers.items()}
                return Page(200, json.dumps(body).encode(), "application/json")
        return Page(404, b"the pages are /healthz, /readyz, /metrics, /stats\n")

    async def _ready(self) -> Page:
        answers = await self._asked("/readyz")
        ready = all(each is not None and each.status == 200 for each in answers.values()) and not self._stopping()
        brokers = {str(broker): _object(answer) for broker, answer in answers.items()}
        body = json.dumps({"ready": ready, "stopping": self._stopping(), "brokers": brokers})
        return Page(200 if ready else 503, body.encode(), "application/json")

    async def _metrics(self) -> Page:
        answers = await self._asked("/metrics")
        pages = {
            broker: each.body.decode() for broker, each in answers.items() if each is not None and each.status == 200
        }
        own = Exposition()
        for broker, watched in self._brokers().items():
            own.put("tidelog_broker_up", int(broker in pages), labels_of(broker=broker))
            own.put("tidelog_broker_restarts_total", watched.restarts, labels_of(broker=broker))
        self._shared(own)
        return Page(200, merged(pages).encode() + b"".join(own.families()), TEXT)

    async def _asked(self, path: str) -> dict[int, Page | None]:
        """The answers by broker id; None for a broker that does not answer in time."""
        brokers = self._brokers()
        answers = await asyncio.gather(*(_get(each.http, path) for each in brokers.values()))
        return dict(zip(brokers, answers, strict=True))


_REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


def _object(answer: Page | None) -> object:
    if answer is None:
        return {"ready": False, "answers": False}
    try:
        return json.loads(answer.body)
    except ValueError:
        return {"ready": False, "answers": False}


async def _get(address: str | None, path: str) -> Page | None:
    if address is None:
        return None
    host, port = host_and_port(address)
    try:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection(_local(host), port)
            try:
                writer.write(f"GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n".encode())
                head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
            finally:
                writer.transport.abort()
        return Page(int(head.split(b" ", 2)[1]), body)
    except (OSError, TimeoutError, ValueError, IndexError):
        return None


def _local(host: str) -> str:
    return "127.0.0.1" if host in ("", "0.0.0.0", "::") else host
