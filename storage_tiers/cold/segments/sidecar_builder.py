"""Builds the sidecar of a segment (`sidecar.py` has its format) in one walk over the batches.

Invariants: a sidecar is built from the batches' own headers, in pieces of 1 MiB, never from a local index file. The CRC-32C
of every batch is verified first, so that damaged bytes never get matching checksums.

The records inside are not checked, because the broker validates them when it appends them. The list of aborted transactions is
not checked either: the caller supplies it, since a transaction may end beyond the segment.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from storage_tiers.cold.manifest.documents import FORMAT, LEAST_READER
from storage_tiers.cold.manifest.model import Section
from storage_tiers.cold.segments.sidecar import (
    ABORTED,
    ABORTED_ROW,
    BATCHES,
    CHECK_BYTES,
    CHECKS,
    CRC,
    EPOCH_ROW,
    EPOCHS,
    HEAD,
    INDEX,
    INDEX_ROW,
    INTERVAL_BYTES,
    MAGIC,
    PRODUCER,
    TABLE_ROW,
    IndexRow,
)
from storage_tiers.errors import CorruptRecord, InvalidRequest, StorageError
from storage_tiers.hot.producer_snapshot import split_state
from storage_tiers.records import batch as record_batch
from storage_tiers.records.batch_walk import BAD_CRC, recover_scan
from storage_tiers.records.checksum import crc32c
from storage_tiers.types import NO_TIMESTAMP, AbortedTransaction, EpochEntry

_INT64, _INT32 = struct.Struct(">q"), struct.Struct(">i")
_PIECE_BYTES = 1 << 20
#: The lowest offset and leader epoch. With them `recover_scan` accepts any order; the walk itself reports a wrong order.
_ANY_ORDER = (-(1 << 63), -(1 << 31))


@dataclass(frozen=True, slots=True)
class SidecarBytes:
    """A built sidecar, and the sums of one walk over the segment's batch headers.

    `crc32c` covers the segment's bytes. Timestamps are in ms and count only batches with records (-1: none);
    `max_timestamp_offset` is the base offset of the first batch that has `max_timestamp`. `next_offset` follows the last
    batch's last offset."""

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
    producer_state: bytes,
) -> SidecarBytes:
    """Walks bytes [position, position + length) of a path, a descriptor or a buffer: the batches of offsets [base, end).

    Holds 1 MiB of them at a time. CorruptRecord if the bytes are not whole batches, in order and inside the segment, or if a
    batch fails its CRC-32C; StorageError if the file cannot be read.
    """
    if not 0 < length < 1 << 32 or not 0 <= base < end <= base + (1 << 32):
        raise InvalidRequest(
            f"offsets [{base}, {end}) in {length} bytes are not a segment, which has 1 byte to 4 GiB and 1 to 2^32 offsets"
        )
    walk = _SegmentWalk(base, end, source if isinstance(source, str) else "the segment", position)
    with _Source(source, position, length) as pieces:
        walk.run(pieces)
    snapshot, earlier = split_state(producer_state)
    found = {
        INDEX: b"".join(INDEX_ROW.pack(row.base_offset - base, row.position, row.max_timestamp) for row in walk.rows),
        CHECKS: b"".join(map(CRC.pack, walk.checks)),
        ABORTED: aborted_rows(aborted),
        EPOCHS: epoch_rows(epochs),
        PRODUCER: snapshot,
        **({BATCHES: earlier} if earlier else {}),
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


def aborted_rows(aborted: Iterable[AbortedTransaction]) -> bytes:
    return b"".join(
        ABORTED_ROW.pack(0, txn.producer_id, txn.first_offset, txn.last_offset, txn.last_stable_offset)
        for txn in aborted
    )


def epoch_rows(epochs: Iterable[EpochEntry]) -> bytes:
    return b"".join(EPOCH_ROW.pack(entry.epoch, entry.start_offset) for entry in epochs)


def _assemble(
    found: Mapping[str, bytes], base: int, end: int, length: int, crc: int
) -> tuple[bytes, tuple[Section, ...]]:
    at = HEAD.size + CRC.size + len(found) * TABLE_ROW.size
    sections: list[Section] = []
    for name, content in found.items():
        sections.append(Section(name, at, len(content), crc32c(content)))
        at += len(content)
    head = HEAD.pack(MAGIC, FORMAT, LEAST_READER, len(sections), base, end, length, crc)
    table = b"".join(TABLE_ROW.pack(name.encode(), *rest) for name, *rest in sections)
    return b"".join((head, CRC.pack(crc32c(table, crc32c(head))), table, *found.values())), tuple(sections)


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
    """One pass over a segment's batches that collects index rows and checksums. `name` and `start` locate a batch in errors."""

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
        """Walks a batch larger than a piece; the index needs only its header. Returns the byte after the batch."""
        try:
            header = record_batch.read_header(piece)
        except CorruptRecord as error:
            raise CorruptRecord(f"no whole batch begins at byte {at} of the segment: {error}") from error
        if (
            (size := header.size) < len(piece)
            or size > source.length - at
            or header.magic != record_batch.CURRENT_MAGIC
        ):
            raise CorruptRecord(f"no whole batch of format v2 begins at byte {at} of the segment")
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
        """Returns the error. It advises deleting records only if the next whole batch confirms the damaged header's last
        offset."""
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
