"""Look-ups by time in a partition's tiered range, without a scan: metadata finds the entry and the interval, one interval is
decoded. Timestamps need not rise with offsets: an entry and a sidecar say how far the maximum had risen by where.

Invariant: nothing below log start is returned. Where log start cuts an entry, the rest of that one entry may be walked,
batch by batch, since its summary speaks of what is hidden too.

Not promised: bounded time; each step waits for what it needs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from storage_tiers.cold.manifest.model import Entry, Manifest, PageRef
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
    """A batch's place in its entry, and what its header says."""

    position: int
    size: int
    base_offset: int
    next_offset: int
    epoch: int
    max_timestamp: int


async def first_at_or_after(
    view: ColdView, manifest: Manifest, timestamp: int, log_start: int
) -> TimestampOffset | None:
    start = max(log_start, manifest.log_start)
    async for entry in _entries_reaching(view, manifest, start, timestamp):
        front = await view.complete(lambda entry=entry: view.front(entry))  # type: ignore[misc]
        interval = front.interval_for_timestamp(timestamp)
        if interval is None:
            continue
        position = interval[0]
        if start > entry.base:
            position = max(position, front.floor_position(start)[1])
        found = await _first_from(view, entry, position, timestamp, start)
        if found is not None:
            return found
    return None


async def with_max_timestamp(view: ColdView, manifest: Manifest, log_start: int) -> TimestampOffset | None:
    start = max(log_start, manifest.log_start)
    best: Entry | None = None
    cut: Entry | None = None
    async for entry in _entries_with_maxima(view, manifest, start):
        if entry.base < start:
            cut = entry
        elif best is None or entry.max_timestamp > best.max_timestamp:
            best = entry
    hidden = None if cut is None else await _max_of_rest(view, cut, start)
    if best is None or (hidden is not None and hidden.timestamp >= best.max_timestamp):
        return hidden
    front = await view.complete(lambda: view.front(best))
    _, position = front.floor_position(best.max_timestamp_offset)
    return await _first_from(view, best, position, best.max_timestamp, best.max_timestamp_offset)


async def _first_from(
    view: ColdView, entry: Entry, position: int, timestamp: int, start: int
) -> TimestampOffset | None:
    """The entry's first record at or after both, looked for from `position` on."""
    async for batch in _batches(view, entry, position):
        if batch.max_timestamp < timestamp or batch.next_offset <= start:
            continue
        data = await view.complete(lambda batch=batch: view.read(entry, batch.position, batch.size))  # type: ignore[misc]
        found = first_record_at(memoryview(data), timestamp, start)
        if found is not None:
            return TimestampOffset(*found, batch.epoch)
    return None


async def _max_of_rest(view: ColdView, entry: Entry, start: int) -> TimestampOffset | None:
    """Over an entry that log start cuts, all of whose batches from there on are looked at."""
    front = await view.complete(lambda: view.front(entry))
    best: TimestampOffset | None = None
    highest: _Batch | None = None
    async for batch in _batches(view, entry, front.floor_position(start)[1]):
        if batch.next_offset <= start:
            continue
        if batch.base_offset < start:
            best = await _max_of_cut_batch(view, entry, batch, start)
        elif highest is None or batch.max_timestamp > highest.max_timestamp:
            highest = batch
    if highest is None or (best is not None and best.timestamp >= highest.max_timestamp):
        return best
    return await _first_from(view, entry, highest.position, highest.max_timestamp, start)


async def _max_of_cut_batch(view: ColdView, entry: Entry, batch: _Batch, start: int) -> TimestampOffset | None:
    data = await view.complete(lambda: view.read(entry, batch.position, batch.size))
    records = [record for record in decode_batch(data, verify=False) if record.offset >= start]
    newest = max(records, key=lambda record: (record.timestamp, -record.offset), default=None)
    return None if newest is None else TimestampOffset(newest.timestamp, newest.offset, batch.epoch)


async def _batches(view: ColdView, entry: Entry, position: int) -> AsyncIterator[_Batch]:
    """An entry's batches from `position`, where one begins, to its end."""
    while position < entry.length:
        piece = await view.complete(lambda at=position: view.read(entry, at, STEP_BYTES))  # type: ignore[misc]
        batches, walked, _ = scan_batches(piece, 0, len(piece))
        for at, *rest in batches:
            yield _Batch(position + at, *rest)
        if not batches:
            if len(piece) < HEADER_BYTES:
                raise TierCorrupt(f"{entry.key}: no whole batch begins at byte {position}; run `tidelog fsck`")
            header = read_header(piece)
            what = header.base_offset, header.next_offset, header.leader_epoch, header.max_timestamp
            yield _Batch(position, header.size, *what)
            walked = header.size
        position += walked


async def _entries_reaching(view: ColdView, manifest: Manifest, start: int, timestamp: int) -> AsyncIterator[Entry]:
    """Entries that end after `start` and hold a record at or after `timestamp`, in order."""
    for page in manifest.live_pages:
        if page.end > start and page.max_timestamp >= timestamp:
            async for entry in _page_entries(view, page, start, timestamp):
                yield entry
    for entry in manifest.entries:
        if entry.end > start and entry.max_timestamp >= timestamp:
            yield entry


async def _entries_with_maxima(view: ColdView, manifest: Manifest, start: int) -> AsyncIterator[Entry]:
    """Enough entries to know the largest timestamp from `start` on: of a page that lies wholly above it only the first that
    has the page's largest."""
    for page in manifest.live_pages:
        if page.end <= start:
            continue
        whole = page.base >= start
        async for entry in _page_entries(view, page, start, page.max_timestamp if whole else None):
            yield entry
            if whole:
                break
    for entry in manifest.entries:
        if entry.end > start and entry.records:
            yield entry


async def _page_entries(view: ColdView, page: PageRef, start: int, timestamp: int | None) -> AsyncIterator[Entry]:
    while start < page.end:
        entries = await view.page_entries(page, start, timestamp)
        for entry in entries:
            yield entry
        if not entries:
            return
        start = entries[-1].end
