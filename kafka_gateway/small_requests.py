"""Serves the small requests of an API with a native codec, and leaves all other requests to the API's schema-driven handler.

Native codecs exist for APIs whose requests are frequent and mostly small. A codec's reader returns None for a request that it
cannot read. The schema-driven handler then reads or refuses that request, so only the schema decides which requests are
malformed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

from grpc_api.contract.caller import Caller
from grpc_api.contract.node import NodeCore
from kafka_gateway.client import ConnectedClient
from kafka_gateway.connection import Piece
from kafka_gateway.errors import message_of
from kafka_gateway.message_handler import Call, Fields, MessageHandler, caller_by_header, log_refusal
from kafka_gateway.options import Options
from kafka_gateway.reply import DelayedReply, Made, Reply
from storage_tiers.errors import LogError
from storage_tiers.turns import Turn

# A NamedTuple's own constructor costs three times as much.
_new_tuple = tuple.__new__


class NativeCodec(NamedTuple):
    """`read` takes the frame, its start and end and the version. `ask` starts the request. `refusal` turns an exception into an
    answer. `write` takes the answer, the version, the correlation id and the counter of error codes; it returns None for an
    answer that is too large for one turn of the loop. `in_steps` takes the same arguments and writes such an answer in steps.
    Without `in_steps`, or if it returns None, `fields` turns the answer into fields, which the schema-driven writer writes in
    slices. `kept` returns the part of a request that `refusal` and `fields` need, for requests that may wait for minutes."""

    read: Callable[[bytearray, int, int, int], Any]
    ask: Callable[[NodeCore, Any, Caller], asyncio.Future[Any]]
    refusal: Callable[[Any, LogError], Any]
    write: Callable[[Any, int, int, Counter[int]], bytes | None]
    fields: Callable[[Any, Call], Fields] | None = None
    in_steps: Callable[[Any, int, int, Counter[int]], Generator[None, None, Sequence[Piece]] | None] | None = None
    kept: Callable[[Any], Any] | None = None


class SmallRequests:
    """A `Handler` that tries the native codec first."""

    def __init__(
        self, core: NodeCore, options: Options, api: str, codec: NativeCodec, by_schema: MessageHandler
    ) -> None:
        self._core = core
        self._options = options
        self._api = api
        self._codec = codec
        self._by_schema = by_schema
        self.errors: Counter[int] = by_schema.errors

    def handle(self, data: bytearray, view: memoryview, start: int, end: int, version: int, correlation: int) -> Reply:
        codec = self._codec
        request = codec.read(data, start, end, version)
        if request is None:
            return self._by_schema.handle(data, view, start, end, version, correlation)
        client = self._options.request_context.client
        caller = caller_by_header(client, data, start)
        try:
            future = codec.ask(self._core, request, caller)
            if future.done() and not future.cancelled():
                answer = future.result()
                frame = codec.write(answer, version, correlation, self.errors)
                if frame is not None:
                    return (frame,)
                return _Answering(self, request, client, caller.client_id, version, correlation).large(answer)
        except Exception as error:  # noqa: BLE001 - every request gets an answer
            return _Answering(self, request, client, caller.client_id, version, correlation).refuse(error)
        if codec.kept is not None:
            request = codec.kept(request)
        answering = _Answering(self, request, client, caller.client_id, version, correlation)
        return _new_tuple(DelayedReply, (future, answering.finish, answering.refuse))

    def answered(self, asked: _Answering, answer: Any) -> Made:
        frame = self._codec.write(answer, asked.version, asked.correlation, self.errors)
        return self.large(asked, answer) if frame is None else (frame,)

    def refused(self, asked: _Answering, error: BaseException) -> Made:
        log_refusal(error, self._api, asked.version, asked.client, asked.client_id)
        reason = error if isinstance(error, LogError) else LogError(message_of(error))
        return self.answered(asked, self._codec.refusal(asked.request, reason))

    def large(self, asked: _Answering, answer: Any) -> Made:
        fields, in_steps = self._codec.fields, self._codec.in_steps
        steps = None if in_steps is None else in_steps(answer, asked.version, asked.correlation, self.errors)
        if steps is not None:
            return self._write(steps, self._options.scheduler.turn(asked.client.is_there))
        assert fields is not None
        return self._by_schema.write(
            answer, fields, asked.request, asked.version, asked.correlation, asked.client, asked.client_id
        )

    def _write(self, steps: Generator[None, None, Sequence[Piece]], turn: Turn) -> Made:
        try:
            while not turn.is_over:
                next(steps)
        except StopIteration as written:
            pieces: Sequence[Piece] = written.value
            return pieces
        return self._write_on(steps, turn)

    async def _write_on(self, steps: Generator[None, None, Sequence[Piece]], turn: Turn) -> Sequence[Piece]:
        try:
            await turn.rest()
            return await turn.through(steps)
        finally:
            turn.leave()


class _Answering:
    """A request that the codec has read, and whose answer is delayed, large or a refusal."""

    __slots__ = ("_requests", "client", "client_id", "correlation", "request", "version")

    def __init__(
        self,
        requests: SmallRequests,
        request: Any,
        client: ConnectedClient,
        client_id: str,
        version: int,
        correlation: int,
    ) -> None:
        self._requests = requests
        self.request = request
        self.client = client
        self.client_id = client_id
        self.version = version
        self.correlation = correlation

    def finish(self, answer: Any) -> Made:
        try:
            return self._requests.answered(self, answer)
        except Exception as error:  # noqa: BLE001 - every request gets an answer
            return self.refuse(error)

    def refuse(self, error: BaseException) -> Made:
        return self._requests.refused(self, error)

    def large(self, answer: Any) -> Made:
        return self._requests.large(self, answer)
