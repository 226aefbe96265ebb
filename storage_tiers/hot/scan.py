"""Iterates over the batches of a log file in bounded reads, and replays them into producer state.

Reads headers only, plus the CRC if the given scan checks it; decodes no record except transaction markers. Pure but for
`os.pread`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from storage_tiers.hot.producer_state import CompletedTransaction, ProducerStateManager
from storage_tiers.records.batch import HEADER_BYTES, PRODUCER_ID, Buffer, read_header
from storage_tiers.records.batch_walk import PARTIAL, WHOLE, scan_batches
from storage_tiers.records.builder import ControlKind
from storage_tiers.records.decoder import decode_control
from storage_tiers.types import NO_PRODUCER_ID

#: Bytes of one read; a larger batch is read whole.
SCAN_BYTES = 1 << 20

#: Position in the chunk, size, base offset, next offset, leader epoch, max timestamp.
ScannedBatch = tuple[int, int, int, int, int, int]
#: `batch_walk.scan_batches` over a whole buffer, or a stricter variant.
Scan = Callable[[bytes], tuple[list[ScannedBatch], int, int]]

_producer_id = struct.Struct(">q").unpack_from


class Chunk(NamedTuple):
    """Whole batches read at byte `position` of the file. `stop` differs from WHOLE only in a last chunk, where the walk found
    something other than a batch at `position`."""

    position: int
    data: Buffer
    batches: list[ScannedBatch]
    stop: int


def scan_headers(data: bytes) -> tuple[list[ScannedBatch], int, int]:
    return scan_batches(data, 0, len(data))


def read_batches(fd: int, position: int, end: int, scan: Scan = scan_headers) -> Iterator[Chunk]:
    """The batches in [position, end) of an open log; a batch begins at `position`."""
    wanted = SCAN_BYTES
    while position < end:
        asked = min(wanted, end - position)
        data = os.pread(fd, asked, position)
        if not data:
            yield Chunk(position, b"", [], PARTIAL)
            return
        batches, stopped, stop = scan(data)
        if batches:
            yield Chunk(position, data, batches, WHOLE)
        position += stopped
        wanted = SCAN_BYTES
        if stop == PARTIAL and not batches:
            size = read_header(data).size if len(data) >= HEADER_BYTES else HEADER_BYTES
            if len(data) == asked and position + size <= end:
                wanted = size
                continue
        if stop not in (WHOLE, PARTIAL) or (stop == PARTIAL and not batches):
            yield Chunk(position, b"", [], stop)
            return


def replay(chunk: Chunk, state: ProducerStateManager, *, now_ms: int) -> list[CompletedTransaction]:
    """Applies the chunk's batches to `state`; returns the transactions that ended in it."""
    completed = []
    data = chunk.data
    for at, size, base_offset, _, _, _ in chunk.batches:
        if _producer_id(data, at + PRODUCER_ID)[0] == NO_PRODUCER_ID:
            continue
        header = read_header(data, at)
        if not header.control:
            state.update(header, base_offset, now_ms=now_ms)
        elif header.count > 0:
            ended = end_transaction(memoryview(data)[at : at + size], base_offset, state, now_ms=now_ms)
            if ended is not None:
                completed.append(ended)
    return completed


def end_transaction(
    batch: memoryview, base_offset: int, state: ProducerStateManager, *, now_ms: int
) -> CompletedTransaction | None:
    """Applies a control batch to `state`; returns the transaction it ends, or None."""
    marker = decode_control(batch, verify=False)
    if marker is None:
        return None
    return state.update_marker(
        read_header(batch),
        base_offset,
        coordinator_epoch=marker.coordinator_epoch,
        aborted=marker.kind is ControlKind.ABORT,
        now_ms=now_ms,
    )
