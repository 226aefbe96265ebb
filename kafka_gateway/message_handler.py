"""Serves the APIs that are not on the hot path: the request is read, one function answers it, the answer is written.

A function takes the request and a `Call`, and gives the response's fields; it is a coroutine function where it must wait, or
where it goes through rows that cost something: then it rests between them. An array may be a generator of rows, which runs
while the answer is written. What a function raises becomes an answer through its API's `refuse`, so that no request ends
without one; so does a request of too many rows, of which the first are refused by name.

Most requests are read, served and written at once. What takes longer goes on in a task, in slices (`turns.py`).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from grpc_api.contract.node import NodeCore
from grpc_api.contract.topics import BrokerDescription, ClusterDescription, Endpoint
from kafka_gateway.client import ConnectedClient
from kafka_gateway.connection import Piece
from kafka_gateway.errors import code_of, message_of
from kafka_gateway.hot_parse import body_start
from kafka_gateway.message_reader import ROWS_A_REQUEST
from kafka_gateway.messages import Messages, messages_of
from kafka_gateway.options import Options
from kafka_gateway.reply import Reply
from storage_tiers import events
from storage_tiers.errors import LogError, PolicyViolation
from storage_tiers.turns import Turn

logger = logging.getLogger(__name__)

#: Lookups of one request that wait for disks or the bucket at the same time.
WAITS = 64

Item = TypeVar("Item")
Result = TypeVar("Result")

#: The response's fields, as `Messages.respond` takes them.
Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """What a handler may use: the core, and the response's classes by name (`make`)."""

    core: NodeCore
    messages: Messages
    options: Options
    client_id: str
    client: ConnectedClient
    turn: Turn

    def make(self, kind: str, /, **values: Any) -> Any:
        return self.messages.make(kind, **values)

    def reachable(self, cluster: ClusterDescription) -> Iterator[tuple[BrokerDescription, Endpoint]]:
        """The brokers that have the listener which this client came in by, each with what it tells clients of that one. A
        broker without it is left out, as in Kafka."""
        for broker in cluster.brokers:
            at = broker.at(self.client.listener)
            if at is not None:
                yield broker, at

    async def each(self, rows: Iterable[Item]) -> AsyncIterator[Item]:
        """The rows, with rests between them. What is done with one is not interrupted."""
        turn = self.turn
        for row in rows:
            yield row
            if turn.is_over:
                await turn.rest()

    async def together(self, jobs: Iterable[Coroutine[Any, Any, None]]) -> None:
        """Does them all, at most WAITS of them at a time, each of which may wait long. None may raise a LogError."""
        under_way: set[asyncio.Task[None]] = set()
        try:
            async for job in self.each(jobs):
                under_way.add(asyncio.get_running_loop().create_task(job))
                if len(under_way) >= WAITS:
                    done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()
            if under_way:
                await asyncio.gather(*under_way)
        finally:
            for task in under_way:
                task.cancel()


Serve = Callable[[Any, Call], Fields | Coroutine[Any, Any, Fields]]
Refuse = Callable[[Any, Call, int, str], Fields]


def client_id_of(data: bytearray, start: int) -> str:
    """What the client calls itself; empty for nothing. `start` is after the correlation id of a header that was read."""
    size = int.from_bytes(data[start : start + 2], "big", signed=True)
    return "" if size <= 0 else data[start + 2 : start + 2 + size].decode("utf-8", "replace")


class MessageHandler:
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
        turn = self._options.lane.turn(client.is_there)
        call = Call(self._core, messages, self._options, client_id_of(data, start), client, turn)
        reading = messages.reading(bytes(view[body:end]), turn)
        try:
            next(reading)
        except StopIteration as read:
            request, is_too_long = read.value
        else:
            return self._read_on(reading, call, correlation)
        answer = self._begun(request, call, is_too_long=is_too_long)
        if inspect.iscoroutine(answer):
            return self._wait(answer, request, call, correlation)
        return self._written(answer, request, call, correlation)

    def _begun(self, request: Any, call: Call, *, is_too_long: bool) -> Fields | Coroutine[Any, Any, Fields]:
        """What the API's function says; a refusal where it raises."""
        try:
            if is_too_long:
                raise PolicyViolation(f"the request has more than {ROWS_A_REQUEST} rows; ask in parts")
            return self._serve(request, call)
        except Exception as error:  # noqa: BLE001 - every request gets an answer
            return self._refused(error, request, call)

    def _written(self, answer: Any, request: Any, call: Call, correlation: int) -> Reply:
        writing = call.messages.writing(correlation, answer, call.turn, self.errors)
        try:
            next(writing)
        except StopIteration as written:
            pieces: Sequence[Piece] = written.value
            return pieces
        except Exception as error:  # noqa: BLE001 - every request gets an answer
            return self._write_refusal(self._refused(error, request, call), call, correlation)
        return self._write_on(writing, request, call, correlation)

    # --- in slices ----------------------------------------------------------------------------------------------------
    async def _read_on(
        self, reading: Generator[None, None, tuple[Any, bool]], call: Call, correlation: int
    ) -> Sequence[Piece]:
        try:
            request, is_too_long = await call.turn.through(reading)
            answer = self._begun(request, call, is_too_long=is_too_long)
            return await self._finish(answer, request, call, correlation)
        finally:
            call.turn.leave()

    async def _wait(
        self, answer: Coroutine[Any, Any, Fields], request: Any, call: Call, correlation: int
    ) -> Sequence[Piece]:
        try:
            return await self._finish(answer, request, call, correlation)
        finally:
            call.turn.leave()

    async def _write_on(
        self, writing: Generator[None, None, Sequence[Piece]], request: Any, call: Call, correlation: int
    ) -> Sequence[Piece]:
        try:
            return await self._write(writing, request, call, correlation)
        finally:
            call.turn.leave()

    async def _finish(
        self, answer: Fields | Coroutine[Any, Any, Fields], request: Any, call: Call, correlation: int
    ) -> Sequence[Piece]:
        if inspect.iscoroutine(answer):
            try:
                answer = await answer
            except Exception as error:  # noqa: BLE001 - every request gets an answer
                answer = self._refused(error, request, call)
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

    def _write_refusal(self, refusal: Fields, call: Call, correlation: int) -> Reply:
        async def rest() -> Sequence[Piece]:
            try:
                return await call.turn.through(writing)
            finally:
                call.turn.leave()

        writing = call.messages.writing(correlation, refusal, call.turn, self.errors)
        return rest()

    def _refused(self, error: Exception, request: Any, call: Call) -> Fields:
        api, version = self._schema, call.messages.version
        if isinstance(error, LogError):
            events.provoked(
                logger,
                "request.refused",
                by=api,
                server="kafka",
                api=api,
                version=version,
                client=f"{call.client.host}:{call.client.port}",
                client_id=call.client_id,
                error=error,
            )
        else:
            events.error(logger, "request.defect", server="kafka", api=api, version=version, defect=error)
        return self._refuse(request, call, code_of(error), message_of(error))
