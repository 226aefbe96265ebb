"""From verified bytes to runs of whole record batches, with proof that none is missing.

Invariants: a piece's batches fill its bytes exactly and lie in its offsets, in order; if its segment says that no offset of
it is missing, neither is one in the batches; a piece that is a whole segment holds as many records as the segment says.
Anything else is TierCorrupt. Batches over two chunks are put together; how large one is, its own header says.
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


class PlacedBatch(NamedTuple):
    """A batch's place in a run, and what its header says of its offsets and time."""

    position: int
    size: int
    base_offset: int
    next_offset: int
    leader_epoch: int
    max_timestamp: int


class Run(NamedTuple):
    """Whole batches, one after the other: `data` is exactly theirs."""

    data: memoryview
    batches: list[PlacedBatch]

    @property
    def base(self) -> int:
        return self.batches[0].base_offset

    @property
    def end(self) -> int:
        return self.batches[-1].next_offset


def runs(piece: ScanPiece, chunks: Iterator[memoryview]) -> Iterator[Run]:
    """The piece's batches as they arrive. TierCorrupt if they are not all there."""
    check = _PieceCheck(piece)
    begun = bytearray()  # a batch that goes on in the next chunk: the only bytes that are copied
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
        raise check.bad(f"its last {len(begun)} bytes are no whole batch")
    check.ended()


def _continued(begun: bytearray, chunk: memoryview, check: _PieceCheck) -> int:
    """Adds what the batch lacks, or all of the chunk. How many bytes that were."""
    taken = 0
    while taken < len(chunk) and (lacking := _lacking(begun, check)):
        more = chunk[taken : taken + lacking]
        begun += more
        taken += len(more)
    return taken


def _lacking(begun: bytearray, check: _PieceCheck) -> int:
    """Bytes up to the end of its header, then to the batch's."""
    if len(begun) < HEADER_BYTES:
        return HEADER_BYTES - len(begun)
    check.scanned(memoryview(begun))  # a header that can be believed
    return read_header(begun).size - len(begun)


class _PieceCheck:
    """What must hold over all of a piece's batches."""

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
            f"{piece.segment.key}, offsets [{piece.base}, {piece.end}): {fault}; run `tidelog fsck`, nothing is read of it"
        )

    def scanned(self, data: memoryview) -> tuple[list[PlacedBatch], int]:
        """The whole batches that the next bytes begin with, and where they end. TierCorrupt where no batch can begin."""
        found, stopped, stop = scan_batches(data, 0, len(data))
        if stop not in (WHOLE, PARTIAL):
            raise self.bad(f"no batch begins at byte {self._bytes + stopped}")
        return [PlacedBatch(*batch) for batch in found], stopped

    def run(self, data: memoryview, batches: list[PlacedBatch]) -> Run:
        """The next bytes, which are these batches."""
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
            raise self.bad(f"{self._records} records are there, the manifest says {self._piece.segment.records}")
