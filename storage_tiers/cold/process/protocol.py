"""The protocol between broker and tier process over their socket: frames, questions, answers, errors.

A frame is its length (4 bytes, big-endian) and a JSON object of at most MAX_FRAME_BYTES, or MAX_QUESTION_BYTES from the broker,
because the process parses a frame in one go, and other brokers wait meanwhile. The broker sends `Configure` once,
then questions with rising numbers, and `Forget` for a question whose answer is no longer awaited. Each answer carries its
question's number; answers come in any order. The process sends `Idle` after a time without a question and keeps running; the
broker closes the socket if it has no question open. So no question is lost to a process that is about to end. A closed socket
ends both sides' work.

Bytes of objects never pass here: they go through files in the cache directory, and frames carry the paths.
"""

from __future__ import annotations

import asyncio
import json
import struct
from dataclasses import dataclass
from typing import Any

from storage_tiers import errors
from storage_tiers.cold.process.operations import TierCounters
from storage_tiers.cold.process.question import Question
from storage_tiers.cold.process.settings import TierSettings
from storage_tiers.cold.process.table import TABLE
from storage_tiers.cold.process.value_json import ProtocolError, from_json, to_json
from storage_tiers.cold.stores.location import StoreLocation
from storage_tiers.errors import Advice, LogError

#: Nearly every frame is below 64 KiB; one above this bound is a bug.
MAX_FRAME_BYTES = 16 << 20
#: The largest frame from a broker. The longest legitimate one is a page of a listing, some hundred kilobytes.
MAX_QUESTION_BYTES = 2 << 20


@dataclass(frozen=True, slots=True)
class Configure:
    """The first frame. `cache_directory` exists and belongs to the broker."""

    location: StoreLocation
    cache_directory: str
    settings: TierSettings


@dataclass(frozen=True, slots=True)
class Idle:
    """From the process, which has had no question for `idle_s`. The broker may close the socket, or ignore the frame."""

    counters: TierCounters


@dataclass(frozen=True, slots=True)
class Ask:
    """From the broker: a question. `number` identifies its answer."""

    number: int
    question: Question[Any]


@dataclass(frozen=True, slots=True)
class Unknown:
    """A question without a row in this version's table. The answer is an error."""

    number: int
    operation: str


@dataclass(frozen=True, slots=True)
class Forget:
    """From the broker: cancel this question if it is still under way."""

    number: int


@dataclass(frozen=True, slots=True)
class Reply:
    """`value` is still JSON: its type follows from the question with this `number`."""

    number: int
    value: Any = None
    error: LogError | None = None


Frame = Configure | Ask | Unknown | Forget | Idle | Reply


# --- frames -----------------------------------------------------------------------------------------------------------
def encode(frame: Frame) -> bytes:
    """The bytes of a frame. ProtocolError beyond MAX_FRAME_BYTES, or MAX_QUESTION_BYTES for a question."""
    body = json.dumps(_frame_to_json(frame), separators=(",", ":")).encode()
    _check_size(len(body), MAX_QUESTION_BYTES if isinstance(frame, Ask) else MAX_FRAME_BYTES)
    return struct.pack(">I", len(body)) + body


def decode(body: bytes) -> Frame:
    """The frame in `body`. ProtocolError if `body` is not a frame."""
    try:
        tree = json.loads(body)
        frame: Frame = _DECODERS[tree["frame"]](tree)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ProtocolError(f"no frame of the tier protocol: {body[:200]!r}") from error
    return frame


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise ProtocolError(f"a frame of {size} bytes is longer than {most}")


async def read_frame(reader: asyncio.StreamReader, most: int = MAX_FRAME_BYTES) -> Frame | None:
    """Reads the next frame. None at the end of the socket, even inside a frame; ProtocolError for bytes that are not a
    frame, and for a frame of more than `most` bytes."""
    try:
        (length,) = struct.unpack(">I", await reader.readexactly(4))
        _check_size(length, most)
        body = await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return decode(body)


def _frame_to_json(frame: Frame) -> dict[str, Any]:
    match frame:
        case Ask(number, question):
            name = type(question).__name__
            return {"frame": "ask", "number": number, "operation": name, "body": to_json(question)}
        case Reply(number, value, None):
            return {"frame": "reply", "number": number, "value": value}
        case Reply(number, _, error):
            return {"frame": "error", "number": number, **_error_to_json(error)}
        case Unknown(number, name):
            return {"frame": "ask", "number": number, "operation": name, "body": {}}
        case Forget(number):
            return {"frame": "forget", "number": number}
        case Configure():
            return {"frame": "configure", "body": to_json(frame)}
        case Idle():
            return {"frame": "idle", "body": to_json(frame)}


def _ask_from_json(tree: dict[str, Any]) -> Ask | Unknown:
    number, name = from_json(int, tree["number"]), from_json(str, tree["operation"])
    row = TABLE.get(name)
    return Unknown(number, name) if row is None else Ask(number, from_json(row.question, tree["body"]))


_DECODERS: dict[str, Any] = {
    "ask": _ask_from_json,
    "reply": lambda tree: Reply(from_json(int, tree["number"]), tree["value"]),
    "error": lambda tree: Reply(from_json(int, tree["number"]), error=_error_from_json(tree)),
    "forget": lambda tree: Forget(from_json(int, tree["number"])),
    "configure": lambda tree: from_json(Configure, tree["body"]),
    "idle": lambda tree: from_json(Idle, tree["body"]),
}


# --- errors -----------------------------------------------------------------------------------------------------------
def _error_to_json(error: Any) -> dict[str, str]:
    return {"error": type(error).__name__, "message": str(error), "advice": error.advice.name}


def _error_from_json(tree: dict[str, Any]) -> LogError:
    """An error of the same class with the same message. An unknown class becomes TierUnavailable if its advice is RETRY, else
    LogError."""
    kind = getattr(errors, tree["error"], None)
    if isinstance(kind, type) and issubclass(kind, LogError):
        return kind(tree["message"])
    if tree["advice"] == Advice.RETRY.name:
        return errors.TierUnavailable(tree["message"])
    return LogError(tree["message"])
