"""The plain decoder: records as Python values, one by one, slow and obviously correct.

It serves tools, tests and small reads, and is the oracle of the column decoder. Invariants: offsets rise; a batch passes its
CRC before any of its records is returned (unless `verify` is off); records of the transactions in `aborted`, and markers, are
never returned.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from storage_tiers.errors import CorruptRecord, UnsupportedMessageFormat
from storage_tiers.records.batch import (
    CURRENT_MAGIC,
    BatchHeader,
    Buffer,
    check_crc,
    headers,
    read_header,
    records_payload,
)
from storage_tiers.records.builder import ControlKind
from storage_tiers.records.varint import decode_varint, decode_varlong
from storage_tiers.types import AbortedTransaction

CREATE_TIME = 0
LOG_APPEND_TIME = 1

_CONTROL_KEY = struct.Struct(">hh")
_END_TRANSACTION = struct.Struct(">hi")
_INT64_MAX = (1 << 63) - 1
_INT64_MIN = -(1 << 63)


class Record(NamedTuple):
    """`timestamp` is in ms since 1970, set by the producer (CREATE_TIME) or the leader (LOG_APPEND_TIME)."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    leader_epoch: int


class ControlRecord(NamedTuple):
    """The marker that ends a transaction."""

    kind: ControlKind
    coordinator_epoch: int


def decode_batch(batch: Buffer, *, max_bytes: int | None = None, verify: bool = True) -> list[Record]:
    """The records of one batch, none for a control batch. CorruptRecord, UnsupportedMessageFormat, UnsupportedCompression;
    RecordTooLarge if it inflates beyond `max_bytes` (default: `codecs.inflation_bound`)."""
    header = whole_header(batch, verify=verify)
    return [] if header.control else list(_records(batch, header, max_bytes))


def decode_control(batch: Buffer, *, verify: bool = True) -> ControlRecord | None:
    """The marker in a control batch; None for control records that end no transaction (KRaft's own), and for a batch that
    compaction has emptied. CorruptRecord if the batch is not a valid control batch."""
    header = whole_header(batch, verify=verify)
    if not header.control:
        raise CorruptRecord(f"the batch at offset {header.base_offset} is not a control batch")
    if header.count == 0:
        return None
    record = next(_records(batch, header, None), None)
    if record is None or record.key is None or len(record.key) < _CONTROL_KEY.size:
        raise CorruptRecord(f"the control batch at offset {header.base_offset} has no control record")
    _, kind = _CONTROL_KEY.unpack_from(record.key)
    if kind not in (ControlKind.ABORT, ControlKind.COMMIT):
        return None
    if record.value is None or len(record.value) < _END_TRANSACTION.size:
        raise CorruptRecord(f"the transaction marker at offset {header.base_offset} has no coordinator epoch")
    return ControlRecord(ControlKind(kind), _END_TRANSACTION.unpack_from(record.value)[1])


def decode(
    buffer: Buffer,
    *,
    start_offset: int = 0,
    end_offset: int | None = None,
    aborted: Sequence[AbortedTransaction] = (),
    max_bytes: int | None = None,
    verify: bool = True,
) -> Iterator[Record]:
    """The records with offsets in [start_offset, end_offset) of the whole batches of `buffer`, without markers.

    `aborted` are the aborted transactions that overlap the range. Their records are omitted, as by a consumer under
    `read_committed` (Kafka: CompletedFetch). The caller bounds the buffer by the last stable offset.
    """
    view = memoryview(buffer)
    waiting = sorted(aborted, key=lambda transaction: transaction.first_offset)
    aborting: set[int] = set()
    for position, header in headers(view):
        _check_offsets(header)
        while waiting and waiting[0].first_offset <= header.last_offset:
            aborting.add(waiting.pop(0).producer_id)
        batch = view[position : position + header.size]
        if header.control:
            if header.producer_id in aborting and _aborts(batch, verify):
                aborting.discard(header.producer_id)
            continue
        if header.last_offset < start_offset or (header.transactional and header.producer_id in aborting):
            continue
        if end_offset is not None and header.base_offset >= end_offset:
            return
        for record in decode_batch(batch, max_bytes=max_bytes, verify=verify):
            if start_offset <= record.offset and (end_offset is None or record.offset < end_offset):
                yield record


def _aborts(batch: memoryview, verify: bool) -> bool:
    control = decode_control(batch, verify=verify)
    return control is not None and control.kind is ControlKind.ABORT


def whole_header(batch: Buffer, *, verify: bool = True) -> BatchHeader:
    """The validated header of exactly one batch. Raises CorruptRecord or UnsupportedMessageFormat."""
    header = read_header(batch)
    _check_offsets(header)
    if header.magic != CURRENT_MAGIC:
        raise UnsupportedMessageFormat(f"message format {header.magic} is not read here, only {CURRENT_MAGIC}")
    if header.size != len(batch):
        raise CorruptRecord(f"the record batch says it has {header.size} bytes, not {len(batch)}")
    if header.count < 0:
        raise CorruptRecord(f"the batch at offset {header.base_offset} says it has {header.count} records")
    if verify:
        check_crc(batch, header)
    return header


def _check_offsets(header: BatchHeader) -> None:
    if header.base_offset < 0 or header.last_offset_delta < 0 or header.last_offset >= _INT64_MAX:
        raise CorruptRecord(f"a batch from offset {header.base_offset} to {header.last_offset} is impossible")


def _records(batch: Buffer, header: BatchHeader, max_bytes: int | None) -> Iterator[Record]:
    payload = records_payload(batch, header, max_bytes)
    position = 0
    lowest = header.base_offset
    for _ in range(header.count):
        length, start = decode_varint(payload, position)
        position = start + length
        if length < 1 or position > len(payload):
            raise CorruptRecord(f"a record of {length} bytes does not fit the batch at offset {header.base_offset}")
        record = _record(payload[start:position], header)
        if not lowest <= record.offset <= header.last_offset:
            raise CorruptRecord(f"offset {record.offset} of a record is not in [{lowest}, {header.last_offset}]")
        yield record
        lowest = record.offset + 1
    if position != len(payload):
        raise CorruptRecord(f"{len(payload) - position} bytes follow the records at offset {header.base_offset}")


def _record(body: memoryview, header: BatchHeader) -> Record:
    timestamp_delta, position = decode_varlong(body, 1)
    timestamp = header.base_timestamp + timestamp_delta
    if not _INT64_MIN <= timestamp <= _INT64_MAX:
        raise CorruptRecord(f"a timestamp of the batch at offset {header.base_offset} does not fit 64 bits")
    offset_delta, position = decode_varint(body, position)
    key, position = _field(body, position)
    value, position = _field(body, position)
    count, position = decode_varint(body, position)
    if not 0 <= count <= len(body):
        raise CorruptRecord(f"a record of the batch at offset {header.base_offset} says it has {count} headers")
    named = []
    for _ in range(count):
        name, position = _field(body, position)
        if name is None:
            raise CorruptRecord(f"a record of the batch at offset {header.base_offset} has a header without a name")
        content, position = _field(body, position)
        named.append((name.decode(errors="replace"), content))
    if position != len(body):
        raise CorruptRecord(f"{len(body) - position} bytes follow the fields of a record at {header.base_offset}")
    return Record(
        header.base_offset + offset_delta,
        header.max_timestamp if header.log_append_time else timestamp,
        LOG_APPEND_TIME if header.log_append_time else CREATE_TIME,
        key,
        value,
        tuple(named),
        header.leader_epoch,
    )


def _field(body: memoryview, position: int) -> tuple[bytes | None, int]:
    length, position = decode_varint(body, position)
    if length == -1:
        return None, position
    if not 0 <= length <= len(body) - position:
        raise CorruptRecord(f"a field of {length} bytes does not fit its record")
    return bytes(body[position : position + length]), position + length
