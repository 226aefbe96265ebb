"""Passes long lists of aborted transactions to the tier process in a file, because the size of a message is limited."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from storage_tiers.cold.segments.offloader import ExtendJob, write_aborted
from storage_tiers.errors import StorageError
from storage_tiers.hot.layout import TEMPORARY

#: Most aborted transactions in one message, about 100 bytes each.
MOST_IN_A_MESSAGE = 1_000


@asynccontextmanager
async def sendable(job: ExtendJob) -> AsyncIterator[ExtendJob]:
    """The job in a form that fits a message. Its file exists until the context ends; the next start removes a file that a crash
    leaves behind. Raises StorageError if the file cannot be written."""
    if len(job.aborted) <= MOST_IN_A_MESSAGE:
        yield job
        return
    path = f"{job.path}.aborted{TEMPORARY}"
    try:
        try:
            await asyncio.to_thread(write_aborted, path, job.aborted)
        except OSError as error:
            raise StorageError(f"cannot write {path} ({error}); free space, or repair or replace the disk") from error
        yield replace(job, aborted=(), aborted_path=path)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)
