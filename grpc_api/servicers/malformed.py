"""Bytes that are no message: an error of the caller's, where gRPC would call it the server's and log a traceback each time.

A request that cannot be parsed reaches its servicer as `Malformed`, which answers INVALID_ARGUMENT with the reason.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

PACKAGE = "/tidelog.v1."


class Malformed(NamedTuple):
    reason: str


class MalformedRequests(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Changes how requests of tidelog's own services are parsed, once a method."""

    def __init__(self) -> None:
        self._handlers: dict[str, Any] = {}

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        known = self._handlers.get(details.method)
        if known is not None:
            return known
        handler = await continuation(details)
        if handler is None or not details.method.startswith(PACKAGE):
            return handler
        made = handler._replace(request_deserializer=_forgiving(handler.request_deserializer))
        self._handlers[details.method] = made
        return made


def _forgiving(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def parsed(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError as error:
            return Malformed(f"the request ({len(data)} bytes) cannot be parsed: {error}")

    return parsed
