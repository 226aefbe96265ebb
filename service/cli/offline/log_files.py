"""Dumps the files of a partition's directory as lines. Only reads, in pieces of bounded size.

Verifies each batch's CRC and order, and each index entry against the batches of the log beside it. May run while a node writes
to the directory, so a partial batch at the end of the newest log is not damage, and index entries that the node still keeps in
memory are missing.

Does not compare the local log with the bucket; `tidelog fsck` does.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from service.cli.offline.dump_line import Line, damage, note
from storage_tiers.errors import LogError
from storage_tiers.hot import checkpoints, layout
from storage_tiers.hot.indexes import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, read_transactions
from storage_tiers.hot.leader_epochs import read_checkpoint
from storage_tiers.hot.producer_state import ProducerStateManager
from storage_tiers.hot.scan import read_batches
from storage_tiers.records import batch_walk
from storage_tiers.records.batch import BatchHeader, check_crc, read_header
from storage_tiers.records.decoder import Record, decode_batch, decode_control

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_STOPS = {
    batch_walk.PARTIAL: "the batch there is incomplete",
    batch_walk.BAD_SIZE: "the length there is not a valid batch length",
    batch_walk.BAD_MAGIC: "the bytes there are not a batch of format 2",
    batch_walk.BAD_OFFSETS: "the offsets there are not valid in a batch",
}


class BatchPosition(NamedTuple):
    """A batch and its position in the file. Its offsets are [base, next)."""

    position: int
    base: int
    next: int
    max_timestamp: int


# --- .log --------------------------------------------------------------------------------------------------------------
def dump_log(path: Path, *, deep: bool) -> Iterator[Line]:
    """A line per batch; with `deep` also a line per record."""
    expected = _base_offset(path)
    last_epoch = -1
    with _opened(path) as (fd, size):
        for chunk in read_batches(fd, 0, size):
            for at, length, _, following, epoch, _ in chunk.batches:
                batch = memoryview(chunk.data)[at : at + length]
                header = read_header(batch)
                fault = _fault(batch, header, expected, last_epoch)
                yield _batch_line(header, chunk.position + at, fault)
                yield from _record_lines(batch, header) if deep and not fault else ()
                expected, last_epoch = following, epoch
            if chunk.stop != batch_walk.WHOLE:
                yield _stopped(path, chunk.position, size, chunk.stop)


def _fault(batch: memoryview, header: BatchHeader, expected: int, last_epoch: int) -> str:
    try:
        check_crc(batch, header)
    except LogError as error:
        return str(error)
    if header.base_offset < expected:
        return f"offset {expected} or later belongs here"
    if header.leader_epoch < last_epoch:
        return f"the batch before it is of the later leader epoch {last_epoch}"
    return ""


def _batch_line(header: BatchHeader, position: int, fault: str) -> Line:
    return Line(
        "batch",
        {
            "base_offset": header.base_offset,
            "last_offset": header.last_offset,
            "count": header.count,
            "base_sequence": header.base_sequence,
            "last_sequence": header.last_sequence,
            "producer_id": header.producer_id,
            "producer_epoch": header.producer_epoch,
            "partition_leader_epoch": header.leader_epoch,
            "is_transactional": header.transactional,
            "is_control": header.control,
            "delete_horizon_ms": header.base_timestamp if header.delete_horizon else None,
            "position": position,
            "LogAppendTime" if header.log_append_time else "CreateTime": header.max_timestamp,
            "size": header.size,
            "magic": header.magic,
            "codec": _codec(header),
            "crc": header.crc,
            "is_valid": not fault,
        },
        damage=fault,
    )


def _codec(header: BatchHeader) -> str:
    try:
        return header.codec.name.lower()
    except LogError:
        return f"unknown ({header.attributes & 7})"


def _record_lines(batch: memoryview, header: BatchHeader) -> Iterator[Line]:
    try:
        if header.control:
            yield _control_line(batch, header)
            return
        for index, record in enumerate(decode_batch(batch, verify=False)):
            yield _record_line(record, header, index)
    except LogError as error:
        yield damage(str(error), base_offset=header.base_offset)


def _record_line(record: Record, header: BatchHeader, index: int) -> Line:
    sequence = -1 if header.base_sequence < 0 else (header.base_sequence + index) & 0x7FFFFFFF
    fields = {
        "offset": record.offset,
        "LogAppendTime" if record.timestamp_type else "CreateTime": record.timestamp,
        "key_size": -1 if record.key is None else len(record.key),
        "value_size": -1 if record.value is None else len(record.value),
        "sequence": sequence,
        "header_keys": [key for key, _ in record.headers],
    }
    if record.key is not None:
        fields["key"] = record.key
    if record.value is not None:
        fields["value"] = record.value
    return Line("record", fields, prefix="| ")


def _control_line(batch: memoryview, header: BatchHeader) -> Line:
    control = decode_control(batch, verify=False)
    if control is None:
        return Line("control", {"offset": header.base_offset}, prefix="| ")
    fields = {
        "offset": header.base_offset,
        "CreateTime": header.max_timestamp,
        "end_txn_marker": control.kind.name,
        "coordinator_epoch": control.coordinator_epoch,
    }
    return Line("control", fields, prefix="| ")


def _stopped(path: Path, position: int, size: int, stop: int) -> Line:
    if stop == batch_walk.PARTIAL and _is_newest(path):
        return note(
            f"{size - position} bytes at position {position} are an incomplete batch: still being written, or left by a crash"
        )
    return damage(_STOPS.get(stop, "no batch begins there"), position=position, bytes_left=size - position)


def _is_newest(path: Path) -> bool:
    """Whether the directory has no later segment. A copy of a segment in another directory counts as newest."""
    others = (found for found in map(layout.parse_file, os.listdir(path.parent)) if found)
    return all(found.suffix != layout.LOG or found.offset <= _base_offset(path) for found in others)


# --- indexes -----------------------------------------------------------------------------------------------------------
def dump_offset_index(path: Path) -> Iterator[Line]:
    """A line per entry. An entry is damaged if no batch begins at its position, or if that batch does not contain its
    offset."""
    base = _base_offset(path)
    batches = _batch_positions(path)
    if batches is None:
        yield note("there is no .log beside it, so its entries are not verified")
    for relative, position in _entries(path, _OFFSET_ENTRY, OFFSET_ENTRY_BYTES):
        fault = ""
        if batches is not None:
            fault = _offset_fault(batches.from_position(position), base + relative, position)
        yield Line("offset_entry", {"offset": base + relative, "position": position}, fault)
    yield from _left_over(path, OFFSET_ENTRY_BYTES)


def _offset_fault(batch: BatchPosition | None, offset: int, position: int) -> str:
    if batch is None or batch.position != position:
        return "no batch begins at that position"
    if not batch.base <= offset < batch.next:
        return f"the batch at that position holds offsets {batch.base} to {batch.next - 1}"
    return ""


def dump_time_index(path: Path) -> Iterator[Line]:
    """A line per entry. The batch with the entry's offset must have the entry's timestamp as its maximum, and no earlier batch
    may have a larger one."""
    base = _base_offset(path)
    batches = _batch_positions(path)
    if batches is None:
        yield note("there is no .log beside it, so its entries are not verified")
    for timestamp, relative in _entries(path, _TIME_ENTRY, TIME_ENTRY_BYTES):
        fault = ""
        if batches is not None:
            batch = batches.with_offset(base + relative)
            fault = _time_fault(batch, base + relative, timestamp, batches.highest)
        yield Line("time_entry", {"timestamp": timestamp, "offset": base + relative}, fault)
    yield from _left_over(path, TIME_ENTRY_BYTES)


def _time_fault(batch: BatchPosition | None, offset: int, timestamp: int, highest_before: int) -> str:
    if batch is None or offset < batch.base:
        return "no batch holds that offset"
    if batch.max_timestamp != timestamp:
        return f"the batch of that offset has the maximum timestamp {batch.max_timestamp}"
    if highest_before > timestamp:
        return f"an earlier batch has the timestamp {highest_before}"
    return ""


def _entries(path: Path, entry: struct.Struct, width: int) -> Iterator[tuple[int, int]]:
    """The entries of an index, without the zeros that Kafka preallocates at its end."""
    content = path.read_bytes()
    preallocated = len(content) > width and not any(content[-width:])
    for at in range(0, len(content) - width + 1, width):
        first, second = entry.unpack_from(content, at)
        if preallocated and first == second == 0 and not any(content[at:]):
            return
        yield first, second


def _left_over(path: Path, width: int) -> Iterator[Line]:
    rest = path.stat().st_size % width
    if rest:
        yield damage(f"{rest} bytes follow the last whole entry")


class _BatchCursor:
    """Passes over the batches of a log once, in order. `highest` is the largest timestamp of the batches passed so far,
    initially -1."""

    def __init__(self, batches: Iterator[BatchPosition]) -> None:
        self._batches = batches
        self._current: BatchPosition | None = None
        self.highest = -1

    def from_position(self, position: int) -> BatchPosition | None:
        """The first batch at or after the position; None if there is no such batch."""
        return self._pass_until(lambda batch: batch.position >= position)

    def with_offset(self, offset: int) -> BatchPosition | None:
        """The first batch that ends above the offset; None if there is no such batch."""
        return self._pass_until(lambda batch: batch.next > offset)

    def _pass_until(self, is_found: Callable[[BatchPosition], bool]) -> BatchPosition | None:
        while self._current is None or not is_found(self._current):
            if self._current is not None:
                self.highest = max(self.highest, self._current.max_timestamp)
            self._current = next(self._batches, None)
            if self._current is None:
                return None
        return self._current


def _batch_positions(index: Path) -> _BatchCursor | None:
    """The batches of the log that the index belongs to; None if there is no such log."""
    log = index.with_suffix(layout.LOG)
    return _BatchCursor(_walk(log)) if log.exists() else None


def _walk(log: Path) -> Iterator[BatchPosition]:
    with _opened(log) as (fd, size):
        for chunk in read_batches(fd, 0, size):
            for at, _, base, following, _, max_timestamp in chunk.batches:
                yield BatchPosition(chunk.position + at, base, following, max_timestamp)


def dump_transaction_index(path: Path) -> Iterator[Line]:
    for aborted in read_transactions(str(path)):
        yield Line(
            "aborted_transaction",
            {
                "version": 0,
                "producer_id": aborted.producer_id,
                "first_offset": aborted.first_offset,
                "last_offset": aborted.last_offset,
                "last_stable_offset": aborted.last_stable_offset,
            },
        )


# --- small files -------------------------------------------------------------------------------------------------------
def dump_snapshot(path: Path) -> Iterator[Line]:
    yield from snapshot_lines(path.read_bytes())


def dump_earlier_batches(path: Path) -> Iterator[Line]:
    state = path.with_suffix(layout.SNAPSHOT).read_bytes() + path.read_bytes()
    yield from earlier_lines(ProducerStateManager.restore(state, now_ms=0))


def earlier_lines(state: ProducerStateManager) -> Iterator[Line]:
    for producer_id, entry in state.producers.items():
        for batch in entry.batches[:-1]:
            yield Line("earlier_batch", {"producer_id": producer_id, **batch._asdict()})


def snapshot_lines(content: bytes) -> Iterator[Line]:
    state = ProducerStateManager.restore(content, now_ms=0)
    for producer_id, entry in state.producers.items():
        fields = {
            "producer_id": producer_id,
            "producer_epoch": entry.epoch,
            "coordinator_epoch": entry.coordinator_epoch,
            "current_txn_first_offset": entry.transaction_start if entry.transaction_start >= 0 else None,
            "last_timestamp": entry.timestamp,
        }
        if entry.batches:
            newest = entry.batches[-1]
            fields["first_sequence"] = newest.first_sequence
            fields["last_sequence"] = newest.last_sequence
            fields["last_offset"] = newest.last_offset
            fields["offset_delta"] = newest.offset_delta
            fields["timestamp"] = newest.timestamp
        yield Line("producer", fields)
    yield from earlier_lines(state)


def dump_leader_epochs(path: Path) -> Iterator[Line]:
    for entry in read_checkpoint(str(path)).entries():
        yield Line("leader_epoch", {"epoch": entry.epoch, "start_offset": entry.start_offset})


def dump_offset_checkpoint(path: Path) -> Iterator[Line]:
    for (topic, partition), offset in checkpoints.read_offsets(str(path)).items():
        yield Line("checkpoint", {"topic": topic, "partition": partition, "offset": offset})


def dump_partition_metadata(path: Path) -> Iterator[Line]:
    fields = dict(line.split(": ", 1) for line in path.read_text(errors="replace").splitlines() if ": " in line)
    if "topic_id" not in fields:
        yield damage("the file has no topic id")
    else:
        yield Line("partition_metadata", {"version": fields.get("version"), "topic_id": fields["topic_id"]})


BY_NAME: Mapping[str, Callable[[Path], Iterator[Line]]] = {
    layout.EPOCHS: dump_leader_epochs,
    layout.PARTITION_METADATA: dump_partition_metadata,
    checkpoints.RECOVERY_POINTS: dump_offset_checkpoint,
    checkpoints.LOG_STARTS: dump_offset_checkpoint,
    checkpoints.HIGH_WATERMARKS: dump_offset_checkpoint,
}
BY_SUFFIX: Mapping[str, Callable[[Path], Iterator[Line]]] = {
    layout.OFFSET_INDEX: dump_offset_index,
    layout.TIME_INDEX: dump_time_index,
    layout.TRANSACTION_INDEX: dump_transaction_index,
    layout.SNAPSHOT: dump_snapshot,
    layout.BATCHES: dump_earlier_batches,
}


@contextmanager
def _opened(path: Path) -> Iterator[tuple[int, int]]:
    """Yields the descriptor and the current size, so that later appends by the node are ignored."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd, os.fstat(fd).st_size
    finally:
        os.close(fd)


def _base_offset(path: Path) -> int:
    """The offset in the file's name; 0 if the name has none."""
    digits = path.name[:20]
    return int(digits) if digits.isdecimal() and len(digits) == 20 else 0
