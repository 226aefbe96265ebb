"""The parts of a read's plan: values that the driver sends to the executors.

    read ─ partition plans ─ splits (one Spark task each) ─ pieces (bytes of one segment)

Invariants: the pieces of a partition's splits cover [start, end) of its plan exactly once, in order, except pruned segments.
A piece's bytes are whole batches. They begin at an indexed batch, and end before another one or at the segment's end.
"""

from __future__ import annotations

from dataclasses import dataclass

from storage_tiers.cold.manifest.model import Ids, RemoteSegment


@dataclass(frozen=True, slots=True)
class ScanPiece:
    """Bytes [first_byte, end_byte) of a remote segment. They hold batches of offsets [base, end). The read returns offsets
    [start, stop)."""

    segment: RemoteSegment
    first_byte: int
    end_byte: int
    base: int
    end: int
    start: int
    stop: int

    @property
    def bytes(self) -> int:
        return self.end_byte - self.first_byte

    @property
    def whole(self) -> bool:
        return self.first_byte == 0 and self.end_byte == self.segment.length


@dataclass(frozen=True, slots=True)
class Split:
    """The work of one Spark task: pieces of one partition, in offset order. `commit` is that of the manifest."""

    ids: Ids
    commit: int
    pieces: tuple[ScanPiece, ...]

    @property
    def bytes(self) -> int:
        return sum(piece.bytes for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """A read of offsets [start, end) of a partition as of its manifest's `commit`.

    `manifest_end` is the end offset in the bucket. `committed_at` is the time of that commit (ms since 1970, by its writer's
    clock). A partition without a manifest has commit 0 and nothing to read.
    """

    ids: Ids
    commit: int
    committed_at: int
    log_start: int
    manifest_end: int
    start: int
    end: int
    splits: tuple[Split, ...]

    @property
    def bytes(self) -> int:
        return sum(split.bytes for split in self.splits)
