"""Serves the small requests of an API by a native codec, and leaves all others to the API's handler by schema.

For APIs whose requests are mostly small and many. The reader gives None for what it does not read; the handler by schema then
reads or refuses it, so there is one judge of what is malformed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from grpc_api.contract.caller import Caller
from grpc_api.contract.node import NodeCore
from kafka_gateway.client import ConnectedClient
from kafka_gateway.errors import message_of
from kafka_gateway.message_handler import Call, Fields, MessageHandler, caller_by_header, log_refusal
from kafka_gateway.options import Options
from kafka_gateway.reply import DelayedReply, Made, Reply
from storage_tiers.errors import LogError


class NativeCodec(NamedTuple):
    """`read` takes the frame, its start and end and the version. `ask` starts the request. `refusal` is the answer that an
    exception makes. `write` takes the answer, the version, the correlation id and the counter of error codes; it returns None
    for an answer that is too large for one turn of the loop, of which `fields` makes what the schema writes in slices."""

    read: Callable[[bytearray, int, int, int], Any]
    ask: Callable[[NodeCore, Any, Caller], asyncio.Future[Any]]
    refusal: Callable[[Any, LogError], Any]
    write: Callable[[Any, int, int, Counter[int]], bytes | None]
    fields: Callable[[Any, Call], Fields] | None = None


class SmallRequests:
    """A Handler."""

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
                return self._answering(request, client, caller.client_id, version, correlation).large(answer)
        except Exception as error:  # noqa: BLE001 - every request gets an answer
            return self._answering(request, client, caller.client_id, version, correlation).refuse(error)
        answering = self._answering(request, client, caller.client_id, version, correlation)
        return DelayedReply(future, answering.finish, answering.refuse)

    def _answering(
        self, request: Any, client: ConnectedClient, client_id: str, version: int, correlation: int
    ) -> _Answering:
        codec = self._codec

        def finish(answer: Any) -> Made:
            try:
                frame = codec.write(answer, version, correlation, self.errors)
                return large(answer) if frame is None else (frame,)
            except Exception as error:  # noqa: BLE001 - every request gets an answer
                return refuse(error)

        def refuse(error: BaseException) -> Made:
            log_refusal(error, self._api, version, client, client_id)
            refusal = codec.refusal(request, error if isinstance(error, LogError) else LogError(message_of(error)))
            frame = codec.write(refusal, version, correlation, self.errors)
            return large(refusal) if frame is None else (frame,)

        def large(answer: Any) -> Made:
            assert codec.fields is not None
            return self._by_schema.write(answer, codec.fields, request, version, correlation, client, client_id)

        return _Answering(finish, refuse, large)


class _Answering(NamedTuple):
    """How a request is answered that is not answered at once by the native codec."""

    finish: Callable[[Any], Made]
    refuse: Callable[[BaseException], Made]
    large: Callable[[Any], Made]
