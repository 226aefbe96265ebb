"""Serves the APIs that are not on the hot path: kio reads the request, one function answers it, kio writes the answer.

A function takes the request and a `Call`, and gives the response's fields; it is a coroutine function where it must wait.
What it raises becomes an answer through its API's `refuse`, so that no request ends without one.
"""

from __future__ import annotations

import inspect
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpc_api.contract.node import NodeCore
from kafka_gateway.client import Client
from kafka_gateway.connection import Piece
from kafka_gateway.error_counts import count_errors
from kafka_gateway.errors import code_of, message_of
from kafka_gateway.hot_parse import body_start
from kafka_gateway.messages import Messages, messages_of
from kafka_gateway.options import Options
from kafka_gateway.reply import Reply
from storage_tiers import events
from storage_tiers.errors import LogError

logger = logging.getLogger(__name__)

#: The response's fields, as `Messages.respond` takes them.
Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """What a handler may use: the core, and the response's classes by name (`make`)."""

    core: NodeCore
    messages: Messages
    options: Options
    client_id: str
    client: Client

    def make(self, kind: str, /, **values: Any) -> Any:
        return self.messages.make(kind, **values)


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
        request = messages.read(bytes(view[body:end]))
        call = Call(self._core, messages, self._options, client_id_of(data, start), self._options.asking.client)
        try:
            answer = self._serve(request, call)
            if inspect.iscoroutine(answer):
                return self._wait(answer, request, call, correlation)
            return self._answered(call, correlation, answer)  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001 - every request gets an answer
            return self._refused(error, request, call, correlation)

    async def _wait(
        self, answer: Coroutine[Any, Any, Fields], request: Any, call: Call, correlation: int
    ) -> Sequence[Piece]:
        try:
            return self._answered(call, correlation, await answer)
        except Exception as error:  # noqa: BLE001 - every request gets an answer
            return self._refused(error, request, call, correlation)

    def _refused(self, error: Exception, request: Any, call: Call, correlation: int) -> Sequence[Piece]:
        api, version = self._schema, call.messages.version
        if isinstance(error, LogError):
            events.provoked(
                logger,
                "request.refused",
                by=api,
                door="kafka",
                api=api,
                version=version,
                client=f"{call.client.host}:{call.client.port}",
                client_id=call.client_id,
                error=error,
            )
        else:
            events.error(logger, "request.defect", door="kafka", api=api, version=version, defect=error)
        return self._answered(call, correlation, self._refuse(request, call, code_of(error), message_of(error)))

    def _answered(self, call: Call, correlation: int, answer: Fields) -> Sequence[Piece]:
        answered = (call.messages.respond(correlation, **answer),)
        count_errors(answer, self.errors)
        return answered
