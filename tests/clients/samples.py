"""The records that clients write and read: every shape, and the same on every run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
COUNT = 24
#: A time in 2023, which cannot be confused with the current time.
FIRST_MS = 1_700_000_000_000

Headers = tuple[tuple[str, bytes | None], ...]


class Record(NamedTuple):
    """A record as a client sees it. `timestamp` in ms; -1 if the writer cannot set one."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int


def records(*, null_headers: bool = True, nothing: bool = True) -> Sequence[Record]:
    """Null and empty keys, values and header values, and every byte value; repeated header names; timestamps that go back.

    Without `null_headers` no header value is null; without `nothing` no record lacks both key and value.
    """
    keys = (b"key", None, b"", "schlüssel ☂".encode(), b"key")
    values = (b"value ", None, b"", bytes(range(256)), b"v" * 3000)
    kinds: Sequence[Headers] = (
        (),
        (("a", b"1"),),
        (("a", b"1"), ("a", b"2"), ("b", b"")),
        (("null", None), ("ü", b"\xff\x00z")) if null_headers else (("ü", b"\xff\x00z"),),
    )
    times = (0, 1, 1, -7, 1000)
    made = [
        Record(
            keys[number % len(keys)],
            values[number // 2 % len(values)],
            kinds[number // 3 % len(kinds)],
            FIRST_MS + 10 * number + times[number % len(times)],
        )
        for number in range(COUNT - 1)
    ]
    last = FIRST_MS + 10 * COUNT
    return [*made, Record(None, None if nothing else b"last", (), last)]


def lines() -> Sequence[Record]:
    """Records that kcat can write: one set of headers for all, no timestamps, and no empty keys or values, only null ones."""
    every: Headers = (("a", b"1"), ("null", None), ("a", b"2"))
    keys = (b"key", None, "schlüssel ☂".encode())
    values = (b"value", None, b"v" * 3000, b"%")
    return [Record(keys[number % 3], values[number // 2 % 4], every, -1) for number in range(COUNT)]
