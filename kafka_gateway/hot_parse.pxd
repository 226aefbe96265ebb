# C types of hot_parse.py, which stays plain Python.
cimport cython


cdef class PartitionNames:
    cdef public dict topics
    cdef public Py_ssize_t count

    @cython.locals(partitions=dict)
    cpdef find(self, bytes name, object index)
    cpdef remember(self, bytes name, object index)


@cython.final
cdef class FrameCursor:
    cdef bytearray data
    cdef Py_ssize_t at
    cdef Py_ssize_t end
    cdef bint flexible

    @cython.locals(at=Py_ssize_t)
    cdef Py_ssize_t skip(self, Py_ssize_t size) except -1
    @cython.locals(at=Py_ssize_t)
    cdef int int8(self) except? -1
    @cython.locals(at=Py_ssize_t)
    cdef int int16(self) except? -1
    @cython.locals(at=Py_ssize_t, data=bytearray)
    cdef Py_ssize_t int32(self) except? -1
    @cython.locals(at=Py_ssize_t, data=bytearray, value=Py_ssize_t)
    cdef Py_ssize_t int64(self) except? -1
    @cython.locals(at=Py_ssize_t, value=Py_ssize_t, byte=Py_ssize_t, shift=int)
    cdef Py_ssize_t varint(self) except? -1
    @cython.locals(value=Py_ssize_t)
    cdef Py_ssize_t count(self) except? -1
    @cython.locals(size=Py_ssize_t)
    cdef Py_ssize_t text_size(self) except? -2
    cdef Py_ssize_t bytes_size(self) except? -2
    @cython.locals(size=Py_ssize_t, at=Py_ssize_t)
    cdef object text(self)
    @cython.locals(at=Py_ssize_t)
    cdef bytes raw(self, Py_ssize_t size)
    cdef bytes topic(self, bint by_id)
    cdef void tags(self) except *
    @cython.locals(count=Py_ssize_t)
    cdef Py_ssize_t tag_count(self) except -1
    @cython.locals(size=Py_ssize_t)
    cdef void header(self) except *


@cython.final
cdef class ProduceRequest:
    cdef public object transactional_id
    cdef public bint is_transactional
    cdef public int acks
    cdef public int timeout_ms
    cdef public list topics
    cdef public list indexes
    cdef public list appends
    cdef public dict refused
    cdef set taken

    @cython.locals(known=Py_ssize_t)
    cdef bint is_taken(self, object partition) except -1


@cython.final
cdef class FetchRequest:
    cdef public int replica_id
    cdef public int max_wait_ms
    cdef public int min_bytes
    cdef public int max_bytes
    cdef public int isolation
    cdef public int session_id
    cdef public int session_epoch
    cdef public list topics
    cdef public list indexes
    cdef public list partitions
    cdef public list forgotten


cdef class ProduceReading
cdef class FetchReading


cdef class HotParser:
    cdef public PartitionNames names
    cdef public object topic_name
    cdef public Py_ssize_t at_once

    cdef bytes name_of(self, bytes key, bint by_id)
    @cython.locals(cursor=FrameCursor, request=ProduceRequest, by_id=bint, key=bytes, name=bytes, topics=Py_ssize_t,
                   partitions=Py_ssize_t, left=Py_ssize_t)
    cpdef ProduceRequest produce(self, bytearray data, object view, Py_ssize_t start, Py_ssize_t end, int version)
    @cython.locals(reading=ProduceReading)
    cpdef ProduceReading reading(self, bytearray data, object view, Py_ssize_t start, Py_ssize_t end, int version)
    @cython.locals(size=Py_ssize_t, at=Py_ssize_t, nth=Py_ssize_t)
    cdef void produce_partition(self, FrameCursor cursor, object view, int version, ProduceRequest request, bytes name,
                                bytes key) except *
    @cython.locals(reading=FetchReading)
    cpdef FetchRequest fetch(self, bytearray data, Py_ssize_t start, Py_ssize_t end, int version)
    @cython.locals(current_epoch=int, last_epoch=int, offset=Py_ssize_t, max_bytes=int)
    cdef void fetch_partition(self, FrameCursor cursor, int version, FetchRequest request, bytes name,
                              object topic_id) except *
    @cython.locals(tag=Py_ssize_t, size=Py_ssize_t, at=Py_ssize_t)
    cdef void fetch_rest(self, FrameCursor cursor, int version, FetchRequest request) except *
    @cython.locals(topics=Py_ssize_t, key=bytes)
    cdef void fetch_forgotten(self, FrameCursor cursor, int version, FetchRequest request) except *


cdef Py_ssize_t produce_head(FrameCursor cursor, ProduceRequest request) except -1


@cython.final
cdef class ProduceReading:
    cdef public ProduceRequest request
    cdef HotParser parser
    cdef FrameCursor cursor
    cdef object view
    cdef int version
    cdef Py_ssize_t topics_left
    cdef Py_ssize_t partitions_left
    cdef bytes key
    cdef bytes name

    @cython.locals(cursor=FrameCursor)
    cpdef begin(self, HotParser parser, bytearray data, object view, Py_ssize_t start, Py_ssize_t end, int version)
    @cython.locals(cursor=FrameCursor, request=ProduceRequest)
    cpdef bint step(self, Py_ssize_t most) except -1
    @cython.locals(by_id=bint)
    cdef void topic(self) except *


@cython.final
cdef class FetchReading:
    cdef public FetchRequest request
    cdef HotParser parser
    cdef FrameCursor cursor
    cdef int version
    cdef Py_ssize_t topics_left
    cdef Py_ssize_t partitions_left
    cdef bytes name
    cdef object topic_id

    @cython.locals(cursor=FrameCursor, request=FetchRequest)
    cpdef begin(self, HotParser parser, bytearray data, Py_ssize_t start, Py_ssize_t end, int version)
    @cython.locals(cursor=FrameCursor, request=FetchRequest)
    cpdef bint step(self, Py_ssize_t most) except -1
    @cython.locals(by_id=bint, key=bytes, name=bytes)
    cdef void topic(self) except *


@cython.locals(cursor=FrameCursor)
cpdef Py_ssize_t body_start(bytearray data, Py_ssize_t start, Py_ssize_t end, bint flexible) except -1
