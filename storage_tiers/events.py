"""The events of a process's log: one per line, each a name with typed fields, in two formats with the same content.

    events.info(log, "manifest.committed", partition=partition.partition, commit=7, ms=12)

    2026-03-01T10:20:30.456Z INFO service.broker.background.tiering manifest.committed topic=orders partition=3 commit=7 ms=12
    {"time":"2026-03-01T10:20:30.456Z","level":"INFO","logger":"service.broker.background.tiering","event":"manifest.committed",…}

Events are for boundaries (a start, an offload, a refusal), never for every request. docs/operations.md lists names and fields;
a test compares that table with the code. A value chosen by a client can neither end its line nor control a terminal: every
value that is not plain is quoted as JSON in both formats and truncated at `LONGEST_TEXT`.

`Troubles` reports a lasting failure once, and `RateLimit` limits events that any client can cause, so that neither fills the
log. A line of another library becomes an event named `message` with one field.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import textwrap
import time
from collections.abc import Hashable, Mapping
from typing import Literal, TextIO, TypeAlias, get_args

from storage_tiers.types import TopicPartition

Plain: TypeAlias = str | int | float | bool | None
Field: TypeAlias = str | int | float | bool | TopicPartition | BaseException | None
Form: TypeAlias = Literal["text", "json"]
FORMS: tuple[str, ...] = get_args(Form)

#: Characters of one field; longer text is truncated.
LONGEST_TEXT = 2_000
#: Kafka's names of levels, where Python's differ.
_LEVELS = {"WARNING": "WARN", "CRITICAL": "FATAL"}
_PLAIN = re.compile(r"[A-Za-z0-9_.,:;/+@%*()~\[\]-]+")


def debug(logger: logging.Logger, name: str, /, **fields: Field) -> None:
    _log(logger, logging.DEBUG, name, fields, None)


def info(logger: logging.Logger, name: str, /, **fields: Field) -> None:
    _log(logger, logging.INFO, name, fields, None)


def provoked(logger: logging.Logger, name: str, /, *, by: Hashable, **fields: Field) -> None:
    """An event that any client can cause at will. `RateLimit` limits these events for each `by`; the next event written carries
    the number of omitted ones as `left_out`."""
    _log(logger, logging.INFO, name, fields, None, by)


def warning(logger: logging.Logger, name: str, /, **fields: Field) -> None:
    """A failure that the node retries or works around."""
    _log(logger, logging.WARNING, name, fields, None)


def error(logger: logging.Logger, name: str, /, *, defect: BaseException | None = None, **fields: Field) -> None:
    """A failure that needs an operator. `defect` is an unexpected exception, whose traceback becomes a field."""
    _log(logger, logging.ERROR, name, fields, defect)


def _log(
    logger: logging.Logger,
    level: int,
    name: str,
    fields: Mapping[str, Field],
    defect: BaseException | None,
    by: Hashable = None,
) -> None:
    if logger.isEnabledFor(level):
        values = _flat(fields)
        message = " ".join([name, *(f"{key}={_text(value)}" for key, value in values.items())])
        logger.log(level, "%s", message, exc_info=defect, extra={"event": name, "fields": values, "by": by})


def _flat(fields: Mapping[str, Field]) -> dict[str, Plain]:
    """The fields as plain values: a partition becomes the fields `topic` and `partition`, an error its sentence."""
    values: dict[str, Plain] = {}
    for key, value in fields.items():
        if isinstance(value, TopicPartition):
            values["topic"], values["partition"] = value.topic, value.partition
        elif isinstance(value, BaseException):
            values[key] = _cut(str(value) or repr(value))
        else:
            values[key] = _cut(value) if isinstance(value, str) else value
    return values


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"


def _text(value: Plain) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value):
        return value
    return json.dumps(value)


# --- formats ----------------------------------------------------------------------------------------------------------
def _event(record: logging.LogRecord) -> tuple[str, Mapping[str, Plain]]:
    """Name and fields; a line from another library is an event named `message`."""
    name = getattr(record, "event", None)
    if name is None:
        return "message", {"message": _cut(record.getMessage())}
    return name, record.fields  # type: ignore[attr-defined]


def _defect(record: logging.LogRecord) -> str | None:
    if not record.exc_info or record.exc_info[0] is None:
        return None
    return logging.Formatter().formatException(record.exc_info)


class Readable(logging.Formatter):
    """`time level logger event key=value …`; values that are not plain are JSON strings. A defect's traceback follows in
    indented lines, the only lines that are not events."""

    def __init__(self, own: Mapping[str, Plain]) -> None:
        super().__init__()
        self._own = own

    def format(self, record: logging.LogRecord) -> str:
        name, fields = _event(record)
        words = [_time(record), _level(record), record.name, name]
        line = " ".join([*words, *(f"{key}={_text(value)}" for key, value in (*fields.items(), *self._own.items()))])
        trace = _defect(record)
        return line if trace is None else f"{line}\n{textwrap.indent(trace, '    ')}"


class JsonLines(logging.Formatter):
    """One object per line: `time`, `level`, `logger`, `event`, then the fields, and the `traceback` of a defect."""

    def __init__(self, own: Mapping[str, Plain]) -> None:
        super().__init__()
        self._own = own

    def format(self, record: logging.LogRecord) -> str:
        name, fields = _event(record)
        head = {"time": _time(record), "level": _level(record), "logger": record.name, "event": name}
        trace = _defect(record)
        return json.dumps(
            {**head, **fields, **self._own, **({} if trace is None else {"traceback": trace})}, separators=(",", ":")
        )


def _time(record: logging.LogRecord) -> str:
    """The record's time in UTC, to the millisecond."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"


def _level(record: logging.LogRecord) -> str:
    return _LEVELS.get(record.levelname, record.levelname)


def set_up(
    level: int | str, form: Form | str, stream: TextIO | None = None, own: Mapping[str, Plain] | None = None
) -> None:
    """Makes this process's root logger write to `stream` (default: standard error) in that format, from that level on. The
    fields `own` are in every event: they distinguish this process from others that write to the same stream."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines(own or {}) if form == "json" else Readable(own or {}))
    handler.addFilter(_Bound())
    logging.root.handlers[:] = [handler]
    logging.root.setLevel(level)


class _Bound(logging.Filter):
    """Applies `RateLimit` to events with a `by`, using the records' own times instead of a clock."""

    def __init__(self) -> None:
        super().__init__()
        self._limit = RateLimit()

    def filter(self, record: logging.LogRecord) -> bool:
        by = getattr(record, "by", None)
        if by is None:
            return True
        left_out = self._limit.allows((record.event, by), record.created)  # type: ignore[attr-defined]
        if left_out:
            record.fields["left_out"] = left_out  # type: ignore[attr-defined]
        return left_out is not None


# --- repeated events --------------------------------------------------------------------------------------------------
class Troubles:
    """Lasting failures, keyed by the thing that fails. Each is logged when it begins, when its class changes, and when it
    ends."""

    def __init__(self, most: int = 10_000) -> None:
        """Remembers at most `most` failures. Beyond that the oldest is forgotten, and may be logged again."""
        self._most = most
        self._going_on: dict[Hashable, type[BaseException]] = {}

    def begins(self, of: Hashable, failure: BaseException) -> bool:
        """Records a failure of `of`; True if it is new, or of another class than the one before."""
        known = self._going_on.get(of)
        if known is None and len(self._going_on) >= self._most:
            del self._going_on[next(iter(self._going_on))]
        self._going_on[of] = type(failure)
        return known is not type(failure)

    def ends(self, of: Hashable) -> type[BaseException] | None:
        """Clears the failure of `of` and returns its class, None if there was none."""
        return self._going_on.pop(of, None)


class RateLimit:
    """Allows each key `burst` times per `window_s` seconds, and counts the omitted ones.

    Remembers at most `keys` keys at once; further ones share one entry.
    """

    def __init__(self, burst: int = 10, window_s: float = 10.0, keys: int = 256) -> None:
        self._burst = burst
        self._window_s = window_s
        self._keys = keys
        #: By key: (start of its window, allowed in it, omitted since).
        self._seen: dict[Hashable, tuple[float, int, int]] = {}

    def allows(self, of: Hashable, now: float) -> int | None:
        """Counts an event. Returns None if it must be omitted, else the number omitted before it. `now` is in seconds."""
        if of not in self._seen and len(self._seen) >= self._keys:
            self._seen = {key: each for key, each in self._seen.items() if now - each[0] < self._window_s}
            if len(self._seen) >= self._keys:
                of = None
        began, said, left_out = self._seen.get(of, (now, 0, 0))
        if not 0 <= now - began < self._window_s:
            began, said = now, 0
        if said >= self._burst:
            self._seen[of] = (began, said, left_out + 1)
            return None
        self._seen[of] = (began, said + 1, 0)
        return left_out
