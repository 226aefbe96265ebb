"""LogError to gRPC status, in one table: the code follows the error's advice, but for a few that gRPC has a word for.

The status message is the error's own sentence. Trailing metadata carries what a code cannot: `tidelog-error`, the name
of the error's class, and `tidelog-advice`, the name of its Advice. What is no LogError is a defect of the node: it is
logged there, and the caller learns INTERNAL and nothing of its insides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import Any, TypeVar

import grpc

from storage_tiers.errors import (
    Advice,
    LogError,
    OffsetOutOfRange,
    RequestTimedOut,
    TopicExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)

log = logging.getLogger(__name__)

ERROR_KEY = "tidelog-error"
ADVICE_KEY = "tidelog-advice"

#: gRPC: UNAVAILABLE may be retried as it is, ABORTED from a higher level, FAILED_PRECONDITION not at all.
BY_ADVICE: Mapping[Advice, grpc.StatusCode] = {
    Advice.RETRY: grpc.StatusCode.UNAVAILABLE,
    Advice.REDIRECT: grpc.StatusCode.ABORTED,
    Advice.STOP: grpc.StatusCode.FAILED_PRECONDITION,
    Advice.FIX: grpc.StatusCode.INVALID_ARGUMENT,
    Advice.PAGE: grpc.StatusCode.DATA_LOSS,
}
BY_ERROR: Mapping[type[LogError], grpc.StatusCode] = {
    UnknownTopicOrPartition: grpc.StatusCode.NOT_FOUND,
    UnknownTopicId: grpc.StatusCode.NOT_FOUND,
    TopicExists: grpc.StatusCode.ALREADY_EXISTS,
    OffsetOutOfRange: grpc.StatusCode.OUT_OF_RANGE,
    RequestTimedOut: grpc.StatusCode.DEADLINE_EXCEEDED,
}

Servicer = TypeVar("Servicer")
Request = TypeVar("Request")
Response = TypeVar("Response")
Method = Callable[[Servicer, Request, Any], Awaitable[Response]]


def status_code(error: LogError) -> grpc.StatusCode:
    return BY_ERROR.get(type(error), BY_ADVICE[error.advice])


def trailing_metadata(error: LogError) -> tuple[tuple[str, str], ...]:
    return (ERROR_KEY, type(error).__name__), (ADVICE_KEY, error.advice.name)


def answers_errors(method: Method[Servicer, Request, Response]) -> Method[Servicer, Request, Response]:
    """Wraps a servicer's unary method so that what it raises ends the call with the status that fits."""

    @wraps(method)
    async def answered(self: Servicer, request: Request, context: Any) -> Response:
        try:
            return await method(self, request, context)
        except LogError as error:
            await context.abort(status_code(error), str(error), trailing_metadata(error))
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("%s failed", method.__qualname__)
            await context.abort(grpc.StatusCode.INTERNAL, "the node met a defect of its own; its log has the details")
        raise AssertionError("abort always raises")

    return answered
