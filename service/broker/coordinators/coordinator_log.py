"""A coordinator's log: a partition of an internal topic that this node leads (`service.coordination.runtime.CoordinatorLog`).

Reads go through both tiers, up to the log end, because after a take-over or a restore the bucket has records that the directory
lacks. Reads are refused while the directory may be an older copy. If the disk has failed, they end at the high watermark:
records above it were refused, and are not committed before the node is restarted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Protocol

from grpc_api.contract.coordinator_errors import CoordinatorNotAvailable, NotCoordinator
from grpc_api.contract.log import Appended, Isolation
from service.broker.partition.append_origin import COORDINATOR
from service.broker.partition.partition import Partition
from service.broker.partition.phase import Phase
from service.coordination.ports import PLAIN, WriteSettings
from storage_tiers.cold.read.reader import ColdMiss
from storage_tiers.errors import LogError, StorageError
from storage_tiers.records.batch import TRANSACTIONAL_MASK, headers, read_header
from storage_tiers.types import FileSlice

#: Bytes of one read; a batch may be longer.
PIECE_BYTES = 256 << 10


class DiskRoom(Protocol):
    """`no_room` is the error for every coordinator's record while the disk is full; None while it has room (`DiskGuard`)."""

    @property
    def no_room(self) -> StorageError | None: ...

    def look(self) -> None:
        """Checks the disk now. Raises OSError if it does not answer."""


class PartitionLog:
    """The log of one coordinator. Raises NotCoordinator if this node does not lead the partition, CoordinatorNotAvailable while
    the disk has no room for its records."""

    def __init__(self, partition: Partition, disk: DiskRoom | None = None, writing: WriteSettings = PLAIN) -> None:
        """Without a disk guard, no record is refused for lack of room."""
        self.writing = writing
        self._partition = partition
        self._disk = disk

    @property
    def no_room(self) -> LogError | None:
        """The error while no record can be written. A failed disk counts as full, as does a partition that is being handed
        over. So the shard keeps its state instead of being loaded again at every request."""
        partition = self._partition
        if partition.write_error is not None:
            if partition.life.is_failed:
                return NotCoordinator(f"{partition.partition}: {partition.write_error}; find the coordinator again")
            if partition.phase is Phase.HANDING_OVER:
                return CoordinatorNotAvailable(f"{partition.partition} moves to another broker; retry")
        why = None if self._disk is None else self._disk.no_room
        return None if why is None else CoordinatorNotAvailable(f"{partition.partition}: {why}")

    @property
    def max_batch_bytes(self) -> int:
        return self._partition.log.hot.settings.max_message_bytes

    @property
    def high_watermark(self) -> int:
        return self._partition.state.high_watermark

    def append(self, batch: bytes) -> Appended:
        partition, view, header = self._partition, memoryview(batch), read_header(batch)
        try:
            if header.attributes & TRANSACTIONAL_MASK or header.size <= partition.log.hot.settings.kept_bytes:
                return partition.append_validated(view, header, -1, COORDINATOR)
            # The topic's configs demand a codec or an append time, or the batch is large. No thread is used: the batch is
            # bounded by `max.message.bytes`, and a thread would cost more than it saves.
            partition.check_writable()
            return partition.append_validated(*partition.validate(view), COORDINATOR)
        except StorageError:
            if self._disk is not None:
                with contextlib.suppress(OSError):
                    self._disk.look()  # if the disk is full, the next request is refused before the shard decides it
            raise

    def check_transaction(self, producer_id: int, epoch: int) -> None:
        self._partition.check_transaction(producer_id, epoch)

    async def read(self, before_wait: Callable[[], None] = lambda: None) -> AsyncIterator[bytes]:
        partition = self._partition
        partition.check_readable()
        if partition.is_recovering:
            # Clients may read an older copy of their own records. A coordinator must not load an older copy, because groups
            # would then skip records.
            partition.check_writable()
        offset = partition.log.log_start_offset
        while offset < (end := self._end):
            found = partition.read(offset, max_bytes=PIECE_BYTES, isolation=Isolation.LOG_END, min_one=True)
            if isinstance(found, ColdMiss):
                before_wait()
                await asyncio.shield(found.waiter)
                continue
            reading = asyncio.get_running_loop().run_in_executor(None, _bytes_of, found)
            reading.add_done_callback(partial(_release, found))
            data = await asyncio.shield(reading)  # after a cancellation the thread still uses the files
            size, following = 0, offset
            for position, header in headers(memoryview(data)):
                if header.base_offset >= end:
                    break
                size, following = position + header.size, header.last_offset + 1
            if following <= offset:
                raise StorageError(
                    f"{partition.partition}: no whole batch can be read at offset {offset}; run `tidelog fsck`"
                )
            yield data[:size]
            offset = following

    @property
    def _end(self) -> int:
        return self.high_watermark if self._partition.life.is_failed else self._partition.log.end_offset

    def until_committed(self, end: int) -> asyncio.Future[None] | None:
        if end > self.high_watermark:
            self._partition.check_writable()
        return self._partition.until_committed(end)


def _bytes_of(slices: list[FileSlice]) -> bytes:
    return b"".join(os.pread(piece.file.fd, piece.length, piece.position) for piece in slices)


def _release(slices: list[FileSlice], reading: asyncio.Future[bytes]) -> None:
    for piece in slices:
        piece.file.release()
    if not reading.cancelled():
        reading.exception()  # marks the exception as retrieved, because the reader may have been cancelled
