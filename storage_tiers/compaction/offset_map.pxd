# C types of offset_map.py, but for its small functions, which say theirs themselves.
cimport cython

cdef int _SOUND, _BAD_LENGTH, _BAD_TIMESTAMP_DELTA, _BAD_OFFSET_DELTA, _BAD_KEY, _BAD_VALUE, _TOO_FEW_BYTES
cdef long long _TWO_TO_32
cdef unsigned long long _MASK, _SEED_0, _SEED_1, _SEED_2, _SEED_3


@cython.final
cdef class OffsetMap:
    cdef unsigned long long[::1] table
    cdef unsigned long long first_key, second_key, high, low
    cdef readonly long long slots, limit, count
    # The record that was read last.
    cdef Py_ssize_t at, key_at, value_at
    cdef long long timestamp_delta, offset_delta, key_length, value_length

    cpdef add(self, const unsigned char[::1] payload, long long count, long long base_offset, long long start)
    cpdef keep(
        self,
        const unsigned char[::1] payload,
        long long count,
        long long base_offset,
        long long latest,
        bint keep_tombstones,
    )
    cdef int next_record(self, const unsigned char* raw, Py_ssize_t total) noexcept nogil
    cdef bint is_kept(self, const unsigned char* raw, long long offset, long long latest, bint keep_tombstones) noexcept nogil
    cdef long long slot(self, const unsigned char* raw) noexcept nogil
    cdef void hash(self, const unsigned char* raw) noexcept nogil


cdef const unsigned char* _pointer(const unsigned char[::1] buffer) except NULL
cdef unsigned long long _word(const unsigned char* raw, Py_ssize_t at, Py_ssize_t length) noexcept nogil
