# C types of column_buffers.py.
cimport cython

cdef bytearray _unwritten(Py_ssize_t size)


@cython.final
cdef class BytesColumn:
    cdef int[::1] ends
    cdef long long[::1] sources
    cdef unsigned char[::1] valid, data
    cdef Py_ssize_t room, rows, copied, size, nulls, expected
    cdef bytearray end_buffer, valid_buffer, source_buffer, data_buffer

    cdef void begin(self) except *
    cdef void reserve(self, Py_ssize_t rows) except *
    cdef void allocate(self) except *
    cdef void copy(self, const unsigned char* raw) noexcept nogil
    cpdef take(self)


@cython.final
cdef class Columns:
    cdef readonly int wanted
    cdef Py_ssize_t most_rows
    cdef long long most_bytes
    cdef readonly bint has_keys, has_values, has_headers
    cdef BytesColumn keys, values, headers, names, contents
    cdef readonly Py_ssize_t rows
    cdef readonly long long foreign
    cdef Py_ssize_t time_nulls
    cdef long long source
    cdef bytearray offset_buffer, time_buffer, time_valid_buffer, type_buffer
    cdef long long[::1] offsets, times
    cdef int[::1] types
    cdef unsigned char[::1] time_valid
    cdef bint is_open

    cdef void begin(self) except *
    cdef void open(self) except *
    cdef void more_headers(self, long long least) except *
    @cython.locals(column=BytesColumn)
    cdef void copy(self, const unsigned char* raw) except *
    cpdef take(self)
