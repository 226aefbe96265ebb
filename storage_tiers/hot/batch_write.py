"""One batch that a thread writes behind the log end, where nobody looks: `Appender.begin_write` makes it, `finish_write`
makes the batch part of the log, `stop_write` gives it up.

Invariants: the head of the batch stays zeros until it is finished, so that recovery finds no batch there; the log moves nothing
of the file while a thread writes there, as `stop` waits for the thread; a descriptor is counted until then, so that its number
cannot name another file.
"""

from __future__ import annotations

import threading

from storage_tiers.files import Files
from storage_tiers.hot.segment import Segment
from storage_tiers.records.batch import HEADER_BYTES

#: Of a batch, in one call: whoever stops a write waits for one call at most.
PIECE_BYTES = 1 << 20


class BatchWrite:
    """Made, stopped and finished on the event loop; `run` is for one thread."""

    __slots__ = ("_batch", "_done", "_files", "_stopped", "_turn", "error", "file", "position", "segment")

    def __init__(self, files: Files, segment: Segment, batch: memoryview) -> None:
        """Of a whole batch, at the end of `segment`. StorageError if that cannot be opened."""
        self.file = segment.file().acquire()
        self.segment = segment
        self.position = segment.size
        #: Why the disk refused it.
        self.error: OSError | None = None
        self._batch = batch
        self._files = files
        self._stopped = False
        # Whoever pops it begins: the thread that writes, or who stops the write before a thread came to it.
        self._turn = [self]
        self._done = threading.Lock()
        self._done.acquire()

    def run(self) -> None:
        """Writes all but its head, unless it was stopped."""
        try:
            self._turn.pop()
        except IndexError:
            return
        try:
            self._write()
        except OSError as error:
            self.error = error
        except Exception as error:  # noqa: BLE001 - whoever waits for it is told, and the thread goes on to the next
            self.error = OSError(repr(error))
        finally:
            self._done.release()

    def _write(self) -> None:
        for at in range(HEADER_BYTES, len(self._batch), PIECE_BYTES):
            if self._stopped:
                return
            self._files.pwrite(self.file.fd, (self._batch[at : at + PIECE_BYTES],), self.position + at)

    def stop(self) -> None:
        """Gives it up and cuts off what was written. Waits for a thread that writes it: for a piece at most. OSError if the
        disk refuses; the write is stopped all the same."""
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
