"""Loads a partition's segments, epochs and producers from disk, after a clean stop or a crash.

After a clean stop everything is trusted except the newest segment's end, which is searched from its last index entry. After a
crash a prefix of the segments is trusted: those below the recovery point whose `.index` exists (that name appears only once
the whole segment is durable). The rest is read with CRCs and truncated at the first batch

- that is invalid (length, magic, CRC), or
- whose base offset is below the expected one (a gap inside a segment is legal: compaction leaves gaps), or
- whose leader epoch is below its predecessor's,

and at the first segment that does not begin where its predecessor ends: a segment is created at the log end, so a hole there
means a lost tail. (A rewritten segment therefore keeps its last batch, emptied if necessary.) A swap of segments that was
prepared before a crash is completed first. Epochs, producers, aborted transactions and indexes of the part that was read are
rebuilt from its batches alone.

A segment with a damaged transaction index is not trusted either: without that index aborted records would pass for committed
ones.

Other damage in trusted segments is not detected here; `tidelog log dump` and `tidelog fsck` find it.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass, field

from storage_tiers import events
from storage_tiers.errors import CorruptRecord, StorageError
from storage_tiers.files import Files
from storage_tiers.hot import layout
from storage_tiers.hot.epoch_scan import read_epochs
from storage_tiers.hot.leader_epochs import LeaderEpochs, read_checkpoint
from storage_tiers.hot.producer_state import ProducerStateManager
from storage_tiers.hot.scan import ScannedBatch, read_batches, replay
from storage_tiers.hot.segment import Segment
from storage_tiers.hot.settings import LogSettings
from storage_tiers.hot.snapshots import Snapshots
from storage_tiers.hot.swap import complete_swaps
from storage_tiers.records import batch_walk
from storage_tiers.types import NO_EPOCH, NO_TIMESTAMP, AbortedTransaction, EpochEntry

log = logging.getLogger(__name__)

_WHY = {
    batch_walk.PARTIAL: "the batch is not whole",
    batch_walk.BAD_SIZE: "its length is impossible for a batch",
    batch_walk.BAD_MAGIC: "it has another message format",
    batch_walk.BAD_CRC: "its CRC-32C does not match",
    batch_walk.BAD_OFFSETS: "its offset is below the expected one",
    batch_walk.BAD_EPOCH: "its leader epoch is below its predecessor's",
}


@dataclass(slots=True)
class RecoveredLog:
    """The loaded log. `segments` may be empty; `stored_epochs` is the content of the epoch file; nothing below the offset
    `trusted_end` had to be read; `cuts` has a sentence for each part that recovery removed."""

    segments: list[Segment]
    epochs: LeaderEpochs
    stored_epochs: tuple[EpochEntry, ...]
    state: ProducerStateManager
    snapshots: Snapshots
    trusted_end: int
    cuts: list[str] = field(default_factory=list)


def load(
    files: Files, directory: str, *, settings: LogSettings, clean: bool, recovery_point: int, now_ms: int
) -> RecoveredLog:
    """Loads the log in `directory`. StorageError if a disk operation fails."""
    try:
        return _load(files, directory, settings, clean, recovery_point, now_ms)
    except OSError as error:
        raise StorageError(f"cannot open the log in {directory} ({error}); repair or replace the disk") from error


def possible_log_start(found: RecoveredLog, log_start: int, recovery_point: int, *, clean: bool) -> int:
    """The log start, or 0 if it is impossible: a clean stop leaves no log start above the end that it has flushed, so the
    checkpoint was damaged or edited. After a crash the log start may be above the end, if deleted records were lost."""
    end = found.segments[-1].end if found.segments else log_start
    if log_start <= end:
        return log_start
    if clean and log_start > recovery_point:
        return 0
    what = f"the log ends at {end}, below its log start {log_start}: all its records are deleted, and it begins at log start"
    events.error(log, "recovery.cut", what=what, offset=end, was_flushed=end < recovery_point)
    return log_start


def _load(
    files: Files, directory: str, settings: LogSettings, clean: bool, recovery_point: int, now_ms: int
) -> RecoveredLog:
    complete_swaps(files, directory)
    segments, snapshot_offsets = _list(files, directory, settings.index_interval_bytes, now_ms)
    epochs = _stored_epochs(os.path.join(directory, layout.EPOCHS))
    stored = epochs.entries() if epochs else ()
    loaded = RecoveredLog(
        segments,
        epochs or LeaderEpochs(),
        stored,
        ProducerStateManager(),
        Snapshots(files, directory, snapshot_offsets),
        trusted_end=0,
    )
    loaded.snapshots.max_producers = loaded.state.max_producers = settings.max_producers
    if not segments:
        return loaded
    trusted = len(segments) - 1 if clean else _trusted(segments, recovery_point)
    believed = segments if clean else segments[:trusted]
    unsound = next((at for at, segment in enumerate(believed) if not _knows_aborted(segment)), None)
    if unsound is not None:
        clean, trusted = False, unsound
    if epochs is None:
        _read_epochs(segments if clean else segments[:trusted], loaded.epochs)
    if not clean or not _load_clean(loaded, now_ms):
        _Recovery(files, loaded, trusted, recovery_point, now_ms).run()
    if segments:
        _date_newest(segments[-1], directory)
    for segment in segments:
        segment.release_file()
    return loaded


def _list(files: Files, directory: str, interval: int, now_ms: int) -> tuple[list[Segment], list[int]]:
    """The segments by base offset and the offsets of the snapshots; removes temporary files that a crash left."""
    numbered: dict[int, set[str]] = {}
    for name in os.listdir(directory):
        known = layout.parse_file(name)
        if known is not None:
            numbered.setdefault(known.offset, set()).add(known.suffix)
        elif name.endswith((layout.TEMPORARY, layout.DELETED, layout.CLEANED)):
            files.unlink(os.path.join(directory, name))
    segments: list[Segment] = []
    for base in sorted(numbered):
        suffixes = numbered[base]
        useless = set() if layout.SNAPSHOT in suffixes else {layout.BATCHES}
        if layout.LOG not in suffixes:
            useless.update(layout.COMPANIONS)
        for suffix in suffixes & useless:
            files.unlink(os.path.join(directory, layout.file_name(base, suffix)))
        if layout.LOG not in suffixes:
            continue
        status = os.stat(os.path.join(directory, layout.file_name(base, layout.LOG)))
        segment = Segment(
            files,
            directory,
            base,
            interval=interval,
            size=status.st_size,
            index_on_disk=layout.OFFSET_INDEX in suffixes,
        )
        segment.has_transactions = layout.TRANSACTION_INDEX in suffixes
        segment.first_append_ms = min(now_ms, status.st_mtime_ns // 1_000_000)
        if segments:
            segments[-1].end = base
        segments.append(segment)
    return segments, [base for base, suffixes in numbered.items() if layout.SNAPSHOT in suffixes]


def _date_newest(newest: Segment, directory: str) -> None:
    """Dates the newest segment's first append by its first record. Dated by its last record, the segment of a node that
    crashes often would never be old enough to offload. A client's timestamp counts only if it lies between the beginning of
    the segment, when its snapshot was written, and the file's last change."""
    first, began_ms = NO_TIMESTAMP, 0
    with contextlib.suppress(OSError, CorruptRecord):  # the next append reports it
        first = newest.first_batch_timestamp()
    if first < 0:
        return
    with contextlib.suppress(FileNotFoundError):
        snapshot = os.path.join(directory, layout.file_name(newest.base, layout.SNAPSHOT))
        began_ms = os.stat(snapshot).st_mtime_ns // 1_000_000
    newest.first_append_ms = min(newest.first_append_ms, max(first, began_ms))


def _trusted(segments: list[Segment], recovery_point: int) -> int:
    """The number of segments, without the newest, that need not be read after a crash."""
    count = 0
    for segment in segments[:-1]:
        if segment.end > recovery_point or not segment.index_on_disk:
            break
        count += 1
    return count


def _knows_aborted(segment: Segment) -> bool:
    """Whether the segment's transaction index is readable, or was never needed."""
    try:
        if segment.has_transactions:
            segment.aborted()
    except StorageError as error:
        events.error(log, "recovery.needed", path=segment.path, error=error)
        return False
    return True


def _load_clean(loaded: RecoveredLog, now_ms: int) -> bool:
    """Loads a cleanly stopped log; False if the newest segment is not as a clean stop leaves it."""
    newest = loaded.segments[-1]
    try:
        newest.load_tail()
    except StorageError as error:
        events.error(log, "recovery.needed", path=newest.path, error=error)
        return False
    loaded.trusted_end = newest.end
    loaded.epochs.truncate_from_end(newest.end)
    loaded.snapshots.retain(loaded.segments[0].base, newest.end)
    loaded.state = loaded.snapshots.state_at(loaded.segments, newest.end, now_ms=now_ms)
    return True


def _stored_epochs(path: str) -> LeaderEpochs | None:
    """Reads the epoch file. None if it is missing or damaged: the history is then rebuilt from the batches and a sidecar."""
    try:
        return read_checkpoint(path)
    except FileNotFoundError:
        return None
    except StorageError as error:
        events.warning(log, "epochs.unusable", path=path, error=error)
        return None


def _read_epochs(segments: Iterable[Segment], epochs: LeaderEpochs) -> None:
    """Adds the epochs of segments that recovery does not otherwise read."""
    for segment in segments:
        read_epochs(segment.file().fd, 0, segment.size, epochs)
        segment.release_file()


class _Recovery:
    """Reads `segments[trusted:]`, truncates them at the first fault, and fills the rest of `loaded`."""

    def __init__(self, files: Files, loaded: RecoveredLog, trusted: int, recovery_point: int, now_ms: int) -> None:
        self._files = files
        self._loaded = loaded
        self._trusted = trusted
        self._recovery_point = recovery_point
        self._now_ms = now_ms
        base = loaded.segments[trusted].base
        self._stored = [entry for entry in loaded.epochs.entries() if entry.start_offset >= base]
        loaded.epochs.truncate_from_end(base)
        loaded.snapshots.retain(loaded.segments[0].base, base)
        loaded.state = loaded.snapshots.state_at(loaded.segments[:trusted], base, now_ms=now_ms)
        loaded.trusted_end = base
        self._expected = base
        self._epoch = loaded.epochs.latest

    def run(self) -> None:
        segments, snapshots = self._loaded.segments, self._loaded.snapshots
        for index in range(self._trusted, len(segments)):
            segment = segments[index]
            if segment.base != self._expected:
                self._drop(index, f"{segment.path} begins after a hole: the log ends at offset {self._expected}")
                return
            if index and segment.base not in snapshots.stored:
                snapshots.take(segment.base, self._loaded.state)
            if not self._read(segment):
                self._drop(index + 1, f"it follows the cut in {segment.path}")
                return
            if index < len(segments) - 1:
                segment.close_indexes()
                segment.release_file()

    def _read(self, segment: Segment) -> bool:
        """Reads one segment; False if it had to be truncated."""
        size, segment.size = segment.size, 0
        segment.start_indexes()
        segment.end = segment.base
        for chunk in read_batches(segment.file().fd, 0, size, self._scan):
            if chunk.stop != batch_walk.WHOLE:
                self._cut(segment, chunk.position, size, _WHY[chunk.stop])
                return False
            for at, length, base, following, epoch, timestamp in chunk.batches:
                if epoch > self._loaded.epochs.latest:
                    self._begin_epoch(epoch, base, segment.end)
                segment.add_batch(chunk.position + at, length, following, timestamp)
                segment.size = chunk.position + at + length
            for ended in replay(chunk, self._loaded.state, now_ms=self._now_ms):
                if ended.aborted:
                    segment.add_aborted(AbortedTransaction(*ended[:4]))
        return True

    def _begin_epoch(self, epoch: int, base: int, before: int) -> None:
        """Adds the epoch of the batch at `base`. Adds first the stored epochs that begin in the gap [`before`, `base`]:
        compaction may have removed their first batches."""
        for entry in self._stored:
            if entry.epoch <= epoch and before <= entry.start_offset <= base:
                self._loaded.epochs.assign(*entry)
        if epoch > self._loaded.epochs.latest:
            self._loaded.epochs.assign(epoch, base)

    def _scan(self, data: bytes) -> tuple[list[ScannedBatch], int, int]:
        found = batch_walk.recover_scan(data, 0, self._expected, max(self._epoch, NO_EPOCH))
        if found[0]:
            self._expected, self._epoch = found[0][-1][3], found[0][-1][4]
        return found

    def _cut(self, segment: Segment, position: int, size: int, why: str) -> None:
        fd = segment.file().fd
        self._files.truncate(fd, position)
        # The truncated part may hold whole batches of an older epoch: they must not reappear behind a torn append.
        self._files.fsync(fd)
        segment.size = position
        self._say(
            f"{segment.path}: cut at byte {position} of {size}, offset {self._expected}: {why}", lost=self._expected
        )

    def _drop(self, index: int, why: str) -> None:
        segments = self._loaded.segments
        for segment in segments[index:]:
            segment.release_file()
            remove_files(self._files, segment)
            self._say(f"{segment.path}: removed with {segment.size} bytes: {why}", lost=segment.base)
        del segments[index:]

    def _say(self, text: str, *, lost: int) -> None:
        self._loaded.cuts.append(text)
        # A loss below the recovery point is an error, because the disk has lost or damaged flushed records.
        say = events.error if lost < self._recovery_point else events.warning
        say(log, "recovery.cut", what=text, offset=lost, was_flushed=lost < self._recovery_point)


def remove_files(files: Files, segment: Segment) -> None:
    """Removes a segment's files, the log last: without the log, the next start removes the others."""
    for suffix in (*layout.COMPANIONS, layout.LOG):
        with contextlib.suppress(FileNotFoundError):
            files.unlink(segment.stem + suffix)
