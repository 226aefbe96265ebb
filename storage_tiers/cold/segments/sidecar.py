"""The sidecar of a segment: its index, checksums and aborted transactions for readers, epochs and producers for a new leader.

    magic "TIDELIDX" │ format u16 │ least reader u16 │ sections u32
    base i64 │ end i64 │ length u64 │ crc32c u32 │ header crc u32
    sections × ( name 8 bytes, zero padded │ position u64 │ length u64 │ crc32c u32 )
    index │ checks │ aborted │ epochs │ producer │ batches

All numbers are big-endian. The header's CRC covers everything before it and the section table. Sections:

    index     rows (relative base offset u32 │ position u32 │ maximum timestamp so far i64), one per 64 KiB of batches
    checks    CRC-32C u32 of each MiB of the segment, the last one shorter
    aborted   Kafka's transaction index entries: version i16 │ producer id i64 │ first i64 │ last i64 │ last stable i64
    epochs    rows (leader epoch i32 │ start offset i64): the whole history up to `end`
    producer  Kafka's producer snapshot, byte for byte, as of exactly `end`
    batches   each producer's earlier batches, which Kafka's snapshot omits (`hot/earlier_batches.py`), if there are any

Readers need the first three sections, which lie together at the front; the others rebuild a log. The manifest repeats the
section table beside the segment, so that one ranged GET fetches any sections without reading the header first.

This module reads sidecars, `sidecar_builder.py` builds them. Invariants: a section is served only if its CRC matches; sections
of unknown names are ignored. Positions in the index are relative to the segment's first byte.
"""

from __future__ import annotations

import bisect
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from storage_tiers.cold.manifest.documents import FORMAT
from storage_tiers.cold.manifest.model import Section
from storage_tiers.errors import StoreRefused, TierCorrupt
from storage_tiers.records.checksum import crc32c
from storage_tiers.types import AbortedTransaction, EpochEntry

INTERVAL_BYTES = 64 << 10
CHECK_BYTES = 1 << 20
MAGIC = b"TIDELIDX"
INDEX, CHECKS, ABORTED, EPOCHS, PRODUCER, BATCHES = "index", "checks", "aborted", "epochs", "producer", "batches"
_FRONT = (INDEX, CHECKS, ABORTED)
#: Sections from which a log is rebuilt.
STATE = (EPOCHS, PRODUCER, BATCHES)

#: Structs of the format above.
HEAD = struct.Struct(">8sHHIqqQI")
CRC = struct.Struct(">I")
TABLE_ROW = struct.Struct(">8sQQI")
INDEX_ROW = struct.Struct(">IIq")
ABORTED_ROW = struct.Struct(">hqqqq")
EPOCH_ROW = struct.Struct(">iq")
_MAX_SECTIONS = 64


class IndexRow(NamedTuple):
    """The batch at `position` begins at `base_offset`; `max_timestamp` is the largest of all batches before the next row."""

    base_offset: int
    position: int
    max_timestamp: int


class IndexRows(Sequence[IndexRow]):
    """An index in its packed form, 16 bytes per row; a row is decoded when it is read. As tuples, the rows would take 200 bytes
    each, and the cache would hold the indexes of 5 segments of 1 GiB instead of 60."""

    __slots__ = ("_base", "_packed")

    def __init__(self, base: int, packed: bytes) -> None:
        """`base` is the segment's base offset; `packed` holds whole rows."""
        self._base = base
        self._packed = packed

    def __len__(self) -> int:
        return len(self._packed) // INDEX_ROW.size

    def __getitem__(self, at: Any) -> Any:
        """The row at index `at`; no slices."""
        if at < 0:
            at += len(self)
        if not 0 <= at < len(self):
            raise IndexError(at)
        offset, position, timestamp = INDEX_ROW.unpack_from(self._packed, at * INDEX_ROW.size)
        return IndexRow(self._base + offset, position, timestamp)

    def __iter__(self) -> Iterator[IndexRow]:
        for offset, position, timestamp in INDEX_ROW.iter_unpack(self._packed):
            yield IndexRow(self._base + offset, position, timestamp)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Sidecar:
    """The sections that were read; others are empty. `base`, `end`, `length` (bytes) and `crc32c` are the segment's.
    `producer_state` is the producer snapshot, followed by the earlier batches."""

    base: int
    end: int
    length: int
    crc32c: int
    index: Sequence[IndexRow] = ()
    mib_crcs: Sequence[int] = ()
    aborted: tuple[AbortedTransaction, ...] = ()
    epochs: tuple[EpochEntry, ...] = ()
    producer_state: bytes = b""

    def floor_position(self, offset: int) -> tuple[int, int]:
        """(base offset, position) of the last indexed batch that begins at or before `offset`: the read begins there."""
        at = bisect.bisect_right(self.index, offset, key=lambda row: row.base_offset)
        row = self.index[max(at - 1, 0)]
        return row.base_offset, row.position

    def end_position(self, offset: int) -> int:
        """The byte at which the interval that holds `offset` ends: the position of the next indexed batch, or the segment's
        end."""
        at = bisect.bisect_right(self.index, offset, key=lambda row: row.base_offset)
        return self.index[at].position if at < len(self.index) else self.length

    def interval_for_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        """Bytes [start, end) of the first interval with a record at or after `timestamp` (ms); None if there is none."""
        at = bisect.bisect_left(self.index, timestamp, key=lambda row: row.max_timestamp)
        if at == len(self.index):
            return None
        end = self.index[at + 1].position if at + 1 < len(self.index) else self.length
        return self.index[at].position, end

    def aborted_between(self, start: int, end: int) -> tuple[AbortedTransaction, ...]:
        """Aborted transactions that overlap offsets [start, end)."""
        return tuple(txn for txn in self.aborted if txn.first_offset < end and txn.last_offset >= start)


def parse(data: bytes, where: str = "a sidecar") -> Sidecar:
    """Reads a whole sidecar. TierCorrupt names the fault; StoreRefused if it needs a newer reader."""
    base, end, length, crc, sections = _parse_head(data, where)
    if sections and max(section.position + section.length for section in sections) > len(data):
        raise TierCorrupt(f"{where} is cut short: it has {len(data)} bytes")
    return parse_part(data, 0, sections, base=base, end=end, length=length, crc=crc, where=where)


def front(sections: Sequence[Section]) -> tuple[int, int]:
    """(position, length) of the bytes with the index, the checks and the aborted transactions: one GET for readers."""
    return span(sections, _FRONT)


def span(sections: Sequence[Section], names: Sequence[str]) -> tuple[int, int]:
    """(position, length) of the bytes that hold these sections."""
    wanted = [section for section in sections if section.name in names]
    start = min((section.position for section in wanted), default=0)
    return start, max((section.position + section.length for section in wanted), default=0) - start


def parse_part(
    data: bytes,
    position: int,
    sections: Sequence[Section],
    *,
    base: int,
    end: int,
    length: int,
    crc: int,
    where: str = "a sidecar",
) -> Sidecar:
    """Reads the sections that lie wholly in bytes [position, position + len(data)) of a sidecar, by the manifest's table.

    `base`, `end`, `length` and `crc` are the segment's, as the manifest states them. TierCorrupt if a section does not fit."""
    found: dict[str, bytes] = {}
    for section in sections:
        start = section.position - position
        if start < 0 or start + section.length > len(data):
            continue
        content = data[start : start + section.length]
        if crc32c(content) != section.crc32c:
            raise TierCorrupt(
                f"section {section.name!r} of {where} has CRC-32C {crc32c(content)}, not {section.crc32c}"
            )
        found[section.name] = content
    highest = max((at for _, at, _ in _rows(found, INDEX, INDEX_ROW, where)), default=length)
    index = IndexRows(base, found[INDEX]) if INDEX in found else ()
    checks = array("I", (value for (value,) in _rows(found, CHECKS, CRC, where))) if CHECKS in found else ()
    if INDEX in found and highest >= length:
        raise TierCorrupt(f"the index of {where} does not fit a segment of {length} bytes")
    if CHECKS in found and len(checks) != -(-length // CHECK_BYTES):
        raise TierCorrupt(f"{where} has {len(checks)} checks for a segment of {length} bytes")
    return Sidecar(
        base,
        end,
        length,
        crc,
        index=index,
        mib_crcs=checks,
        aborted=tuple(_aborted(found, where)),
        epochs=tuple(EpochEntry(*row) for row in _rows(found, EPOCHS, EPOCH_ROW, where)),
        producer_state=found.get(PRODUCER, b"") + found.get(BATCHES, b""),
    )


#: Bytes that hold the header and the table of any sidecar.
HEAD_BYTES = 4096


def read_head(data: bytes, where: str = "a sidecar") -> Sidecar:
    """Reads the segment's base, end, length and CRC-32C, without the sections. Raises TierCorrupt or StoreRefused."""
    base, end, length, crc, _ = _parse_head(data, where)
    return Sidecar(base, end, length, crc)


def table_bytes(count: int) -> int:
    """The position of the first section in a sidecar with `count` sections."""
    return HEAD.size + CRC.size + count * TABLE_ROW.size


def read_table(data: bytes, where: str = "a sidecar") -> tuple[Section, ...]:
    """Reads the section table at the front of a sidecar, for callers without a manifest. Raises TierCorrupt or
    StoreRefused."""
    return _parse_head(data, where)[4]


def _parse_head(data: bytes, where: str) -> tuple[int, int, int, int, tuple[Section, ...]]:
    if len(data) < HEAD.size + CRC.size or data[: len(MAGIC)] != MAGIC:
        raise TierCorrupt(f"{where} does not begin as a sidecar")
    _, version, least, count, base, end, length, crc = HEAD.unpack_from(data)
    if not 1 <= least <= version:
        raise TierCorrupt(f"{where}: format {version} with least reader {least} does not exist")
    table_at = HEAD.size + CRC.size
    table_end = table_at + count * TABLE_ROW.size
    if least > FORMAT:
        raise StoreRefused(f"{where} needs a reader of format {least}; this version of tidelog reads up to {FORMAT}")
    if count > _MAX_SECTIONS or table_end > len(data):
        raise TierCorrupt(f"{where} is cut short, or its table of {count} sections is damaged")
    expected = CRC.unpack_from(data, HEAD.size)[0]
    if crc32c(data[table_at:table_end], crc32c(data[: HEAD.size])) != expected:
        raise TierCorrupt(f"the header of {where} fails its CRC-32C")
    return base, end, length, crc, tuple(_table(data, table_at, table_end))


def _table(data: bytes, start: int, end: int) -> Iterator[Section]:
    for name, position, length, crc in TABLE_ROW.iter_unpack(data[start:end]):
        yield Section(name.rstrip(b"\0").decode("ascii", "replace"), position, length, crc)


def _aborted(found: Mapping[str, bytes], where: str) -> Iterator[AbortedTransaction]:
    for version, *row in _rows(found, ABORTED, ABORTED_ROW, where):
        if version != 0:
            raise TierCorrupt(f"section {ABORTED!r} of {where} has a row of version {version}, which does not exist")
        yield AbortedTransaction(*row)


def _rows(found: Mapping[str, bytes], name: str, row: struct.Struct, where: str) -> Iterator[tuple[int, ...]]:
    content = found.get(name, b"")
    if len(content) % row.size:
        raise TierCorrupt(f"section {name!r} of {where} is not made of rows of {row.size} bytes")
    return row.iter_unpack(content)
