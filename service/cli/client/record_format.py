"""Record formats in kcat's syntax (`-f '%t [%p] at %o: %s\\n'`): a format is parsed once, then applied to each record.

Pure. Keys, values and headers print byte for byte. null prints as nothing, and its length as -1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

#: The format's tokens, for the help.
TOKENS = "%t topic, %p partition, %o offset, %k key, %s value, %T timestamp, %h headers, %K %S %R lengths"
_PART = re.compile(rb"%(.?)|\\(x[0-9A-Fa-f]{1,2}|[0-7]{1,3}|.)|([^%\\]+|\\$)", re.DOTALL)
_ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r"}


class ShownRecord(NamedTuple):
    """`timestamp` is in ms since 1970, -1 for none. `timestamp_type` is create_time, log_append_time, or None."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: str | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


Format = Callable[[ShownRecord], bytes]


def _length(content: bytes | None) -> int:
    return -1 if content is None else len(content)


def _headers(record: ShownRecord) -> bytes:
    """The headers in kcat's form: name=value, separated by commas. A null value is NULL."""
    return b",".join(name.encode() + b"=" + (b"NULL" if value is None else value) for name, value in record.headers)


_FIELDS: dict[bytes, Format] = {
    b"t": lambda record: record.topic.encode(),
    b"p": lambda record: b"%d" % record.partition,
    b"o": lambda record: b"%d" % record.offset,
    b"k": lambda record: record.key or b"",
    b"s": lambda record: record.value or b"",
    b"T": lambda record: b"%d" % record.timestamp,
    b"h": _headers,
    b"K": lambda record: b"%d" % _length(record.key),
    b"S": lambda record: b"%d" % _length(record.value),
    b"R": lambda record: _length(record.value).to_bytes(4, "big", signed=True),
}


def parse_format(text: str) -> Format:
    """Raises ValueError for an unknown token."""
    parts: list[bytes | Format] = []
    for found in _PART.finditer(text.encode()):
        token, escape, plain = found.groups()
        if plain is not None:
            parts.append(plain)
        elif escape is not None:
            parts.append(_unescaped(escape))
        elif token == b"%":
            parts.append(b"%")
        elif token in _FIELDS:
            parts.append(_FIELDS[token])
        else:
            raise ValueError(
                f"unknown token %{token.decode(errors='replace')}; known: {TOKENS}, and %% for a percent sign"
            )
    return lambda record: b"".join(part if isinstance(part, bytes) else part(record) for part in parts)


def _unescaped(escape: bytes) -> bytes:
    if escape[:1] == b"x" and len(escape) > 1:
        return bytes([int(escape[1:], 16)])
    if escape.isdigit():
        return bytes([int(escape, 8) & 0xFF])
    return _ESCAPES.get(escape, escape)
