# C types of produce_answer.py, which stays plain Python.
cimport cython
from kafka_gateway.hot_parse cimport ProduceRequest


@cython.final
cdef class AnswerWriter:
    cdef bytearray out
    cdef Py_ssize_t at
    cdef Py_ssize_t size

    @cython.locals(at=Py_ssize_t)
    cdef inline Py_ssize_t room(self, Py_ssize_t size) except -1
    @cython.locals(at=Py_ssize_t)
    cdef inline int int8(self, Py_ssize_t value) except -1
    @cython.locals(at=Py_ssize_t, out=bytearray)
    cdef inline int int16(self, Py_ssize_t value) except -1
    @cython.locals(at=Py_ssize_t, out=bytearray)
    cdef inline int int32(self, Py_ssize_t value) except -1
    cdef inline int int64(self, Py_ssize_t value) except -1
    cdef int varint(self, Py_ssize_t value) except -1
    cdef int count(self, Py_ssize_t value, bint flexible) except -1
    @cython.locals(at=Py_ssize_t)
    cdef int raw(self, bytes value) except -1


@cython.locals(size=Py_ssize_t)
cdef Py_ssize_t varint_size(Py_ssize_t value) except -1


@cython.locals(flexible=bint, width=Py_ssize_t, size=Py_ssize_t, writer=AnswerWriter, nth=Py_ssize_t, key=bytes,
               partitions=Py_ssize_t)
cpdef produce_answer(ProduceRequest request, object results, int version, Py_ssize_t correlation, bint committed)
cdef int write_appended(AnswerWriter writer, Py_ssize_t index, object appended, int version) except -1
