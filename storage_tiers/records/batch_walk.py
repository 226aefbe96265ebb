"""Walks from one record batch to the next by their headers at memory speed: to find an offset, to list batches, to recover a
log.

Cython in pure-Python mode, with the walker's rules: every index is compared with the end of the buffer before it is read, no
arithmetic can leave 64 bits, and callers pass buffers of bytes (format `B`) that do not change during a call.

The records in a batch are never checked, its CRC only by `recover_scan`.
"""

from __future__ import annotations

try:
    import cython
except ImportError:  # installed without a compiler and without Cython: the same loops as plain Python
    from storage_tiers.records import plain_cython as cython

from storage_tiers.records.checksum import crc32c

# Copies of the codes below for the C code, because importers cannot see a declared name.
_WHOLE = cython.declare(cython.int, 0)
_PARTIAL = cython.declare(cython.int, 1)
_BAD_SIZE = cython.declare(cython.int, 2)
_BAD_MAGIC = cython.declare(cython.int, 3)
_BAD_CRC = cython.declare(cython.int, 4)
_BAD_OFFSETS = cython.declare(cython.int, 5)
_BAD_EPOCH = cython.declare(cython.int, 6)
# Bytes of a batch before its records, and bytes that `batchLength` does not count.
_HEADER = cython.declare(cython.Py_ssize_t, 61)
_OVERHEAD = cython.declare(cython.Py_ssize_t, 12)
_NO_TIMESTAMP = cython.declare(cython.longlong, -1)
# Literals beyond 32 bits would be Python objects.
_TWO_TO_31 = cython.declare(cython.longlong, 1 << 31)
_TWO_TO_32 = cython.declare(cython.longlong, 1 << 32)
_INT64_MAX = cython.declare(cython.longlong, (1 << 63) - 1)

#: The reasons why a walk over batches stops. WHOLE: it reached the end of the buffer, between two batches.
WHOLE = _WHOLE
PARTIAL = _PARTIAL
BAD_SIZE = _BAD_SIZE
BAD_MAGIC = _BAD_MAGIC
BAD_CRC = _BAD_CRC
BAD_OFFSETS = _BAD_OFFSETS
BAD_EPOCH = _BAD_EPOCH


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
def _pointer(buffer: cython.const[cython.uchar][::1]) -> cython.p_const_uchar:
    if cython.compiled:
        return cython.address(buffer[0])
    else:
        return buffer


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _batch_stop(raw: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.int:
    """WHOLE if [at, end) begins with a plausible batch header, else the fault."""
    if end - at < _HEADER:
        return _PARTIAL
    if _int32(raw, at + 8) < _HEADER - _OVERHEAD:
        return _BAD_SIZE
    if raw[at + 16] != 2:
        return _BAD_MAGIC
    base: cython.longlong = _int64(raw, at)
    delta: cython.longlong = _int32(raw, at + 23)
    if base < 0 or delta < 0 or base >= _INT64_MAX - delta:
        return _BAD_OFFSETS
    return _WHOLE


def find_batch(
    buffer: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    target_offset: cython.longlong,
    whole: cython.bint = True,
) -> tuple[int, int, int]:
    """(position, size, base_offset) of the first batch of [start, end) whose last offset is at or after the target.

    Otherwise (-1, resume, needed): continue reading at `resume`, where the next step needs `needed` bytes (0: unknown, because
    the buffer ends between two batches). Or (-2, position, stop): no batch begins at `position`; `stop` is the reason
    (BAD_SIZE, BAD_MAGIC, BAD_OFFSETS). With `whole` the batch must end within the buffer; otherwise its header suffices.
    """
    _check_segment(start, end, len(buffer))
    raw: cython.p_const_uchar = _pointer(buffer)
    at: cython.Py_ssize_t = start
    size: cython.longlong = 0
    stop: cython.int = _WHOLE
    reached: cython.bint = False
    with cython.nogil:
        while at < end:
            stop = _batch_stop(raw, at, end)
            if stop != _WHOLE:
                break
            size = _int32(raw, at + 8) + _OVERHEAD
            reached = _int64(raw, at) + _int32(raw, at + 23) >= target_offset
            if size > end - at and (whole or not reached):
                stop = _PARTIAL
                break
            if reached:
                break
            at += size
    if stop == _PARTIAL:
        return -1, at, size if end - at >= _HEADER else _HEADER
    if stop != _WHOLE:
        return -2, at, stop
    if not reached:
        return -1, at, 0
    return at, size, _int64(raw, at)


def scan_batches(
    buffer: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> tuple[list[tuple[int, int, int, int, int, int]], int, int]:
    """The whole batches of [start, end): (batches, position, stop).

    A batch is (position, size, base_offset, next_offset, leader_epoch, max_timestamp). `position` is where the walk ended, and
    `stop` is the reason: WHOLE at `end`, PARTIAL, BAD_SIZE, BAD_MAGIC or BAD_OFFSETS. Reads headers only. A batch that
    compaction has emptied keeps a maximum timestamp that no record has; the timestamp counts as -1.
    """
    return _scan(buffer, start, end, False, 0, 0)


def recover_scan(
    buffer: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    expected_offset: cython.longlong,
    last_epoch: cython.longlong,
    end: cython.Py_ssize_t = -1,
) -> tuple[list[tuple[int, int, int, int, int, int]], int, int]:
    """Like `scan_batches`, but stops at the first batch that recovery must not keep.

    Such a batch has a wrong CRC (BAD_CRC), a base offset below the expected one (BAD_OFFSETS; a gap is legal, because
    compaction leaves gaps) or a leader epoch below its predecessor's (BAD_EPOCH). `end` defaults to the end of the buffer.
    """
    return _scan(buffer, start, end if end >= 0 else len(buffer), True, expected_offset, last_epoch)


@cython.cfunc
def _scan(
    buffer: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    verify: cython.bint,
    expected: cython.longlong,
    epoch: cython.longlong,
) -> object:
    _check_segment(start, end, len(buffer))
    raw: cython.p_const_uchar = _pointer(buffer)
    view = memoryview(buffer) if verify else None
    batches: list[tuple[int, int, int, int, int, int]] = []
    at: cython.Py_ssize_t = start
    size: cython.longlong
    base: cython.longlong
    newest: cython.longlong
    stop: cython.int = _WHOLE
    while at < end:
        stop = _batch_stop(raw, at, end)
        if stop != _WHOLE:
            break
        size = _int32(raw, at + 8) + _OVERHEAD
        if size > end - at:
            stop = _PARTIAL
            break
        base = _int64(raw, at)
        if verify:
            stop = _recovery_stop(raw, at, expected, epoch)
            if stop == _WHOLE and crc32c(view[at + 21 : at + size]) != _int32(raw, at + 17) & 0xFFFFFFFF:
                stop = _BAD_CRC
            if stop != _WHOLE:
                break
        expected = base + _int32(raw, at + 23) + 1
        epoch = _int32(raw, at + 12)
        newest = _int64(raw, at + 35) if _int32(raw, at + 57) > 0 else _NO_TIMESTAMP
        batches.append((at, size, base, expected, epoch, newest))
        at += size
    return batches, at, stop


@cython.cfunc
def _recovery_stop(
    raw: cython.p_const_uchar, at: cython.Py_ssize_t, expected: cython.longlong, epoch: cython.longlong
) -> cython.int:
    if _int64(raw, at) < expected:
        return _BAD_OFFSETS
    return _BAD_EPOCH if _int32(raw, at + 12) < epoch else _WHOLE


@cython.cfunc
def _check_segment(start: cython.Py_ssize_t, end: cython.Py_ssize_t, size: cython.Py_ssize_t) -> object:
    if not 0 <= start <= end <= size:
        raise ValueError(f"[{start}, {end}) is not within a buffer of {size} bytes")
