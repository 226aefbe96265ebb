"""An HTTP proxy in front of an S3 server that counts requests and breaks chosen ones.

    with S3Proxy(server.endpoint) as proxy:              # the code under test uses proxy.endpoint
        proxy.on(3, kill_before(pid))                    # the third request from now: SIGKILL, nothing is forwarded
        proxy.on(5, kill_after(pid))                     # forwarded, its answer swallowed, then SIGKILL
        proxy.on(1, answer(503), method="PUT")           # the next PUT: answered by the proxy itself
        proxy.always(tampered(100), path=".log")         # every answer about such a key has a flipped byte
        proxy.requests                                   # everything seen: number, method, path with its query

It runs on a thread of its own, for tests with and without an event loop. It passes signed requests through untouched: the
signature covers the Host that the client sent, and S3 servers do not compare it with their own address. It holds whole
bodies in memory (a part has 8 MiB).
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Request:
    """`number` counts from 1 over the life of the proxy. The body is not kept in `S3Proxy.requests`."""

    number: int
    method: str
    path: str
    head: bytes
    body: bytes


@dataclass(frozen=True)
class Answer:
    head: bytes
    body: bytes


class DropConnection(Exception):
    """Ends the client's connection without an answer."""


Forward = Callable[[Request], Awaitable[Answer]]
#: Handles one request: returns the answer for the client, or raises DropConnection.
Action = Callable[[Request, Forward], Awaitable[Answer]]


@dataclass
class _Rule:
    action: Action
    methods: Sequence[str]  # empty: any method
    path: str
    left: int | None  # calls until it applies, once; None: it always applies

    def applies(self, request: Request) -> bool:
        if (self.methods and request.method not in self.methods) or self.path not in request.path:
            return False
        if self.left is None:
            return True
        self.left -= 1
        return self.left == 0


@dataclass
class S3Proxy:
    upstream: str
    requests: list[Request] = field(default_factory=list)
    endpoint: str = ""
    _rules: list[_Rule] = field(default_factory=list)

    def on(self, number: int, action: Action, *, method: str = "", methods: Sequence[str] = (), path: str = "") -> None:
        """`action` for the `number`-th request from now on (1 is the next) with this method, or one of these, and text in its
        path."""
        self._rules.append(_Rule(action, (method,) if method else methods, path, number))

    def always(self, action: Action, *, method: str = "", path: str = "") -> None:
        self._rules.append(_Rule(action, (method,) if method else (), path, None))

    def clear(self) -> None:
        """Removes the rules; counting continues."""
        self._rules.clear()

    def count(self, method: str = "", path: str = "") -> int:
        return sum(method in ("", request.method) and path in request.path for request in self.requests)

    def __enter__(self) -> S3Proxy:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="s3-proxy", daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20)
        port = self._server.sockets[0].getsockname()[1]
        self.endpoint = f"http://127.0.0.1:{port}"

    async def _stop(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = urlsplit(self.upstream)
        upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

        async def forward(request: Request) -> Answer:
            nonlocal upstream
            if upstream is None:
                upstream = await asyncio.open_connection(target.hostname, target.port, limit=1 << 20)
            upstream[1].write(request.head + request.body)
            await upstream[1].drain()
            return await _read_answer(upstream[0], request.method)

        try:
            while (request := await self._read_request(reader, writer)) is not None:
                answer = await self._act(request, forward)
                writer.write(answer.head + answer.body)
                await writer.drain()
                if _closes(answer.head):
                    return
        except (DropConnection, OSError, EOFError, asyncio.CancelledError):
            pass  # the client sees its connection end; cancelled only by `_stop`
        finally:
            for end in (writer, *(() if upstream is None else (upstream[1],))):
                end.close()

    async def _read_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return None
        if _header(head, b"expect") is not None:  # not part of the signature
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            head = b"\r\n".join(line for line in head.split(b"\r\n") if not line.lower().startswith(b"expect:"))
        body = await _read_body(reader, head)
        method, path, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
        request = Request(len(self.requests) + 1, method, path, head, body)
        self.requests.append(replace(request, body=b""))
        return request

    async def _act(self, request: Request, forward: Forward) -> Answer:
        chosen = [rule for rule in list(self._rules) if rule.applies(request)]
        if not chosen:
            return await forward(request)
        return await chosen[0].action(request, forward)


# --- actions ----------------------------------------------------------------------------------------------------------
def kill_before(pid: int) -> Action:
    """SIGKILL to `pid` before the request reaches the server."""

    async def act(request: Request, forward: Forward) -> Answer:
        os.kill(pid, signal.SIGKILL)
        raise DropConnection

    return act


def kill_after(pid: int) -> Action:
    """SIGKILL to `pid` after the server has executed the request; the answer is dropped."""

    async def act(request: Request, forward: Forward) -> Answer:
        await forward(request)
        os.kill(pid, signal.SIGKILL)
        raise DropConnection

    return act


def hang_up_before() -> Action:
    async def act(request: Request, forward: Forward) -> Answer:
        raise DropConnection

    return act


def hang_up_after() -> Action:
    """The server executes the request; the client gets no answer."""

    async def act(request: Request, forward: Forward) -> Answer:
        await forward(request)
        raise DropConnection

    return act


def answer(status: int, code: str = "SlowDown") -> Action:
    """The proxy answers with an error in S3's format; the server sees nothing."""
    body = f"<Error><Code>{code}</Code><Message>by the test</Message></Error>".encode()
    head = f"HTTP/1.1 {status} {code}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n".encode()

    async def act(request: Request, forward: Forward) -> Answer:
        return Answer(head, b"" if request.method == "HEAD" else body)

    return act


def stall() -> Action:
    """Neither forwards nor answers, until the client or the proxy closes."""

    async def act(request: Request, forward: Forward) -> Answer:
        await asyncio.Event().wait()
        raise DropConnection

    return act


def delayed(seconds: float) -> Action:
    """Forwards with a delay."""

    async def act(request: Request, forward: Forward) -> Answer:
        await asyncio.sleep(seconds)
        return await forward(request)

    return act


def held(released: threading.Event) -> Action:
    """Holds the request until the test sets `released`, then forwards it."""

    async def act(request: Request, forward: Forward) -> Answer:
        while not released.is_set():
            await asyncio.sleep(0.01)
        return await forward(request)

    return act


def truncated(size: int) -> Action:
    """Only the first `size` bytes of the answer's body arrive, then the connection ends."""

    async def act(request: Request, forward: Forward) -> Answer:
        whole = await forward(request)
        return Answer(_with_header(whole.head, b"Connection", b"close"), whole.body[:size])

    return act


def tampered(position: int) -> Action:
    """One bit of the answer's body is flipped; its length and headers stay."""

    async def act(request: Request, forward: Forward) -> Answer:
        whole = await forward(request)
        body = bytearray(whole.body)
        if position < len(body):
            body[position] ^= 1
        return Answer(whole.head, bytes(body))

    return act


def without_header(name: str) -> Action:
    """The answer lacks a header that the server sent."""

    async def act(request: Request, forward: Forward) -> Answer:
        whole = await forward(request)
        lines = whole.head.split(b"\r\n")
        kept = [line for line in lines if line.partition(b":")[0].strip().lower() != name.lower().encode()]
        return Answer(b"\r\n".join(kept), whole.body)

    return act


# --- HTTP -------------------------------------------------------------------------------------------------------------
def _header(head: bytes, name: bytes) -> bytes | None:
    for line in head.split(b"\r\n")[1:]:
        found, _, value = line.partition(b":")
        if found.strip().lower() == name:
            return value.strip()
    return None


def _with_header(head: bytes, name: bytes, value: bytes) -> bytes:
    return head[:-2] + name + b": " + value + b"\r\n\r\n"


def _closes(head: bytes) -> bool:
    return (_header(head, b"connection") or b"").lower() == b"close"


async def _read_answer(reader: asyncio.StreamReader, method: str) -> Answer:
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        if status >= 200:
            break
    if method == "HEAD" or status in (204, 304):
        return Answer(head, b"")
    if _header(head, b"content-length") is None and _header(head, b"transfer-encoding") is None:
        return Answer(head, await reader.read())
    return Answer(head, await _read_body(reader, head))


async def _read_body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    """The body as sent on the wire, chunk framing included."""
    if (_header(head, b"transfer-encoding") or b"").lower() == b"chunked":
        chunks: list[bytes] = []
        while True:
            line = await reader.readuntil(b"\r\n")
            size = int(line.split(b";")[0], 16)
            chunks.append(line + await reader.readexactly(size + 2))
            if size == 0:
                return b"".join(chunks)
    return await reader.readexactly(int(_header(head, b"content-length") or 0))
