"""From verified bytes to runs of whole record batches, with proof that none is missing.

Invariants: a piece's batches fill its bytes exactly and lie in its offsets, in order; if its entry says that no offset of
it is missing, neither is one in the batches; a piece that is a whole entry holds as many records as the entry says.
Anything else is TierCorrupt. Batches beyond a chunk are put together; how large one is, its own header says.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from pyspark_tidelog.plan import Piece
from storage_tiers.errors import TierCorrupt
from storage_tiers.records.batch import HEADER_BYTES, RECORDS_COUNT, read_header
from storage_tiers.records.walker import PARTIAL, WHOLE, scan_batches

_COUNT = struct.Struct(">i")


class Batch(NamedTuple):
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
    batches: list[Batch]

    @property
    def base(self) -> int:
        return self.batches[0].base_offset

    @property
    def end(self) -> int:
        return self.batches[-1].next_offset


def runs(piece: Piece, chunks: Iterator[memoryview]) -> Iterator[Run]:
    """The piece's batches as they arrive. TierCorrupt if they are not all there."""
    check = _Check(piece)
    waiting: list[memoryview] = []
    size = 0
    needed = HEADER_BYTES
    for chunk in chunks:
        waiting.append(chunk)
        size += len(chunk)
        if size < needed:
            continue
        data = waiting[0] if len(waiting) == 1 else memoryview(b"".join(waiting))
        found, stopped, stop = scan_batches(data, 0, size)
        if stop not in (WHOLE, PARTIAL):
            raise check.bad(f"no batch begins {size - stopped} bytes before byte {check.bytes + size}")
        if found:
            run = Run(data[:stopped], [Batch(*batch) for batch in found])
            check.add(run)
            yield run
        rest = data[stopped:]
        waiting, size = [rest], len(rest)
        needed = read_header(rest).size if size >= HEADER_BYTES else HEADER_BYTES
    if size:
        raise check.bad(f"its last {size} bytes are no whole batch")
    check.ended()


class _Check:
    """What must hold over all of a piece's batches."""

    def __init__(self, piece: Piece) -> None:
        entry = piece.entry
        self._piece = piece
        self._dense = entry.records == entry.end - entry.base
        self._next = piece.base
        self._records = 0
        self.bytes = piece.first_byte

    def bad(self, fault: str) -> TierCorrupt:
        piece = self._piece
        return TierCorrupt(
            f"{piece.entry.key}, offsets [{piece.base}, {piece.end}): {fault}; run `tidelog fsck`, nothing is read of it"
        )

    def add(self, run: Run) -> None:
        for batch in run.batches:
            if not self._next <= batch.base_offset < batch.next_offset <= self._piece.end:
                raise self.bad(f"a batch of offsets [{batch.base_offset}, {batch.next_offset}) follows {self._next}")
            if self._dense and batch.base_offset != self._next:
                raise self.bad(f"offsets [{self._next}, {batch.base_offset}) are missing")
            self._next = batch.next_offset
            self._records += _COUNT.unpack_from(run.data, batch.position + RECORDS_COUNT)[0]
        self.bytes += len(run.data)

    def ended(self) -> None:
        if self._dense and self._next != self._piece.end:
            raise self.bad(f"offsets [{self._next}, {self._piece.end}) are missing")
        if self._piece.whole and self._records != self._piece.entry.records:
            raise self.bad(f"{self._records} records are there, the manifest says {self._piece.entry.records}")
