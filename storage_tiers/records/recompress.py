"""`compression.type`: a produced batch stored under the codec that its topic names, whatever codec it came in.

The records' own bytes stay as they are: they are inflated and deflated as one payload, within `codecs.inflation_bound`,
and header and CRC are made to fit. What LogValidator of Kafka 4.2 builds anew record by record comes out the same, but
for non-canonical varints and a base timestamp that is not the first record's, which stay as sent.

Not on the path of `compression.type=producer`. Costs one inflation and one deflation of the batch, on the caller's thread.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

from storage_tiers.errors import CorruptRecord, InvalidRecord
from storage_tiers.records import batch as layout
from storage_tiers.records.batch import BatchHeader, Buffer, records_payload
from storage_tiers.records.checksum import crc32c
from storage_tiers.records.codecs import Codec, compress

#: Kafka's level of LZ4 that stands for the fast compressor; all others are its high-compression one's.
LZ4_FAST_LEVEL = 9
_FAST, _HC_LOWEST, _HC_HIGHEST = 1, 3, 12
#: `compression.gzip.level` that stands for zlib's own default.
GZIP_DEFAULT_LEVEL = -1


class Target(NamedTuple):
    """What batches are stored in. `level` is the codec library's own; None: its default."""

    codec: Codec
    level: int | None = None


_CODECS = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


def target(compression_type: str, levels: Mapping[str, int]) -> Target | None:
    """From `compression.type` and the `compression.<codec>.level` keys, by codec. None for `producer`: as sent."""
    if compression_type == "producer":
        return None
    level = levels.get(compression_type)
    if compression_type == "lz4" and level is not None:
        level = _FAST if level == LZ4_FAST_LEVEL else min(max(level, _HC_LOWEST), _HC_HIGHEST)
    if compression_type == "gzip" and level == GZIP_DEFAULT_LEVEL:
        level = None
    return Target(_CODECS[compression_type], level)


def recompress(batch: Buffer, header: BatchHeader, wanted: Target) -> bytearray | None:
    """The validated `batch` under the wanted codec; None if it is already, at whatever level, as in Kafka.

    InvalidRecord if it cannot be inflated, RecordTooLarge if that passes the bound."""
    if header.attributes & layout.CODEC_MASK == wanted.codec:
        return None
    try:
        payload = records_payload(batch, header)
    except CorruptRecord as error:  # not on the way, as the CRC fits: sending it again would not help
        raise InvalidRecord(str(error)) from None
    packed = compress(wanted.codec, payload, level=wanted.level)
    stored = bytearray(memoryview(batch)[: layout.HEADER_BYTES])
    stored += packed
    attributes = header.attributes & ~layout.CODEC_MASK | wanted.codec
    struct.pack_into(">i", stored, layout.BATCH_LENGTH, len(stored) - layout.LENGTH_OVERHEAD)
    struct.pack_into(">h", stored, layout.ATTRIBUTES, attributes)
    struct.pack_into(">I", stored, layout.CRC, crc32c(memoryview(stored)[layout.ATTRIBUTES :]))
    return stored
