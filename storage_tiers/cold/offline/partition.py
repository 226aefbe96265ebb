"""Reads one partition of a bucket, offset by offset, now or as of one of its commits.

    Bucket.live_manifest ──> PartitionReader.pieces(offset) ──> whole batches, verified
                                            .first_offset_at(time)

Invariants: bytes are returned only if the CRC-32C of their MiB equals the sidecar's. Pieces are in offset order, complete from
the requested offset to the manifest's end, and never below log start. If an object was removed meanwhile, the newest manifest
is read, and reading continues at the same offset. Besides the caller's piece, at most one ranged GET of FETCH_BYTES is in
memory; nothing is fetched ahead.

Errors: OffsetOutOfRange below log start, InvalidRequest for a commit that cannot be read, and those of `Bucket`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from storage_tiers.cold.manifest.lookup import LoadPage, segment_for, segments_for_timestamp, state_at
from storage_tiers.cold.manifest.model import NEVER, Manifest, RemoteSegment
from storage_tiers.cold.offline.bucket import Bucket
from storage_tiers.cold.segments.sidecar import ABORTED, CHECK_BYTES, CHECKS, INDEX, Sidecar
from storage_tiers.errors import CorruptRecord, TierCorrupt, TierObjectMissing
from storage_tiers.records.batch_walk import scan_batches
from storage_tiers.records.checksum import crc32c
from storage_tiers.records.decoder import Record, decode_batch
from storage_tiers.types import AbortedTransaction

FETCH_BYTES = 4 << 20
#: The sections of a sidecar that are needed to find and verify the segment's bytes.
_FRONT = (INDEX, CHECKS, ABORTED)
#: A batch of `scan_batches`: position, size, base offset, next offset, leader epoch, largest timestamp.
_Batch = tuple[int, int, int, int, int, int]


class BatchRun(NamedTuple):
    """Whole record batches. `end` is the offset to continue from, `aborted` the aborted transactions that overlap the run."""

    records: memoryview
    end: int
    aborted: Sequence[AbortedTransaction]


def manifest_at(manifest: Manifest, load_page: LoadPage, commit: int) -> Manifest:
    """The manifest as of one of its commits; as of an earlier one it has no pages. Raises InvalidRequest for a future commit,
    or for one whose segments may have been swept.

    A pin records the log start of its commit. Without a pin, log start is the base of the commit's first segment, or the
    present log start if that lies inside this segment.
    """
    if commit == manifest.commit:
        return manifest
    segments = state_at(manifest, load_page, commit)
    pin = next((pin for pin in manifest.pins if pin.commit == commit), None)
    first = segments[0] if segments else None
    start = 0 if first is None else first.base
    if pin is not None:
        start = pin.log_start
    elif first is not None and first.base < manifest.log_start < first.end:
        start = manifest.log_start
    newest = max((segment.added for segment in segments), default=NEVER)
    return replace(
        manifest,
        commit=commit,
        committed_at=newest.time_ms,
        log_start=start,
        end=segments[-1].end if segments else start,
        segments=tuple(segments),
        pages=(),
    )


def first_offset_at(bucket: Bucket, manifest: Manifest, load_page: LoadPage, timestamp: int) -> int | None:
    """The offset of the first record, from log start on, at or after `timestamp` (ms); None if the bucket has none.

    Like Kafka's ListOffsets, it takes the first such record by offset, although timestamps need not rise with offsets, and
    ignores markers. It fetches a MiB at a time from the interval that the index names, and decodes only batches that can hold
    the record.
    """
    for segment in segments_for_timestamp(manifest, load_page, timestamp):
        front = bucket.sidecar(segment, _FRONT)
        interval = front.interval_for_timestamp(timestamp)
        if interval is None:
            continue
        at = max(interval[0], front.floor_position(max(manifest.log_start, segment.base))[1])
        batches = ((data, *batch) for data, some in _runs(bucket, segment, front, at, CHECK_BYTES) for batch in some)
        for data, position, size, _, next_offset, _, newest in batches:
            if newest < timestamp or next_offset <= manifest.log_start:
                continue
            records = _decoded(segment, data[position : position + size])
            found = _first_at(records, timestamp, manifest.log_start)
            if found is not None:
                return found
    return None


def _decoded(segment: RemoteSegment, batch: memoryview) -> Sequence[Record]:
    try:
        return decode_batch(batch)
    except CorruptRecord as error:
        raise TierCorrupt(f"{segment.key}: {error}; run `tidelog fsck`") from error


def _first_at(records: Iterable[Record], timestamp: int, log_start: int) -> int | None:
    found = (each.offset for each in records if each.offset >= log_start and each.timestamp >= timestamp)
    return next(found, None)


def verify_checks(segment: RemoteSegment, mib_crcs: Sequence[int], start: int, data: memoryview) -> None:
    """Compares `data` with its checksums. `data` begins at byte `start` of the segment, a multiple of CHECK_BYTES, and ends
    where a MiB or the segment ends. Raises TierCorrupt, which names the MiB that differs from the upload."""
    for at in range(0, len(data), CHECK_BYTES):
        expected = mib_crcs[(start + at) // CHECK_BYTES]
        found = crc32c(data[at : at + CHECK_BYTES])
        if found != expected:
            raise TierCorrupt(
                f"{segment.key}: the MiB at byte {segment.position + start + at} has CRC-32C {found:08x}, its sidecar says "
                f"{expected:08x}: its bytes were changed in the bucket. Run `tidelog fsck`"
            )


class PartitionReader:
    """Reads one partition as of `manifest`, which a reload replaces by a newer one."""

    def __init__(self, bucket: Bucket, manifest: Manifest) -> None:
        self._bucket = bucket
        self.manifest = manifest
        self._pages = bucket.pages(manifest.ids)

    def pieces(self, offset: int) -> Iterator[BatchRun]:
        """Batches from the one that holds `offset` (or the next one) up to the manifest's end at the time of the call."""
        end = self.manifest.end
        while offset < end:
            try:
                segment = segment_for(self.manifest, self._pages, offset)
                if segment is None:
                    return
                for piece in self._of_segment(segment, offset):
                    offset = max(offset, piece.end)
                    yield piece
                offset = max(offset, segment.end)
            except TierObjectMissing:
                self._reload()

    def first_offset_at(self, timestamp: int) -> int | None:
        """Like the function of the same name, but takes a newer manifest if an object was removed meanwhile."""
        while True:
            try:
                return first_offset_at(self._bucket, self.manifest, self._pages, timestamp)
            except TierObjectMissing:
                self._reload()

    def _reload(self) -> None:
        newest = self._bucket.live_manifest(self.manifest.ids)
        if newest.commit <= self.manifest.commit:
            raise TierCorrupt(f"an object that the manifest of {self.manifest.ids} names is gone; run `tidelog fsck`")
        self.manifest = newest
        self._pages = self._bucket.pages(newest.ids)

    def _of_segment(self, segment: RemoteSegment, offset: int) -> Iterator[BatchRun]:
        front = self._bucket.sidecar(segment, _FRONT)
        for data, batches in _runs(self._bucket, segment, front, front.floor_position(offset)[1], FETCH_BYTES):
            wanted = [batch for batch in batches if batch[3] > offset]
            if wanted:
                last = wanted[-1]
                yield BatchRun(
                    data[wanted[0][0] : last[0] + last[1]], last[3], front.aborted_between(wanted[0][2], last[3])
                )


def _runs(
    bucket: Bucket, segment: RemoteSegment, front: Sidecar, first: int, fetch_bytes: int
) -> Iterator[tuple[memoryview, list[_Batch]]]:
    """Whole batches of a segment, verified, from the one that begins at byte `first` on."""
    rest = b""
    for start in range(first - first % CHECK_BYTES, segment.length, fetch_bytes):
        length = min(fetch_bytes, segment.length - start)
        data = bucket.store.get(segment.key, segment.position + start, length).data
        if len(data) != length:
            raise TierCorrupt(f"{segment.key} ends before byte {segment.position + start + length}; run `tidelog fsck`")
        verify_checks(segment, front.mib_crcs, start, memoryview(data))
        fresh = memoryview(data)[max(first - start, 0) :]
        joined = memoryview(rest + fresh) if rest else fresh
        found, stopped, _ = scan_batches(joined, 0, len(joined))
        rest = bytes(joined[stopped:])
        if found:
            yield joined, found
    if rest:
        raise TierCorrupt(f"{segment.key}: its last {len(rest)} bytes are an incomplete batch; run `tidelog fsck`")
