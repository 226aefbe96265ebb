# C types of group_messages.py, which stays plain Python.
cimport cython
from kafka_gateway.hot_parse cimport FrameCursor
from kafka_gateway.produce_answer cimport AnswerWriter


cpdef object read_heartbeat(bytearray data, Py_ssize_t start, Py_ssize_t end, int version)
@cython.locals(generation=Py_ssize_t)
cdef object heartbeat(FrameCursor cursor, int version)
cpdef object read_offset_commit(bytearray data, Py_ssize_t start, Py_ssize_t end, int version)
@cython.locals(generation=Py_ssize_t, retention_ms=Py_ssize_t, topics=Py_ssize_t, left=Py_ssize_t, count=Py_ssize_t,
               index=Py_ssize_t, offset=Py_ssize_t, epoch=Py_ssize_t, commits=list, partitions=list)
cdef object offset_commit(FrameCursor cursor, int version)
@cython.locals(size=Py_ssize_t, at=Py_ssize_t)
cdef object text(FrameCursor cursor)
@cython.locals(size=Py_ssize_t, at=Py_ssize_t)
cdef object nullable_text(FrameCursor cursor)
@cython.locals(writer=AnswerWriter)
cpdef bytes heartbeat_answer(object answer, int version, Py_ssize_t correlation, object codes)
@cython.locals(flexible=bint, by_id=bint, writer=AnswerWriter, keys=list, key=bytes, size=Py_ssize_t,
               nth=Py_ssize_t)
cpdef bytes offset_commit_answer(object done, int version, Py_ssize_t correlation, object codes)
cdef int write_head(AnswerWriter writer, Py_ssize_t correlation, bint flexible, bint has_throttle_time) except -1
@cython.locals(code=int)
cdef int write_code(AnswerWriter writer, object error, object codes) except -1
@cython.locals(end=Py_ssize_t)
cdef bytes framed(AnswerWriter writer, bint flexible)
cpdef object read_sync_group(bytearray data, Py_ssize_t start, Py_ssize_t end, int version)
@cython.locals(generation=Py_ssize_t, count=Py_ssize_t, assignments=list)
cdef object sync_group(FrameCursor cursor, int version)
@cython.locals(flexible=bint, writer=AnswerWriter)
cpdef bytes sync_group_answer(object synced, int version, Py_ssize_t correlation, object codes)
cpdef object read_join_group(bytearray data, Py_ssize_t start, Py_ssize_t end, int version)
@cython.locals(session_ms=Py_ssize_t, rebalance_ms=Py_ssize_t, count=Py_ssize_t, protocols=list)
cdef object join_group(FrameCursor cursor, int version)
@cython.locals(flexible=bint, refused=bint, writer=AnswerWriter, size=Py_ssize_t, rows=bytes)
cpdef object join_group_answer(object joined, int version, Py_ssize_t correlation, object codes)
@cython.locals(flexible=bint, writer=AnswerWriter, size=Py_ssize_t, rows=list)
cpdef bytes join_group_rows(object members, int version)
cdef int write_text(AnswerWriter writer, object value, bint flexible) except -1
cdef object encoded(object value)
cdef int write_compact(AnswerWriter writer, object value) except -1
