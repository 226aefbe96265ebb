"""What a process says in its log: events, one a line, each a name and typed fields, in two forms with the same content.

    events.info(log, "manifest.committed", partition=partition.partition, commit=7, ms=12)

    2026-03-01T10:20:30.456Z INFO service.broker.background.tiering manifest.committed topic=orders partition=3 commit=7 ms=12
    {"time":"2026-03-01T10:20:30.456Z","level":"INFO","logger":"service.broker.background.tiering","event":"manifest.committed",…}

Events are for boundaries (a start, an offload, a refusal), never for what every request does. Names and fields stand in
docs/operations.md; a test compares that table with the code. A value that a client chose can neither end its line nor
reach a terminal's controls: whatever is not plain is quoted as JSON in both forms, and cut at `LONGEST_TEXT`.

`Troubles` and `Seldom` keep what goes on, or what strangers can provoke, from filling the log. Not promised: that a line
which others' libraries write is an event; it becomes one named `message`.
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

#: Characters of one field; what lies beyond is cut off.
LONGEST_TEXT = 2_000
#: Kafka's word where Python has another.
_LEVELS = {"WARNING": "WARN", "CRITICAL": "FATAL"}
_PLAIN = re.compile(r"[A-Za-z0-9_.,:;/+@%*()~\[\]-]+")


def debug(logger: logging.Logger, name: str, /, **fields: Field) -> None:
    _say(logger, logging.DEBUG, name, fields, None)


def info(logger: logging.Logger, name: str, /, **fields: Field) -> None:
    _say(logger, logging.INFO, name, fields, None)


def provoked(logger: logging.Logger, name: str, /, *, by: Hashable, **fields: Field) -> None:
    """What strangers can bring about as often as they like: of each `by` only so many a while are written (`Seldom`), the
    next one saying with `left_out` how many were not."""
    _say(logger, logging.INFO, name, fields, None, by)


def warning(logger: logging.Logger, name: str, /, **fields: Field) -> None:
    """Something does not work now, and is tried again or done without."""
    _say(logger, logging.WARNING, name, fields, None)


def error(logger: logging.Logger, name: str, /, *, defect: BaseException | None = None, **fields: Field) -> None:
    """Something that somebody has to look at. `defect` is what nobody foresaw: its traceback is a field."""
    _say(logger, logging.ERROR, name, fields, defect)


def _say(
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
    """A partition becomes topic and number, an error its sentence."""
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


# --- forms ------------------------------------------------------------------------------------------------------------
def _event(record: logging.LogRecord) -> tuple[str, Mapping[str, Plain]]:
    """Name and fields; what other libraries write is an event named `message`."""
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
    indented lines, the only ones that are no events."""

    def format(self, record: logging.LogRecord) -> str:
        name, fields = _event(record)
        words = [_time(record), _level(record), record.name, name]
        line = " ".join([*words, *(f"{key}={_text(value)}" for key, value in fields.items())])
        trace = _defect(record)
        return line if trace is None else f"{line}\n{textwrap.indent(trace, '    ')}"


class JsonLines(logging.Formatter):
    """One object a line: `time`, `level`, `logger`, `event`, then the fields; of a defect also its `traceback`."""

    def format(self, record: logging.LogRecord) -> str:
        name, fields = _event(record)
        head = {"time": _time(record), "level": _level(record), "logger": record.name, "event": name}
        trace = _defect(record)
        return json.dumps({**head, **fields, **({} if trace is None else {"traceback": trace})}, separators=(",", ":"))


def _time(record: logging.LogRecord) -> str:
    """UTC, to the millisecond."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"


def _level(record: logging.LogRecord) -> str:
    return _LEVELS.get(record.levelname, record.levelname)


def set_up(level: int | str, form: Form | str, stream: TextIO | None = None) -> None:
    """This process's root logger writes to `stream` (standard error) in that form, from that level on."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else Readable())
    handler.addFilter(_Bound())
    logging.root.handlers[:] = [handler]
    logging.root.setLevel(level)


class _Bound(logging.Filter):
    """Leaves out what was provoked too often; by the records' own times, so that no clock is needed."""

    def __init__(self) -> None:
        super().__init__()
        self._seldom = Seldom()

    def filter(self, record: logging.LogRecord) -> bool:
        by = getattr(record, "by", None)
        if by is None:
            return True
        left_out = self._seldom.allows((record.event, by), record.created)  # type: ignore[attr-defined]
        if left_out:
            record.fields["left_out"] = left_out  # type: ignore[attr-defined]
        return left_out is not None


# --- what repeats -----------------------------------------------------------------------------------------------------
class Troubles:
    """Failures that go on, by what they befall: said when one begins or becomes another, and when it is over."""

    def __init__(self, most: int = 10_000) -> None:
        """Beyond `most` at once the oldest is forgotten, and would be said again."""
        self._most = most
        self._going_on: dict[Hashable, type[BaseException]] = {}

    def begins(self, of: Hashable, failure: BaseException) -> bool:
        """Whether this is news: nothing ailed `of` before, or something else did."""
        known = self._going_on.get(of)
        if known is None and len(self._going_on) >= self._most:
            del self._going_on[next(iter(self._going_on))]
        self._going_on[of] = type(failure)
        return known is not type(failure)

    def ends(self, of: Hashable) -> type[BaseException] | None:
        """What ailed `of` until now."""
        return self._going_on.pop(of, None)


class Seldom:
    """Bounds how often one thing is said: `burst` times in `window_s`; how many were left out is told with the next one.

    Of more than `keys` things at once the further ones count as one.
    """

    def __init__(self, burst: int = 10, window_s: float = 10.0, keys: int = 256) -> None:
        self._burst = burst
        self._window_s = window_s
        self._keys = keys
        #: (begin of its window, said in it, left out since).
        self._seen: dict[Hashable, tuple[float, int, int]] = {}

    def allows(self, of: Hashable, now: float) -> int | None:
        """None if it is to be left out, else how many were left out before. `now` in seconds."""
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
