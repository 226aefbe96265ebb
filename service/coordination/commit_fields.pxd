# C types of commit_fields.py.
cdef Py_ssize_t _KEY_BYTES, _VALUE_BYTES
cdef int _SHORT, _OFFSET, _VERSION

cpdef bytes encode_offset_key(str group, str topic, long long partition)
cpdef bytes encode_short_offset(long long offset, long long leader_epoch, str metadata, long long commit_timestamp)
cdef void _put_integer(unsigned char* data, Py_ssize_t at, long long number, int size) noexcept nogil
cdef int _put_bytes(unsigned char* data, Py_ssize_t at, bytes source, Py_ssize_t length) except -1
