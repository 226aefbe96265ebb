"""The bytes of a producer snapshot: their layout, their checks, and what can be read or changed without the producers' state.

    version i16 │ crc32c u32 │ count i32
    count × ( producer id i64 │ epoch i16 │ last sequence i32 │ last offset i64 │ offset delta i32 │ timestamp i64
            │ coordinator epoch i32 │ start of the open transaction i64, -1 for none )

Pure. Kafka's format (ProducerStateManager of 4.2), big-endian; the CRC covers everything that follows it.
`ProducerStateManager` writes and reads the entries. A *state* is a snapshot, followed by the earlier batches
(`earlier_batches`) if there are any.
"""

from __future__ import annotations

import struct

from storage_tiers.errors import CorruptRecord
from storage_tiers.hot import earlier_batches
from storage_tiers.records.checksum import crc32c

VERSION = 1
HEAD = struct.Struct(">hIi")
_CRC_FROM = 6
ENTRY = struct.Struct(">qhiqiqiq")
#: The last field of an entry.
_TRANSACTION_START = struct.Struct(">q")


def end_transactions(content: bytes) -> bytes:
    """Removes the open transactions of a state: they have ended, and their markers are gone. CorruptRecord if damaged."""
    snapshot, earlier = split_state(content)
    check_snapshot(snapshot)
    changed = bytearray(snapshot)
    for end in range(HEAD.size + ENTRY.size, len(changed) + 1, ENTRY.size):
        _TRANSACTION_START.pack_into(changed, end - _TRANSACTION_START.size, -1)
    crc, count = crc32c(memoryview(changed)[_CRC_FROM:]), HEAD.unpack_from(snapshot)[2]
    HEAD.pack_into(changed, 0, VERSION, crc, count)
    if earlier:
        tuple(earlier_batches.decode(earlier, snapshot_crc(snapshot)))  # raises if they are damaged
        earlier = earlier_batches.sealed(earlier_batches.counted_part(earlier), crc)
    return bytes(changed) + earlier


def split_state(content: bytes) -> tuple[bytes, bytes]:
    """The snapshot and the earlier batches, empty if there are none. Checks neither."""
    if len(content) < HEAD.size:
        return content, b""
    count = HEAD.unpack_from(content)[2]
    size = HEAD.size + max(0, count) * ENTRY.size
    return content[:size], content[size:]


def snapshot_crc(snapshot: bytes) -> int:
    """The CRC-32C of a snapshot's entries, as its header states it."""
    return int(HEAD.unpack_from(snapshot)[1])


def check_snapshot(content: bytes) -> None:
    """Raises CorruptRecord if the bytes of a snapshot are damaged."""
    if len(content) < HEAD.size:
        raise CorruptRecord(f"a producer snapshot has {HEAD.size} bytes or more, not {len(content)}")
    version, crc, count = HEAD.unpack_from(content)
    if version != VERSION or crc != crc32c(memoryview(content)[_CRC_FROM:]):
        raise CorruptRecord(f"the producer snapshot (version {version}) fails its CRC-32C")
    if len(content) != HEAD.size + count * ENTRY.size:
        raise CorruptRecord(f"the producer snapshot says it has {count} entries in {len(content)} bytes")


def written_below(content: bytes) -> int:
    """The offset after the newest batch in a snapshot, 0 without one. Raises CorruptRecord if its bytes are damaged."""
    check_snapshot(content)
    rows = ENTRY.iter_unpack(memoryview(content)[HEAD.size :])
    return 1 + max((max(last_offset(row), row[-1]) for row in rows), default=-1)


def last_offset(row: tuple[int, ...]) -> int:
    return row[3]
