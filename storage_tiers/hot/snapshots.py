"""The producer snapshots of one partition: one at each segment's base, and one at the log end of a clean stop.

Beside each snapshot lies a file with the batches that it omits (`earlier_batches`). A snapshot taken at a roll stays in memory
until the flush of the closed segment writes both. Invariant: the producer state at any offset is the newest snapshot at or
below it plus the batches since. A file of earlier batches that is missing or damaged weakens deduplication, and nothing else.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from storage_tiers import events
from storage_tiers.errors import CorruptRecord
from storage_tiers.files import Files, replace_file, short_of_descriptors
from storage_tiers.hot import earlier_batches, layout
from storage_tiers.hot.producer_snapshot import snapshot_crc, split_state, written_below
from storage_tiers.hot.producer_state import MAX_PRODUCERS, ProducerStateManager
from storage_tiers.hot.scan import Chunk, read_batches, replay
from storage_tiers.hot.segment import Segment

log = logging.getLogger(__name__)


class Snapshots:
    """`stored` holds the offsets of the snapshots on disk."""

    def __init__(self, files: Files, directory: str, stored: Iterable[int]) -> None:
        self._files = files
        self._directory = directory
        self.stored = set(stored)
        # Snapshots in memory only, with their earlier batches, by offset.
        self._pending: dict[int, tuple[bytes, earlier_batches.Earlier]] = {}
        # The offsets of pending snapshots whose files a flush may have begun to write.
        self._begun: set[int] = set()
        #: The most producers in a state.
        self.max_producers = MAX_PRODUCERS

    def paths(self, offset: int) -> tuple[str, str]:
        """The paths of the snapshot at `offset` and of its earlier batches, whether they exist or not."""
        snapshot, batches = (layout.file_name(offset, suffix) for suffix in (layout.SNAPSHOT, layout.BATCHES))
        return os.path.join(self._directory, snapshot), os.path.join(self._directory, batches)

    def take(self, offset: int, producers: ProducerStateManager) -> None:
        """Takes a snapshot. `pending_files` includes it until `written` is called for it."""
        self._pending[offset] = producers.snapshot(), producers.earlier()

    @property
    def pending(self) -> tuple[int, ...]:
        """The offsets of the snapshots in memory only."""
        return tuple(self._pending)

    def pending_files(self) -> list[tuple[str, Callable[[], bytes]]]:
        """Paths, and functions that return their contents in any thread: many earlier batches take long to encode."""
        found: list[tuple[str, Callable[[], bytes]]] = []
        for offset, (snapshot, earlier) in self._pending.items():
            path, batches_path = self.paths(offset)
            if earlier or offset in self.stored:  # an older file would belong to another snapshot
                found.append((batches_path, partial(earlier_batches.encode, earlier, snapshot_crc(snapshot))))
            found.append((path, partial(bytes, snapshot)))
        self._begun.update(self._pending)
        return found

    def written(self, offsets: Iterable[int]) -> None:
        """Notes that the files of these pending snapshots are on disk."""
        for offset in offsets:
            self._pending.pop(offset, None)
            self._begun.discard(offset)
            self.stored.add(offset)

    def files(self, offset: int, state: bytes) -> list[tuple[str, bytes]]:
        """Paths and contents of the files that hold a state (`ProducerStateManager.state`)."""
        snapshot, earlier = split_state(state)
        path, batches_path = self.paths(offset)
        return [(batches_path, earlier or earlier_batches.encode((), snapshot_crc(snapshot))), (path, snapshot)]

    def write(self, offset: int, state: bytes) -> None:
        """Writes a state durably. OSError if the disk refuses."""
        for path, content in self.files(offset, state):
            replace_file(self._files, path, content)
        self.stored.add(offset)

    def retain(self, low: int, high: int) -> None:
        """Drops the snapshots outside [low, high]."""
        for offset in [each for each in self._pending if not low <= each <= high]:
            del self._pending[offset]
        for offset in [each for each in self.stored | self._begun if not low <= each <= high]:
            for path in self.paths(offset):
                with contextlib.suppress(FileNotFoundError):
                    self._files.unlink(path)
            self.stored.discard(offset)
            self._begun.discard(offset)

    def forget(self, offsets: Iterable[int]) -> None:
        """Forgets these snapshots, whose files are gone."""
        for offset in offsets:
            self.stored.discard(offset)
            self._begun.discard(offset)
            self._pending.pop(offset, None)

    def drop_below(self, offset: int) -> None:
        """Drops the snapshots below `offset`."""
        self.retain(offset, max(self.stored | self._pending.keys(), default=offset))

    def state_at(self, segments: Sequence[Segment], offset: int, *, now_ms: int) -> ProducerStateManager:
        """The producer state before `offset`, which is within `segments` or at their end."""
        low = segments[0].base if segments else 0
        known = sorted((each for each in self.stored | self._pending.keys() if low <= each <= offset), reverse=True)
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
        path, batches_path = self.paths(offset)
        taken = self._pending.get(offset)
        try:
            snapshot = _content(path) if taken is None else taken[0]
            state = ProducerStateManager.restore(snapshot, now_ms=now_ms, max_producers=self.max_producers)
            state.check_below(offset)
        except (OSError, CorruptRecord) as error:
            _warn_unusable(path, error)
            return None
        try:
            crc = snapshot_crc(snapshot)
            earlier = _content(batches_path, b"") if taken is None else earlier_batches.encode(taken[1], crc)
            if earlier:
                state.add_earlier(earlier, crc)
        except (OSError, CorruptRecord) as error:
            _warn_unusable(batches_path, error)
        return state


def _warn_unusable(path: str, error: OSError | CorruptRecord) -> None:
    """Logs that the file is unusable. Raises the error instead if it comes from a lack of descriptors, because the file may be
    intact."""
    if isinstance(error, OSError) and short_of_descriptors(error):
        raise error
    events.warning(log, "producer_snapshot.unusable", path=path, error=error)


def _content(path: str, default: bytes | None = None) -> bytes:
    """The file's content, `default` if it does not exist. FileNotFoundError without a default."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        if default is None:
            raise
        return default


def read_state(snapshot: str, batches: str) -> bytes:
    """The state in both files, without the earlier batches if their file is missing or damaged. OSError if a file cannot be
    read, FileNotFoundError if the snapshot is missing."""
    content, earlier = _content(snapshot), _content(batches, default=b"")
    try:
        return content + (earlier if earlier and _count(content, earlier) else b"")
    except CorruptRecord:
        return content


def is_sound(snapshot: str, batches: str, offset: int) -> bool:
    """Whether the snapshot exists, is intact and has no batch from `offset` on, and its earlier batches are intact, if their
    file exists. Raises OSError for a lack of descriptors."""
    try:
        if written_below(content := _content(snapshot)) > offset:
            return False
        if earlier := _content(batches, default=b""):
            _count(content, earlier)
    except CorruptRecord:
        return False
    except OSError as error:
        if short_of_descriptors(error):
            raise
        return False
    return True


def _count(snapshot: bytes, earlier: bytes) -> int:
    """The number of the snapshot's earlier batches. CorruptRecord if they are damaged or belong to another snapshot."""
    return sum(1 for _ in earlier_batches.decode(earlier, snapshot_crc(snapshot)))


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
