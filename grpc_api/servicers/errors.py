"""Ends failed calls with the status and detail of `grpc_api.messages.errors`.

Any exception that is not a LogError is a defect of the node: it is logged here, and the caller gets INTERNAL,
without the text of the exception.

The call's status is set without gRPC's `abort`. The exception that `abort` raises and the call's frames refer to each other, so
a refused request would stay in memory until a full collection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from grpc_api.messages.errors import bounded_message, clear_tracebacks, meaning, trailing_metadata
from storage_tiers import events
from storage_tiers.errors import LogError

log = logging.getLogger(__name__)

#: The logger of gRPC for Python. It logs an error with a traceback when a caller leaves while its call is ending.
GRPC_LOGGER = "grpc._cython.cygrpc"
#: The message for an exception that is not a LogError.
DEFECT = "the request failed because of a bug in the node; its log has the details"


@asynccontextmanager
async def ending(name: str, context: Any) -> AsyncIterator[None]:
    """Turns an exception of the block into the call's status."""
    try:
        yield
    except LogError as error:
        events.provoked(log, "request.refused", by=name, server="grpc", api=name, client=context.peer(), error=error)
        _end(context, meaning(error).status, bounded_message(error))
        context.set_trailing_metadata(trailing_metadata(error))
        clear_tracebacks(error)
    except (asyncio.CancelledError, grpc.aio.AbortError):
        raise
    except grpc.aio.InternalError as error:
        events.debug(log, "request.abandoned", server="grpc", api=name, error=error)
    except Exception as error:  # noqa: BLE001 - the caller gets an answer, the node continues
        events.error(log, "request.defect", server="grpc", api=name, defect=error)
        _end(context, grpc.StatusCode.INTERNAL, DEFECT)
        clear_tracebacks(error)


def _end(context: Any, code: grpc.StatusCode, details: str) -> None:
    context.set_code(code)
    context.set_details(details)


def not_of_a_caller(record: logging.LogRecord) -> bool:
    """A filter for GRPC_LOGGER. It drops the messages about callers that leave: these are no errors of the node, and any client
    could fill the log with them."""
    kind = record.exc_info[0] if record.exc_info else None
    return kind is None or not issubclass(kind, (grpc.aio.InternalError, asyncio.CancelledError))
