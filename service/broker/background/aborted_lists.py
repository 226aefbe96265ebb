"""Passes long lists of aborted transactions to the tier process in a file, since a message has a bound."""

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

#: Aborted transactions that a message holds, each in a hundred bytes.
MOST_IN_A_MESSAGE = 1_000


@asynccontextmanager
async def sendable(job: ExtendJob) -> AsyncIterator[ExtendJob]:
    """The job as a message holds it. Its file lasts as long as the context; a start removes what a crash leaves. StorageError
    if the disk refuses it."""
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
