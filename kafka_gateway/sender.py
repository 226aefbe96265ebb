"""Sends the answers of connections: one gathered write per turn, and files straight from the page cache.

A large answer is sent in shares, so that it delays no other client. Each turn has a budget for bytes of files. Each connection
has a share of that budget, and a second share of the same size for bytes in memory. Files are sent with sendfile, which would
block the whole event loop during a disk read. Both ends of a share are therefore probed first, without blocking. If they are
not in memory, a thread reads the share into the page cache while the loop continues. A small part of a file does not wait for
the budget, which hundreds of backfills would use up first.

While other clients get small answers, a thread sends large files. If the event loop itself spent milliseconds on a backfill, it
would use up its scheduler time slice, and a small request that arrives then would wait. A thread uses up only its own time
slice. The thread has its own descriptor, so that the connection may be closed meanwhile.

The page cache may drop the bytes that a thread has just read. The event loop then blocks on the disk.
"""

from __future__ import annotations

import asyncio
import enum
import errno
import functools
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from kafka_gateway.connection import Connection
from storage_tiers.types import FileSlice, SharedFile

#: Bytes of files sent in one turn to all connections, and the smallest and largest share of one connection. An answer of 1 MiB
#: costs half as much in one send as in four. With many readers the shares are smaller, so that no reader waits long.
ALL_FILE_BYTES_A_TURN = 4 << 20
LEAST_SHARE = 256 << 10
LARGEST_SHARE = 1 << 20
#: A smaller write counts as this many bytes, because many small writes take as long as one large write.
LEAST_COUNTED = 4 << 10
#: Most buffers in one gathered write, and the total size up to which they are joined instead.
GATHERED = 64
JOINED_BYTES = 64 << 10
#: Threads that read from disks, and send files while other clients get small answers.
FILE_THREADS = 4
#: Bytes that a thread sends in one call, during which the kernel does not preempt it.
THREAD_STEP = 256 << 10
#: Least bytes of a file that are sent by a thread.
LEAST_IN_THREAD = 256 << 10
#: Seconds without a small answer after which the loop sends large files itself.
QUIET_S = 1.0

#: Errors of a file system that does not support reads without blocking.
_CANNOT_PROBE = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)


Owner = TypeVar("Owner")


class Progress(enum.Enum):
    """The outcome of `Sender.send`."""

    DONE = "everything is sent"
    BLOCKED = "the socket takes no more for now"
    SHARED = "its share of this turn is used up"
    THREAD = "a thread reads or sends the next bytes; `resume` will be called"


#: Called on the event loop when a thread is done, with the owner, the failure, and whether the socket is full now.
Resume = Callable[[Owner, OSError | None, bool], None]
#: The same, with the owner bound.
Resumed = Callable[[OSError | None, bool], None]


class Sender:
    """Owns the turn's budget and the threads. Must be used on one event loop only."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._budget = ALL_FILE_BYTES_A_TURN
        self._share = LARGEST_SHARE
        self._connections = 1
        self._probe = bytearray(1)
        self._threads: ThreadPoolExecutor | None = None
        self._sending = 0
        #: When a small answer was sent last, in seconds of the loop's clock.
        self.small_at = -QUIET_S
        self.sent_bytes = 0
        self.reads_in_threads = self.sends_in_threads = 0

    def new_turn(self, connections: int) -> None:
        """Begins a turn that sends to `connections` connections."""
        self._budget = ALL_FILE_BYTES_A_TURN
        if connections != self._connections:
            self._connections = connections
            self._share = min(LARGEST_SHARE, max(LEAST_SHARE, ALL_FILE_BYTES_A_TURN // max(1, connections)))

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def send(self, sock: socket.socket, connection: Connection, owner: Owner, resume: Resume[Owner]) -> Progress:
        """Sends as much as the budget and the socket allow. After THREAD, `resume` is called on the loop when the next bytes
        are in memory or sent. Until then, nothing may be sent on the connection. Raises OSError for a broken connection or
        file."""
        try:
            return self._send_out(sock, connection, functools.partial(resume, owner))
        except BlockingIOError:
            return Progress.BLOCKED

    def _send_out(self, sock: socket.socket, connection: Connection, resume: Resumed) -> Progress:
        """Does the same as `send`, but raises BlockingIOError when the socket is full."""
        share = of_bytes = self._share
        while connection.out:
            piece = connection.out[0]
            if not isinstance(piece, FileSlice):
                # Bytes have their own share, so that the header before a file does not split the file in two.
                if of_bytes <= 0:
                    return Progress.SHARED
                of_bytes -= max(self._send_bytes(sock, connection), LEAST_COUNTED)
            elif piece.length == 0:
                connection.sent_of_file(0)
            elif self._sends_in_thread(sock, connection, piece, resume):
                return Progress.THREAD
            elif share <= 0 or (self._budget <= 0 and piece.length > JOINED_BYTES):
                return Progress.SHARED
            elif not self._is_in_memory(connection, piece, min(piece.length, share)):
                self._read_in_thread(connection, piece, min(piece.length, share), resume)
                return Progress.THREAD
            else:
                share -= self._send_file(sock, connection, piece, share)
        return Progress.DONE

    def send_small(self, sock: socket.socket, connection: Connection) -> bool:
        """The fast path of most turns: small answers and no file. Returns False if anything is left for `send`."""
        data = connection.small(JOINED_BYTES)
        if data is None:
            return not connection.out
        try:
            count = sock.send(data)
        except BlockingIOError:
            return False
        self.sent_bytes += count
        connection.sent(count)
        return connection.unsent == 0

    def _send_bytes(self, sock: socket.socket, connection: Connection) -> int:
        """Writes the byte pieces before the next file, with one system call. Returns how many bytes were sent."""
        pieces, size = connection.to_send(GATHERED)
        # MSG_MORE before a file would halve the rate of 1 MiB fetches on loopback.
        if len(pieces) == 1:
            count = sock.send(pieces[0])
        elif size <= JOINED_BYTES:
            count = sock.send(b"".join(pieces))
        else:
            count = sock.sendmsg(pieces)
        connection.sent(count)
        self.sent_bytes += count
        return count

    def _send_file(self, sock: socket.socket, connection: Connection, piece: FileSlice, share: int) -> int:
        count = os.sendfile(sock.fileno(), piece.file.fd, piece.position, min(piece.length, share))
        if count == 0:
            raise OSError(f"{piece.file.path} ends before {piece.position + piece.length}")
        connection.sent_of_file(count)
        self._budget -= count
        self.sent_bytes += count
        return count

    # --- threads ------------------------------------------------------------------------------------------------------
    def _sends_in_thread(
        self,
        sock: socket.socket,
        connection: Connection,
        piece: FileSlice,
        resume: Resumed,
    ) -> bool:
        """Starts a thread that sends the file, if it is large and other clients get small answers."""
        if (
            piece.length < LEAST_IN_THREAD
            or self._sending == FILE_THREADS
            or self._loop.time() - self.small_at > QUIET_S
        ):
            return False
        try:
            out = os.dup(sock.fileno())
        except OSError:
            return False  # out of descriptors: the loop sends without a thread
        self._sending += 1
        self.sends_in_threads += 1
        # The connection may be closed and its pieces released meanwhile.
        file = piece.file.acquire()
        work = functools.partial(_sent, out, file, piece.position, piece.length)
        sending = self._loop.run_in_executor(self._pool(), work)

        def done(sent: asyncio.Future[int]) -> None:
            self._sending -= 1
            file.release()
            os.close(out)
            if sent.cancelled():
                return
            failure = sent.exception()
            count = sent.result() if failure is None else 0
            self.sent_bytes += count
            if count and connection.out and connection.out[0] is piece:
                connection.sent_of_file(count)
            resume(failure if isinstance(failure, OSError) else None, count < piece.length)

        sending.add_done_callback(done)
        return True

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(FILE_THREADS, "gateway-file")
        return self._threads

    def _is_in_memory(self, connection: Connection, piece: FileSlice, length: int) -> bool:
        if connection.is_read_in:
            connection.is_read_in = False
            return True
        return self._probed(piece.file.fd, piece.position + length - 1) and self._probed(piece.file.fd, piece.position)

    def _probed(self, fd: int, position: int) -> bool:
        try:
            os.preadv(fd, (self._probe,), position, _NOWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _CANNOT_PROBE:
                raise
        return True

    def _read_in_thread(self, connection: Connection, piece: FileSlice, length: int, resume: Resumed) -> None:
        self.reads_in_threads += 1
        # The connection may be closed and its pieces released meanwhile.
        file = piece.file.acquire()
        reading = self._loop.run_in_executor(self._pool(), os.pread, file.fd, length, piece.position)

        def done(read: asyncio.Future[bytes]) -> None:
            file.release()
            if read.cancelled():
                return
            failure = read.exception()
            connection.is_read_in = failure is None
            resume(failure if isinstance(failure, OSError) else None, False)

        reading.add_done_callback(done)


def _sent(out: int, file: SharedFile, position: int, length: int) -> int:
    """Runs in a thread. Returns how many bytes of the file the socket took. Raises OSError for a broken socket or file."""
    done = 0
    try:
        while done < length:
            count = os.sendfile(out, file.fd, position + done, min(length - done, THREAD_STEP))
            if count == 0:
                raise OSError(f"{file.path} ends before {position + length}")
            done += count
    except BlockingIOError:
        pass
    return done
