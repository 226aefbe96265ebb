"""The record batch v2 as bytes: positions of its fields, a header view, validation of a produced batch, a few in-place
writes.

Invariants: a batch has `size` bytes, 61 of them header; its CRC-32C covers [21, size), so assigning base offset and leader
epoch does not change it. Nothing here decodes a record, and `validate` does not modify the batch.

The producer state, not this module, checks that an idempotent producer's sequence continues and that its epoch is the newest.
Source: Kafka's message format 2 (KIP-98, KIP-320, KIP-534), `LogValidator` and `ProduceRequest` of Kafka 4.2.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from typing import NamedTuple

from storage_tiers.errors import (
    CorruptRecord,
    InvalidRecord,
    InvalidTimestamp,
    RecordTooLarge,
    UnsupportedCompression,
)
from storage_tiers.records import codecs as compression
from storage_tiers.records import walker
from storage_tiers.records.checksum import Buffer as Buffer
from storage_tiers.records.checksum import crc32c
from storage_tiers.records.codecs import Codec as Codec
from storage_tiers.types import NO_PRODUCER_ID, NO_TIMESTAMP

BASE_OFFSET = 0
BATCH_LENGTH = 8
LEADER_EPOCH = 12
MAGIC = 16
CRC = 17
ATTRIBUTES = 21
LAST_OFFSET_DELTA = 23
BASE_TIMESTAMP = 27
MAX_TIMESTAMP = 35
PRODUCER_ID = 43
PRODUCER_EPOCH = 51
BASE_SEQUENCE = 53
RECORDS_COUNT = 57
HEADER_BYTES = 61
#: Bytes that `batchLength` does not count: base offset and the length itself.
LENGTH_OVERHEAD = 12

CODEC_MASK = 0x07
TIMESTAMP_TYPE_MASK = 0x08
TRANSACTIONAL_MASK = 0x10
CONTROL_MASK = 0x20
#: The base timestamp is the delete horizon of a compacted batch (KIP-534).
DELETE_HORIZON_MASK = 0x40

#: Attribute bits that a client may set.
_CLIENT_MASK = CODEC_MASK | TRANSACTIONAL_MASK

#: The only format: 0 and 1 (before Kafka 0.11) are refused, as by Kafka 4.
CURRENT_MAGIC = 2
#: Sequence of a batch that is not idempotent.
NO_SEQUENCE = -1

# Position of an LZ4 frame's flags, and the flag of independent blocks.
_LZ4_FLAGS = 4
_LZ4_INDEPENDENT = 0x20

_INT32_MAX = (1 << 31) - 1
_INT64_MAX = (1 << 63) - 1
_INT64_MIN = -(1 << 63)

_HEADER = struct.Struct(">qiibIhiqqqhii")
_unpack_header = _HEADER.unpack_from
# BatchHeader(...) and _replace would cost four times as much, for every produced batch.
_new_header = tuple.__new__
_INT64 = struct.Struct(">q")
_INT32 = struct.Struct(">i")


_CODECS = tuple(Codec)
# Reading a member of an enum's class costs a tenth of a microsecond in Python 3.11.
_UNCOMPRESSED = int(Codec.NONE)
ALL_CODECS = frozenset(Codec)


class BatchHeader(NamedTuple):
    """The 61 bytes before a batch's records. `size` is the whole batch in bytes; timestamps are in ms.

    `lowest_timestamp` and `highest_timestamp` come from the records themselves: None until `validate` has walked them.
    """

    base_offset: int
    size: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # Kafka's name, over tuple's method
    lowest_timestamp: int | None = None
    highest_timestamp: int | None = None

    @property
    def codec(self) -> Codec:
        """The compression codec. UnsupportedCompression for numbers that no version of Kafka defines."""
        number = self.attributes & CODEC_MASK
        if number >= len(_CODECS):
            raise UnsupportedCompression(f"codec {number} does not exist; use none, gzip, snappy, lz4 or zstd")
        return _CODECS[number]

    @property
    def log_append_time(self) -> bool:
        """Whether every record's timestamp is `max_timestamp`, set by the leader."""
        return bool(self.attributes & TIMESTAMP_TYPE_MASK)

    @property
    def transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_MASK)

    @property
    def control(self) -> bool:
        return bool(self.attributes & CONTROL_MASK)

    @property
    def delete_horizon(self) -> bool:
        return bool(self.attributes & DELETE_HORIZON_MASK)

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The last record's sequence, NO_SEQUENCE if the batch has none. Sequences wrap from 2^31 - 1 to 0."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & _INT32_MAX

    @property
    def wrong_max_timestamp(self) -> bool:
        """Whether the header's max timestamp differs from the records'. Kafka corrects it, see `stamp_max_timestamp`."""
        return self.highest_timestamp is not None and self.highest_timestamp != self.max_timestamp


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header of the batch at `position`; the batch itself may reach beyond the buffer.

    CorruptRecord if fewer than 61 bytes are left or the length is impossible for a batch.
    """
    if len(buffer) - position < HEADER_BYTES or position < 0:
        raise CorruptRecord(f"a record batch has {HEADER_BYTES} bytes of header; {len(buffer) - position} are left")
    fields = _unpack_header(buffer, position)
    length = fields[1]
    if length < HEADER_BYTES - LENGTH_OVERHEAD:
        raise CorruptRecord(f"the record batch at byte {position} says that {length} bytes follow its length field")
    return _new_header(BatchHeader, (fields[0], length + LENGTH_OVERHEAD, *fields[2:], None, None))


def headers(buffer: Buffer, start: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each whole batch in [start, end); stops before a partial one.

    CorruptRecord at a length that is impossible for a batch.
    """
    end = len(buffer) if end is None else end
    while end - start >= HEADER_BYTES:
        header = read_header(buffer, start)
        if header.size > end - start:
            return
        yield start, header
        start += header.size


def check_crc(batch: Buffer, header: BatchHeader) -> None:
    """CorruptRecord if the bytes [21, size) of the batch do not match the CRC-32C in its header."""
    actual = crc32c(memoryview(batch)[ATTRIBUTES : header.size])
    if actual != header.crc:
        raise CorruptRecord(
            f"CRC-32C of the record batch is {actual:#010x}, its header says {header.crc:#010x}: damaged in transit"
        )


def set_crc(batch: bytearray | memoryview) -> None:
    """Writes the CRC-32C of a whole batch into its header."""
    struct.pack_into(">I", batch, CRC, crc32c(memoryview(batch)[ATTRIBUTES:]))


def validate(
    batch: Buffer,
    *,
    max_bytes: int,
    compacted: bool = False,
    deep: bool = True,
    codecs: Collection[int] = ALL_CODECS,
    max_decompressed: int | None = None,
) -> BatchHeader:
    """Validates a client's batch: exactly one batch, with everything that Kafka 4 checks. Returns its header.

    `max_bytes` is `max.message.bytes`; `compacted` requires keys; without `deep` the records are not checked (KRaft's and our
    own internal batches, or `tidelog.record.validation=header`). A compressed batch is inflated up to `max_decompressed` bytes
    (default: `codecs.inflation_bound`). Refuses three things that Kafka repairs or ignores: offset deltas out of order,
    reserved attributes, a log append time set by the client. Raises CorruptRecord, InvalidRecord, InvalidTimestamp,
    RecordTooLarge or UnsupportedCompression.
    """
    header = _one_batch(batch)
    if header.size > max_bytes:
        raise RecordTooLarge(
            f"the record batch has {header.size} bytes, max.message.bytes is {max_bytes}: send smaller batches"
        )
    check_crc(batch, header)
    _check_client_header(header)
    codec = header.attributes & CODEC_MASK
    if codec not in codecs:
        raise UnsupportedCompression(f"codec {header.codec.name.lower()} is not allowed here; use another")
    if not deep:
        return header
    payload = memoryview(batch)[HEADER_BYTES:] if codec == _UNCOMPRESSED else _inflate(batch, header, max_decompressed)
    return _check_records(payload, header, compacted)


def plain_header(
    batch: memoryview, compacted: bool, now_ms: int, before_max_ms: int, after_max_ms: int
) -> BatchHeader | None:
    """The result of `validate` and `check_timestamps` in a third of their time, for the common batch: uncompressed, nothing to
    refuse or to correct. None for every other batch. The caller checks sizes.
    """
    fields = walker.plain_batch(batch, batch, not compacted, now_ms, before_max_ms, after_max_ms)
    return None if fields is None else _new_header(BatchHeader, fields)


def _one_batch(batch: Buffer) -> BatchHeader:
    size = len(batch)
    if size > MAGIC and batch[MAGIC] != CURRENT_MAGIC:
        if batch[MAGIC] < CURRENT_MAGIC:
            raise InvalidRecord(
                f"message format {batch[MAGIC]} is no longer accepted: use a client of Kafka 0.11 or later"
            )
        raise CorruptRecord(f"message format {batch[MAGIC]} does not exist")
    header = read_header(batch)
    if header.size > size:
        raise CorruptRecord(f"the record batch says it has {header.size} bytes, {size} arrived")
    if header.size < size:
        raise InvalidRecord(f"{size - header.size} bytes follow the record batch: send one batch per partition")
    return header


def _check_client_header(header: BatchHeader) -> None:
    if header.attributes & ~_CLIENT_MASK:
        _refuse_attributes(header)
    if header.base_offset != 0:
        raise InvalidRecord(f"the base offset of a new batch is 0, not {header.base_offset}")
    if header.count <= 0 or header.last_offset_delta != header.count - 1:
        raise InvalidRecord(
            f"the batch says it has {header.count} records and a last offset delta of {header.last_offset_delta}"
        )
    if header.producer_id != NO_PRODUCER_ID or header.transactional:
        _check_producer(header)


def _refuse_attributes(header: BatchHeader) -> None:
    if header.control:
        raise InvalidRecord("clients may not write control batches")
    if header.log_append_time:
        raise InvalidTimestamp("only the broker sets the timestamp type to log append time")
    raise InvalidRecord(f"attributes {header.attributes & 0xFFFF:#06x} hold bits that clients may not set")


def _check_producer(header: BatchHeader) -> None:
    if header.producer_id == NO_PRODUCER_ID:
        raise InvalidRecord("a transactional batch needs a producer id")
    if header.producer_id < 0:
        raise InvalidRecord(f"producer id {header.producer_id} does not exist")
    if header.producer_epoch < 0 or header.base_sequence < 0:
        raise InvalidRecord(
            f"producer {header.producer_id} sent epoch {header.producer_epoch} and sequence {header.base_sequence}; "
            "an idempotent batch needs both"
        )


def _inflate(batch: Buffer, header: BatchHeader, max_decompressed: int | None) -> memoryview:
    try:
        payload = records_payload(batch, header, max_decompressed)
    except CorruptRecord as error:  # the CRC matches, so the client built it this way: a retry would not help
        raise InvalidRecord(str(error)) from None
    if header.attributes & CODEC_MASK == Codec.LZ4 and not batch[HEADER_BYTES + _LZ4_FLAGS] & _LZ4_INDEPENDENT:
        raise InvalidRecord("LZ4 frames must have independent blocks: Java's clients read no others")
    return payload


def _check_records(payload: memoryview, header: BatchHeader, compacted: bool) -> BatchHeader:
    fault, index, lowest, highest, _ = walker.check_records(payload, header.count, not compacted)
    if fault:
        raise InvalidRecord(f"record {index} of {header.count} in the batch: {walker.RECORD_FAULTS[fault]}")
    lowest += header.base_timestamp
    highest += header.base_timestamp
    if lowest < _INT64_MIN or highest > _INT64_MAX:
        raise InvalidTimestamp(f"timestamps from {lowest} to {highest} do not fit 64 bits")
    # Kafka's maximum starts at NO_TIMESTAMP: lower timestamps do not lower it.
    bounds = (lowest, highest if highest > NO_TIMESTAMP else NO_TIMESTAMP)
    return _new_header(BatchHeader, header[:-2] + bounds)


def records_payload(batch: Buffer, header: BatchHeader, max_decompressed: int | None = None) -> memoryview:
    """The records of one batch, inflated if it is compressed, else a view of its bytes. Raises CorruptRecord, RecordTooLarge or
    UnsupportedCompression."""
    payload = memoryview(batch)[HEADER_BYTES : header.size]
    if header.attributes & CODEC_MASK == _UNCOMPRESSED:
        return payload
    if max_decompressed is None:
        max_decompressed = compression.inflation_bound(header.size)
    return compression.decompress(header.codec, payload, max_bytes=max_decompressed)


def check_timestamps(header: BatchHeader, *, now_ms: int, before_max_ms: int, after_max_ms: int) -> None:
    """InvalidTimestamp if a record's timestamp is more than `before_max_ms` before or `after_max_ms` after `now_ms`.

    For topics with `message.timestamp.type=CreateTime`; the bounds are `message.timestamp.before.max.ms` and
    `message.timestamp.after.max.ms`. NO_TIMESTAMP passes. Uses the header's timestamps if the records were not walked.
    """
    lowest = header.base_timestamp if header.lowest_timestamp is None else header.lowest_timestamp
    highest = header.max_timestamp if header.highest_timestamp is None else header.highest_timestamp
    for timestamp in (lowest, highest):
        if timestamp != NO_TIMESTAMP and not -before_max_ms <= timestamp - now_ms <= after_max_ms:
            raise InvalidTimestamp(
                f"timestamp {timestamp} is out of range: allowed is [{now_ms - before_max_ms}, {now_ms + after_max_ms}]"
            )


def assign(batch: bytearray | memoryview, position: int = 0, *, base_offset: int, leader_epoch: int) -> None:
    """Writes base offset and leader epoch into the header at `position`. The CRC covers neither."""
    _INT64.pack_into(batch, position + BASE_OFFSET, base_offset)
    _INT32.pack_into(batch, position + LEADER_EPOCH, leader_epoch)


def stamp_log_append_time(batch: bytearray | memoryview, now_ms: int) -> None:
    """Makes `now_ms` every record's timestamp (timestamp type and max timestamp), and updates the CRC."""
    _stamp(batch, now_ms, TIMESTAMP_TYPE_MASK)


def stamp_max_timestamp(batch: bytearray | memoryview, max_timestamp: int) -> None:
    """Corrects the max timestamp of a batch with create time, and its CRC, as Kafka does if the client's is wrong."""
    _stamp(batch, max_timestamp, 0)


def _stamp(batch: bytearray | memoryview, max_timestamp: int, timestamp_type: int) -> None:
    size = read_header(batch).size
    if size != len(batch):
        raise CorruptRecord(f"the record batch says it has {size} bytes, not {len(batch)}")
    batch[ATTRIBUTES + 1] = batch[ATTRIBUTES + 1] & ~TIMESTAMP_TYPE_MASK | timestamp_type
    _INT64.pack_into(batch, MAX_TIMESTAMP, max_timestamp)
    set_crc(batch)
