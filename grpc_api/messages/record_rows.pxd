# C types of record_rows.py.
cimport cython

cdef int _RECORDS, _PARTITION, _OFFSET, _TIMESTAMP, _KEY, _VALUE, _HEADERS, _NAME, _CONTENT


@cython.final
cdef class RowColumn:
    cdef int[::1] ends
    cdef unsigned char[::1] validity, data

    cdef bint is_null(self, Py_ssize_t row) noexcept
    cdef Py_ssize_t length(self, Py_ssize_t row) noexcept


@cython.final
cdef class RowEncoder:
    cdef long long partition
    cdef bytearray buffer
    cdef unsigned char[::1] out
    cdef Py_ssize_t at
    cdef long long[::1] offsets, times
    cdef RowColumn keys, values, headers, names, contents

    cpdef bytes encode(self, columns)
    cdef int _encode_row(self, Py_ssize_t row) except -1
    cdef Py_ssize_t _header_size(self, Py_ssize_t header) noexcept
    cdef int _reserve(self, Py_ssize_t size) except -1
    cdef void _put_number(self, int tag, long long number) noexcept
    cdef void _put_bytes(self, int tag, RowColumn column, Py_ssize_t row) noexcept
    cdef void _put(self, int tag, long long number) noexcept


cdef unsigned long long _unsigned(long long number) noexcept nogil
cdef int _varint_size(long long number) noexcept nogil
cdef int _number_size(long long number) noexcept nogil
cdef Py_ssize_t _bytes_size(RowColumn column, Py_ssize_t row) noexcept
