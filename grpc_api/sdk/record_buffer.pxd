# C types of record_buffer.py.
from storage_tiers.records.record_writer cimport RecordWriter

cdef long long _OVERHEAD


cdef class OpenBatch:
    cdef readonly RecordWriter records
    cdef public list waiters
    cdef public long long held


cdef class RecordBuffer:
    cdef readonly long long buffer_bytes, batch_bytes
    cdef public long long held_bytes
    cdef readonly bint filled
    cdef readonly dict queues

    cpdef bint has_room(self, long long size)
    cpdef bint is_full(self, OpenBatch batch)


cpdef long long record_bytes(bytes key, bytes value, bytes headers) except -1
