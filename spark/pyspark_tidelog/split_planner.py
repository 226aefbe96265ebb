"""Cuts a manifest into splits. Pure: the caller passes functions that load pages and sidecars.

A remote segment that is read whole and fits a split needs only the manifest. Any other segment is cut by offsets or size at
batches in its sidecar's index (one per 64 KiB). Adjacent segments share a split while they fit, so that many small segments do
not become as many tasks.

Invariant: the splits' pieces tile [start, end) except pruned segments, for any index and sizes. A split may exceed `max_bytes`,
because a batch, or an interval of 64 KiB, is never cut.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator

from pyspark_tidelog.options import EARLIEST, LATEST, Bound, OptionError
from pyspark_tidelog.plan import ScanPiece, Split
from storage_tiers.cold.manifest.lookup import LoadPage, live_segments
from storage_tiers.cold.manifest.model import Manifest, RemoteSegment
from storage_tiers.cold.segments.sidecar import Sidecar

#: Loads a remote segment's sidecar with at least its index.
LoadIndex = Callable[[RemoteSegment], Sidecar]
#: The offset of the first record at or after a time (ms), None if there is none.
FindTime = Callable[[int], int | None]
#: Whether the read needs a remote segment with this largest timestamp (ms).
WantsNewest = Callable[[int], bool]


def range_to_read(manifest: Manifest, starting: Bound, ending: Bound, find_time: FindTime) -> tuple[int, int]:
    """Returns [start, end) for one partition. Raises OptionError for an offset that the bucket does not have yet, or no longer
    has."""
    start = _resolve(manifest, starting, manifest.log_start, find_time)
    end = _resolve(manifest, ending, manifest.end, find_time)
    if _named(manifest, starting) is not None and start < manifest.log_start:
        raise OptionError(
            f"{manifest.ids} begins at offset {manifest.log_start} and no longer has offset {start}; start there, or at -2"
        )
    for name, offset in (("startingOffsets", start), ("endingOffsets", end)):
        if offset > manifest.end:
            raise OptionError(
                f"{name} names offset {offset} of {manifest.ids}, which ends at {manifest.end} in the bucket; wait until it is "
                "offloaded (`tidelog topic seal` speeds this up)"
            )
    if start > end and _named(manifest, starting) is not None and _named(manifest, ending) is not None:
        raise OptionError(
            f"startingOffsets names offset {start} of {manifest.ids}, but endingOffsets names {end}, which is before it"
        )
    return start, max(start, end)


def _resolve(manifest: Manifest, bound: Bound, natural: int, find_time: FindTime) -> int:
    if bound.timestamp is not None:
        found = find_time(bound.timestamp)
        return manifest.end if found is None else found
    offset = _named(manifest, bound)
    return natural if offset is None else offset


def _named(manifest: Manifest, bound: Bound) -> int | None:
    """The user's offset for this partition, if given."""
    offset = None if bound.offsets is None else bound.offsets[manifest.ids.topic][manifest.ids.partition]
    return None if offset in (EARLIEST, LATEST) else offset


def splits_of(
    manifest: Manifest,
    load_page: LoadPage,
    load_index: LoadIndex,
    start: int,
    end: int,
    max_bytes: int,
    wants_newest: WantsNewest = lambda timestamp: True,
) -> tuple[Split, ...]:
    """The splits that read offsets [start, end) of the wanted segments. `start` and `end` must be within the manifest's
    [log start, end]."""
    segments = live_segments(manifest, load_page, start) if start < end else iter(())
    wanted = (segment for segment in segments if segment.base >= end or wants_newest(segment.max_timestamp))
    pieces = _pieces(wanted, load_index, start, end, max_bytes)
    return tuple(Split(manifest.ids, manifest.commit, group) for group in _grouped(pieces, max_bytes))


def _pieces(
    segments: Iterable[RemoteSegment], load_index: LoadIndex, start: int, end: int, max_bytes: int
) -> Iterator[ScanPiece]:
    for segment in segments:
        if segment.base >= end:
            return
        first, stop = max(start, segment.base), min(end, segment.end)
        if (first, stop) == (segment.base, segment.end) and segment.length <= max_bytes:
            yield ScanPiece(segment, 0, segment.length, segment.base, segment.end, first, stop)
        else:
            yield from _cut(segment, load_index(segment), first, stop, max_bytes)


def _cut(segment: RemoteSegment, sidecar: Sidecar, start: int, stop: int, max_bytes: int) -> Iterator[ScanPiece]:
    _, first_byte = sidecar.floor_position(start)
    # Compaction may have removed a segment's first offsets. Offsets below its first batch belong to the first interval.
    end_byte = sidecar.end_position(max(stop - 1, sidecar.index[0].base_offset))
    parts = max(1, -(-(end_byte - first_byte) // max_bytes))
    cuts = _cut_positions(sidecar, first_byte, end_byte, parts)
    starts = {row.position: row.base_offset for row in sidecar.index}
    starts[0] = segment.base
    for low, high in itertools.pairwise(cuts):
        base, end = starts[low], starts.get(high, segment.end)
        yield ScanPiece(segment, low, high, base, end, max(start, base), min(stop, end))


def _cut_positions(sidecar: Sidecar, first_byte: int, end_byte: int, parts: int) -> list[int]:
    """The bounds of at most `parts` parts of [first_byte, end_byte), about equally large. Each begins at an indexed batch."""
    cuts = [first_byte]
    size = end_byte - first_byte
    for row in sidecar.index:
        target = first_byte + size * len(cuts) // parts
        if len(cuts) < parts and row.position > cuts[-1] and target <= row.position < end_byte:
            cuts.append(row.position)
    return [*cuts, end_byte]


def _grouped(pieces: Iterable[ScanPiece], max_bytes: int) -> Iterator[tuple[ScanPiece, ...]]:
    group: list[ScanPiece] = []
    size = 0
    for piece in pieces:
        if group and size + piece.bytes > max_bytes:
            yield tuple(group)
            group, size = [], 0
        group.append(piece)
        size += piece.bytes
    if group:
        yield tuple(group)
