"""One batch that a thread writes past the log end, where nothing reads. `Appender.begin_write` creates the write,
`finish_write` makes the batch part of the log, and `stop_write` cancels the write.

Invariants: the batch header stays zero until the write is finished, so that recovery finds no batch there. The log changes the
file only after `stop`, which waits for the thread. Until it is stopped or finished, the write holds a counted descriptor, so
that the descriptor's number cannot be reused for another file.
"""

from __future__ import annotations

import threading

from storage_tiers.files import Files
from storage_tiers.hot.segment import Segment
from storage_tiers.records.batch import HEADER_BYTES

#: Bytes written in one call. Stopping a write waits for at most one call.
PIECE_BYTES = 1 << 20


class BatchWrite:
    """Create, stop and finish it on the event loop; call `run` in one thread. `position` is the batch's byte position in the
    segment's file."""

    __slots__ = ("_batch", "_done", "_files", "_stopped", "_turn", "error", "file", "position", "segment")

    def __init__(self, files: Files, segment: Segment, batch: memoryview) -> None:
        """Prepares the write of one whole batch at the end of `segment`. StorageError if the segment cannot be opened."""
        self.file = segment.file().acquire()
        self.segment = segment
        self.position = segment.size
        #: The write's error, None if it succeeded.
        self.error: OSError | None = None
        self._batch = batch
        self._files = files
        self._stopped = False
        # Popping the item decides a race: either the thread starts to write, or `stop` comes first.
        self._turn = [self]
        self._done = threading.Lock()
        self._done.acquire()

    def run(self) -> None:
        """Writes the batch without its header, unless the write was stopped."""
        try:
            self._turn.pop()
        except IndexError:
            return
        try:
            self._write()
        except OSError as error:
            self.error = error
        except Exception as error:  # noqa: BLE001 - `finish_write` reports it; the thread serves other writes
            self.error = OSError(repr(error))
        finally:
            self._done.release()

    def _write(self) -> None:
        for at in range(HEADER_BYTES, len(self._batch), PIECE_BYTES):
            if self._stopped:
                return
            self._files.pwrite(self.file.fd, (self._batch[at : at + PIECE_BYTES],), self.position + at)

    def stop(self) -> None:
        """Cancels the write and truncates the file to its old end. Waits until a writing thread has written its piece.
        OSError if the file cannot be truncated; the write is stopped nevertheless."""
        self._stopped = True
        try:
            self._turn.pop()
        except IndexError:
            with self._done:
                pass
        try:
            self._files.truncate(self.file.fd, self.position)
        finally:
            self.file.release()
