"""The frame of one entry of the metadata log, and the search for the end of a log.

    length u32 | crc32c u32 | term u64 | index u64 | payload (length bytes)        all big-endian

The CRC-32C covers every byte except its own: length, term, index, payload. Indexes have no gaps, and terms never fall. Each
frame is synced before the next one is written. So an unreadable frame is the torn end of a log if, and only if, no readable
frame follows it; otherwise stored bytes are damaged.

Pure functions over bytes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from crc32c import crc32c

from storage_tiers.errors import MetadataCorrupt

_HEADER = struct.Struct(">IIQQ")
HEADER_BYTES = _HEADER.size
_LENGTH = struct.Struct(">I")
_TERM_INDEX = struct.Struct(">QQ")

# Matches the possible start of a frame's header: term and index are below 2^32 (no log exceeds that), and the index is not 0.
_HEADER_SHAPE = re.compile(rb"(?=[\s\S]{8}\x00{4}[\s\S]{4}\x00{4}(?!\x00{4})[\s\S]{4})")


@dataclass(frozen=True, slots=True)
class Frame:
    """One entry: the term in which it was written, its index in the log (from 1), and its encoded records."""

    term: int
    index: int
    payload: bytes


class Scan(NamedTuple):
    """The frames of a log. `end` is the byte position after the last whole frame: the caller truncates the log there, and
    appends there."""

    frames: Sequence[Frame]
    end: int


def encode(frame: Frame) -> bytes:
    length = _LENGTH.pack(len(frame.payload))
    rest = _TERM_INDEX.pack(frame.term, frame.index)
    crc = crc32c(frame.payload, crc32c(rest, crc32c(length)))
    return b"".join((length, _LENGTH.pack(crc), rest, frame.payload))


def decode(data: bytes, position: int = 0) -> Frame | None:
    """The frame at byte `position`, or None if it is not whole or does not match its CRC."""
    if position + HEADER_BYTES > len(data):
        return None
    length, stored, term, index = _HEADER.unpack_from(data, position)
    end = position + HEADER_BYTES + length
    if end > len(data):
        return None
    view = memoryview(data)
    computed = crc32c(view[position + 8 : end], crc32c(view[position : position + 4]))
    return Frame(term, index, data[position + HEADER_BYTES : end]) if computed == stored else None


def scan(data: bytes, first_index: int, name: str) -> Scan:
    """Reads the whole frames of a log whose first frame has index `first_index`. A torn end is ignored. Raises MetadataCorrupt,
    which names the file `name` and the position, if frames follow the unreadable bytes or are out of order."""
    frames: list[Frame] = []
    position, expected, term = 0, first_index, 0
    while (frame := decode(data, position)) is not None:
        if frame.index != expected or frame.term < term:
            raise MetadataCorrupt(
                f"{name}: at byte {position} is entry {frame.index} of term {frame.term} where entry {expected} of "
                f"term {term} or later is expected. {ADVICE}"
            )
        frames.append(frame)
        position += HEADER_BYTES + len(frame.payload)
        expected, term = expected + 1, frame.term
    later = _next_frame(data, position, expected)
    if later is not None:
        raise MetadataCorrupt(
            f"{name}: entry {expected} at byte {position} is damaged, and a sound entry follows at byte {later}, so this "
            f"is not the torn end that a crash leaves. {ADVICE}"
        )
    return Scan(frames, position)


#: The end of every damage report.
ADVICE = (
    "Restore the file from a copy of this data directory. Without a copy, move the metadata folder out of the data directory, "
    "keep it, and start with --take-over CLUSTER_ID: the metadata comes back from the store, and the partitions in the data "
    "directory stay."
)


def _next_frame(data: bytes, damaged: int, expected: int) -> int | None:
    """Returns the position of a sound frame after the damage, which begins at byte `damaged`, where entry `expected` should be.
    Returns None if there is no such frame."""
    highest = expected + (len(data) - damaged) // HEADER_BYTES
    # A lost write usually leaves zeros. They contain no valid index, so megabytes of them need no search.
    last_header = len(data.rstrip(b"\0")) + HEADER_BYTES
    for match in _HEADER_SHAPE.finditer(data, damaged + 1, last_header):
        frame = decode(data, match.start())
        if frame is not None and expected < frame.index <= highest:
            return match.start()
    return None
