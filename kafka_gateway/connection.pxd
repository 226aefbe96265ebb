# C types of connection.py, which stays plain Python.
cimport cython


cdef double _LEAST_TOTAL_S
cdef Py_ssize_t _TOTAL_BOUNDS


cdef class PendingReply:
    cdef public object pieces


cdef class RequestMetrics:
    cdef public long long requests
    cdef public long long size
    cdef public double queue_s
    cdef public double local_s
    cdef public long long waits
    cdef public double remote_s
    cdef public double total_s
    cdef public list totals
    cdef public long long sends
    cdef public double answer_queue_s
    cdef public double answer_send_s

    @cython.locals(bound=double, nth=Py_ssize_t)
    cpdef answered(self, double took_s)


cdef class Connection:
    cdef Py_ssize_t _largest
    cdef Py_ssize_t _unsent_limit
    cdef Py_ssize_t _in_flight_limit
    cdef bytearray _scratch
    cdef object _scratch_view
    cdef readonly int api_key
    cdef int _version
    cdef Py_ssize_t _correlation
    cdef bint _barrier
    cdef public bytearray data
    cdef public object view
    cdef public Py_ssize_t start
    cdef public Py_ssize_t end
    cdef public bint owns_buffer
    cdef public object waiting
    cdef public object out
    cdef public Py_ssize_t unsent
    cdef public Py_ssize_t files
    cdef public Py_ssize_t file_bytes
    cdef public Py_ssize_t request_size
    cdef public bint paused
    cdef public bint is_read_in
    cdef public Py_ssize_t taken
    cdef RequestMetrics _metrics
    cdef double _answered_at

    cpdef target(self)
    cpdef received(self, Py_ssize_t count)
    @cython.locals(start=Py_ssize_t)
    cpdef next_request(self)
    @cython.locals(start=Py_ssize_t, count=Py_ssize_t, version=int, correlation=Py_ssize_t, api_key=int, api=tuple, metrics=RequestMetrics, began=double, ended=double)
    cpdef Py_ssize_t take(self, dict apis, Py_ssize_t most, object otherwise, object owner, object seconds, double since, double until) except -1
    cpdef answered(self, RequestMetrics metrics, double took_s, double now)
    @cython.locals(metrics=RequestMetrics)
    cpdef double wrote(self, double began, double ended) except -1
    @cython.locals(start=Py_ssize_t, have=Py_ssize_t, size=Py_ssize_t, data=bytearray, api_key=int)
    cdef Py_ssize_t _next(self) except -2
    @cython.locals(data=bytearray)
    cdef Py_ssize_t _int32(self, Py_ssize_t at)
    cdef _check(self, Py_ssize_t size)
    cpdef bint blocked_for(self, int api_key) except -1
    @cython.locals(left=Py_ssize_t, whole=Py_ssize_t)
    cpdef settle(self)
    @cython.locals(end=Py_ssize_t)
    cdef bint _grow(self, Py_ssize_t size) except -1
    cdef _use(self, bytearray data, object view, Py_ssize_t end, bint own)
    @cython.locals(pending=PendingReply)
    cpdef answer(self, pieces)
    @cython.locals(first=PendingReply)
    cpdef complete(self, PendingReply pending, pieces)
    cdef _send(self, pieces)
    cpdef small(self, Py_ssize_t limit)
    @cython.locals(size=Py_ssize_t)
    cpdef to_send(self, Py_ssize_t limit)
    cpdef sent(self, Py_ssize_t count)
    cpdef sent_of_file(self, Py_ssize_t count)
    cpdef discard(self)
    cpdef abandon(self)
