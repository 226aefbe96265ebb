"""Compression of a batch's records with a bound on the inflated size: a decompression bomb raises an error and gets no memory
beyond the bound.

All four codecs come from `cramjam` and work on whole payloads. `decompress_into` writes into our buffer and stops at its end,
so the buffer is the bound. The inflated size is mostly unknown (Java writes LZ4 and Zstandard without sizes). A first buffer of
a few times the input usually suffices; otherwise it grows eightfold up to the bound. A decoder also keeps its window
(Zstandard's is at most as large as its output, and never above 128 MiB).

Writes the formats that Java's clients read: gzip; xerial-framed snappy in blocks of 32 KiB; LZ4 frames of independent blocks
without content checksum; Zstandard frames. Reads all of these, raw snappy, and anything else the formats allow.
"""

from __future__ import annotations

import mmap
import struct
from enum import IntEnum
from typing import Any

import cramjam

from storage_tiers.errors import CorruptRecord, RecordTooLarge
from storage_tiers.records.checksum import Buffer


class Codec(IntEnum):
    """The low three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


#: Bytes that every batch may inflate to.
MIN_INFLATION_BOUND = 64 << 20
#: A larger batch may inflate to this many times its own size.
MAX_INFLATION_RATIO = 16

_FIRST_RATIO = 4
_SMALLEST_BUFFER = 4096
_GROWTH = 8

#: Output buffers of at least this many bytes are mapped memory of their own.
_MAPPED_BYTES = 1 << 20

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 32 << 10
#: Writers make blocks of at least 1 KiB. A batch that was flushed often may have this many smaller blocks.
_SMALL_BLOCKS = 1024

#: cramjam's message (Rust's io::ErrorKind::WriteZero) when the output buffer is full.
_FULL = "failed to write whole buffer"


def inflation_bound(batch_size: int) -> int:
    """Bytes that the records of a batch of `batch_size` bytes may inflate to. Writers and readers share this bound, so every
    accepted batch can be read."""
    return max(MIN_INFLATION_BOUND, MAX_INFLATION_RATIO * batch_size)


def compress(codec: Codec, payload: Buffer, *, level: int | None = None) -> bytes:
    """`payload` compressed with `codec`. `level` is as in `compression.gzip.level` and its siblings; None means the codec's
    default."""
    if codec is Codec.NONE:
        return bytes(payload)
    if codec is Codec.GZIP:
        return bytes(cramjam.gzip.compress(payload, level=6 if level is None else level))
    if codec is Codec.SNAPPY:
        return _xerial(payload)
    if codec is Codec.LZ4:
        compressor = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
        compressor.compress(bytes(payload))
        return bytes(compressor.finish())
    return bytes(cramjam.zstd.compress(payload, level=3 if level is None else level))


def decompress(
    codec: Codec, payload: Buffer, *, max_bytes: int, headroom: int = 0, room: bytearray | None = None
) -> memoryview:
    """The inflated payload. RecordTooLarge beyond `max_bytes`, without allocating more; CorruptRecord if it is damaged.

    `headroom` bytes precede the result for the caller to fill (not with Codec.NONE). `room` is reused as the output buffer if
    it is large enough.
    """
    if codec is Codec.NONE:
        if len(payload) > max_bytes:
            raise _too_large(codec, max_bytes)
        return memoryview(payload)
    try:
        if codec is Codec.SNAPPY:
            return _decompress_snappy(payload, max_bytes, headroom, room or bytearray())
        return _decompress_stream(codec, payload, max_bytes, headroom, room or bytearray())
    except cramjam.DecompressionError as error:
        raise CorruptRecord(f"the {codec.name.lower()} data of the batch cannot be inflated: {error}") from None


_STREAMS: dict[Codec, Any] = {Codec.GZIP: cramjam.gzip, Codec.LZ4: cramjam.lz4, Codec.ZSTD: cramjam.zstd}


def _decompress_stream(codec: Codec, payload: Buffer, max_bytes: int, headroom: int, room: bytearray) -> memoryview:
    library = _STREAMS[codec]
    size = min(max_bytes, max(_SMALLEST_BUFFER, _FIRST_RATIO * len(payload), len(room) - headroom))
    while True:
        output = memoryview(_at_least(room, headroom + size))[: headroom + size]
        try:
            written = library.decompress_into(payload, output[headroom:])
            return output[: headroom + written]
        except cramjam.DecompressionError as error:
            if _FULL not in str(error):
                raise
        if size >= max_bytes:
            raise _too_large(codec, max_bytes)
        del output
        size = min(max_bytes, size * _GROWTH)


def _at_least(room: bytearray, size: int) -> bytearray | mmap.mmap:
    if len(room) >= size:
        return room
    # Zeroing a bytearray holds the GIL: 100 ms for the largest.
    return bytearray(size) if size < _MAPPED_BYTES else mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _xerial(payload: Buffer) -> bytes:
    view = memoryview(payload)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        parts += [struct.pack(">i", len(block)), block]
    return b"".join(parts)


def _decompress_snappy(payload: Buffer, max_bytes: int, headroom: int, room: bytearray) -> memoryview:
    view = memoryview(payload)
    most_blocks = _SMALL_BLOCKS + (max_bytes >> 10)
    blocks = _xerial_blocks(view, most_blocks) if view[: len(_XERIAL_MAGIC)] == _XERIAL_MAGIC else [view]
    total = 0
    for block in blocks:
        total += cramjam.snappy.decompress_raw_len(block)
        if total > max_bytes:
            raise _too_large(Codec.SNAPPY, max_bytes)
    output = memoryview(_at_least(room, headroom + total))
    written = headroom
    for block in blocks:
        written += cramjam.snappy.decompress_raw_into(block, output[written:])
    return output[:written]


def _xerial_blocks(view: memoryview, most: int) -> list[memoryview]:
    """The blocks of a framed payload. RecordTooLarge for more than `most` blocks and headers: each costs a step."""
    blocks = []
    at = steps = 0
    while at < len(view):
        steps += 1
        if steps > most:
            raise RecordTooLarge(f"the snappy batch has more than {most} blocks: send larger blocks")
        if view[at : at + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:  # repeated where streams were concatenated
            at += len(_XERIAL_HEADER)
            continue
        if len(view) - at < 4:
            raise CorruptRecord("the snappy data of the batch ends inside a block's length")
        (length,) = struct.unpack_from(">i", view, at)
        at += 4
        if not 0 < length <= len(view) - at:
            raise CorruptRecord(f"a snappy block of {length} bytes does not fit the batch")
        blocks.append(view[at : at + length])
        at += length
    return blocks


def _too_large(codec: Codec, max_bytes: int) -> RecordTooLarge:
    return RecordTooLarge(f"the {codec.name.lower()} batch inflates beyond {max_bytes} bytes: send smaller batches")
