"""Records as JSON Lines: `consume --json` writes them, and `produce --json` reads them. No part of a record is lost.

A key, a value or a header's value that is UTF-8 appears as text under its own name. Other bytes appear as base64 under the name
with the suffix `_base64`. null appears as null, and empty bytes as empty text, so that a tombstone and an empty value differ.

    {"topic":"t","partition":0,"offset":7,"timestamp":1372636800000,"timestamp_type":"create_time","key":"k",
     "value_base64":"/w==","headers":[{"key":"h","value":null}]}

A timestamp is written in ms since 1970, and may also be read as an ISO 8601 time. A line is refused if librdkafka cannot send
its record: if its timestamp is 0, which librdkafka reads as "now", or a header's key has a zero byte. librdkafka chooses a
missing timestamp.

Pure. A line to be read must have `value` or `value_base64`, so that a misspelt name writes no tombstone; all other fields are
optional. `offset` and `timestamp_type` are ignored, because the log assigns them.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from service.cli.client.record_format import ShownRecord
from service.cli.output import json_bytes
from storage_tiers.times import first_ms, parse_time

_CONTENT = {"key", "key_base64", "value", "value_base64"}
_FIELDS = {"topic", "partition", "offset", "timestamp", "timestamp_type", "headers", *_CONTENT}
_HEADER_FIELDS = {"key", "value", "value_base64"}
_LONGEST_QUOTE = 60


class JsonRecord(NamedTuple):
    """A line's fields. The producer chooses a topic, partition or timestamp that is None; a key or value that is None is
    null."""

    topic: str | None
    partition: int | None
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


def to_json(record: ShownRecord) -> bytes:
    line: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": None if record.timestamp_type is None else record.timestamp,
        "timestamp_type": record.timestamp_type,
        **json_bytes("key", record.key),
        **json_bytes("value", record.value),
        "headers": [{"key": key, **json_bytes("value", value)} for key, value in record.headers],
    }
    return json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def from_json(line: bytes) -> JsonRecord:
    """Raises ValueError, whose message is a sentence, if the line is not a record."""
    try:
        found = json.loads(line)
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"it is not a JSON object but {_quoted(found)}")
    _check_fields(found, _FIELDS, "a record")
    if "value" not in found and "value_base64" not in found:
        raise ValueError('it has no value; for a tombstone write "value": null')
    return JsonRecord(
        _optional(found, "topic", str, "text"),
        _number(found, "partition", 0, 2**31 - 1),
        _timestamp(found),
        _content(found, "key"),
        _content(found, "value"),
        [_header(header) for header in _optional(found, "headers", list, "a list") or ()],
    )


def _header(found: object) -> tuple[str, bytes | None]:
    if not isinstance(found, dict):
        raise ValueError(f'a header is an object with "key" and "value", not {_quoted(found)}')
    _check_fields(found, _HEADER_FIELDS, "a header")
    key = _optional(found, "key", str, "text")
    if key is None:
        raise ValueError("a header has no key")
    if "\0" in key:
        raise ValueError(f"the header's key {key!r} has a zero byte, at which librdkafka would cut it off")
    if "value" not in found and "value_base64" not in found:
        raise ValueError(f"the header {key!r} has no value")
    return _utf8(key, "a header's key").decode(), _content(found, "value")


def _check_fields(found: Mapping[str, Any], known: set[str], what: str) -> None:
    unknown = sorted(set(found) - known)
    if unknown:
        raise ValueError(f"{what} has no field {unknown[0]!r}; it has {', '.join(sorted(known))}")


def _content(found: Mapping[str, Any], name: str) -> bytes | None:
    encoded = f"{name}_base64"
    if name in found and encoded in found:
        raise ValueError(f"it has both {name} and {encoded}")
    if encoded not in found:
        text = _optional(found, name, str, "text or null")
        return None if text is None else _utf8(text, name)
    content = found[encoded]
    try:
        if not isinstance(content, str):
            raise binascii.Error
        return base64.b64decode(content, validate=True)
    except ValueError:
        raise ValueError(f"{encoded} is not base64 but {_quoted(content)}") from None


def _utf8(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} has half of a surrogate pair, which cannot be encoded") from None


def _timestamp(found: Mapping[str, Any]) -> int | None:
    text = found.get("timestamp")
    if not isinstance(text, str):
        return _number(found, "timestamp", 1, 2**63 - 1, "a number or a time")
    try:
        number = first_ms(parse_time(text))
    except ValueError:
        raise ValueError(
            f"timestamp is not a time such as 2013-01-01T05:15:00Z, nor ms since 1970, but {_quoted(text)}"
        ) from None
    return _number({"timestamp": number}, "timestamp", 1, 2**63 - 1)


def _number(found: Mapping[str, Any], name: str, least: int, most: int, called: str = "a number") -> int | None:
    number: int | None = _optional(found, name, int, called)
    if number is None or least <= number <= most:
        return number
    why = " (librdkafka reads 0 as the time of sending)" if name == "timestamp" and number == 0 else ""
    raise ValueError(f"{name} is {number}{why}: {least} to {most} are allowed")


def _optional(found: Mapping[str, Any], name: str, kind: type, called: str) -> Any:
    value = found.get(name)
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
        raise ValueError(f"{name} is not {called}, but {_quoted(value)}")
    return value


def _quoted(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}…"
