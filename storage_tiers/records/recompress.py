"""`compression.type`: converts a produced batch to the codec that its topic names.

The records' own bytes stay the same: they are inflated and compressed as one payload, within `codecs.inflation_bound`, and
header and CRC are updated. LogValidator of Kafka 4.2 rebuilds the batch record by record with the same result, except for
non-canonical varints and a base timestamp that is not the first record's: here both stay as the client sent them.

Not used with `compression.type=producer`. Costs one inflation and one compression of the batch, on the caller's thread.
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

#: Kafka's LZ4 level that selects the fast compressor; all others select the high-compression one.
LZ4_FAST_LEVEL = 9
_FAST, _HC_LOWEST, _HC_HIGHEST = 1, 3, 12
#: `compression.gzip.level` that selects zlib's own default.
GZIP_DEFAULT_LEVEL = -1


class Target(NamedTuple):
    """The codec that batches are stored in. `level` is the codec library's own; None means its default."""

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
    """The target of `compression.type` with the `compression.<codec>.level` values, by codec. None for `producer`."""
    if compression_type == "producer":
        return None
    level = levels.get(compression_type)
    if compression_type == "lz4" and level is not None:
        level = _FAST if level == LZ4_FAST_LEVEL else min(max(level, _HC_LOWEST), _HC_HIGHEST)
    if compression_type == "gzip" and level == GZIP_DEFAULT_LEVEL:
        level = None
    return Target(_CODECS[compression_type], level)


def recompress(batch: Buffer, header: BatchHeader, wanted: Target) -> bytearray | None:
    """The validated `batch` in the wanted codec; None if it already has that codec, at any level, as in Kafka.

    InvalidRecord if it cannot be inflated, RecordTooLarge if it inflates beyond the bound."""
    if header.attributes & layout.CODEC_MASK == wanted.codec:
        return None
    try:
        payload = records_payload(batch, header)
    except CorruptRecord as error:  # the CRC matches, so the client built it this way: a retry would not help
        raise InvalidRecord(str(error)) from None
    packed = compress(wanted.codec, payload, level=wanted.level)
    stored = bytearray(memoryview(batch)[: layout.HEADER_BYTES])
    stored += packed
    attributes = header.attributes & ~layout.CODEC_MASK | wanted.codec
    struct.pack_into(">i", stored, layout.BATCH_LENGTH, len(stored) - layout.LENGTH_OVERHEAD)
    struct.pack_into(">h", stored, layout.ATTRIBUTES, attributes)
    struct.pack_into(">I", stored, layout.CRC, crc32c(memoryview(stored)[layout.ATTRIBUTES :]))
    return stored
