"""Transcripts on disk: `<client>.gz` is the frames of one client, each after the number of its connection (4 bytes).

Frames are as they were sent, with their size. Recording is repeatable in kind, not in bytes: clients choose ids and times.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent
_NUMBER = struct.Struct(">I")
_SIZE = struct.Struct(">i")
_HEAD = struct.Struct(">ihh")


class Frame(NamedTuple):
    """`data` begins with the frame's size."""

    connection: int
    data: bytes

    @property
    def api_key(self) -> int:
        return int(_HEAD.unpack_from(self.data)[1])

    @property
    def version(self) -> int:
        return int(_HEAD.unpack_from(self.data)[2])


def split(sent: bytes) -> Iterator[bytes]:
    """The whole frames in the bytes that a connection sent."""
    at = 0
    while at + 4 <= len(sent):
        end = at + 4 + _SIZE.unpack_from(sent, at)[0]
        if end > len(sent):
            return
        yield bytes(sent[at:end])
        at = end


def write(client: str, frames: Iterable[Frame]) -> Path:
    path = FOLDER / f"{client}.gz"
    data = b"".join(_NUMBER.pack(frame.connection) + frame.data for frame in frames)
    path.write_bytes(gzip.compress(data, 9, mtime=0))
    return path


def read(client: str) -> list[Frame]:
    data = gzip.decompress((FOLDER / f"{client}.gz").read_bytes())
    frames = []
    at = 0
    while at < len(data):
        (number,) = _NUMBER.unpack_from(data, at)
        end = at + 8 + _SIZE.unpack_from(data, at + 4)[0]
        frames.append(Frame(number, data[at + 4 : end]))
        at = end
    return frames


def clients() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.gz"))
