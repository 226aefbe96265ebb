# C types of record_writer.py.
cimport cython

cdef Py_ssize_t _FIRST_ROOM, _HEADER, _COVERED_FROM, _COUNTED_FROM


@cython.final
cdef class RecordWriter:
    cdef readonly long long count, size, base_timestamp, max_timestamp
    cdef long long room
    cdef bytearray buffer
    cdef unsigned char[::1] data

    cpdef append(self, bytes key, bytes value, bytes headers, long long timestamp)
    cpdef bytes payload(self)
    cdef int _grow(self, long long least) except -1


cpdef bytes encode_plain_batch(object records, long long timestamp, long long attributes, long long producer_id, long long producer_epoch)
cdef tuple _as_tuple(object record)
cdef long long _plain_body(bytes key, bytes value, long long offset_delta) except -1
cdef void _put_integer(unsigned char* data, Py_ssize_t at, long long number, int size) noexcept nogil
cdef int _varint_size(long long number) noexcept nogil
cdef unsigned long long _zigzag(long long number) noexcept nogil
cdef Py_ssize_t _put_varint(unsigned char* data, Py_ssize_t at, long long number) noexcept nogil
cdef Py_ssize_t _put_field(unsigned char* data, Py_ssize_t at, bytes field, long long length) except -1
cdef int _put_bytes(unsigned char* data, Py_ssize_t at, bytes source, Py_ssize_t length) except -1
