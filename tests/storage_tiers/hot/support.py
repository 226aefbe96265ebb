"""Shared by the hot log's tests: batches to append, a log to append them to, and a plain model to compare with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from storage_tiers.files import Files, OsFiles
from storage_tiers.hot.log import HotLog
from storage_tiers.hot.log_ground import LogGround
from storage_tiers.hot.settings import LogSettings
from storage_tiers.records.batch import assign, read_header
from storage_tiers.records.builder import ControlKind, NewRecord, build_batch, build_control_batch
from storage_tiers.types import FileSlice, TopicId, TopicPartition
from tests.support.clock import ManualClock, SeededRng

PARTITION = TopicPartition("flights", 3)
TOPIC_ID = TopicId(b"topic-id-0123456")
START_MS = 1_700_000_000_000
SMALL = LogSettings(segment_bytes=2000, index_interval_bytes=300)


def batch_of(
    count: int = 1,
    *,
    value: bytes = b"v" * 50,
    timestamps: Sequence[int] | None = None,
    producer: tuple[int, int, int] | None = None,
    transactional: bool = False,
) -> bytes:
    """`producer` is (id, epoch, base sequence)."""
    stamps = timestamps or [START_MS + index for index in range(count)]
    records = [NewRecord(b"k%d" % index, value, timestamp=stamp) for index, stamp in enumerate(stamps)]
    if producer is None:
        return build_batch(records)
    return build_batch(
        records,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        transactional=transactional,
    )


def marker(kind: ControlKind, producer_id: int, producer_epoch: int = 0, timestamp: int = START_MS) -> bytes:
    return build_control_batch(
        kind, producer_id=producer_id, producer_epoch=producer_epoch, coordinator_epoch=7, timestamp=timestamp
    )


def placed(batch: bytes, base_offset: int, leader_epoch: int) -> bytes:
    """The batch as the leader stores it."""
    copy = bytearray(batch)
    assign(copy, base_offset=base_offset, leader_epoch=leader_epoch)
    return bytes(copy)


def open_log(
    data_dir: str | os.PathLike[str],
    *,
    settings: LogSettings | None = None,
    files: Files | None = None,
    clock: ManualClock | None = None,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    clean: bool = False,
) -> HotLog:
    return HotLog.open(
        LogGround(
            os.path.join(data_dir, str(PARTITION)),
            PARTITION,
            TOPIC_ID,
            files or OsFiles(),
            clock or ManualClock(START_MS),
            SeededRng(1),
        ),
        settings or LogSettings(),
        recovery_point=recovery_point,
        log_start_offset=log_start_offset,
        clean=clean,
    )


def evict_below(log: HotLog, offset: int) -> int:
    """Evicts as the broker does; returns the number of segments evicted."""
    count = 0
    while (eviction := log.evict_oldest(offset)) is not None:
        eviction.sync()
        eviction.finish()
        eviction.free()
        count += 1
    return count


def append(log: HotLog, batch: bytes, *, epoch: int = 0, now_ms: int = START_MS) -> int:
    return log.appender.append(memoryview(batch), read_header(batch), leader_epoch=epoch, now_ms=now_ms)


def take(slices: Sequence[FileSlice]) -> bytes:
    """Reads the slices' bytes and releases their descriptors."""
    content = b"".join(os.pread(each.file.fd, each.length, each.position) for each in slices)
    for each in slices:
        each.file.release()
    return content


def read_all(log: HotLog, start: int | None = None, upto: int | None = None) -> bytes:
    """All bytes from `start` (default: the first local offset), read like a consumer with small buffers."""
    offset = log.local_start_offset if start is None else start
    end = log.end_offset if upto is None else upto
    content = bytearray()
    while offset < end:
        part = take(log.reader.read(offset, max_bytes=700, upto_offset=end))
        at = 0
        while len(part) - at >= 61 and read_header(part, at).size <= len(part) - at:
            offset = read_header(part, at).next_offset
            at += read_header(part, at).size
        if not at:
            break
        content += part[:at]
    return bytes(content)


def filled(path: Path, count: int, settings: LogSettings = SMALL, records: int = 2) -> tuple[HotLog, list[bytes]]:
    """A log of `count` batches of `records` records each, and the bytes of each batch as stored."""
    log, content = open_log(path, settings=settings), []
    for number in range(count):
        batch = batch_of(records, value=b"%d" % number, timestamps=[START_MS + number * 10 + n for n in range(records)])
        content.append(placed(batch, append(log, batch, epoch=1), 1))
    return log, content
