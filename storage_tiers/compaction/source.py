"""What a cleaner needs to know of an open log, as plain values that another process can take."""

from __future__ import annotations

from collections.abc import Sequence

from storage_tiers.compaction.batches import LastRecord
from storage_tiers.compaction.rewriter import CleaningJob, SourceSegment
from storage_tiers.hot.log import HotLog


def cleaning_of(log: HotLog, *, dirty_start: int, end: int, fences: Sequence[int]) -> CleaningJob | None:
    """The cleaning of the log's durable segments that end at or below `end`; None if there are none. StorageError if one cannot
    be read."""
    segments = [
        SourceSegment(each.base, each.end, each.size_bytes) for each in log.durable_segments() if each.end <= end
    ]
    if not segments:
        return None
    return CleaningJob(
        log.directory,
        segments,
        max(dirty_start, segments[0].base),
        fences,
        log.reader.aborted_transactions(segments[0].base, segments[-1].end),
        log.settings.segment_bytes,
        log.settings.index_interval_bytes,
    )


def last_records(log: HotLog, end: int) -> dict[int, LastRecord]:
    """What each producer wrote last, of those that wrote nothing at or above offset `end`."""
    found = {}
    for producer_id, entry in log.end.producers.producers.items():
        data_offset = entry.batches[-1].last_offset if entry.batches else -1
        if data_offset < end:
            found[producer_id] = LastRecord(data_offset, entry.epoch)
    return found
