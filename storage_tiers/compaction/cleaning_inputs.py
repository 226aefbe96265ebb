"""Collects the facts about an open log that a cleaner needs, as plain values that can be sent to another process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from storage_tiers.compaction.batches import LastRecord
from storage_tiers.compaction.rewriter import CleaningJob, SourceSegment
from storage_tiers.hot.log import HotLog
from storage_tiers.hot.producer_state import ProducerEntry


def cleaning_of(log: HotLog, *, dirty_start: int, end: int, fences: Sequence[int]) -> Callable[[], CleaningJob] | None:
    """Returns a function that makes the job of cleaning the log's durable segments that end at or below `end`; None if there
    are none. That function reads the transaction indexes: it blocks, may run in any thread, and raises StorageError if an index
    cannot be read."""
    segments = [
        SourceSegment(each.base, each.end, each.size_bytes) for each in log.durable_segments() if each.end <= end
    ]
    if not segments:
        return None
    directory, settings = log.directory, log.settings
    aborted = log.reader.aborted_reader(segments[0].base, segments[-1].end)
    return lambda: CleaningJob(
        directory=directory,
        segments=segments,
        dirty_start=max(dirty_start, segments[0].base),
        fences=fences,
        aborted=aborted(),
        segment_bytes=settings.segment_bytes,
        index_interval=settings.index_interval_bytes,
    )


def last_records(producers: Iterable[tuple[int, ProducerEntry]], end: int) -> dict[int, LastRecord]:
    """The last record of each producer that wrote nothing at or above offset `end`."""
    found = {}
    for producer_id, entry in producers:
        data_offset = entry.batches[-1].last_offset if entry.batches else -1
        if data_offset < end:
            found[producer_id] = LastRecord(data_offset, entry.epoch)
    return found
