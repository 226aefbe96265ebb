# C types of commit_fields.py.
cdef Py_ssize_t _KEY_BYTES, _VALUE_BYTES
cdef int _SHORT, _OFFSET, _VERSION
cdef Py_ssize_t _RECORD_NUMBER_BYTES

cpdef object encode_commit(str group, object topics, long long record_number, long long now_ms, long long most_metadata, object shared)
cdef tuple _as_tuple(object row)
cdef bytes _unwritten(Py_ssize_t size)
cdef bytes _encode_entry(long long record_number, long long offset, long long leader_epoch, bytes metadata, long long now_ms)
cdef int _put_value(unsigned char* data, Py_ssize_t at, long long offset, long long leader_epoch, bytes metadata, long long commit_timestamp) except -1
cdef unsigned long long _UINT32, _INT32

cpdef object hash_code(str name)
cpdef bytes encode_offset_key(str group, str topic, long long partition)
cpdef bytes encode_short_offset(long long offset, long long leader_epoch, str metadata, long long commit_timestamp)
cdef void _put_integer(unsigned char* data, Py_ssize_t at, long long number, int size) noexcept nogil
cdef int _put_bytes(unsigned char* data, Py_ssize_t at, bytes source, Py_ssize_t length) except -1
