"""The batches of each producer before its newest one, which Kafka's producer snapshot does not have.

A producer has up to five batches in flight, and repeats all of them if none was answered before the leader restarts or the
partition moves. With the newest one alone, the first repeated batch would be refused as out of order.

    crc32c u32 │ count i32
    count × ( producer id i64 │ last sequence i32 │ last offset i64 │ offset delta i32 │ timestamp i64 )

Big-endian; rows are sorted by producer id, the older batch first. The bytes lie in a file beside the snapshot, because the
snapshot's format is Kafka's, and in a sidecar. Invariant: the batches are used only with the snapshot with which they were
written. So the CRC continues the snapshot's CRC: it covers the snapshot's entries, then everything that follows the CRC.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from storage_tiers.errors import CorruptRecord
from storage_tiers.records.checksum import crc32c

_CRC = struct.Struct(">I")
_COUNT = struct.Struct(">i")
_ROW = struct.Struct(">qiqiq")

#: Last sequence, last offset, offset delta, timestamp.
BatchFields = tuple[int, int, int, int]
#: Pairs of a producer id and its earlier batches, oldest first.
Earlier = Sequence[tuple[int, Sequence[BatchFields]]]


def encode(earlier: Earlier, snapshot_crc: int) -> bytes:
    rows = [_ROW.pack(producer_id, *batch) for producer_id, batches in sorted(earlier) for batch in batches]
    return sealed(_COUNT.pack(len(rows)) + b"".join(rows), snapshot_crc)


def sealed(counted: bytes, snapshot_crc: int) -> bytes:
    """Puts the CRC before the count and the rows."""
    return _CRC.pack(crc32c(counted, snapshot_crc)) + counted


def counted_part(content: bytes) -> bytes:
    """The count and the rows of sealed bytes."""
    return content[_CRC.size :]


def decode(content: bytes, snapshot_crc: int) -> Iterator[tuple[int, BatchFields]]:
    """Pairs of a producer id and a batch. CorruptRecord if the bytes are damaged, or belong to another snapshot."""
    counted = counted_part(content)
    if len(content) < _CRC.size + _COUNT.size or _CRC.unpack_from(content)[0] != crc32c(counted, snapshot_crc):
        raise CorruptRecord("the earlier batches of producers fail their CRC-32C, or belong to another snapshot")
    count = _COUNT.unpack_from(counted)[0]
    if len(counted) != _COUNT.size + count * _ROW.size:
        raise CorruptRecord(f"{count} earlier batches of producers do not fit {len(content)} bytes")
    for row in _ROW.iter_unpack(memoryview(counted)[_COUNT.size :]):
        yield row[0], row[1:]
