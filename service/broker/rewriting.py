"""Batches that take long: looked through, inflated and packed anew in threads, and large ones written in pieces.

A batch of 2 KB can inflate to 64 MB, naming the records for which one is refused takes 10 ms, and packing a megabyte in the
codec that its topic stores from 2 ms (lz4) to a second (zstd's highest level); to check and write 100 MiB takes 100 ms. The
event loop must wait for none of it. Invariant: the batches of one partition are appended in the order in which they came,
those that take no time too while others wait. What waits holds copies of its bytes (of large ones the sender's), within
MAX_HELD_BYTES for the whole node.
"""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor

from grpc_api.contract.log import Appended
from service.broker.partition import Partition
from storage_tiers.errors import LogError, RequestTimedOut, StorageError
from storage_tiers.hot.settings import LARGE_BATCH_BYTES
from storage_tiers.records.batch import BatchHeader

#: Batches that are packed at once.
REWRITING_THREADS = 2
#: Bytes of batches that wait, as they were sent; beyond it producers are told to send again.
MAX_HELD_BYTES = 256 << 20


class Rewriter:
    """On the event loop only."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(REWRITING_THREADS, thread_name_prefix="rewrite")
        self._newest: dict[Partition, asyncio.Task[Appended | LogError]] = {}
        self._held_bytes = 0

    def append(self, partition: Partition, batch: memoryview) -> asyncio.Future[Appended | LogError]:
        """As `Partition.append`, later, with a refusal as result. RequestTimedOut at once if too much waits."""
        if self._held_bytes + len(batch) > MAX_HELD_BYTES:
            raise RequestTimedOut(
                f"{partition.partition}: batches of {self._held_bytes} bytes wait to be examined; send again"
            )
        self._held_bytes += len(batch)
        partition.rewriting += 1
        partition.rewrites = True
        before = self._newest.get(partition)
        kept = batch if len(batch) > LARGE_BATCH_BYTES else memoryview(bytes(batch))
        job = asyncio.get_running_loop().create_task(self._run(partition, kept, before))
        self._newest[partition] = job
        return job

    async def close(self) -> None:
        """What is under way is appended."""
        if self._newest:
            await asyncio.wait(self._newest.values())
        self._threads.shutdown()

    async def _run(
        self, partition: Partition, batch: memoryview, before: asyncio.Task[Appended | LogError] | None
    ) -> Appended | LogError:
        examined = asyncio.get_running_loop().run_in_executor(self._threads, partition.examined, batch)
        try:
            if before is not None:
                await asyncio.wait({before})
            found = await examined
            partition.check_writable()
            if len(found[0]) <= LARGE_BATCH_BYTES:
                return partition.take(*found)
            return await self._take_in_pieces(partition, *found)
        except LogError as error:
            return error
        finally:
            self._held_bytes -= len(batch)
            partition.rewriting -= 1
            if not partition.rewriting:
                del self._newest[partition]
            partition.settle_rewriting()

    async def _take_in_pieces(
        self, partition: Partition, batch: memoryview, header: BatchHeader, stamped: int
    ) -> Appended:
        try:
            while not partition.stage(batch, header):
                await asyncio.sleep(0)
            return partition.take(batch, header, stamped, staged=True)
        finally:
            with contextlib.suppress(StorageError):  # what refused the batch says more, and the next one tries again
                partition.log.hot.unstage()
