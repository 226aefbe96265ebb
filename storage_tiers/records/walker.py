"""The native walker: checks the records inside a batch at memory speed, without copying any of them. `batch_walk` walks
from batch to batch.

Cython in pure-Python mode: `hatch_build.py` compiles this file; uncompiled it gives the same results slowly, and its tests
compare the two. It checks framing only and trusts no input: every index is compared with the end of the buffer before it is
read, and no arithmetic can leave 64 bits. Callers pass buffers of bytes (format `B`) that do not change during a call, because
the loops release the GIL.

Timestamps and CRCs are checked by `plain_batch` only. UTF-8 is never checked, and nothing is decompressed.
"""

from __future__ import annotations

try:
    import cython
except ImportError:  # installed without a compiler and without Cython: the same loops as plain Python
    from storage_tiers.records import plain_cython as cython

from storage_tiers.errors import CorruptRecord
from storage_tiers.records.checksum import crc32c

# Copies of the codes below for the C code, because importers cannot see a declared name.
_SOUND = cython.declare(cython.int, 0)
_BAD_LENGTH = cython.declare(cython.int, 1)
_BAD_TIMESTAMP_DELTA = cython.declare(cython.int, 2)
_BAD_OFFSET_DELTA = cython.declare(cython.int, 3)
_BAD_KEY = cython.declare(cython.int, 4)
_NULL_KEY = cython.declare(cython.int, 5)
_BAD_VALUE = cython.declare(cython.int, 6)
_BAD_HEADERS = cython.declare(cython.int, 7)
_LENGTH_MISMATCH = cython.declare(cython.int, 8)
_TOO_FEW_BYTES = cython.declare(cython.int, 9)
_TOO_MANY_BYTES = cython.declare(cython.int, 10)
# Bytes of a batch before its records, and bytes that `batchLength` does not count.
_HEADER = cython.declare(cython.Py_ssize_t, 61)
_OVERHEAD = cython.declare(cython.Py_ssize_t, 12)
# The attribute of a batch within a transaction.
_TRANSACTIONAL = cython.declare(cython.longlong, 0x10)
# Literals beyond 32 bits would be Python objects.
_TWO_TO_31 = cython.declare(cython.longlong, 1 << 31)
_TWO_TO_32 = cython.declare(cython.longlong, 1 << 32)
_INT64_MAX = cython.declare(cython.longlong, (1 << 63) - 1)

#: The reasons why a walk over records stops. RECORD_FAULTS has their texts.
SOUND = _SOUND
BAD_LENGTH = _BAD_LENGTH
BAD_TIMESTAMP_DELTA = _BAD_TIMESTAMP_DELTA
BAD_OFFSET_DELTA = _BAD_OFFSET_DELTA
BAD_KEY = _BAD_KEY
NULL_KEY = _NULL_KEY
BAD_VALUE = _BAD_VALUE
BAD_HEADERS = _BAD_HEADERS
LENGTH_MISMATCH = _LENGTH_MISMATCH
TOO_FEW_BYTES = _TOO_FEW_BYTES
TOO_MANY_BYTES = _TOO_MANY_BYTES

RECORD_FAULTS = {
    BAD_LENGTH: "its length does not fit the batch",
    BAD_TIMESTAMP_DELTA: "its timestamp delta is cut short or too wide",
    BAD_OFFSET_DELTA: "its offset delta is not the next one",
    BAD_KEY: "its key does not fit the record",
    NULL_KEY: "it has no key, which a compacted topic needs",
    BAD_VALUE: "its value does not fit the record",
    BAD_HEADERS: "its headers do not fit the record",
    LENGTH_MISMATCH: "its fields end before its declared length",
    TOO_FEW_BYTES: "the batch ends before it",
    TOO_MANY_BYTES: "bytes follow the last record",
}


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _int32(raw: cython.p_const_uchar, at: cython.Py_ssize_t) -> cython.longlong:
    a: cython.longlong = raw[at]
    b: cython.longlong = raw[at + 1]
    c: cython.longlong = raw[at + 2]
    d: cython.longlong = raw[at + 3]
    number: cython.longlong = a << 24 | b << 16 | c << 8 | d
    return number if number < _TWO_TO_31 else number - _TWO_TO_32


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _int16(raw: cython.p_const_uchar, at: cython.Py_ssize_t) -> cython.longlong:
    a: cython.longlong = raw[at]
    b: cython.longlong = raw[at + 1]
    number: cython.longlong = a << 8 | b
    return number if number < 0x8000 else number - 0x10000


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _int64(raw: cython.p_const_uchar, at: cython.Py_ssize_t) -> cython.longlong:
    high: cython.longlong = _int32(raw, at)
    low: cython.longlong = _int32(raw, at + 4)
    return high * _TWO_TO_32 + (low if low >= 0 else low + _TWO_TO_32)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _varint(raw: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.longlong:
    """The 32-bit varint at `at`, still zigzag-encoded, with its width in the low three bits; -1 if there is none."""
    if at >= end:
        return -1
    byte: cython.longlong = raw[at]
    if byte < 0x80:
        return byte << 3 | 1
    number: cython.longlong = byte & 0x7F
    width: cython.longlong
    for width in range(1, 5):
        if at + width >= end:
            return -1
        byte = raw[at + width]
        number |= (byte & 0x7F) << 7 * width
        if byte < 0x80:
            return number << 3 | (width + 1) if number < _TWO_TO_32 else -1
    return -1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _zigzag(packed: cython.longlong) -> cython.longlong:
    number: cython.longlong = packed >> 3
    return (number >> 1) ^ -(number & 1)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _varlong_width(raw: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """The number of bytes of the 64-bit varlong at `at`; 0 if it is cut short or too wide."""
    width: cython.Py_ssize_t
    for width in range(10):
        if at + width >= end:
            return 0
        if raw[at + width] < 0x80:
            return width + 1 if width < 9 or raw[at + width] <= 1 else 0
    return 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _varlong(raw: cython.p_const_uchar, at: cython.Py_ssize_t, width: cython.Py_ssize_t) -> cython.longlong:
    """The 64-bit varlong of `width` bytes at `at`."""
    number: cython.ulonglong = 0
    group: cython.ulonglong
    index: cython.Py_ssize_t
    for index in range(width):
        group = raw[at + index] & 0x7F
        number |= group << 7 * index
    half: cython.longlong = number >> 1
    odd: cython.longlong = number & 1
    return half ^ -odd


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _skip_bytes(
    raw: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, lowest: cython.int
) -> cython.Py_ssize_t:
    """The position after a length and its bytes; -1 if they do not fit. `lowest` is -1 if null is allowed, else 0."""
    packed: cython.longlong = _varint(raw, at, end)
    if packed < 0:
        return -1
    length: cython.longlong = _zigzag(packed)
    at += packed & 7
    if length < lowest or length > end - at:
        return -1
    return at + length if length > 0 else at


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _skip_headers(raw: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """The position after a record's headers; -1 if they do not fit."""
    packed: cython.longlong = _varint(raw, at, end)
    if packed < 0:
        return -1
    left: cython.longlong = _zigzag(packed)
    at += packed & 7
    if left < 0 or left > end - at:
        return -1
    while left > 0:
        at = _skip_bytes(raw, at, end, 0)
        if at < 0:
            return -1
        at = _skip_bytes(raw, at, end, -1)
        if at < 0:
            return -1
        left -= 1
    return at


@cython.cclass
class _RecordCursor:
    """Position of a walk over records. The current record's key, value and headers are in [fields, end)."""

    fields: cython.Py_ssize_t
    end: cython.Py_ssize_t
    timestamp_delta: cython.longlong
    offset_delta: cython.longlong

    def __init__(self) -> None:
        self.fields = self.end = 0
        self.timestamp_delta = self.offset_delta = 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _next_record(cursor: _RecordCursor, raw: cython.p_const_uchar, total: cython.Py_ssize_t) -> cython.int:
    """Reads the start of the record at `cursor.end`, from its length to its offset delta."""
    at: cython.Py_ssize_t = cursor.end
    packed: cython.longlong = _varint(raw, at, total)
    if packed < 0:
        return _TOO_FEW_BYTES if at >= total else _BAD_LENGTH
    length: cython.longlong = _zigzag(packed)
    at += packed & 7
    if length < 1 or length > total - at:
        return _BAD_LENGTH
    end: cython.Py_ssize_t = at + length
    at += 1  # the record's attributes: Kafka uses none of their bits
    width: cython.Py_ssize_t = _varlong_width(raw, at, end)
    if width == 0:
        return _BAD_TIMESTAMP_DELTA
    cursor.timestamp_delta = _varlong(raw, at, width)
    at += width
    packed = _varint(raw, at, end)
    if packed < 0:
        return _BAD_OFFSET_DELTA
    cursor.offset_delta = _zigzag(packed)
    cursor.fields = at + (packed & 7)
    cursor.end = end
    return _SOUND


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _fields_fault(
    raw: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, null_keys: cython.bint
) -> cython.int:
    """Checks key, value and headers, which must fill [at, end)."""
    if not null_keys and _varint(raw, at, end) >> 3 == 1:  # zigzag of -1
        return _NULL_KEY
    at = _skip_bytes(raw, at, end, -1)
    if at < 0:
        return _BAD_KEY
    at = _skip_bytes(raw, at, end, -1)
    if at < 0:
        return _BAD_VALUE
    at = _skip_headers(raw, at, end)
    if at < 0:
        return _BAD_HEADERS
    return _SOUND if at == end else _LENGTH_MISMATCH


@cython.cfunc
def _pointer(buffer: cython.const[cython.uchar][::1]) -> cython.p_const_uchar:
    if cython.compiled:
        return cython.address(buffer[0])
    else:
        return buffer


def check_records(
    payload: cython.const[cython.uchar][::1],
    count: cython.longlong,
    null_keys: cython.bint = True,
    last_offset_delta: cython.longlong = -1,
) -> tuple[int, int, int, int, int]:
    """Walks all records of an uncompressed payload; returns (fault, index, lowest, highest, highest_at).

    `fault` is SOUND or a key of RECORD_FAULTS, `index` the index of the record at fault; `lowest` and `highest` are timestamp
    deltas (ms, relative to the base timestamp), `highest_at` the offset delta of the first record that has `highest`. Offset
    deltas must be 0, 1, 2 ... With a `last_offset_delta` (a compacted batch) they must rise and not exceed it.
    """
    raw: cython.p_const_uchar = _pointer(payload)
    total: cython.Py_ssize_t = len(payload)
    cursor: _RecordCursor = _RecordCursor()
    dense: cython.bint = last_offset_delta < 0
    fault: cython.int = _SOUND
    index: cython.longlong = 0
    previous: cython.longlong = -1
    lowest: cython.longlong = 0
    highest: cython.longlong = 0
    highest_at: cython.longlong = 0
    with cython.nogil:
        while index < count:
            fault = _next_record(cursor, raw, total)
            if fault != _SOUND:
                break
            if cursor.offset_delta != index if dense else not previous < cursor.offset_delta <= last_offset_delta:
                fault = _BAD_OFFSET_DELTA
                break
            previous = cursor.offset_delta
            fault = _fields_fault(raw, cursor.fields, cursor.end, null_keys)
            if fault != _SOUND:
                break
            if index == 0 or cursor.timestamp_delta < lowest:
                lowest = cursor.timestamp_delta
            if index == 0 or cursor.timestamp_delta > highest:
                highest = cursor.timestamp_delta
                highest_at = cursor.offset_delta
            index += 1
        if fault == _SOUND and cursor.end != total:
            fault = _TOO_MANY_BYTES
    return fault, index, lowest, highest, highest_at


def plain_batch(
    whole: object,
    batch: cython.const[cython.uchar][::1],
    null_keys: cython.bint,
    now_ms: cython.longlong,
    before_max_ms: cython.longlong,
    after_max_ms: cython.longlong,
) -> tuple[int, int, int, int, int, int, int, int, int, int, int, int, int, int, int] | None:
    """The 13 header fields of a client's batch that can be stored as it is, and the lowest and highest timestamp of its
    records. None for every other batch, which `batch.validate` then refuses, inflates or corrects.

    `whole` and `batch` are the same bytes, once to slice and once to index. They must be exactly one uncompressed batch of
    format 2, whose max timestamp equals its records', with no timestamp before 1970 or beyond the two bounds around `now_ms`.
    `now_ms` and the bounds must not be negative.
    """
    raw: cython.p_const_uchar = _pointer(batch)
    total: cython.Py_ssize_t = len(batch)
    if total <= _HEADER or raw[16] != 2 or _int32(raw, 8) + _OVERHEAD != total:
        return None
    attributes: cython.longlong = raw[22]
    # Any attribute except the transactional one: a codec, or a bit that clients may not set. Or a base offset other than 0.
    if raw[21] or (attributes and attributes != _TRANSACTIONAL) or _int64(raw, 0):
        return None
    count: cython.longlong = _int32(raw, 57)
    delta: cython.longlong = _int32(raw, 23)
    base: cython.longlong = _int64(raw, 27)
    highest: cython.longlong = _int64(raw, 35)
    producer: cython.longlong = _int64(raw, 43)
    epoch: cython.longlong = _int16(raw, 51)
    sequence: cython.longlong = _int32(raw, 53)
    if count <= 0 or delta != count - 1 or base < 0 or highest < 0 or highest - now_ms > after_max_ms:
        return None
    if (producer != -1 or attributes) and (producer < 0 or epoch < 0 or sequence < 0):
        return None
    crc: cython.longlong = _int32(raw, 17) & 0xFFFFFFFF
    if crc32c(whole[21:]) != crc:  # type: ignore[index]
        return None
    lowest: cython.longlong = _sound_timestamps(raw, total, count, null_keys, base, highest)
    if lowest < 0 or now_ms - lowest > before_max_ms:
        return None
    return (
        0,
        total,
        _int32(raw, 12),
        2,
        crc,
        attributes,
        delta,
        base,
        highest,
        producer,
        epoch,
        sequence,
        count,
        lowest,
        highest,
    )


@cython.cfunc
@cython.exceptval(check=False)
def _sound_timestamps(
    raw: cython.p_const_uchar,
    total: cython.Py_ssize_t,
    count: cython.longlong,
    null_keys: cython.bint,
    base: cython.longlong,
    highest: cython.longlong,
) -> cython.longlong:
    """The lowest timestamp of the records; -1 unless they are valid, dense, and their highest timestamp is `highest`."""
    cursor: _RecordCursor = _RecordCursor()
    cursor.end = _HEADER
    lowest: cython.longlong = 0
    most: cython.longlong = 0
    index: cython.longlong = 0
    with cython.nogil:
        while index < count:
            if _next_record(cursor, raw, total) != _SOUND or cursor.offset_delta != index:
                break
            if _fields_fault(raw, cursor.fields, cursor.end, null_keys) != _SOUND:
                break
            if index == 0 or cursor.timestamp_delta < lowest:
                lowest = cursor.timestamp_delta
            if index == 0 or cursor.timestamp_delta > most:
                most = cursor.timestamp_delta
            index += 1
    if index != count or cursor.end != total:
        return -1
    # Compared without a sum that could overflow 64 bits: base is not negative here.
    if most != highest - base or lowest < -base:
        return -1
    return base + lowest


def find_timestamp(
    payload: cython.const[cython.uchar][::1],
    count: cython.longlong,
    base_timestamp: int,
    base_offset: int,
    target: int,
) -> tuple[int, int] | None:
    """(timestamp, offset) of the first record of an uncompressed payload with a timestamp (ms) at or after `target`, or None.

    Reads no further than that record. CorruptRecord if the framing is broken before it.
    """
    if target - base_timestamp > _INT64_MAX:
        return None
    raw: cython.p_const_uchar = _pointer(payload)
    total: cython.Py_ssize_t = len(payload)
    cursor: _RecordCursor = _RecordCursor()
    wanted: cython.longlong = max(target - base_timestamp, -_INT64_MAX - 1)
    fault: cython.int = _SOUND
    index: cython.longlong = 0
    with cython.nogil:
        while index < count:
            fault = _next_record(cursor, raw, total)
            if fault != _SOUND or cursor.timestamp_delta >= wanted:
                break
            index += 1
    if fault != _SOUND:
        raise CorruptRecord(f"record {index} of the batch at offset {base_offset}: {RECORD_FAULTS[fault]}")
    return (base_timestamp + cursor.timestamp_delta, base_offset + cursor.offset_delta) if index < count else None
