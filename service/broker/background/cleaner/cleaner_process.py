"""The broker's side of the cleaner process, which starts with the first request and ends when nothing is left to clean."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

from storage_tiers.child_process import ChildProcess, start_child
from storage_tiers.compaction.batches import Cleaned
from storage_tiers.compaction.protocol import (
    CONTINUE,
    MAX_LINE_BYTES,
    CleanerAnswer,
    CleaningRequest,
    KeepAlive,
    SegmentNeeded,
    decode_answer,
    encode_path,
    encode_request,
)
from storage_tiers.errors import LogError, StorageError

#: Seconds within which the process must end after its socket is closed.
GRACE_S = 5.0
#: Seconds without an answer after which the process counts as hung. It sends a sign of life every BEAT_S, but the sync of a
#: large file may take longer.
SILENCE_S = 120.0


class CleanerProcess:
    """Runs one cleaning at a time."""

    def __init__(self, log_format: str = "text") -> None:
        self._log_format = log_format
        self._process: ChildProcess | None = None
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def run(
        self, request: CleaningRequest, fetch_segment: Callable[[int], Awaitable[str]] | None = None
    ) -> AsyncGenerator[CleanerAnswer, None]:
        """Sends the request and yields the cleaner's answers. The cleaner writes the next group of segments while the caller
        swaps the files of the previous group. The cleaner is never more than one group ahead. An answer comes at least every
        BEAT_S, except during a long sync, so that the caller can end a slow cleaning. `fetch_segment` fetches the remote
        segment that begins at an offset, and returns its file, which the cleaner removes. Raises StorageError if the process
        cannot be started, ends or hangs, and the errors that it reports. The caller calls `end` after any error, and if it
        leaves before the last answer."""
        if self._process is None:
            await self._start()
        self._writer.write(await asyncio.to_thread(encode_request, request))
        while True:
            try:
                await self._writer.drain()
                async with asyncio.timeout(SILENCE_S):
                    line = await self._reader.readline()
            except TimeoutError:
                raise StorageError(
                    f"the cleaner process has not answered for {SILENCE_S:.0f} s; the node ends it and starts it again"
                ) from None
            except ConnectionError:
                line = b""
            if not line.endswith(b"\n"):
                raise StorageError("the cleaner process ended; see its last lines in the log. The node starts it again")
            answer = decode_answer(line)
            if isinstance(answer, LogError):
                raise answer
            if isinstance(answer, KeepAlive):
                yield answer
                continue
            if isinstance(answer, SegmentNeeded):
                assert fetch_segment is not None
                self._writer.write(encode_path(await fetch_segment(answer.base)))
                continue
            if isinstance(answer, Cleaned):
                yield answer
                return
            self._writer.write(CONTINUE)
            yield answer

    async def _start(self) -> None:
        try:
            started = await start_child("storage_tiers.compaction.main", ["--log-format", self._log_format])
        except OSError as error:
            raise StorageError(
                f"the cleaner process cannot be started: {error.strerror}; the node tries again"
            ) from error
        try:
            self._reader, self._writer = await asyncio.open_connection(sock=started.socket, limit=MAX_LINE_BYTES)
        except BaseException:  # cancelled: the process ends when its socket closes
            started.socket.close()
            await started.process.ended(GRACE_S)
            raise
        self._process = started.process

    async def end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            self._writer.close()
            await process.ended(GRACE_S)
