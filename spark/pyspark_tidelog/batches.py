"""Cuts verified bytes into runs of whole record batches, and proves that no batch is missing.

Invariants: a piece's batches fill its bytes exactly and lie within its offsets, in order. If its segment is dense (one record
for each offset), no offset is missing from the batches. A piece that is a whole segment has as many records as the manifest
says. Any violation raises TierCorrupt. A batch that spans chunks is joined by the size in its header.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from pyspark_tidelog.plan import ScanPiece
from storage_tiers.errors import TierCorrupt
from storage_tiers.records.batch import HEADER_BYTES, RECORDS_COUNT, read_header
from storage_tiers.records.batch_walk import PARTIAL, WHOLE, scan_batches

_COUNT = struct.Struct(">i")


class ScannedBatch(NamedTuple):
    """A batch's position in a run, and the offsets and time in its header."""

    position: int
    size: int
    base_offset: int
    next_offset: int
    leader_epoch: int
    max_timestamp: int


class Run(NamedTuple):
    """Consecutive whole batches. `data` has exactly their bytes."""

    data: memoryview
    batches: list[ScannedBatch]

    @property
    def base(self) -> int:
        return self.batches[0].base_offset

    @property
    def end(self) -> int:
        return self.batches[-1].next_offset


def runs(piece: ScanPiece, chunks: Iterator[memoryview]) -> Iterator[Run]:
    """Yields the piece's batches as they arrive. Raises TierCorrupt if any is missing."""
    check = _PieceCheck(piece)
    begun = bytearray()  # a batch that continues in the next chunk; only these bytes are copied
    for chunk in chunks:
        if begun:
            taken = _continued(begun, chunk, check)
            if _lacking(begun, check):
                continue
            yield check.run(memoryview(begun), check.scanned(memoryview(begun))[0])
            begun, chunk = bytearray(), chunk[taken:]
        found, stopped = check.scanned(chunk)
        if found:
            yield check.run(chunk[:stopped], found)
        begun += chunk[stopped:]
    if begun:
        raise check.bad(f"its last {len(begun)} bytes are an incomplete batch")
    check.ended()


def _continued(begun: bytearray, chunk: memoryview, check: _PieceCheck) -> int:
    """Appends the batch's missing bytes, or the whole chunk. Returns the number of bytes."""
    taken = 0
    while taken < len(chunk) and (lacking := _lacking(begun, check)):
        more = chunk[taken : taken + lacking]
        begun += more
        taken += len(more)
    return taken


def _lacking(begun: bytearray, check: _PieceCheck) -> int:
    """The number of bytes missing to the end of the header or, if that is complete, to the end of the batch."""
    if len(begun) < HEADER_BYTES:
        return HEADER_BYTES - len(begun)
    check.scanned(memoryview(begun))  # raises if the header is not valid
    return read_header(begun).size - len(begun)


class _PieceCheck:
    """Checks that span all of a piece's batches."""

    def __init__(self, piece: ScanPiece) -> None:
        segment = piece.segment
        self._piece = piece
        self._dense = segment.records == segment.end - segment.base
        self._next = piece.base
        self._records = 0
        self._bytes = piece.first_byte

    def bad(self, fault: str) -> TierCorrupt:
        piece = self._piece
        return TierCorrupt(
            f"{piece.segment.key}, offsets [{piece.base}, {piece.end}): {fault}; nothing of it is read; run `tidelog fsck`"
        )

    def scanned(self, data: memoryview) -> tuple[list[ScannedBatch], int]:
        """The whole batches at the start of the next bytes, and their end. Raises TierCorrupt if no batch can begin there."""
        found, stopped, stop = scan_batches(data, 0, len(data))
        if stop not in (WHOLE, PARTIAL):
            raise self.bad(f"no batch begins at byte {self._bytes + stopped}")
        return [ScannedBatch(*batch) for batch in found], stopped

    def run(self, data: memoryview, batches: list[ScannedBatch]) -> Run:
        """Returns the next bytes, which hold these batches, as a run. Raises TierCorrupt if offsets are missing before one of
        the batches, or if it lies outside the piece."""
        run = Run(data, batches)
        for batch in run.batches:
            if not self._next <= batch.base_offset < batch.next_offset <= self._piece.end:
                raise self.bad(f"a batch of offsets [{batch.base_offset}, {batch.next_offset}) follows {self._next}")
            if self._dense and batch.base_offset != self._next:
                raise self.bad(f"offsets [{self._next}, {batch.base_offset}) are missing")
            self._next = batch.next_offset
            self._records += _COUNT.unpack_from(run.data, batch.position + RECORDS_COUNT)[0]
        self._bytes += len(data)
        return run

    def ended(self) -> None:
        if self._dense and self._next != self._piece.end:
            raise self.bad(f"offsets [{self._next}, {self._piece.end}) are missing")
        if self._piece.whole and self._records != self._piece.segment.records:
            raise self.bad(f"it has {self._records} records, but the manifest says {self._piece.segment.records}")
