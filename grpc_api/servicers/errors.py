"""How a servicer's method ends when something is wrong: with the status and the detail of `grpc_api.messages.errors`.

What is no LogError is a defect of the node: it is logged here, and the caller learns INTERNAL and nothing of its insides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, TypeVar

import grpc
import grpc.aio

from grpc_api.messages.errors import meaning, sentence, trailing_metadata
from grpc_api.servicers.malformed import Malformed
from storage_tiers import events
from storage_tiers.errors import InvalidRequest, LogError

log = logging.getLogger(__name__)

Servicer = TypeVar("Servicer")
Request = TypeVar("Request")
Response = TypeVar("Response")
Method = Callable[[Servicer, Request, Any], Awaitable[Response]]


def answers_errors(method: Method[Servicer, Request, Response]) -> Method[Servicer, Request, Response]:
    """Wraps a servicer's unary method so that what it raises ends the call with the status that fits."""

    @wraps(method)
    async def answered(self: Servicer, request: Request, context: Any) -> Response:
        async with _ending(method.__qualname__, context):
            return await method(self, well_formed(request), context)
        raise AssertionError("not reached")

    return answered


def ends_with_errors(method: Callable[[Servicer, Request, Any], Awaitable[None]]) -> Callable[..., Any]:
    """The same for a method that writes its stream itself. (The generated types know only generators.)"""

    @wraps(method)
    async def written(self: Servicer, request: Request, context: Any) -> None:
        async with _ending(method.__qualname__, context):
            await method(self, well_formed(request), context)

    return written


def well_formed(request: Request) -> Request:
    """The request; InvalidRequest for bytes that were none."""
    if isinstance(request, Malformed):
        raise InvalidRequest(request.reason)
    return request


@asynccontextmanager
async def _ending(name: str, context: Any) -> AsyncIterator[None]:
    try:
        yield
    except LogError as error:
        events.provoked(log, "request.refused", by=name, door="grpc", api=name, client=context.peer(), error=error)
        await context.abort(meaning(error).status, sentence(error), trailing_metadata(error))
    except (asyncio.CancelledError, grpc.aio.AbortError):
        raise
    except grpc.aio.InternalError as error:
        events.debug(log, "request.abandoned", door="grpc", api=name, error=error)
    except Exception as error:  # noqa: BLE001 - the caller gets an answer, the node goes on
        events.error(log, "request.defect", door="grpc", api=name, defect=error)
        await context.abort(grpc.StatusCode.INTERNAL, "the node met a defect of its own; its log has the details")
