"""The sidecar of a segment: its index, checksums and aborted transactions for readers, epochs and producers for a new leader.

    magic "TIDELIDX" │ format u16 │ least reader u16 │ sections u32
    base i64 │ end i64 │ length u64 │ crc32c u32 │ header crc u32
    sections × ( name 8 bytes, zero padded │ position u64 │ length u64 │ crc32c u32 )
    index │ checks │ aborted │ epochs │ producer

All numbers are big-endian. The header's CRC covers everything before it and the section table. Sections:

    index     rows (relative base offset u32 │ position u32 │ maximum timestamp so far i64), one per 64 KiB of batches
    checks    CRC-32C u32 of each MiB of the segment, the last one shorter
    aborted   Kafka's transaction index entries: version i16 │ producer id i64 │ first i64 │ last i64 │ last stable i64
    epochs    rows (leader epoch i32 │ start offset i64): the whole history up to `end`
    producer  Kafka's producer snapshot, byte for byte, as of exactly `end`

Readers need the first three sections, which lie together at the front; the others rebuild a log. The manifest repeats the
section table beside the segment, so that one ranged GET fetches any sections without reading the header first.

Invariants: a sidecar is built from the batches' own headers, in pieces of 1 MiB, never from a local index file. The CRC-32C
of every batch is verified first, so that damaged bytes never get matching checksums. A section is served only if its CRC
matches; sections of unknown names are ignored. Positions in the index are relative to the segment's first byte.

Not promised: that the records inside are sound (the broker validates them when it appends them), or that the list of aborted
transactions is complete: the caller supplies it, since a transaction may end beyond the segment.
"""

from __future__ import annotations

import bisect
import os
import struct
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from storage_tiers.cold.manifest.documents import FORMAT, LEAST_READER
from storage_tiers.cold.manifest.model import Section
from storage_tiers.errors import CorruptRecord, InvalidRequest, StorageError, StoreRefused, TierCorrupt
from storage_tiers.records import batch as record_batch
from storage_tiers.records.batch_walk import BAD_CRC, recover_scan
from storage_tiers.records.checksum import crc32c
from storage_tiers.types import NO_TIMESTAMP, AbortedTransaction, EpochEntry

INTERVAL_BYTES = 64 << 10
CHECK_BYTES = 1 << 20
MAGIC = b"TIDELIDX"
INDEX, CHECKS, ABORTED, EPOCHS, PRODUCER = "index", "checks", "aborted", "epochs", "producer"
_FRONT = (INDEX, CHECKS, ABORTED)

_HEAD = struct.Struct(">8sHHIqqQI")
_CRC = struct.Struct(">I")
_TABLE_ROW = struct.Struct(">8sQQI")
_INDEX_ROW = struct.Struct(">IIq")
_ABORTED_ROW = struct.Struct(">hqqqq")
_EPOCH_ROW = struct.Struct(">iq")
_INT64, _INT32 = struct.Struct(">q"), struct.Struct(">i")
_PIECE_BYTES = 1 << 20
#: The least next offset and leader epoch that `recover_scan` accepts: any, since the walk itself reports a wrong order.
_ANY_ORDER = (-(1 << 63), -(1 << 31))
_MAX_SECTIONS = 64


class IndexRow(NamedTuple):
    """The batch at `position` begins at `base_offset`; `max_timestamp` is the largest of all batches before the next row."""

    base_offset: int
    position: int
    max_timestamp: int


@dataclass(frozen=True, slots=True)
class SidecarBytes:
    """A built sidecar, and the sums of one walk over the segment's batch headers.

    `crc32c` covers the segment's bytes. Timestamps are in ms, of batches with records, else -1; `max_timestamp_offset` is the
    base offset of the first batch that has `max_timestamp`. `next_offset` follows the last batch's last offset."""

    data: bytes
    sections: tuple[Section, ...]
    crc32c: int
    min_timestamp: int
    max_timestamp: int
    max_timestamp_offset: int
    records: int
    first_offset: int
    next_offset: int
    last_leader_epoch: int


def build(
    source: str | int | bytes | bytearray | memoryview,
    position: int,
    length: int,
    *,
    base: int,
    end: int,
    aborted: Iterable[AbortedTransaction],
    epochs: Sequence[EpochEntry],
    producer_snapshot: bytes,
) -> SidecarBytes:
    """Walks bytes [position, position + length) of a path, a descriptor or a buffer: the batches of offsets [base, end).

    Holds 1 MiB of them at a time. CorruptRecord if they are not whole batches in order inside the segment, or one fails its
    CRC-32C; StorageError if the file cannot be read.
    """
    if not 0 < length < 1 << 32 or not 0 <= base < end <= base + (1 << 32):
        raise InvalidRequest(
            f"offsets [{base}, {end}) in {length} bytes are not a segment: it has 1 byte to 4 GiB, and as many offsets"
        )
    walk = _SegmentWalk(base, end, source if isinstance(source, str) else "the segment", position)
    with _Source(source, position, length) as pieces:
        walk.run(pieces)
    found = {
        INDEX: b"".join(_INDEX_ROW.pack(row.base_offset - base, row.position, row.max_timestamp) for row in walk.rows),
        CHECKS: b"".join(map(_CRC.pack, walk.checks)),
        ABORTED: b"".join(
            _ABORTED_ROW.pack(0, txn.producer_id, txn.first_offset, txn.last_offset, txn.last_stable_offset)
            for txn in aborted
        ),
        EPOCHS: b"".join(_EPOCH_ROW.pack(entry.epoch, entry.start_offset) for entry in epochs),
        PRODUCER: producer_snapshot,
    }
    data, sections = _assemble(found, base, end, length, walk.crc)
    return SidecarBytes(
        data,
        sections,
        walk.crc,
        walk.min_timestamp,
        walk.max_timestamp,
        walk.max_timestamp_offset,
        walk.records,
        walk.first_offset,
        walk.next_offset,
        walk.last_epoch,
    )


def _assemble(
    found: Mapping[str, bytes], base: int, end: int, length: int, crc: int
) -> tuple[bytes, tuple[Section, ...]]:
    at = _HEAD.size + _CRC.size + len(found) * _TABLE_ROW.size
    sections: list[Section] = []
    for name, content in found.items():
        sections.append(Section(name, at, len(content), crc32c(content)))
        at += len(content)
    head = _HEAD.pack(MAGIC, FORMAT, LEAST_READER, len(sections), base, end, length, crc)
    table = b"".join(_TABLE_ROW.pack(name.encode(), *rest) for name, *rest in sections)
    return b"".join((head, _CRC.pack(crc32c(table, crc32c(head))), table, *found.values())), tuple(sections)


class _Source:
    """Bytes of a file or a buffer by position. Opens a path on entry and closes it on exit; a descriptor stays open."""

    def __init__(self, source: str | int | bytes | bytearray | memoryview, position: int, length: int) -> None:
        self._source = source
        self._position = position
        self.length = length
        self._fd = source if isinstance(source, int) else -1

    def __enter__(self) -> _Source:
        if isinstance(self._source, str):
            try:
                self._fd = os.open(self._source, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise StorageError(f"cannot read {self._source}: {error.strerror}") from error
        return self

    def __exit__(self, *_: object) -> None:
        if isinstance(self._source, str):
            os.close(self._fd)

    def read(self, at: int, length: int) -> bytes | memoryview:
        length = min(length, self.length - at)
        if not isinstance(self._source, (str, int)):
            data: bytes | memoryview = memoryview(self._source)[self._position + at : self._position + at + length]
        else:
            try:
                data = os.pread(self._fd, length, self._position + at)
            except OSError as error:
                raise StorageError(f"cannot read {self._source}: {error.strerror}") from error
        if len(data) != length:
            raise StorageError(f"{length} bytes were expected at {self._position + at}, {len(data)} are there")
        return data


class _SegmentWalk:
    """One pass over a segment's batches that collects index rows and checksums. `name` and `start` locate them in errors."""

    def __init__(self, base: int, end: int, name: str, start: int) -> None:
        self._end = end
        self._name = name
        self._start = start
        self.rows: list[IndexRow] = []
        self.checks: list[int] = []
        self.crc = 0
        self.min_timestamp = self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base
        self.records = 0
        self.first_offset = -1
        self.next_offset = base
        self.last_epoch = -1
        self._piece_crc = 0
        self._summed = 0

    def run(self, source: _Source) -> None:
        at = 0
        while at < source.length:
            piece = source.read(at, _PIECE_BYTES)
            batches, stopped, stop = recover_scan(piece, 0, *_ANY_ORDER)
            for batch in batches:
                self._batch(at, piece, *batch)
            if stop == BAD_CRC:
                raise self._damaged(at + stopped, memoryview(piece)[stopped:], self.next_offset)
            if stopped:
                self._sum(memoryview(piece)[:stopped])
                at += stopped
            else:
                at = self._large(source, at, piece)
        if self._summed % CHECK_BYTES:
            self.checks.append(self._piece_crc)

    def _large(self, source: _Source, at: int, piece: bytes | memoryview) -> int:
        """Walks a batch larger than a piece; the index needs only its header. Returns its end."""
        try:
            header = record_batch.read_header(piece)
        except CorruptRecord as error:
            raise CorruptRecord(f"byte {at} of the segment begins no whole batch: {error}") from error
        if (
            (size := header.size) < len(piece)
            or size > source.length - at
            or header.magic != record_batch.CURRENT_MAGIC
        ):
            raise CorruptRecord(f"byte {at} of the segment begins no whole batch of format v2")
        before = self.next_offset
        self._batch(
            at, piece, 0, size, header.base_offset, header.next_offset, header.leader_epoch, header.max_timestamp
        )
        crc, covered = 0, record_batch.ATTRIBUTES
        for start in range(at, at + size, _PIECE_BYTES):
            part = memoryview(source.read(start, min(_PIECE_BYTES, at + size - start)))
            self._sum(part)
            crc, covered = crc32c(part[covered:], crc), 0
        if crc != header.crc:
            raise self._damaged(at, memoryview(piece), before)
        return at + size

    def _damaged(self, at: int, rest: memoryview, first: int) -> CorruptRecord:
        """The error advises deleting records only if the next whole batch confirms the damaged header's last offset."""
        header = record_batch.read_header(rest)
        sound = recover_scan(rest[header.size :], 0, *_ANY_ORDER)[0] if header.size < len(rest) else []
        claimed = header.next_offset
        agreed = bool(sound) and sound[0][2] == claimed
        without = f", or delete the records below offset {claimed} to continue without them" if agreed else ""
        return CorruptRecord(
            f"the batch at byte {self._start + at} of {self._name}, the first from offset {first} on, fails its "
            f"CRC-32C: the disk has changed it. Nothing from there on is offloaded or evicted; put the file back from a "
            f"copy{without}"
        )

    def _batch(
        self,
        piece_at: int,
        piece: bytes | memoryview,
        position: int,
        size: int,
        base_offset: int,
        next_offset: int,
        epoch: int,
        max_timestamp: int,
    ) -> None:
        if base_offset < self.next_offset or next_offset > self._end:
            raise CorruptRecord(
                f"the batch of offsets [{base_offset}, {next_offset}) at byte {piece_at + position} lies outside "
                f"[{self.next_offset}, {self._end})"
            )
        if epoch < self.last_epoch:
            raise CorruptRecord(f"the batch at offset {base_offset} has leader epoch {epoch}, after {self.last_epoch}")
        count = _INT32.unpack_from(piece, position + record_batch.RECORDS_COUNT)[0]
        first_timestamp = _INT64.unpack_from(piece, position + record_batch.BASE_TIMESTAMP)[0]
        if count > 0 and (not self.records or first_timestamp < self.min_timestamp):
            self.min_timestamp = first_timestamp
        if self.first_offset < 0:
            self.first_offset = base_offset
            self.max_timestamp, self.max_timestamp_offset = max_timestamp, base_offset
        elif max_timestamp > self.max_timestamp:
            self.max_timestamp, self.max_timestamp_offset = max_timestamp, base_offset
        self.records += count
        self.next_offset = next_offset
        self.last_epoch = epoch
        at = piece_at + position
        if not self.rows or at - self.rows[-1].position >= INTERVAL_BYTES:
            self.rows.append(IndexRow(base_offset, at, self.max_timestamp))
        elif self.rows[-1].max_timestamp != self.max_timestamp:
            self.rows[-1] = self.rows[-1]._replace(max_timestamp=self.max_timestamp)

    def _sum(self, data: memoryview) -> None:
        self.crc = crc32c(data, self.crc)
        while data:
            room = CHECK_BYTES - self._summed % CHECK_BYTES
            self._piece_crc = crc32c(data[:room], self._piece_crc)
            self._summed += len(data[:room])
            data = data[room:]
            if self._summed % CHECK_BYTES == 0:
                self.checks.append(self._piece_crc)
                self._piece_crc = 0


# --- reading ----------------------------------------------------------------------------------------------------------
class IndexRows(Sequence[IndexRow]):
    """An index in its packed form, 16 bytes a row; a row is decoded when it is read. As tuples rows would take 200 bytes each,
    and the cache would hold the indexes of 5 segments of 1 GiB instead of 60."""

    __slots__ = ("_base", "_packed")

    def __init__(self, base: int, packed: bytes) -> None:
        """`base` is the segment's, `packed` whole rows."""
        self._base = base
        self._packed = packed

    def __len__(self) -> int:
        return len(self._packed) // _INDEX_ROW.size

    def __getitem__(self, at: Any) -> Any:
        """The row at index `at`; no slices."""
        if at < 0:
            at += len(self)
        if not 0 <= at < len(self):
            raise IndexError(at)
        offset, position, timestamp = _INDEX_ROW.unpack_from(self._packed, at * _INDEX_ROW.size)
        return IndexRow(self._base + offset, position, timestamp)

    def __iter__(self) -> Iterator[IndexRow]:
        for offset, position, timestamp in _INDEX_ROW.iter_unpack(self._packed):
            yield IndexRow(self._base + offset, position, timestamp)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Sidecar:
    """The sections that were read; others are empty. `base`, `end`, `length` (bytes) and `crc32c` are the segment's."""

    base: int
    end: int
    length: int
    crc32c: int
    index: Sequence[IndexRow] = ()
    mib_crcs: Sequence[int] = ()
    aborted: tuple[AbortedTransaction, ...] = ()
    epochs: tuple[EpochEntry, ...] = ()
    producer_snapshot: bytes = b""

    def floor_position(self, offset: int) -> tuple[int, int]:
        """(base offset, position) of the last indexed batch that begins at or before `offset`: the read begins there."""
        at = bisect.bisect_right(self.index, offset, key=lambda row: row.base_offset)
        row = self.index[max(at - 1, 0)]
        return row.base_offset, row.position

    def end_position(self, offset: int) -> int:
        """The end of the interval that holds `offset`: the next indexed batch, or the segment's end."""
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
    highest = max((at for _, at, _ in _rows(found, INDEX, _INDEX_ROW, where)), default=length)
    index = IndexRows(base, found[INDEX]) if INDEX in found else ()
    checks = array("I", (value for (value,) in _rows(found, CHECKS, _CRC, where))) if CHECKS in found else ()
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
        epochs=tuple(EpochEntry(*row) for row in _rows(found, EPOCHS, _EPOCH_ROW, where)),
        producer_snapshot=found.get(PRODUCER, b""),
    )


#: Bytes that hold the header and the table of any sidecar.
HEAD_BYTES = 4096


def read_head(data: bytes, where: str = "a sidecar") -> Sidecar:
    """Reads the segment's base, end, length and CRC-32C, without the sections. TierCorrupt, StoreRefused."""
    base, end, length, crc, _ = _parse_head(data, where)
    return Sidecar(base, end, length, crc)


def table_bytes(count: int) -> int:
    """The position of the first section in a sidecar with `count` sections."""
    return _HEAD.size + _CRC.size + count * _TABLE_ROW.size


def read_table(data: bytes, where: str = "a sidecar") -> tuple[Section, ...]:
    """Reads the section table at the front of a sidecar, for callers without a manifest. TierCorrupt, StoreRefused."""
    return _parse_head(data, where)[4]


def _parse_head(data: bytes, where: str) -> tuple[int, int, int, int, tuple[Section, ...]]:
    if len(data) < _HEAD.size + _CRC.size or data[: len(MAGIC)] != MAGIC:
        raise TierCorrupt(f"{where} does not begin as a sidecar")
    _, version, least, count, base, end, length, crc = _HEAD.unpack_from(data)
    if not 1 <= least <= version:
        raise TierCorrupt(f"{where}: format {version} for readers from {least} on does not exist")
    table_at = _HEAD.size + _CRC.size
    table_end = table_at + count * _TABLE_ROW.size
    if least > FORMAT:
        raise StoreRefused(f"{where} needs a reader of format {least}; this version of tidelog reads up to {FORMAT}")
    if count > _MAX_SECTIONS or table_end > len(data):
        raise TierCorrupt(f"{where} is cut short, or its table of {count} sections is damaged")
    expected = _CRC.unpack_from(data, _HEAD.size)[0]
    if crc32c(data[table_at:table_end], crc32c(data[: _HEAD.size])) != expected:
        raise TierCorrupt(f"the header of {where} fails its CRC-32C")
    return base, end, length, crc, tuple(_table(data, table_at, table_end))


def _table(data: bytes, start: int, end: int) -> Iterator[Section]:
    for name, position, length, crc in _TABLE_ROW.iter_unpack(data[start:end]):
        yield Section(name.rstrip(b"\0").decode("ascii", "replace"), position, length, crc)


def _aborted(found: Mapping[str, bytes], where: str) -> Iterator[AbortedTransaction]:
    for version, *row in _rows(found, ABORTED, _ABORTED_ROW, where):
        if version != 0:
            raise TierCorrupt(f"section {ABORTED!r} of {where} has a row of version {version}, which does not exist")
        yield AbortedTransaction(*row)


def _rows(found: Mapping[str, bytes], name: str, row: struct.Struct, where: str) -> Iterator[tuple[int, ...]]:
    content = found.get(name, b"")
    if len(content) % row.size:
        raise TierCorrupt(f"section {name!r} of {where} is not made of rows of {row.size} bytes")
    return row.iter_unpack(content)
