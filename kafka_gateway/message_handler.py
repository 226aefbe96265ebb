"""Serves the APIs outside the hot path: reads the request, calls the API's `serve` function, writes the answer.

`serve` takes the request and a `Call` and returns the response's fields. It is a coroutine function if it must wait, or if its
rows take long; then it yields between the rows. If it waits for a single future, it returns `Delayed`, which costs no task. An
array may be a generator of rows, which runs while the answer is written.
The API's `refuse` turns any exception into an answer, so that every request gets one. It also answers a request with too many
rows. That answer has the first ROWS_A_REQUEST rows.

Most requests are read, served and written at once. Longer ones continue in a task, in slices (`turns.py`).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from grpc_api.contract.caller import Caller
from grpc_api.contract.node import NodeCore
from grpc_api.contract.topics import BrokerDescription, ClusterDescription, Endpoint
from kafka_gateway.client import ConnectedClient
from kafka_gateway.connection import Piece
from kafka_gateway.errors import code_of, message_of
from kafka_gateway.hot_parse import body_start
from kafka_gateway.message_reader import ROWS_A_REQUEST
from kafka_gateway.messages import Messages, messages_of
from kafka_gateway.options import Options
from kafka_gateway.reply import DelayedReply, Made, Reply
from storage_tiers import events
from storage_tiers.errors import LogError, PolicyViolation, as_value
from storage_tiers.turns import Turn

logger = logging.getLogger(__name__)

#: Most concurrent lookups of one request that wait for disks or the bucket.
WAITS = 64
#: The principal of every client, because there is no authentication.
ANONYMOUS = "User:ANONYMOUS"

Item = TypeVar("Item")
Result = TypeVar("Result")

_NO_ID = bytearray(b"\xff\xff")
#: Most bytes of a client id whose `Caller` is kept with the connection, including the id's length field.
KEPT_ID_BYTES = 256

#: The response's fields, as `Messages.respond` takes them.
Fields = Mapping[str, Any]


class Delayed(NamedTuple):
    """An answer that `fields` makes from the future's result. If the future fails, the request is refused. If the wait may last
    minutes, `kept` replaces the request: it is the part that `refuse` reads. Parsed rows take many times the memory of the
    request's bytes, and the memory pool counts only the bytes."""

    future: asyncio.Future[Any]
    fields: Callable[[Any], Fields]
    kept: Any = None


def _kept(answer: object, request: Any) -> Any:
    """The part of the request that is needed while the answer is awaited."""
    return answer.kept if isinstance(answer, Delayed) and answer.kept is not None else request


async def ended(future: Awaitable[Result]) -> Result | Exception:
    """The future's result or exception, as a value, because one row of an answer may fail while others succeed."""
    try:
        return await future
    except LogError as error:
        return as_value(error)
    except Exception as error:  # noqa: BLE001 - it is the row's answer
        return error


@dataclass(frozen=True, slots=True)
class Call:
    """The context of an API's functions: the core, the client, and the response's classes by name (`make`)."""

    core: NodeCore
    messages: Messages
    options: Options
    client_id: str
    client: ConnectedClient
    turn: Turn

    def make(self, kind: str, /, **values: Any) -> Any:
        return self.messages.make(kind, **values)

    @property
    def caller(self) -> Caller:
        return caller_of(self.client, self.client_id)

    def reachable(self, cluster: ClusterDescription) -> Iterator[tuple[BrokerDescription, Endpoint]]:
        """The brokers that have the client's listener, each with its advertised endpoint for it. As in Kafka, brokers without
        that listener are omitted."""
        for broker in cluster.brokers:
            at = broker.at(self.client.listener)
            if at is not None:
                yield broker, at

    async def waiting(self, answer: Awaitable[Result]) -> Result:
        """Waits for another part of the node, such as a coordinator. Meanwhile the request gives up its slot among the long
        requests; afterwards it begins a new slice. If the future is already done, no other request has used the event loop, so
        the current slice continues. If each row began a new slice, thousands of rows that are refused at once would run without
        a pause."""
        is_there = isinstance(answer, asyncio.Future) and answer.done()
        if not is_there:
            self.turn.leave()
        try:
            return await answer
        finally:
            if not is_there:
                self.turn.resume()

    async def each(self, rows: Iterable[Item]) -> AsyncIterator[Item]:
        """Yields the rows. Lets the event loop run between two rows when the turn is over."""
        turn = self.turn
        for row in rows:
            yield row
            if turn.is_over:
                await turn.rest()

    async def together(self, jobs: Iterable[Coroutine[Any, Any, None]]) -> None:
        """Runs all jobs, at most WAITS at a time. They may take long, and must not raise LogError."""
        under_way: set[asyncio.Task[None]] = set()
        try:
            async for job in self.each(jobs):
                under_way.add(asyncio.get_running_loop().create_task(job))
                if len(under_way) >= WAITS:
                    under_way = await _fewer(under_way)
            if under_way:
                await asyncio.gather(*under_way)
        finally:
            for task in under_way:
                task.cancel()


async def _fewer(under_way: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    """Waits until a task has ended, and returns those that still run. Raises the exception of an ended task."""
    done, rest = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
    return rest


Serve = Callable[[Any, Call], Fields | Delayed | Coroutine[Any, Any, Fields]]
Refuse = Callable[[Any, Call, int, str], Fields]


def client_id_of(data: bytearray, start: int) -> str:
    """The client id, empty if there is none. `start` is the position after the correlation id of a valid header."""
    size = int.from_bytes(data[start : start + 2], "big", signed=True)
    return "" if size <= 0 else data[start + 2 : start + 2 + size].decode("utf-8", "replace")


def caller_of(client: ConnectedClient, client_id: str) -> Caller:
    return Caller(ANONYMOUS, client_id, f"/{client.host}")


def caller_by_header(client: ConnectedClient, data: bytearray, start: int) -> Caller:
    """Does the same as `caller_of` with the client id at `start`. The caller is cached, because a client sends the same id in
    all its requests."""
    if client.caller is not None and data.startswith(client.named, start):  # `named` is the id with its length field
        return client.caller
    head = data[start : start + 2 + (data[start] << 8 | data[start + 1])] if data[start] < 0x80 else _NO_ID
    caller = caller_of(client, client_id_of(data, start))
    if len(head) <= KEPT_ID_BYTES:
        client.named, client.caller = head, caller
    return caller


def log_refusal(error: BaseException, api: str, version: int, client: ConnectedClient, client_id: str) -> None:
    """Logs why a request is refused; `api` is its schema's name."""
    if not isinstance(error, LogError):
        events.error(logger, "request.defect", server="kafka", api=api, version=version, defect=error)
        return
    events.provoked(
        logger,
        "request.refused",
        by=api,
        server="kafka",
        api=api,
        version=version,
        client=f"{client.host}:{client.port}",
        client_id=client_id,
        error=error,
    )


class MessageHandler:
    """Serves one API on all connections. `errors` counts the error codes in answers."""

    def __init__(
        self, core: NodeCore, options: Options, schema: str, *, flexible_from: int, serve: Serve, refuse: Refuse
    ) -> None:
        self._core = core
        self._options = options
        self._schema = schema
        self._flexible_from = flexible_from
        self._serve = serve
        self._refuse = refuse
        self.errors: Counter[int] = Counter()

    def handle(self, data: bytearray, view: memoryview, start: int, end: int, version: int, correlation: int) -> Reply:
        messages = messages_of(self._schema, version)
        body = body_start(data, start, end, version >= self._flexible_from)
        client = self._options.request_context.client
        turn = self._options.scheduler.turn(client.is_there, end - start)
        call = Call(self._core, messages, self._options, client_id_of(data, start), client, turn)
        messages.check(end - body)
        reading = messages.reading(bytes(view[body:end]), turn)
        try:
            next(reading)
        except StopIteration as read:
            request, is_too_long = read.value
        else:
            return self._read_on(reading, call, correlation)
        answer = self._begun(request, call, is_too_long=is_too_long)
        if isinstance(answer, Delayed):
            return self._delayed(answer, request, call, correlation)
        if inspect.iscoroutine(answer):
            return self._wait(answer, request, call, correlation)
        return self._written(answer, request, call, correlation)

    def _delayed(self, answer: Delayed, request: Any, call: Call, correlation: int) -> Reply:
        future, request = answer.future, _kept(answer, request)
        if future.done() and not future.cancelled():
            return self._written(self._ended(answer, request, call), request, call, correlation)

        def finish(_: Any) -> Made:
            call.turn.resume()
            return self._written(self._ended(answer, request, call), request, call, correlation)

        def refuse(error: BaseException) -> Made:
            call.turn.resume()
            return self._written(self._refused(error, request, call), request, call, correlation)

        return DelayedReply(future, finish, refuse)

    def _ended(self, answer: Delayed, request: Any, call: Call) -> Fields:
        """Returns the fields of the answer, or of a refusal. The answer's future is done."""
        try:
            return answer.fields(answer.future.result())
        except Exception as error:  # noqa: BLE001 - every request gets an answer
            return self._refused(error, request, call)

    def _begun(self, request: Any, call: Call, *, is_too_long: bool) -> Fields | Delayed | Coroutine[Any, Any, Fields]:
        """Returns the result of the API's `serve`, or a refusal if `serve` raises."""
        try:
            if is_too_long:
                raise PolicyViolation(
                    f"the request has more than {ROWS_A_REQUEST} rows; split it into smaller requests"
                )
            return self._serve(request, call)
        except Exception as error:  # noqa: BLE001 - every request gets an answer
            return self._refused(error, request, call)

    def _written(self, answer: Any, request: Any, call: Call, correlation: int) -> Made:
        writing = call.messages.writing(correlation, answer, call.turn, self.errors)
        try:
            next(writing)
        except StopIteration as written:
            pieces: Sequence[Piece] = written.value
            return pieces
        except Exception as error:  # noqa: BLE001 - every request gets an answer
            return self._write_refusal(self._refused(error, request, call), call, correlation)
        return self._write_on(writing, request, call, correlation)

    def write(
        self,
        answer: Any,
        fields: Callable[[Any, Call], Fields],
        request: Any,
        version: int,
        correlation: int,
        client: ConnectedClient,
        client_id: str,
    ) -> Made:
        """Writes an answer that is too large for the native codec that read its request. `request` has the fields that
        `refuse` reads."""
        turn = self._options.scheduler.turn(client.is_there)
        call = Call(self._core, messages_of(self._schema, version), self._options, client_id, client, turn)
        return self._written(fields(answer, call), request, call, correlation)

    # --- in slices ----------------------------------------------------------------------------------------------------
    async def _read_on(
        self, reading: Generator[None, None, tuple[Any, bool]], call: Call, correlation: int
    ) -> Sequence[Piece]:
        try:
            request, is_too_long = await call.turn.through(reading)
            answer = self._begun(request, call, is_too_long=is_too_long)
            request = _kept(answer, request)
            return await self._finish(answer, request, call, correlation)
        finally:
            call.turn.leave()

    async def _wait(
        self, answer: Coroutine[Any, Any, Fields], request: Any, call: Call, correlation: int
    ) -> Sequence[Piece]:
        try:
            await call.turn.begin()
            return await self._finish(answer, request, call, correlation)
        finally:
            call.turn.leave()
            answer.close()  # the coroutine has not begun if its task was cancelled first

    async def _write_on(
        self, writing: Generator[None, None, Sequence[Piece]], request: Any, call: Call, correlation: int
    ) -> Sequence[Piece]:
        try:
            return await self._write(writing, request, call, correlation)
        finally:
            call.turn.leave()

    async def _finish(
        self, answer: Fields | Delayed | Coroutine[Any, Any, Fields], request: Any, call: Call, correlation: int
    ) -> Sequence[Piece]:
        if isinstance(answer, Delayed):
            call.turn.leave()  # the wait may last minutes, so the request gives up its slot
            await asyncio.wait({answer.future})
            answer = self._ended(answer, request, call)
            call.turn.resume()
        elif inspect.iscoroutine(answer):
            try:
                answer = await answer
            except Exception as error:  # noqa: BLE001 - every request gets an answer
                answer = self._refused(error, request, call)
            call.turn.resume()
        fields: Fields = answer  # type: ignore[assignment]
        return await self._write(
            call.messages.writing(correlation, fields, call.turn, self.errors), request, call, correlation
        )

    async def _write(
        self, writing: Generator[None, None, Sequence[Piece]], request: Any, call: Call, correlation: int
    ) -> Sequence[Piece]:
        try:
            return await call.turn.through(writing)
        except Exception as error:  # noqa: BLE001 - every request gets an answer
            refusal = self._refused(error, request, call)
        return await call.turn.through(call.messages.writing(correlation, refusal, call.turn, self.errors))

    def _write_refusal(self, refusal: Fields, call: Call, correlation: int) -> Made:
        async def rest() -> Sequence[Piece]:
            try:
                return await call.turn.through(writing)
            finally:
                call.turn.leave()

        writing = call.messages.writing(correlation, refusal, call.turn, self.errors)
        return rest()

    def _refused(self, error: BaseException, request: Any, call: Call) -> Fields:
        log_refusal(error, self._schema, call.messages.version, call.client, call.client_id)
        return self._refuse(request, call, code_of(error), message_of(error))
