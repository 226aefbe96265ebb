"""Keeps every call within the bounds of `grpc_api.limits`, from before its request is received until its answer is sent.

    a call ──> one of MAX_CALLS ──> room for its request ──> received, parsed ──> its servicer ──> room for its answer ──> sent

gRPC receives a request whole before the servicer sees it, and holds an answer until its caller reads it. So both are counted
here per connection: a request before it is read, an answer before gRPC gets it. All methods are served as streams, because
only there does the servicer decide when to read and when to write; on the wire unary calls and streams are the same.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import grpc
import grpc.aio

from grpc_api import limits
from grpc_api.servicers.connections import Connections
from grpc_api.servicers.errors import ending
from grpc_api.servicers.memory import CallerMemory, Hold
from grpc_api.servicers.parsing import Parse, parsed
from storage_tiers.errors import Busy, InvalidRequest
from storage_tiers.turns import FREE_S, SLICE_S, TurnScheduler

#: Copies of a request in memory: its bytes, the parsed message, and the contract's values.
REQUEST_COPIES = 3
#: Copies of an answer in memory until it is sent: Python's bytes and gRPC's.
ANSWER_COPIES = 2
#: Bytes counted for an answer while it is built.
LEAST_ANSWER_BYTES = 16 << 10

Method = TypeVar("Method", bound=Callable[..., Any])
Row = TypeVar("Row")


#: Rows of a request between two checks of the clock: cheap rows take 10 to 50 µs each, expensive rows nearly 1 ms.
PIECE, DEAR_PIECE = 16, 1

_schedulers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, TurnScheduler] = weakref.WeakKeyDictionary()


def scheduler() -> TurnScheduler:
    """The running loop's scheduler: all calls that work on many rows share one slice of a turn."""
    return _schedulers.setdefault(asyncio.get_running_loop(), TurnScheduler())


async def in_pieces(rows: Sequence[Row], size: int = PIECE) -> AsyncIterator[Sequence[Row]]:
    """The rows in order, `size` at a time; yields to the loop when the slice is used up."""
    shared = scheduler()
    until = shared.seconds() + FREE_S
    for first in range(0, len(rows), size):
        if first and shared.seconds() >= until:
            await shared.rest()
            until = shared.seconds() + SLICE_S
        yield rows[first : first + size]


def writes_its_answer(method: Method) -> Method:
    """Marks a unary method that counts and sends its answer itself, because it knows the size beforehand."""
    method.writes_its_answer = True  # type: ignore[attr-defined]
    return method


class Bounds:
    """The bounds that all calls of a node share."""

    def __init__(self, connections: int = limits.MAX_CONNECTIONS) -> None:
        self.connections = Connections(connections)
        self.requests = CallerMemory(limits.REQUESTS_BYTES, self.connections.close)
        self.answers = CallerMemory(limits.ANSWERS_BYTES, self.connections.close)
        self.calls = self.produce_streams = self.record_reads = self.joins = self.lowerings = 0
        self.followed = 0
        self._copying = asyncio.Lock()

    @asynccontextmanager
    async def turn(self, size: int, rows: int = 0) -> AsyncIterator[None]:
        """A block that copies `size` bytes and works on `rows` rows. Before more than PIECE rows, or more than LARGE_BYTES, the
        rest of the loop runs first. Only one call at a time copies more than LARGE_BYTES. Never wait for a caller inside the
        block."""
        if rows > PIECE:
            await scheduler().rest()
        if size <= limits.LARGE_BYTES:
            yield
            return
        async with self._copying:
            await asyncio.sleep(0)
            yield

    @contextmanager
    def call(self, *, produces: bool) -> Any:
        """Counts the block as one call. Raises Busy beyond MAX_CALLS or MAX_PRODUCE_STREAMS."""
        if self.calls >= limits.MAX_CALLS:
            raise Busy(f"{limits.MAX_CALLS} calls are in progress already; retry later")
        if produces and self.produce_streams >= limits.MAX_PRODUCE_STREAMS:
            raise Busy(f"{limits.MAX_PRODUCE_STREAMS} produce streams are open already; share one among your producers")
        self.calls += 1
        self.produce_streams += produces
        try:
            yield
        finally:
            self.calls -= 1
            self.produce_streams -= produces

    @contextmanager
    def reading(self) -> Any:
        """Counts the block as one `Records.Read`. Raises Busy beyond MAX_RECORD_READS."""
        if self.record_reads >= limits.MAX_RECORD_READS:
            raise Busy(
                f"{limits.MAX_RECORD_READS} calls read records already; retry later, or read batches through Log"
            )
        self.record_reads += 1
        try:
            yield
        finally:
            self.record_reads -= 1

    @contextmanager
    def joining(self) -> Any:
        """Counts the block as one call that waits for members of a group. Raises Busy beyond MAX_JOINS."""
        if self.joins >= limits.MAX_JOINS:
            raise Busy(f"{limits.MAX_JOINS} calls wait for group members already; retry later")
        self.joins += 1
        try:
            yield
        finally:
            self.joins -= 1

    @contextmanager
    def lowering(self) -> Any:
        """Counts the block as one call that lowers offsets. Raises Busy beyond MAX_LOWERINGS."""
        if self.lowerings >= limits.MAX_LOWERINGS:
            raise Busy(f"{limits.MAX_LOWERINGS} calls lower offsets already; retry later")
        self.lowerings += 1
        try:
            yield
        finally:
            self.lowerings -= 1

    @contextmanager
    def following(self, partitions: int) -> Any:
        """Counts `partitions` as followed for the block. Raises Busy beyond MAX_FOLLOWED."""
        if self.followed + partitions > limits.MAX_FOLLOWED:
            raise Busy(
                f"reads wait for {self.followed} of at most {limits.MAX_FOLLOWED} partitions already; retry later"
            )
        self.followed += partitions
        try:
            yield
        finally:
            self.followed -= partitions


class BoundedCalls(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Wraps each method's handler, once per method."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._handlers: dict[str, Any] = {}

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        known = self._handlers.get(details.method)
        if known is not None:
            return known
        handler = await continuation(details)
        if handler is None:
            return None
        made = grpc.stream_stream_rpc_method_handler(_served(details.method.rpartition("/")[2], handler, self._bounds))
        self._handlers[details.method] = made
        return made


class CallContext:
    """gRPC's context of one call; its `write` counts each message until it is sent."""

    def __init__(self, context: Any, serialize: Callable[[Any], bytes] | None, bounds: Bounds) -> None:
        self._context = context
        self._serialize = serialize
        self.bounds = bounds
        self.peer_name: str = context.peer()
        #: The memory counted for the request; a method that runs long without its request releases it early.
        self.request_room: Hold | None = None

    def forget_request(self) -> None:
        """Releases the request's memory. The method must have dropped the request itself."""
        if self.request_room is not None:
            self.request_room.resize(0)

    async def write(self, message: Any) -> None:
        data: bytes = message if self._serialize is None else self._serialize(message)
        async with self.bounds.answers.hold(self.peer_name, ANSWER_COPIES * len(data)):
            await self.write_counted(data)

    async def write_counted(self, data: bytes) -> None:
        """Sends an encoded message whose bytes the caller has counted. Returns once they are sent."""
        if len(data) <= limits.LARGE_BYTES:
            await self._context.write(data)
            return
        async with self.bounds.turn(len(data)):
            sending = asyncio.ensure_future(self._context.write(data))
            try:
                await asyncio.sleep(0)  # gRPC copies the bytes
            except BaseException:
                sending.cancel()
                raise
        await sending

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def _served(name: str, handler: Any, bounds: Bounds) -> Callable[[Any, Any], Awaitable[None]]:
    async def served(_: Any, raw: Any) -> None:
        context = CallContext(raw, handler.response_serializer, bounds)
        async with ending(name, context):
            if context.peer_name not in bounds.connections.admitted:
                await bounds.connections.admit(context.peer_name)
            with bounds.call(produces=handler.request_streaming):
                if handler.request_streaming:
                    await _answer_stream(handler, context, _received(raw, handler.request_deserializer, bounds))
                else:
                    await _answer_request(handler, context, raw)

    return served


async def _answer_request(handler: Any, context: CallContext, raw: Any) -> None:
    async with context.bounds.requests.hold(context.peer_name, limits.MAX_REQUEST_BYTES) as context.request_room:
        data = await raw.read()
        if data is grpc.aio.EOF:
            raise InvalidRequest("the call ended before its request came")
        context.request_room.resize(REQUEST_COPIES * len(data))
        method = handler.unary_stream if handler.response_streaming else handler.unary_unary
        async with context.bounds.turn(len(data)):
            answering = method(parsed(handler.request_deserializer, data), context)
        del data
        if handler.response_streaming or getattr(method, "writes_its_answer", False):
            await answering
            return
        async with context.bounds.answers.hold(context.peer_name, LEAST_ANSWER_BYTES) as room:
            answer = handler.response_serializer(await answering)
            room.resize(ANSWER_COPIES * len(answer))
            await context.write_counted(answer)


async def _answer_stream(handler: Any, context: CallContext, requests: AsyncIterator[Any]) -> None:
    answering = handler.stream_stream(requests, context)
    if not hasattr(answering, "__aiter__"):
        await answering
        return
    async for message in answering:
        await context.write(message)


async def _received(raw: Any, parse: Parse, bounds: Bounds) -> AsyncIterator[Any]:
    """The requests of a stream, each read and parsed on demand."""
    while (data := await raw.read()) is not grpc.aio.EOF:
        async with bounds.turn(len(data)):
            request = parsed(parse, data)
        del data
        yield request
        del request
