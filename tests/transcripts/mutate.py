"""Damages frames, as a broken client, a broken network or an attacker would. A seed makes the result repeatable."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence

INTERESTING = (b"\0", b"\xff", b"\x7f", b"\x80", b"\x01")
NUMBERS = (-1, 0, 1, -2, 2**31 - 1, -(2**31), 2**15 - 1, -(2**15), 1 << 20)
#: Compact lengths: the largest of five bytes, one that is too long to be read, the null of a compact array, and 126.
VARINTS = (b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x80\x80\x01", b"\0", b"\x7f")
_SIZE = struct.Struct(">i")
_HEAD = 8

Mutation = Callable[[random.Random, bytearray], None]


def _flip(chance: random.Random, frame: bytearray) -> None:
    for _ in range(chance.choice((1, 1, 1, 2, 4, 8))):
        place = chance.randrange(4, len(frame))
        frame[place] ^= 1 << chance.randrange(8)


def _overwrite(chance: random.Random, frame: bytearray) -> None:
    place = chance.randrange(4, len(frame))
    value = chance.choice(INTERESTING) * chance.randint(1, 4)
    frame[place : place + len(value)] = value


def _number(chance: random.Random, frame: bytearray) -> None:
    """Overwrites a number with a false count, length, offset or time."""
    width, value = chance.choice((2, 4, 4, 8)), chance.choice(NUMBERS)
    if len(frame) <= _HEAD + width:
        return
    place = chance.randrange(_HEAD, len(frame) - width)
    frame[place : place + width] = (value & (1 << 8 * width) - 1).to_bytes(width, "big")


def _varint(chance: random.Random, frame: bytearray) -> None:
    place = chance.randrange(min(_HEAD, len(frame) - 1), len(frame))
    frame[place : place + 1] = chance.choice(VARINTS)


def _cut(chance: random.Random, frame: bytearray) -> None:
    del frame[chance.randrange(5, len(frame)) :]


def _remove(chance: random.Random, frame: bytearray) -> None:
    place = chance.randrange(5, len(frame))
    del frame[place : place + chance.randint(1, 16)]


def _insert(chance: random.Random, frame: bytearray) -> None:
    place = chance.randrange(5, len(frame) + 1)
    frame[place:place] = chance.randbytes(chance.randint(1, 32))


def _repeat(chance: random.Random, frame: bytearray) -> None:
    place = chance.randrange(5, len(frame))
    frame[place:place] = frame[place : place + chance.randint(1, 64)] * chance.randint(1, 8)


def _other_api(chance: random.Random, frame: bytearray) -> None:
    frame[4:8] = struct.pack(">hh", chance.randrange(-1, 95), chance.randrange(-1, 20))


def _other_version(chance: random.Random, frame: bytearray) -> None:
    frame[6:8] = struct.pack(">h", chance.randrange(-1, 20))


MUTATIONS: Sequence[Mutation] = (
    _flip,
    _flip,
    _overwrite,
    _number,
    _number,
    _varint,
    _cut,
    _remove,
    _insert,
    _repeat,
    _other_api,
    _other_version,
)


def mutate(chance: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """One frame after one to three mutations. The frame's size field is mostly right, and sometimes false."""
    frame = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 3))):
        if len(frame) > 12:
            chance.choice(MUTATIONS)(chance, frame)
    if chance.random() < 0.1:
        tail = chance.choice(others)
        frame += tail[chance.randrange(4, len(tail)) :]
    lie = chance.random()
    if lie < 0.85:
        frame[:4] = _SIZE.pack(len(frame) - 4)
    elif lie < 0.95:
        frame[:4] = _SIZE.pack(len(frame) - 4 + chance.choice((-9, -1, 1, 9, 1000)))
    else:
        frame[:4] = _SIZE.pack(chance.choice(NUMBERS))
    return bytes(frame)
