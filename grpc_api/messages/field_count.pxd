# C types of field_count.py.
cdef int _VARINT, _FIXED64, _BYTES, _GROUP, _GROUP_END, _FIXED32, _DEEPEST, _PACKED
cdef unsigned long long _ALL_BITS


cdef class Layout:
    cdef public list inner, packed


cpdef long long count_fields(bytes data, Layout layout, long long most) except -1
cdef long long _counted(const unsigned char* raw, Py_ssize_t at, Py_ssize_t end, Layout layout, long long most, int depth) except -1
cdef unsigned long long _wide(unsigned long long number) noexcept nogil
