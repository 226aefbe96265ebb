"""The producer snapshots of one partition: one at each segment's base, and one at the log end of a clean stop.

A snapshot taken at a roll stays in memory (`pending`) until the flush of the closed segment writes it. Invariant: the producer
state at any offset is the newest snapshot at or below it plus the batches since.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence

from storage_tiers import events
from storage_tiers.errors import CorruptRecord
from storage_tiers.files import Files, replace_file
from storage_tiers.hot import layout
from storage_tiers.hot.producer_state import MAX_PRODUCERS, ProducerStateManager, check_snapshot
from storage_tiers.hot.scan import Chunk, read_batches, replay
from storage_tiers.hot.segment import Segment

log = logging.getLogger(__name__)


class Snapshots:
    """`stored` holds the offsets of the snapshots on disk, `pending` those in memory only, by offset."""

    def __init__(self, files: Files, directory: str, stored: Iterable[int]) -> None:
        self._files = files
        self._directory = directory
        self.stored = set(stored)
        self.pending: dict[int, bytes] = {}
        #: The most producers in a state.
        self.max_producers = MAX_PRODUCERS

    def path(self, offset: int) -> str:
        return os.path.join(self._directory, layout.file_name(offset, layout.SNAPSHOT))

    def write(self, offset: int, content: bytes) -> None:
        """Writes a snapshot durably. OSError if the disk refuses."""
        replace_file(self._files, self.path(offset), content)
        self.stored.add(offset)

    def retain(self, low: int, high: int) -> None:
        """Drops the snapshots outside [low, high]."""
        for offset in [each for each in self.pending if not low <= each <= high]:
            del self.pending[offset]
        for offset in [each for each in self.stored if not low <= each <= high]:
            self.stored.discard(offset)
            self._files.unlink(self.path(offset))

    def forget(self, offsets: Iterable[int]) -> None:
        """Forgets these snapshots, whose files are gone."""
        for offset in offsets:
            self.stored.discard(offset)
            self.pending.pop(offset, None)

    def drop_below(self, offset: int) -> None:
        """Drops the snapshots below `offset`."""
        self.retain(offset, max(self.stored | self.pending.keys(), default=offset))

    def state_at(self, segments: Sequence[Segment], offset: int, *, now_ms: int) -> ProducerStateManager:
        """The producer state before `offset`, which is within `segments` or at their end."""
        low = segments[0].base if segments else 0
        known = sorted((each for each in self.stored | self.pending.keys() if low <= each <= offset), reverse=True)
        start, state = low, ProducerStateManager(self.max_producers)
        for each in known:
            loaded = self._load(each, now_ms)
            if loaded is not None:
                start, state = each, loaded
                break
        for segment in segments:
            if segment.end > start and segment.base < offset:
                replay_segment(segment, state, start, offset, now_ms=now_ms)
        return state

    def _load(self, offset: int, now_ms: int) -> ProducerStateManager | None:
        content = self.pending.get(offset)
        try:
            if content is None:
                with open(self.path(offset), "rb") as file:
                    content = file.read()
            return ProducerStateManager.restore(content, now_ms=now_ms, max_producers=self.max_producers)
        except (FileNotFoundError, CorruptRecord) as error:
            events.warning(log, "producer_snapshot.unusable", path=self.path(offset), error=error)
            return None


def is_sound(path: str) -> bool:
    """Whether the file exists and is intact. OSError if it cannot be read."""
    try:
        with open(path, "rb") as file:
            check_snapshot(file.read())
    except (FileNotFoundError, CorruptRecord):
        return False
    return True


def replay_segment(segment: Segment, state: ProducerStateManager, start: int, end: int, *, now_ms: int) -> None:
    """Applies the segment's batches with base offsets in [start, end) to `state`."""
    span = segment.find(start)
    if span is None:
        return
    for chunk in read_batches(segment.file().fd, span.position, segment.size):
        batches = chunk.batches
        if batches and batches[-1][2] >= end:
            batches = [batch for batch in batches if batch[2] < end]
        replay(Chunk(chunk.position, chunk.data, batches, chunk.stop), state, now_ms=now_ms)
        if len(batches) < len(chunk.batches):
            return
