# C types of column_walk.py. Its small functions declare their own.
cimport cython
from storage_tiers.records.column_buffers cimport BytesColumn, Columns

cdef int _SOUND, _BAD_LENGTH, _BAD_TIMESTAMP_DELTA, _BAD_OFFSET_DELTA, _BAD_KEY, _BAD_VALUE, _BAD_HEADERS
cdef int _LENGTH_MISMATCH, _TOO_FEW_BYTES, _TOO_MANY_BYTES, _BAD_TIMESTAMP
cdef int _END, _FULL, _COMPRESSED, _BAD_BATCH, _SKIPPED, _ROOM
cdef Py_ssize_t _HEADER, _OVERHEAD
cdef long long _TWO_TO_31, _TWO_TO_32, _INT64_MAX, _MOST_MS


@cython.final
cdef class Walk:
    cdef const unsigned char[::1] buffer
    cdef const long long[::1] aborted
    cdef Py_ssize_t size, aborted_count
    cdef long long start, stop
    cdef bint verify
    # The current batch, fields of its header, and its next record.
    cdef readonly Py_ssize_t batch, batch_end
    cdef readonly long long index
    cdef bint opened
    cdef Py_ssize_t at
    cdef long long left, previous, base_offset, last_delta, base_timestamp, append_time
    cdef int timestamp_type
    cdef long long wanted_room

    cpdef skip(self)
    cpdef decode(self, Columns columns)
    cdef int plan(self, const unsigned char* raw, Columns columns) except -1


cdef const unsigned char* _pointer(const unsigned char[::1] buffer) except NULL
cdef long long _crc(const unsigned char* raw, Py_ssize_t batch) noexcept nogil
cdef int _next_batch(Walk walk, const unsigned char* raw) noexcept nogil
cdef int _open(Walk walk, const unsigned char* raw) noexcept nogil
cdef bint _is_aborted(Walk walk, long long producer, long long offset) noexcept nogil
cdef int _plan_batch(Walk walk, const unsigned char* raw, Columns columns) noexcept nogil
cdef int _plan_record(Walk walk, const unsigned char* raw, Columns columns) noexcept nogil
cdef int _plan_fields(
    const unsigned char* raw, Py_ssize_t at, Py_ssize_t end, Columns columns, bint wanted
) noexcept nogil
cdef Py_ssize_t _plan_headers(
    const unsigned char* raw, Py_ssize_t at, Py_ssize_t end, long long left, Columns columns, bint wanted
) noexcept nogil
cdef int _beyond_ascii(const unsigned char* raw, Py_ssize_t at, Py_ssize_t length) noexcept nogil
cdef bint _is_full(Columns columns, long long size) noexcept nogil
cdef void _put_numbers(
    Columns columns, long long size, long long offset, long long timestamp, int timestamp_type
) noexcept nogil
cdef void _plan(BytesColumn column, Py_ssize_t at, long long length) noexcept nogil
