# cython: annotation_typing=False
"""One client connection without its socket: turns received bytes into requests, and answers into pieces to send.

Plain Python; `connection.pxd` beside it gives the types with which `hatch_build.py` compiles it.

Requests are parsed in the buffer that received them. All connections share one receive buffer; only an incomplete frame, or one
that may not start yet, is copied to a buffer of its connection. That buffer grows with the bytes that have arrived, whatever
the frame's length field says. A client that sends large frames keeps its buffer while it is active; idle connections hold no
memory.

Order: Kafka handles one request of a connection at a time. Here a Produce may start while earlier ones wait for their
acknowledgement, because they are already appended in arrival order. Any other request waits until all earlier ones are
answered, and blocks all later ones. Answers are sent in the order of the requests.

This module has no clock; the server handles timeouts and idle connections. A piece may be sent partially.
"""

from __future__ import annotations

import ctypes
import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kafka_gateway.foreign_protocols import foreign_protocol
from storage_tiers.types import FileSlice

if TYPE_CHECKING:
    from kafka_gateway.settings import Limits

#: A part of an answer: bytes, or a range of a file, which its holder must release.
Piece = bytes | memoryview | FileSlice

PRODUCE = 0
FETCH = 1
#: Replaces the API key of a request that runs in a task. No request starts before its answer, not even a Produce.
ALONE = -1
_resize = ctypes.pythonapi.PyByteArray_Resize
_resize.argtypes = (ctypes.py_object, ctypes.c_ssize_t)
_BEGUN = struct.Struct(">ihh")
_SIZE = struct.Struct(">i")
#: Size of a buffer for the start of a frame whose size is not known yet.
_SMALLEST_BUFFER = 4096
#: An active client that sends frames of at least this size keeps a buffer for several of them.
LARGE_FRAME = 16 << 10
#: Minimum size of that buffer. A smaller one costs more receives, a larger one exceeds the processor's cache.
SEVERAL_FRAMES = 256 << 10
#: Largest buffer that is kept after its frame.
KEPT_BUFFER = 1 << 20
#: Maximum size of a buffer, as a multiple of the bytes that have arrived. A buffer may always have `_SMALLEST_BUFFER` bytes.
BUFFER_FACTOR = 16
#: Unsent bytes of one connection that the request memory pool does not count: most are sent at once.
UNCOUNTED_BYTES = 64 << 10


def _capacity(whole: int, left: int) -> int:
    """Size of a buffer for a frame of `whole` bytes. `left` bytes have arrived, possibly including later frames."""
    if whole <= left or whole < LARGE_FRAME:
        return max(left, whole, _SMALLEST_BUFFER)
    arrived = max(BUFFER_FACTOR * left, _SMALLEST_BUFFER)
    if whole <= KEPT_BUFFER:
        return min(max(4 * whole, SEVERAL_FRAMES), KEPT_BUFFER, arrived)
    return min(whole, max(2 * left, KEPT_BUFFER), arrived)


_LEAST_TOTAL_S = 0.000_062_5
_TOTAL_BOUNDS = 18
#: The bounds of `RequestMetrics.totals` in seconds; each is twice the one before.
TOTAL_BOUNDS_S = tuple([_LEAST_TOTAL_S * 2**nth for nth in range(_TOTAL_BOUNDS)])


class RequestMetrics:
    """Counts and seconds of one API's requests since the start. A write counts for the API that its connection answered last.

    `size` is the bytes of the requests. `queue_s` is the time from the turn of the event loop that could start a request until
    its handler began. `local_s` is the time in handlers. `waits` counts delayed answers, and `remote_s` is their time from
    handler to answer. `total_s` is the time from that turn until the answer was made. `totals` counts requests by their
    `total_s`: bucket i has those up to TOTAL_BOUNDS_S[i] that are in no earlier bucket, and the last bucket has no bound.
    `sends` counts writes. `answer_queue_s` is the time that answers waited for the end of their turn, and `answer_send_s` the
    time in socket writes."""

    def __init__(self) -> None:
        self.requests = 0
        self.size = 0
        self.queue_s = 0.0
        self.local_s = 0.0
        self.waits = 0
        self.remote_s = 0.0
        self.total_s = 0.0
        self.totals = [0] * (_TOTAL_BOUNDS + 1)
        self.sends = 0
        self.answer_queue_s = 0.0
        self.answer_send_s = 0.0

    def answered(self, took_s: float) -> None:
        """Counts an answer that was made `took_s` seconds after its request could start."""
        self.total_s += took_s
        bound = _LEAST_TOTAL_S
        nth = 0
        while took_s > bound and nth < _TOTAL_BOUNDS:
            bound *= 2
            nth += 1
        self.totals[nth] += 1


#: By API key: lowest and highest version served, the handler (`reply.Handler.handle`), and its metrics.
Apis = Mapping[int, tuple[int, int, Callable[[bytearray, memoryview, int, int, int, int], Any], RequestMetrics]]


class InvalidFrame(Exception):
    """The received bytes are not a frame that this node accepts; the connection must be closed."""


class PendingReply:
    """The position of a delayed answer in the order of its connection. `pieces` is None until the answer is made."""

    def __init__(self) -> None:
        self.pieces: Sequence[Piece] | None = None


class Connection:
    """`scratch` is the shared receive buffer. Call `target`, `received`, then `next_request` until it is None, then
    `settle`."""

    def __init__(self, limits: Limits, scratch: bytearray) -> None:
        self._largest = limits.request_max_bytes
        self._unsent_limit = limits.unsent_bytes
        self._in_flight_limit = limits.requests_in_flight
        self._scratch = scratch
        self._scratch_view = memoryview(scratch)
        self.owns_buffer = False
        self._barrier = False
        self.data = scratch
        self.view = self._scratch_view
        self.start = 0
        self.end = 0
        self.waiting: deque[PendingReply] = deque()
        self.out: deque[Piece] = deque()
        self.unsent = 0
        #: Requests that `take` has started; the caller resets it.
        self.taken = 0
        # The last answer's metrics, until it is sent.
        self._metrics: RequestMetrics | None = None
        self._answered_at = 0.0
        #: The header of the last request. `api_key` is 0 (Produce) before the first.
        self.api_key = self._version = self._correlation = 0
        #: The number of files among the pieces to send, and their unsent bytes.
        self.files = 0
        self.file_bytes = 0
        #: Size of the request taken last, in bytes.
        self.request_size = 0
        #: Whether `take` stopped because it reached `until`.
        self.paused = False
        #: Whether a thread has just read the next share of a file into memory.
        self.is_read_in = False

    # --- receiving ----------------------------------------------------------------------------------------------------
    def target(self) -> memoryview:
        """The buffer to receive into. It is empty if the connection's own buffer is full."""
        return self.view[self.end :] if self.owns_buffer else self._scratch_view

    def received(self, count: int) -> None:
        if self.owns_buffer:
            self.end += count
        else:
            self.start = 0
            self.end = count

    def next_request(self) -> tuple[int, int, int, int, int] | None:
        """(api key, version, correlation id, start, end) of the next whole request that may start now.

        `data[start:end]` is the request after its correlation id, valid until the next receive. Raises InvalidFrame.
        """
        start = self._next()
        if start < 0:
            return None
        return self.api_key, self._version, self._correlation, start, self.start

    def take(
        self,
        apis: Apis,
        most: int,
        otherwise: Callable[[Any, int, int, int, Any], None],
        owner: object,
        seconds: Callable[[], float],
        since: float,
        until: float,
    ) -> int:
        """Starts up to `most` requests and queues their answers; returns how many it started. After `until` it starts at most
        one.

        Requests that are not served, and replies that are not answers, go to `otherwise(owner, api key, version, correlation
        id, reply)`; `reply` is None for the former. Raises InvalidFrame and the exceptions of handlers; `taken` counts those
        requests too. `seconds` is the clock of the metrics. It is read once per request, because each request begins when the
        one before it ends. `since` is the earliest time at which these requests could start.
        """
        count = 0
        self.paused = False
        began = seconds()
        while count < most:
            start = self._next()
            if start < 0:
                break
            count += 1
            self.taken += 1
            version = self._version
            correlation = self._correlation
            api = apis.get(self.api_key)
            if api is None or version < api[0] or version > api[1]:
                otherwise(owner, self.api_key, version, correlation, None)
                continue
            api_key = self.api_key
            metrics = api[3]
            metrics.requests += 1
            metrics.size += self.start - start + 8
            metrics.queue_s += began - since
            reply = api[2](self.data, self.view, start, self.start, version, correlation)
            ended = seconds()
            metrics.local_s += ended - began
            began = ended
            if type(reply) is tuple or type(reply) is list:
                metrics.answered(ended - since)
                self._metrics = metrics
                self._answered_at = ended
                self.answer(reply)
            else:
                otherwise(owner, api_key, version, correlation, reply)
            if self.start == self.end:
                break
            if began >= until:
                self.paused = True
                break
        return count

    def answered(self, metrics: RequestMetrics, took_s: float, now: float) -> None:
        """Counts a delayed answer, made at `now`, `took_s` after its request could start."""
        metrics.answered(took_s)
        self._metrics = metrics
        self._answered_at = now

    def wrote(self, began: float, ended: float) -> float:
        """Counts a write of answers. The write began at `began`, or when the last answer was made if that was later. Returns
        `ended`."""
        metrics = self._metrics
        if metrics is not None:
            if began < self._answered_at:
                began = self._answered_at
            metrics.sends += 1
            metrics.answer_queue_s += began - self._answered_at
            metrics.answer_send_s += ended - began
            self._metrics = None
        return ended

    def _next(self) -> int:
        """Takes the next whole request that may start. Returns its position after the correlation id, or -1."""
        start = self.start
        have = self.end - start
        if have < 4:
            return -1
        size = self._int32(start)
        if size < 8 or size > self._largest:
            self._check(size)
        if have < size + 4:
            return -1
        data = self.data
        api_key = ((data[start + 4] ^ 0x80) << 8 | data[start + 5]) - 0x8000
        if (self.unsent or self.waiting) and self.blocked_for(api_key):
            return -1
        self.api_key = api_key
        self._version = ((data[start + 6] ^ 0x80) << 8 | data[start + 7]) - 0x8000
        self._correlation = self._int32(start + 8)
        self.request_size = size
        self.start = start + size + 4
        return start + 12

    def _int32(self, at: int) -> int:
        data = self.data
        return ((data[at] ^ 0x80) - 0x80) * 0x1000000 + (data[at + 1] << 16 | data[at + 2] << 8 | data[at + 3])

    @property
    def has_rest(self) -> bool:
        """Whether received bytes are left that were not taken."""
        return self.start != self.end

    def begun(self) -> tuple[int, int] | None:
        """(api key, version) of an incomplete request, so that an unserved one can be refused early."""
        if self.end - self.start < 8:
            return None
        _, api_key, version = _BEGUN.unpack_from(self.data, self.start)
        return api_key, version

    def _check(self, size: int) -> None:
        if size < 8 or size > self._largest:
            bounds = f"a frame of {size} bytes; between 8 and {self._largest} are accepted"
            raise InvalidFrame(foreign_protocol(size) or bounds)

    def blocked_for(self, api_key: int) -> bool:
        """Whether a request of this API must wait for earlier answers, or for the client to read them."""
        if self.unsent > self._unsent_limit:
            return True
        if not self.waiting:
            return False
        return self._barrier or api_key != PRODUCE or len(self.waiting) >= self._in_flight_limit

    @property
    def congested(self) -> bool:
        """Whether so many bytes are unsent that no request may start."""
        return self.unsent > self._unsent_limit

    @property
    def stalled(self) -> bool:
        """Whether receiving now is useless: no request could start, or the buffer is full."""
        if self.owns_buffer and self.end == len(self.data):
            return True
        if not self.waiting and not self.unsent:
            return False
        return self._barrier or self.unsent > self._unsent_limit or len(self.waiting) >= self._in_flight_limit

    def settle(self) -> None:
        """Keeps the bytes that were not taken. Afterwards the shared buffer may be reused."""
        left = self.end - self.start
        if left == 0:
            if self.owns_buffer and len(self.data) > KEPT_BUFFER:
                self.discard()
            elif self.owns_buffer:
                self.start = self.end = 0
                if len(self.data) < LARGE_FRAME:
                    self.discard()
            return
        whole = left + 1 if left < 4 else int(_SIZE.unpack_from(self.data, self.start)[0]) + 4
        if self.owns_buffer:
            has_room = self.start + whole <= len(self.data) or (self.start == 0 and left < len(self.data))
            if whole <= left or has_room:
                return
            if whole <= len(self.data):
                self.view[:left] = self.view[self.start : self.end]
                self.start, self.end = 0, left
                return
        if self.owns_buffer and not self.start and self._grow(_capacity(whole, left)):
            return
        kept = bytearray(_capacity(whole, left))
        kept[:left] = self.view[self.start : self.end]
        self._use(kept, memoryview(kept), left, True)

    def _grow(self, size: int) -> bool:
        """Grows the buffer in place. Remapping the pages of 64 MiB takes less than a millisecond; zeroing a new buffer and
        copying takes a tenth of a second. Returns False if a view of the old contents still exists."""
        end = self.end
        self.view.release()
        try:
            _resize(self.data, size)
            return True
        except BufferError:
            return False
        finally:
            self._use(self.data, memoryview(self.data), end, True)

    def _use(self, data: bytearray, view: memoryview, end: int, own: bool) -> None:
        self.data = data
        self.view = view
        self.start = 0
        self.end = end
        self.owns_buffer = own

    # --- answering ----------------------------------------------------------------------------------------------------
    def delay(self, api_key: int) -> PendingReply:
        """Reserves the position of an answer that is not made yet."""
        pending = PendingReply()
        self.waiting.append(pending)
        self._barrier = api_key != PRODUCE
        return pending

    def answer(self, pieces: Sequence[Piece]) -> None:
        """Answers the request that was taken last."""
        if self.waiting:
            pending = PendingReply()
            pending.pieces = pieces
            self.waiting.append(pending)
        elif len(pieces) == 1 and type(pieces[0]) is bytes:
            self.unsent += len(pieces[0])
            self.out.append(pieces[0])
        else:
            self._send(pieces)

    def complete(self, pending: PendingReply, pieces: Sequence[Piece]) -> None:
        """Answers a request whose answer was delayed. If `pieces` is empty, nothing is sent (Produce with acks=0)."""
        pending.pieces = pieces
        while self.waiting and self.waiting[0].pieces is not None:
            self._send(self.waiting.popleft().pieces or ())
        if not self.waiting:
            self._barrier = False

    def _send(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            if isinstance(piece, FileSlice):
                self.unsent += piece.length
                self.files += 1
                self.file_bytes += piece.length
            else:
                self.unsent += len(piece)
        self.out.extend(pieces)

    def small(self, limit: int) -> bytes | memoryview | None:
        """All unsent bytes, joined; None if there are none, more than `limit`, or files among them."""
        if self.files or self.unsent > limit or not self.unsent:
            return None
        out = self.out
        # A partly sent piece is replaced by a view of its remainder.
        return out[0] if len(out) == 1 else b"".join(out)  # type: ignore[arg-type, return-value]

    def to_send(self, limit: int) -> tuple[list[bytes | memoryview], int]:
        """The byte pieces before the next file, and their size; at most `limit` pieces."""
        pieces: list[bytes | memoryview] = []
        size = 0
        for piece in self.out:
            if isinstance(piece, FileSlice) or len(pieces) == limit:
                break
            pieces.append(piece)
            size += len(piece)
        return pieces, size

    def sent(self, count: int) -> None:
        """Called when `count` bytes of the pieces from `to_send` were sent."""
        self.unsent -= count
        out = self.out
        if not self.unsent and not self.files:
            out.clear()
            return
        while count:
            first = out[0]
            assert not isinstance(first, FileSlice)
            if count < len(first):
                out[0] = memoryview(first)[count:]
                return
            count -= len(first)
            out.popleft()

    def sent_of_file(self, count: int) -> None:
        """Called when `count` bytes of the first piece, a file, were sent."""
        piece = self.out[0]
        assert isinstance(piece, FileSlice)
        self.unsent -= count
        self.file_bytes -= count
        if count < piece.length:
            self.out[0] = FileSlice(piece.file, piece.position + count, piece.length - count)
            return
        self.out.popleft()
        self.files -= 1
        piece.file.release()

    def discard(self) -> None:
        """Drops the received bytes that were not taken, and their buffer."""
        self._use(self._scratch, self._scratch_view, 0, False)

    @property
    def held_bytes(self) -> int:
        """Memory of this connection for requests that are incomplete or may not start yet, and for large unsent answers."""
        return (len(self.data) if self.owns_buffer else 0) + self.unread_bytes

    @property
    def unread_bytes(self) -> int:
        """Unsent bytes in memory, 0 if they are few."""
        unread = self.unsent - self.file_bytes
        return unread if unread > UNCOUNTED_BYTES else 0

    def abandon(self) -> None:
        """Drops all answers and releases their files."""
        for pending in self.waiting:
            release(pending.pieces or ())
        release(self.out)
        self.waiting.clear()
        self.out.clear()
        self.unsent = 0
        self.files = 0
        self.file_bytes = 0


def release(pieces: Sequence[Piece] | deque[Piece]) -> None:
    for piece in pieces:
        if isinstance(piece, FileSlice):
            piece.file.release()
