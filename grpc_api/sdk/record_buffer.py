"""Adds a record to the open batch of its partition: all that a producer does per record under its lock, in one call.

Cython in pure-Python mode: `record_buffer.pxd` holds the C types, and uncompiled it gives the same results.

Invariants: `held_bytes` counts every record of every batch; a record is added whole, with its waiter, or not at all. The
batches of a partition are in the order of their records, so only the last of them is open. Threads that share a buffer hold the
accumulator's lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

try:
    import cython
except ImportError:  # installed without a compiler and without Cython: the same code as plain Python
    from storage_tiers.records import plain_cython as cython

from storage_tiers.records.record_writer import RecordWriter

_OVERHEAD = 150

#: Bytes that a record costs beyond its key, value and headers: lengths, attributes, deltas (at most 36), and its waiter.
RECORD_OVERHEAD = _OVERHEAD


class OpenBatch:
    """Records of one partition, and their waiters in the same order. `held` is their share of the buffer's `held_bytes`."""

    def __init__(self) -> None:
        self.records = RecordWriter()
        self.waiters: list[Any] = []
        self.held = 0


class RecordBuffer:
    """The batches of all partitions that are not in flight. A batch holds at most `batch_bytes`, and all records that are not
    acknowledged yet hold at most `buffer_bytes` of memory, unless a single record is larger. After `add`, `filled` says whether
    the batch is nearly full."""

    def __init__(self, buffer_bytes: cython.longlong, batch_bytes: cython.longlong) -> None:
        self.buffer_bytes = buffer_bytes
        self.batch_bytes = batch_bytes
        self.held_bytes = 0
        self.filled = False
        #: By topic, then partition; the batches oldest first.
        self.queues: dict[str, dict[int, deque[Any]]] = {}

    def has_room(self, size: cython.longlong) -> cython.bint:
        """Whether a record of `size` bytes, as `record_bytes` counts them, fits."""
        return self.held_bytes == 0 or self.held_bytes + size <= self.buffer_bytes

    def is_full(self, batch: OpenBatch) -> cython.bint:
        """Whether the batch is nearly full."""
        return batch.records.size + _OVERHEAD > self.batch_bytes

    def add(
        self,
        topic: str,
        partition: Any,
        key: bytes | None,
        value: bytes | None,
        headers: bytes,
        timestamp: cython.longlong,
        new_waiter: Callable[[], Any],
    ) -> Any:
        """Adds a record and returns its waiter, made by `new_waiter`. Returns None and adds nothing if the buffer has no room,
        or the partition has no open batch with room. `headers` as `encode_headers` returns them; `timestamp` in ms since 1970.
        """
        size: cython.longlong = record_bytes(key, value, headers)
        if self.held_bytes != 0 and self.held_bytes + size > self.buffer_bytes:
            return None
        partitions = self.queues.get(topic)
        if partitions is None:
            return None
        queue = partitions.get(partition)
        if queue is None:
            return None
        batches: cython.Py_ssize_t = len(queue)
        if batches == 0:
            return None
        batch: OpenBatch = queue[batches - 1]
        records: RecordWriter = batch.records
        if records.size + size > self.batch_bytes and records.count != 0:
            return None
        waiter = new_waiter()
        records.append(key, value, headers, timestamp)
        batch.waiters.append(waiter)
        batch.held += size
        self.held_bytes += size
        self.filled = records.size + _OVERHEAD > self.batch_bytes
        return waiter


def record_bytes(key: bytes | None, value: bytes | None, headers: bytes) -> cython.longlong:
    """An upper bound of a record's bytes in a batch, and roughly its memory while it waits."""
    size: cython.longlong = _OVERHEAD + len(headers)
    if key is not None:
        size += len(key)
    if value is not None:
        size += len(value)
    return size
