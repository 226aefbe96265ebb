# C types of offset_map.py. Its small functions declare their own.
cimport cython

cdef int _SOUND, _BAD_LENGTH, _BAD_TIMESTAMP_DELTA, _BAD_OFFSET_DELTA, _BAD_KEY, _BAD_VALUE, _TOO_FEW_BYTES
cdef long long _TWO_TO_32
cdef Py_ssize_t _LENGTH, _ATTRIBUTES, _BASE_TIMESTAMP, _MAX_TIMESTAMP, _COUNT, _HEADER_BYTES
cdef unsigned long long _MASK, _SEED_0, _SEED_1, _SEED_2, _SEED_3


@cython.final
cdef class OffsetMap:
    cdef unsigned long long[::1] table
    cdef unsigned long long first_key, second_key, high, low
    cdef readonly long long slots, limit, count
    # The record that was read last.
    cdef Py_ssize_t at, key_at, value_at
    cdef long long timestamp_delta, offset_delta, key_length, value_length

    # The records of the last batch that `select` keeps.
    cdef long long kept, tombstones, highest
    cdef list pieces

    cpdef add(self, const unsigned char[::1] payload, long long count, long long base_offset, long long start)
    cpdef add_batches(self, const unsigned char[::1] data, list batches, Py_ssize_t first, long long start)
    cdef bint map_keys(
        self,
        const unsigned char* raw,
        Py_ssize_t at,
        Py_ssize_t end,
        long long count,
        long long base_offset,
        long long start,
    ) except -1
    cdef bint put(self, const unsigned char* raw, long long offset) noexcept nogil
    cpdef clean(
        self,
        const unsigned char[::1] payload,
        long long count,
        long long base_offset,
        long long latest,
        bint keep_tombstones,
    )
    cpdef clean_batches(
        self,
        const unsigned char[::1] data,
        list batches,
        Py_ssize_t first,
        Py_ssize_t end,
        long long latest,
        object lasts,
    )
    cdef int select(
        self,
        const unsigned char* raw,
        Py_ssize_t at,
        Py_ssize_t end,
        long long count,
        long long base_offset,
        long long latest,
        bint keep_tombstones,
    ) except -1
    cdef int read_record(self, const unsigned char* raw, Py_ssize_t total) noexcept nogil
    cdef bint is_kept(self, const unsigned char* raw, long long offset, long long latest, bint keep_tombstones) noexcept nogil
    cdef long long slot(self, const unsigned char* raw) noexcept nogil
    cdef void hash(self, const unsigned char* raw) noexcept nogil


cdef const unsigned char* _pointer(const unsigned char[::1] buffer) except NULL
cdef bint _is_plain(const unsigned char* raw, Py_ssize_t at) noexcept nogil
cdef long long _int32(const unsigned char* raw, Py_ssize_t at) noexcept nogil
cdef long long _int64(const unsigned char* raw, Py_ssize_t at) noexcept nogil
cdef unsigned long long _unsigned(const unsigned char* raw, Py_ssize_t at, Py_ssize_t length) noexcept nogil
cdef unsigned long long _word(const unsigned char* raw, Py_ssize_t at, Py_ssize_t length) noexcept nogil
