"""Keeps the metadata log on disk, in one log file and at most one snapshot, and recovers from a crash while a snapshot replaces
a log.

    <data_dir>/__cluster_metadata-0/<first index:020>.log      frames (see frames.py), one per fsync
    <data_dir>/__cluster_metadata-0/<index:020>-<term:010>.snapshot    one frame: the image after entry `index`

Invariants: an entry for which `append` returned is whole on disk and survives a power loss. An entry for which `append` raised
is not in the log, unless the process or the machine dies before `repair` truncates its bytes: recovery may then find the entry
whole. A snapshot is durable under its name before the log that it replaces is removed. Everything that `open` returns is
durable.

Blocking; one thread at a time. MetadataLog is the asyncio shell around the store. The store does not lock the directory (the
owner of the data directory does) and does not interpret records.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from service.metadata import records_pb2 as pb
from service.metadata.frames import ADVICE, Frame, decode, encode, scan
from service.metadata.image import MetadataImage
from service.metadata.snapshot import to_records
from storage_tiers.errors import MetadataCorrupt
from storage_tiers.files import Files, replace_file

DIRECTORY = "__cluster_metadata-0"

#: A log file with this many bytes is replaced by a snapshot. If the last snapshot is larger, its size is the bound. A start
#: reads the log again, at about 10 MB/s, before the controller listens: all commands of a cluster wait for that.
LOG_BYTES_PER_SNAPSHOT = 1 << 20

_LOG_NAME = re.compile(r"(\d{20})\.log")
_SNAPSHOT_NAME = re.compile(r"(\d{20})-(\d{10,})\.snapshot")


@dataclass(frozen=True, slots=True)
class Recovered:
    """The state after the last whole entry, with that entry's index (0: none yet) and term."""

    image: MetadataImage
    index: int
    term: int


class MetadataStore:
    """Open with `MetadataStore.open(data_dir, files)`; then `append` and `snapshot`; `close` at the end."""

    def __init__(self, directory: str, files: Files, log_bytes_per_snapshot: int) -> None:
        self._directory = directory
        self._files = files
        self._bound = log_bytes_per_snapshot
        self._path = ""
        self._fd = -1
        self._end = 0
        self._index = 0
        self._torn = False
        self._abandoned: str | None = None
        self._snapshot_at = log_bytes_per_snapshot

    @classmethod
    def open(
        cls, data_dir: str, files: Files, *, log_bytes_per_snapshot: int = LOG_BYTES_PER_SNAPSHOT
    ) -> tuple[MetadataStore, Recovered]:
        """Creates or recovers the log. Truncates a torn end. Raises MetadataCorrupt if other bytes are damaged, OSError on an
        I/O error."""
        directory = os.path.join(data_dir, DIRECTORY)
        files.mkdir(directory)
        files.fsync_dir(data_dir)
        store = cls(directory, files, log_bytes_per_snapshot)
        return store, store._recover()

    @property
    def index(self) -> int:
        """Index of the last entry; 0 before the first."""
        return self._index

    @property
    def path(self) -> str:
        """Path of the log file to which entries are appended."""
        return self._path

    @property
    def wants_snapshot(self) -> bool:
        return self._end >= self._snapshot_at

    def append(self, term: int, payload: bytes) -> int:
        """Makes one entry durable and returns its index. On an OSError the log has no new entry, and the next call first
        removes the bytes that this one left."""
        self.repair()
        frame = encode(Frame(term, self._index + 1, payload))
        self._torn = True
        self._files.pwrite(self._fd, (frame,), self._end)
        self._files.fsync(self._fd)
        self._torn = False
        self._end += len(frame)
        self._index += 1
        return self._index

    def repair(self) -> None:
        """Removes the bytes or the file that a failed append or snapshot left, so that no later start takes them for an entry.
        Raises OSError if that fails too. Every append calls it first."""
        if self._abandoned is not None:
            if os.path.exists(self._abandoned):
                self._files.unlink(self._abandoned)
            self._files.fsync_dir(self._directory)
            self._abandoned = None
        if self._torn:
            self._files.truncate(self._fd, self._end)
            self._files.fsync(self._fd)
            self._torn = False

    def snapshot(self, image: MetadataImage, term: int) -> None:
        """Writes `image`, which must be the state after the last entry, and starts a new log file. On an OSError nothing is
        lost, and `wants_snapshot` turns True again after `log_bytes_per_snapshot` more bytes."""
        self._snapshot_at = self._end + self._bound
        content = encode(Frame(term, self._index, _batch(image)))
        replace_file(self._files, self._snapshot_path(self._index, term), content)
        self._begin_log(self._index + 1)
        self._snapshot_at = max(self._bound, len(content))
        self._remove_superseded(self._index, term)

    def close(self) -> None:
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1

    # --- recovery -------------------------------------------------------------------------------------------------

    def _recover(self) -> Recovered:
        names = os.listdir(self._directory)
        for name in names:
            if name.endswith(".tmp"):
                self._files.unlink(os.path.join(self._directory, name))
        snapshots = sorted((int(m[1]), int(m[2])) for m in map(_SNAPSHOT_NAME.fullmatch, names) if m)
        logs = sorted(int(m[1]) for m in map(_LOG_NAME.fullmatch, names) if m)
        state = Recovered(MetadataImage(), 0, 0)
        if snapshots:
            state = self._read_snapshot(*snapshots[-1])
        if logs:
            state = self._read_log(logs[-1], state)
        elif snapshots:
            raise MetadataCorrupt(
                f"{self._directory}: the log that follows the snapshot of entry {state.index} is gone. {ADVICE}"
            )
        else:
            self._begin_log(1)
        self._index = state.index
        if snapshots:
            self._finish_truncation(snapshots[-1], logs[-1])
        return state

    def _read_snapshot(self, index: int, term: int) -> Recovered:
        path = self._snapshot_path(index, term)
        frame = decode(_read(path))
        if frame is None or (frame.index, frame.term) != (index, term):
            raise MetadataCorrupt(f"{path}: the snapshot's checksum does not match its bytes. {ADVICE}")
        self._snapshot_at = max(self._bound, len(frame.payload))
        return Recovered(_applied(MetadataImage(), frame, path), index, term)

    def _read_log(self, first_index: int, state: Recovered) -> Recovered:
        path = self._log_path(first_index)
        if first_index > state.index + 1:
            raise MetadataCorrupt(
                f"{path}: the log begins with entry {first_index}, but entries are known up to {state.index} only. {ADVICE}"
            )
        self._open_log(path)
        data = _read(path)
        found = scan(data, first_index, path)
        if found.end < len(data):
            self._files.truncate(self._fd, found.end)
        # Entries that a killed process wrote without fsync are accepted now, so make them durable first.
        self._files.fsync(self._fd)
        self._files.fsync_dir(self._directory)
        self._end = found.end
        image, index, term = state.image, state.index, state.term
        for frame in found.frames:
            if frame.index > state.index:
                image, index, term = _applied(image, frame, path), frame.index, frame.term
        return Recovered(image, index, max(term, state.term))

    def _finish_truncation(self, snapshot: tuple[int, int], log: int) -> None:
        """Completes a snapshot after a crash between the snapshot and the start of its new log. A full disk does not prevent
        the node's start, because the old log serves as well."""
        index, term = snapshot
        with suppress(OSError):
            if log != index + 1 and self._index == index:
                self._begin_log(index + 1)
            self._remove_superseded(index, term)

    # --- files ----------------------------------------------------------------------------------------------------

    def _begin_log(self, first_index: int) -> None:
        """Continues in a new, empty log file. If that fails, the new file must be removed before the old file may grow, because
        recovery reads the log with the highest first index."""
        path = self._log_path(first_index)
        self._abandoned = path
        fd = self._files.open(path, create=True, truncate=True)
        try:
            self._files.fsync_dir(self._directory)
        except OSError:
            self._files.close(fd)
            raise
        self._abandoned = None
        self.close()
        self._path, self._fd, self._end = path, fd, 0

    def _open_log(self, path: str) -> None:
        self._path, self._fd = path, self._files.open(path)

    def _remove_superseded(self, index: int, term: int) -> None:
        """Removes the files that the snapshot of (index, term) and the current log replace. Left-overs are harmless; the next
        start removes them."""
        keep = {os.path.basename(self._snapshot_path(index, term)), os.path.basename(self._path)}
        for name in os.listdir(self._directory):
            if name not in keep and (_LOG_NAME.fullmatch(name) or _SNAPSHOT_NAME.fullmatch(name)):
                self._files.unlink(os.path.join(self._directory, name))

    def _log_path(self, first_index: int) -> str:
        return os.path.join(self._directory, f"{first_index:020}.log")

    def _snapshot_path(self, index: int, term: int) -> str:
        return os.path.join(self._directory, f"{index:020}-{term:010}.snapshot")


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _batch(image: MetadataImage) -> bytes:
    return pb.MetadataBatch(records=to_records(image)).SerializeToString()


def _applied(image: MetadataImage, frame: Frame, path: str) -> MetadataImage:
    try:
        return image.apply_batch(pb.MetadataBatch.FromString(frame.payload).records)
    except DecodeError as error:
        raise MetadataCorrupt(f"{path}: entry {frame.index} is not a metadata batch ({error}). {ADVICE}") from error
    except MetadataCorrupt as error:
        raise MetadataCorrupt(f"{path}: entry {frame.index}: {error}") from error
