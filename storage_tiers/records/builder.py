"""Builds record batches: for the SDK's producers and gRPC's record-level calls, internal topics, transaction markers,
compaction, repairs and tests.

Without compression the bytes equal those of Java's producer. Batches that arrive from clients are not rebuilt: they keep their
bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from storage_tiers.records import batch as layout
from storage_tiers.records.batch import Codec
from storage_tiers.records.checksum import crc32c
from storage_tiers.records.codecs import compress
from storage_tiers.records.record_writer import RecordWriter
from storage_tiers.records.varint import encode
from storage_tiers.types import NO_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP

Header = tuple[str, bytes | None]

_NULL = encode(-1)
_AFTER_CRC = struct.Struct(">hiqqqhii")
_BEFORE_CRC = struct.Struct(">qiibI")
_CONTROL_KEY = struct.Struct(">hh")
_END_TRANSACTION = struct.Struct(">hi")


class NewRecord(NamedTuple):
    """A record without an offset. `timestamp` in ms since the epoch."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()
    timestamp: int = NO_TIMESTAMP


class ControlKind(IntEnum):
    """Kinds of transaction marker (Kafka: ControlRecordType)."""

    ABORT = 0
    COMMIT = 1


def build_batch(
    records: Sequence[NewRecord],
    *,
    base_offset: int = 0,
    leader_epoch: int = NO_EPOCH,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = layout.NO_SEQUENCE,
    transactional: bool = False,
    log_append_time: int | None = None,
    offset_deltas: Sequence[int] | None = None,
    last_offset_delta: int | None = None,
) -> bytes:
    """One batch of at least one record. `log_append_time` (ms) becomes every record's timestamp.

    `offset_deltas` (rising) and `last_offset_delta` make a batch with gaps, as compaction leaves one.
    """
    if not records:
        raise ValueError("a batch has at least one record")
    deltas = range(len(records)) if offset_deltas is None else offset_deltas
    base_timestamp = records[0].timestamp
    payload = b"".join(
        encode_record(record, delta, record.timestamp - base_timestamp)
        for record, delta in zip(records, deltas, strict=True)
    )
    attributes = codec | (layout.TRANSACTIONAL_MASK if transactional else 0)
    max_timestamp = max(record.timestamp for record in records)
    if log_append_time is not None:
        attributes |= layout.TIMESTAMP_TYPE_MASK
        max_timestamp = log_append_time
    return assemble(
        layout.BatchHeader(
            base_offset,
            0,
            leader_epoch,
            layout.CURRENT_MAGIC,
            0,
            attributes,
            deltas[-1] if last_offset_delta is None else last_offset_delta,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            len(records),
        ),
        compress(codec, payload, level=level),
    )


def build_written_batch(
    records: RecordWriter,
    *,
    codec: Codec = Codec.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = layout.NO_SEQUENCE,
    transactional: bool = False,
) -> bytes:
    """One batch of a writer's records (at least one) at base offset 0."""
    if not records.count:
        raise ValueError("a batch has at least one record")
    header = layout.BatchHeader(
        0,
        0,
        NO_EPOCH,
        layout.CURRENT_MAGIC,
        0,
        codec | (layout.TRANSACTIONAL_MASK if transactional else 0),
        records.count - 1,
        records.base_timestamp,
        records.max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        records.count,
    )
    return assemble(header, compress(codec, records.payload()))


def build_empty_batch(base: int, end: int, *, leader_epoch: int) -> bytes:
    """A batch over offsets [base, end), at most 2^31 of them, without records, timestamp or producer, as compaction leaves
    one."""
    times_and_producer = (NO_TIMESTAMP, NO_TIMESTAMP, NO_PRODUCER_ID, -1, layout.NO_SEQUENCE)
    header = layout.BatchHeader(
        base, 0, leader_epoch, layout.CURRENT_MAGIC, 0, 0, end - base - 1, *times_and_producer, 0
    )
    return assemble(header, b"")


def build_control_batch(
    kind: ControlKind,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = NO_EPOCH,
) -> bytes:
    """The marker that ends a transaction in one partition (KIP-98): one record, uncompressed."""
    key = _CONTROL_KEY.pack(0, kind)
    value = _END_TRANSACTION.pack(0, coordinator_epoch)
    attributes = layout.TRANSACTIONAL_MASK | layout.CONTROL_MASK
    return assemble(
        layout.BatchHeader(
            base_offset,
            0,
            leader_epoch,
            layout.CURRENT_MAGIC,
            0,
            attributes,
            0,
            timestamp,
            timestamp,
            producer_id,
            producer_epoch,
            layout.NO_SEQUENCE,
            1,
        ),
        encode_record(NewRecord(key, value), 0, 0),
    )


def encode_record(record: NewRecord, offset_delta: int, timestamp_delta: int) -> bytes:
    """One record as an uncompressed batch holds it."""
    body = bytearray(1)
    body += encode(timestamp_delta)
    body += encode(offset_delta)
    body += _sized(record.key)
    body += _sized(record.value)
    body += encode(len(record.headers))
    for name, value in record.headers:
        body += _sized(name.encode())
        body += _sized(value)
    return encode(len(body)) + body


def _sized(field: bytes | None) -> bytes:
    return _NULL if field is None else encode(len(field)) + field


def assemble(header: layout.BatchHeader, payload: bytes) -> bytes:
    """A batch of this header, whose size and CRC are ignored, and `payload`, already compressed with the header's codec."""
    covered = (
        _AFTER_CRC.pack(
            header.attributes,
            header.last_offset_delta,
            header.base_timestamp,
            header.max_timestamp,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.count,
        )
        + payload
    )
    length = layout.ATTRIBUTES + len(covered) - layout.LENGTH_OVERHEAD
    before = _BEFORE_CRC.pack(header.base_offset, length, header.leader_epoch, header.magic, crc32c(covered))
    return before + covered
