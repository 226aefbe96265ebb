"""The column decoder's kernel: decodes records of whole batches into Arrow's buffers without a Python object per record.

It makes two passes over the same bytes. The first checks the framing of every record and plans its row. Once the sizes are
known, the second copies keys, values and headers into buffers of exactly that size. Cython in pure-Python mode, like the
walker: `column_walk.pxd` holds the C types. Uncompiled, this module gives the same results.

Invariants: every index is compared with its buffer's end before use; the faults are the walker's, and are found at the same
record. Columns stay within 32 bits, because an Arrow batch holds less than 2 GiB of records. The loops release the GIL; the
bytes must not change meanwhile.

The walk does not decompress: it stops before a compressed batch, and the caller walks the inflated copy. It does not check that
header names are UTF-8, but counts the names that are not ASCII.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:  # installed without a compiler and without Cython: the same loops as plain Python
    from storage_tiers.records import plain_cython as cython

from storage_tiers.records.checksum import crc32c

if TYPE_CHECKING:
    from storage_tiers.records.column_buffers import BytesColumn, Columns

# Copies of the codes below for the C code, because importers cannot see a name that the .pxd declares. The first ones are the
# walker's.
_SOUND = 0
_BAD_LENGTH = 1
_BAD_TIMESTAMP_DELTA = 2
_BAD_OFFSET_DELTA = 3
_BAD_KEY = 4
_BAD_VALUE = 6
_BAD_HEADERS = 7
_LENGTH_MISMATCH = 8
_TOO_FEW_BYTES = 9
_TOO_MANY_BYTES = 10
_BAD_TIMESTAMP = 11
_END = 20
_FULL = 21
_COMPRESSED = 22
_BAD_BATCH = 23
_SKIPPED = 24
_ROOM = 25

#: The reasons why `decode` stops, besides the walker's faults: a timestamp beyond 64 bits; the end of the buffer or of the
#: wanted offsets; no more room in this Arrow batch; a compressed batch; a batch whose header or CRC-32C cannot be right.
BAD_TIMESTAMP, END, FULL, COMPRESSED, BAD_BATCH = _BAD_TIMESTAMP, _END, _FULL, _COMPRESSED, _BAD_BATCH

# Literals beyond 32 bits would be Python objects.
_HEADER = 61
_OVERHEAD = 12
_TWO_TO_31 = 1 << 31
_TWO_TO_32 = 1 << 32
_INT64_MAX = (1 << 63) - 1
# Largest number of milliseconds that fits 64 bits as microseconds; a record's timestamp may be anything.
_MOST_MS = ((1 << 63) - 1) // 1000


# --- numbers ----------------------------------------------------------------------------------------------------------
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
    if at + 1 < end and raw[at + 1] < 0x80:
        byte = raw[at + 1]
        return (number | byte << 7) << 3 | 2
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


# --- the walk ---------------------------------------------------------------------------------------------------------
class Walk:
    """A walk over one buffer of whole batches; `decode` continues where it stopped."""

    def __init__(
        self,
        buffer: cython.const[cython.uchar][::1],
        start: cython.longlong,
        stop: cython.longlong,
        aborted: cython.const[cython.longlong][::1],
        verify: cython.bint,
    ) -> None:
        """Decodes records with offsets in [start, stop), without markers and aborted transactions. `aborted` holds the
        aborted transactions as triples (producer id, first offset, last offset) in rising order. `verify` checks each
        batch's CRC-32C."""
        self.buffer = buffer
        self.size = len(buffer)
        self.aborted = aborted
        self.aborted_count = len(aborted) // 3
        self.start = start
        self.stop = stop
        self.verify = verify
        self.opened = False
        self.batch = self.batch_end = self.index = 0

    def skip(self) -> None:
        """Skips the batch at which `decode` stopped."""
        self.batch = self.batch_end

    def decode(self, columns: Columns) -> int:
        """Adds records to `columns` until END, FULL, COMPRESSED, BAD_BATCH or a fault of a record, which it returns. Discard
        the columns after a fault. `batch`, `batch_end` and `index` hold the position where it stopped."""
        if self.size == 0:
            return _END
        raw: cython.p_const_uchar = _pointer(self.buffer)
        columns.open()
        stop: cython.int = self.plan(raw, columns)
        while stop == _ROOM:
            columns.more_headers(self.wanted_room)
            stop = self.plan(raw, columns)
        if stop in (_END, _FULL, _COMPRESSED):
            columns.copy(raw)
        return stop

    def plan(self, raw: cython.p_const_uchar, columns: Columns) -> cython.int:
        view = memoryview(self.buffer)
        stop: cython.int
        while True:
            if not self.opened:
                with cython.nogil:
                    stop = _next_batch(self, raw)
                if stop != _SOUND and stop != _COMPRESSED:
                    return stop
                if self.verify and crc32c(view[self.batch + 21 : self.batch_end]) != _crc(raw, self.batch):
                    return _BAD_BATCH
                if stop == _COMPRESSED:
                    return stop
                self.opened = True
            with cython.nogil:
                stop = _plan_batch(self, raw, columns)
            if stop != _SOUND:
                return stop
            self.opened = False
            self.batch = self.batch_end


def _pointer(buffer: cython.const[cython.uchar][::1]) -> cython.p_const_uchar:
    if cython.compiled:
        return cython.address(buffer[0])
    else:
        return buffer


def _crc(raw: cython.p_const_uchar, batch: cython.Py_ssize_t) -> cython.longlong:
    number: cython.longlong = _int32(raw, batch + 17)
    return number if number >= 0 else number + _TWO_TO_32


# --- batches ----------------------------------------------------------------------------------------------------------
def _next_batch(walk: Walk, raw: cython.p_const_uchar) -> cython.int:
    """Moves to the next batch that may hold wanted records and reads its header."""
    stop: cython.int = _open(walk, raw)
    while stop == _SKIPPED:
        walk.batch = walk.batch_end
        stop = _open(walk, raw)
    return stop


def _open(walk: Walk, raw: cython.p_const_uchar) -> cython.int:
    """Reads the header at `walk.batch`: SOUND or COMPRESSED if its records matter, else SKIPPED, END or BAD_BATCH."""
    at: cython.Py_ssize_t = walk.batch
    if walk.size - at < _HEADER:
        return _END
    length: cython.longlong = _int32(raw, at + 8)
    if length < _HEADER - _OVERHEAD:
        return _BAD_BATCH
    if length > walk.size - at - _OVERHEAD:
        return _END
    walk.batch_end = at + _OVERHEAD + length
    base: cython.longlong = _int64(raw, at)
    delta: cython.longlong = _int32(raw, at + 23)
    if base < 0 or delta < 0 or base >= _INT64_MAX - delta:
        return _BAD_BATCH
    attributes: cython.int = raw[at + 22]
    if attributes & 0x20 or base + delta < walk.start:
        return _SKIPPED
    if attributes & 0x10 and _is_aborted(walk, _int64(raw, at + 43), base):
        return _SKIPPED
    if base >= walk.stop:
        return _END
    walk.left = _int32(raw, at + 57)
    if raw[at + 16] != 2 or walk.left < 0:
        return _BAD_BATCH
    walk.at = at + _HEADER
    walk.index = 0
    walk.previous = -1
    walk.base_offset = base
    walk.last_delta = delta
    walk.base_timestamp = _int64(raw, at + 27)
    walk.append_time = _int64(raw, at + 35)
    walk.timestamp_type = 1 if attributes & 0x08 else 0
    return _COMPRESSED if attributes & 0x07 else _SOUND


def _is_aborted(walk: Walk, producer: cython.longlong, offset: cython.longlong) -> cython.bint:
    """Whether the producer's transaction at `offset` was aborted; a producer has one transaction at a time."""
    low: cython.Py_ssize_t = 0
    high: cython.Py_ssize_t = walk.aborted_count
    middle: cython.Py_ssize_t
    while low < high:  # how many triples begin at or before (producer, offset)
        middle = (low + high) // 2
        if walk.aborted[3 * middle] < producer or (
            walk.aborted[3 * middle] == producer and walk.aborted[3 * middle + 1] <= offset
        ):
            low = middle + 1
        else:
            high = middle
    return low > 0 and walk.aborted[3 * low - 3] == producer and offset <= walk.aborted[3 * low - 1]


# --- records ----------------------------------------------------------------------------------------------------------
def _plan_batch(walk: Walk, raw: cython.p_const_uchar, columns: Columns) -> cython.int:
    """Plans the rest of the open batch's records: SOUND at its end, else FULL, ROOM or a fault."""
    stop: cython.int
    while walk.left > 0:
        stop = _plan_record(walk, raw, columns)
        if stop != _SOUND:
            return stop
        walk.left -= 1
        walk.index += 1
    return _SOUND if walk.at == walk.batch_end else _TOO_MANY_BYTES


def _plan_record(walk: Walk, raw: cython.p_const_uchar, columns: Columns) -> cython.int:
    """Checks the record at `walk.at`, plans its row if its offset is wanted, and advances past it. FULL and ROOM change
    nothing."""
    at: cython.Py_ssize_t = walk.at
    packed: cython.longlong = _varint(raw, at, walk.batch_end)
    if packed < 0:
        return _TOO_FEW_BYTES if at >= walk.batch_end else _BAD_LENGTH
    size: cython.longlong = _zigzag(packed)
    at += packed & 7
    if size < 1 or size > walk.batch_end - at:
        return _BAD_LENGTH
    if _is_full(columns, size):
        return _FULL
    end: cython.Py_ssize_t = at + size
    at += 1  # the record's attributes: Kafka uses none of their bits
    delta: cython.longlong
    packed = _varint(raw, at, end)
    if packed >= 0:
        delta = _zigzag(packed)
        at += packed & 7
    else:
        packed = _varlong_width(raw, at, end)
        if packed == 0:
            return _BAD_TIMESTAMP_DELTA
        delta = _varlong(raw, at, packed)
        at += packed
    packed = _varint(raw, at, end)
    offset_delta: cython.longlong = _zigzag(packed)
    at += packed & 7
    if packed < 0 or not walk.previous < offset_delta <= walk.last_delta:
        return _BAD_OFFSET_DELTA
    if walk.base_timestamp > _INT64_MAX - delta if delta > 0 else walk.base_timestamp < -_INT64_MAX - 1 - delta:
        return _BAD_TIMESTAMP
    offset: cython.longlong = walk.base_offset + offset_delta
    timestamp: cython.longlong = walk.append_time if walk.timestamp_type else walk.base_timestamp + delta
    fault: cython.int = _plan_fields(raw, at, end, columns, walk.start <= offset < walk.stop)
    if fault == _ROOM:
        walk.wanted_room = size
    if fault != _SOUND:
        return fault
    if walk.start <= offset < walk.stop:
        _put_numbers(columns, size, offset, timestamp, walk.timestamp_type)
    walk.previous = offset_delta
    walk.at = end
    return _SOUND


def _plan_fields(
    raw: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, columns: Columns, wanted: cython.bint
) -> cython.int:
    """Checks key, value and headers, which must fill [at, end), and plans those that are wanted."""
    packed: cython.longlong = _varint(raw, at, end)
    key: cython.longlong = _zigzag(packed)
    at += packed & 7
    if packed < 0 or key < -1 or key > end - at:
        return _BAD_KEY
    key_at: cython.Py_ssize_t = at
    at += key if key > 0 else 0
    packed = _varint(raw, at, end)
    value: cython.longlong = _zigzag(packed)
    at += packed & 7
    if packed < 0 or value < -1 or value > end - at:
        return _BAD_VALUE
    value_at: cython.Py_ssize_t = at
    at += value if value > 0 else 0
    packed = _varint(raw, at, end)
    headers: cython.longlong = _zigzag(packed)
    at += packed & 7
    if packed < 0 or headers < 0 or headers > end - at:
        return _BAD_HEADERS
    plan_headers: cython.bint = wanted and columns.has_headers
    if headers > 0:
        if plan_headers and headers > columns.names.room - columns.names.rows:
            return _ROOM
        at = _plan_headers(raw, at, end, headers, columns, plan_headers)
        if at < 0:
            return _BAD_HEADERS
    if at != end:
        return _LENGTH_MISMATCH
    if wanted and columns.has_keys:
        _plan(columns.keys, key_at, key)
    if wanted and columns.has_values:
        _plan(columns.values, value_at, value)
    if plan_headers:
        _plan(columns.headers, 0, headers if headers > 0 else -1)
    return _SOUND


def _plan_headers(
    raw: cython.p_const_uchar,
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    left: cython.longlong,
    columns: Columns,
    wanted: cython.bint,
) -> cython.Py_ssize_t:
    """The position after `left` headers, planned if they are wanted; -1 if they do not fit."""
    packed: cython.longlong
    length: cython.longlong
    while left > 0:
        packed = _varint(raw, at, end)
        length = _zigzag(packed)
        at += packed & 7
        if packed < 0 or length < 0 or length > end - at:
            return -1
        if wanted:
            _plan(columns.names, at, length)
            columns.foreign += _beyond_ascii(raw, at, length)
        at += length
        packed = _varint(raw, at, end)
        length = _zigzag(packed)
        at += packed & 7
        if packed < 0 or length < -1 or length > end - at:
            return -1
        if wanted:
            _plan(columns.contents, at, length)
        at += length if length > 0 else 0
        left -= 1
    return at


def _beyond_ascii(raw: cython.p_const_uchar, at: cython.Py_ssize_t, length: cython.Py_ssize_t) -> cython.int:
    bits: cython.int = 0
    index: cython.Py_ssize_t
    for index in range(at, at + length):
        bits |= raw[index]
    return bits >> 7


# --- rows -------------------------------------------------------------------------------------------------------------
def _is_full(columns: Columns, size: cython.longlong) -> cython.bint:
    """Whether a record of `size` bytes belongs in the next Arrow batch."""
    return columns.rows > 0 and (columns.rows >= columns.most_rows or columns.source + size > columns.most_bytes)


def _put_numbers(
    columns: Columns,
    size: cython.longlong,
    offset: cython.longlong,
    timestamp: cython.longlong,
    timestamp_type: cython.int,
) -> None:
    """Adds a row of a record of `size` bytes; `timestamp` in ms."""
    row: cython.Py_ssize_t = columns.rows
    columns.offsets[row] = offset
    columns.types[row] = timestamp_type
    if -_MOST_MS <= timestamp <= _MOST_MS:
        columns.times[row] = timestamp * 1000
        columns.time_valid[row >> 3] |= 1 << (row & 7)
    else:
        columns.times[row] = 0
        columns.time_nulls += 1
    columns.source += size
    columns.rows = row + 1


def _plan(column: BytesColumn, at: cython.Py_ssize_t, length: cython.longlong) -> None:
    """Adds a row of `length` bytes at position `at`; null if `length` is -1."""
    row: cython.Py_ssize_t = column.rows
    if length < 0:
        column.nulls += 1
    else:
        column.valid[row >> 3] |= 1 << (row & 7)
        column.size += length
    column.sources[row] = at
    column.ends[row + 1] = column.size
    column.rows = row + 1
