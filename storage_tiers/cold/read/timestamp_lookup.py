"""Lookups by time in a partition's remote segments, without a scan: metadata finds the segment and the interval, and one
interval is decoded. Timestamps need not rise with offsets: the manifest records the maximum of each segment, the sidecar the
maximum so far at each interval.

Invariant: no record below log start is returned. Where log start cuts a remote segment, the rest of that segment may be walked
batch by batch, since its maximum includes records below log start.

A lookup has no time bound: each step waits for the downloads it needs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from storage_tiers.cold.manifest.model import Manifest, PageRef, RemoteSegment
from storage_tiers.cold.read.view import ColdView
from storage_tiers.errors import TierCorrupt
from storage_tiers.hot.segment import first_record_at
from storage_tiers.records.batch import HEADER_BYTES, read_header
from storage_tiers.records.batch_walk import scan_batches
from storage_tiers.records.decoder import decode_batch
from storage_tiers.types import TimestampOffset

#: Bytes that one step walks.
STEP_BYTES = 256 << 10


class _Batch(NamedTuple):
    """`size` bytes from byte `position` of a segment on, with fields of the batch's header. `max_timestamp` is in ms."""

    position: int
    size: int
    base_offset: int
    next_offset: int
    epoch: int
    max_timestamp: int


async def first_at_or_after(
    view: ColdView, manifest: Manifest, timestamp: int, log_start: int
) -> TimestampOffset | None:
    """The first record by offset, from log start on, whose timestamp (ms) is at least `timestamp`; None if there is none."""
    start = max(log_start, manifest.log_start)
    async for segment in _segments_reaching(view, manifest, start, timestamp):
        front = await view.complete(lambda segment=segment: view.front(segment))  # type: ignore[misc]
        interval = front.interval_for_timestamp(timestamp)
        if interval is None:
            continue
        position = interval[0]
        if start > segment.base:
            position = max(position, front.floor_position(start)[1])
        found = await _first_from(view, segment, position, timestamp, start)
        if found is not None:
            return found
    return None


async def with_max_timestamp(view: ColdView, manifest: Manifest, log_start: int) -> TimestampOffset | None:
    """The first record by offset that has the largest timestamp from log start on; None if there is none."""
    start = max(log_start, manifest.log_start)
    best: RemoteSegment | None = None
    cut: RemoteSegment | None = None
    async for segment in _segments_with_maxima(view, manifest, start):
        if segment.base < start:
            cut = segment
        elif best is None or segment.max_timestamp > best.max_timestamp:
            best = segment
    hidden = None if cut is None else await _max_of_rest(view, cut, start)
    if best is None or (hidden is not None and hidden.timestamp >= best.max_timestamp):
        return hidden
    front = await view.complete(lambda: view.front(best))
    _, position = front.floor_position(best.max_timestamp_offset)
    return await _first_from(view, best, position, best.max_timestamp, best.max_timestamp_offset)


async def _first_from(
    view: ColdView, segment: RemoteSegment, position: int, timestamp: int, start: int
) -> TimestampOffset | None:
    """The segment's first record at or after both `timestamp` (ms) and offset `start`, searched from byte `position` on."""
    async for batch in _batches(view, segment, position):
        if batch.max_timestamp < timestamp or batch.next_offset <= start:
            continue
        data = await view.complete(lambda batch=batch: view.read(segment, batch.position, batch.size))  # type: ignore[misc]
        found = first_record_at(memoryview(data), timestamp, start)
        if found is not None:
            return TimestampOffset(*found, batch.epoch)
    return None


async def _max_of_rest(view: ColdView, segment: RemoteSegment, start: int) -> TimestampOffset | None:
    """The record with the largest timestamp from `start` on, in a segment that log start cuts: every batch is visited."""
    front = await view.complete(lambda: view.front(segment))
    best: TimestampOffset | None = None
    highest: _Batch | None = None
    async for batch in _batches(view, segment, front.floor_position(start)[1]):
        if batch.next_offset <= start:
            continue
        if batch.base_offset < start:
            best = await _max_of_cut_batch(view, segment, batch, start)
        elif highest is None or batch.max_timestamp > highest.max_timestamp:
            highest = batch
    if highest is None or (best is not None and best.timestamp >= highest.max_timestamp):
        return best
    return await _first_from(view, segment, highest.position, highest.max_timestamp, start)


async def _max_of_cut_batch(
    view: ColdView, segment: RemoteSegment, batch: _Batch, start: int
) -> TimestampOffset | None:
    data = await view.complete(lambda: view.read(segment, batch.position, batch.size))
    records = [record for record in decode_batch(data, verify=False) if record.offset >= start]
    newest = max(records, key=lambda record: (record.timestamp, -record.offset), default=None)
    return None if newest is None else TimestampOffset(newest.timestamp, newest.offset, batch.epoch)


async def _batches(view: ColdView, segment: RemoteSegment, position: int) -> AsyncIterator[_Batch]:
    """A remote segment's batches from `position`, where one begins, to its end."""
    while position < segment.length:
        piece = await view.complete(lambda at=position: view.read(segment, at, STEP_BYTES))  # type: ignore[misc]
        batches, walked, _ = scan_batches(piece, 0, len(piece))
        for at, *rest in batches:
            yield _Batch(position + at, *rest)
        if not batches:
            if len(piece) < HEADER_BYTES:
                raise TierCorrupt(f"{segment.key}: no whole batch begins at byte {position}; run `tidelog fsck`")
            header = read_header(piece)
            what = header.base_offset, header.next_offset, header.leader_epoch, header.max_timestamp
            yield _Batch(position, header.size, *what)
            walked = header.size
        position += walked


async def _segments_reaching(
    view: ColdView, manifest: Manifest, start: int, timestamp: int
) -> AsyncIterator[RemoteSegment]:
    """Segments that end after `start` and hold a record at or after `timestamp`, in order."""
    for page in manifest.live_pages:
        if page.end > start and page.max_timestamp >= timestamp:
            async for segment in _page_segments(view, page, start, timestamp):
                yield segment
    for segment in manifest.segments:
        if segment.end > start and segment.max_timestamp >= timestamp:
            yield segment


async def _segments_with_maxima(view: ColdView, manifest: Manifest, start: int) -> AsyncIterator[RemoteSegment]:
    """Enough segments to find the largest timestamp from `start` on. A page wholly above `start` yields one: the first
    segment with the page's maximum."""
    for page in manifest.live_pages:
        if page.end <= start:
            continue
        whole = page.base >= start
        async for segment in _page_segments(view, page, start, page.max_timestamp if whole else None):
            yield segment
            if whole:
                break
    for segment in manifest.segments:
        if segment.end > start and segment.records:
            yield segment


async def _page_segments(
    view: ColdView, page: PageRef, start: int, timestamp: int | None
) -> AsyncIterator[RemoteSegment]:
    while start < page.end:
        segments = await view.page_segments(page, start, timestamp)
        for segment in segments:
            yield segment
        if not segments:
            return
        start = segments[-1].end
