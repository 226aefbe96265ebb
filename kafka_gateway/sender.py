"""Sends what connections have to send: one gathered write a turn, and files straight from the page cache.

A large answer goes out in shares, so that one reader of it holds up nobody: each turn has a budget for files, and each
connection a share of it, and another as large for bytes. A file goes out by sendfile, which would stop the whole loop
while a disk is read; so the two ends of a share are probed without blocking first, and where they are not in memory a
thread reads the share in (the kernel's cache then holds it) while the loop goes on.

While others are given small answers a thread sends what is large. A loop that spends milliseconds on somebody's backfill has
used its turn on the processor up when a small request comes, and both wait until the scheduler looks again; the thread is
the one that waits then. It sends on a descriptor of its own, so that a connection may be closed meanwhile.

Does not promise: that memory keeps what a thread has just read. Then the loop waits for the disk, which is slow and right.
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

#: Bytes of files sent in one turn to all connections, and the least and most to one of them. A whole answer of 1 MiB in
#: one go costs half of what it costs in four; many readers get smaller shares, so that none waits long.
ALL_FILE_BYTES_A_TURN = 4 << 20
LEAST_SHARE = 256 << 10
LARGEST_SHARE = 1 << 20
#: What a write counts as at least: an answer of many small pieces takes as long for the calls as a large one for its bytes.
LEAST_COUNTED = 4 << 10
#: Buffers gathered into one write, and up to which size they are joined instead.
GATHERED = 64
JOINED_BYTES = 64 << 10
#: Threads that wait for disks, and send files while others are given small answers.
FILE_THREADS = 4
#: Bytes that a thread sends at once: the kernel lets nobody else have the processor before that is done.
THREAD_STEP = 256 << 10
#: From so many bytes of a file on a thread is worth its while.
LEAST_IN_THREAD = 256 << 10
#: Seconds since the last small answer after which nobody waits for one.
QUIET_S = 1.0

#: The file system cannot tell without blocking.
_CANNOT_PROBE = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)


Owner = TypeVar("Owner")


class Progress(enum.Enum):
    """How far `Sender.send` came."""

    DONE = "everything is sent"
    BLOCKED = "the socket takes no more for now"
    SHARED = "its share of this turn is used up"
    THREAD = "a thread reads or sends what comes next; `resume` will be called"


#: What is called on the loop when a thread is done: whose it was, what failed, and whether the socket takes no more now.
Resume = Callable[[Owner, OSError | None, bool], None]


class Sender:
    """Owns the turn's budget and the threads. Used on one event loop only."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._budget = ALL_FILE_BYTES_A_TURN
        self._share = LARGEST_SHARE
        self._connections = 1
        self._probe = bytearray(1)
        self._threads: ThreadPoolExecutor | None = None
        self._sending = 0
        #: When a small answer left last, by the loop's clock.
        self.small_at = -QUIET_S
        self.sent_bytes = 0
        self.reads_in_threads = self.sends_in_threads = 0

    def new_turn(self, connections: int) -> None:
        """A turn that sends to so many connections begins."""
        self._budget = ALL_FILE_BYTES_A_TURN
        if connections != self._connections:
            self._connections = connections
            self._share = min(LARGEST_SHARE, max(LEAST_SHARE, ALL_FILE_BYTES_A_TURN // max(1, connections)))

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def send(self, sock: socket.socket, connection: Connection, owner: Owner, resume: Resume[Owner]) -> Progress:
        """Sends as much as may be sent now. After THREAD, `resume` is called on the loop once the next bytes are in memory or
        sent; nothing is sent on the connection before. Raises OSError where the connection, or a file, is broken."""
        share = of_bytes = self._share
        try:
            while connection.out:
                piece = connection.out[0]
                if not isinstance(piece, FileSlice):
                    # A share of their own, so that the head of a file does not cut the file in two.
                    if of_bytes <= 0:
                        return Progress.SHARED
                    of_bytes -= max(self._send_bytes(sock, connection), LEAST_COUNTED)
                elif piece.length == 0:
                    connection.sent_of_file(0)
                elif self._sends_in_thread(sock, connection, piece, functools.partial(resume, owner)):
                    return Progress.THREAD
                elif share <= 0 or self._budget <= 0:
                    return Progress.SHARED
                elif not self._is_in_memory(connection, piece, min(piece.length, share)):
                    self._read_in_thread(connection, piece, min(piece.length, share), functools.partial(resume, owner))
                    return Progress.THREAD
                else:
                    share -= self._send_file(sock, connection, piece, share)
        except BlockingIOError:
            return Progress.BLOCKED
        return Progress.DONE

    def send_small(self, sock: socket.socket, connection: Connection) -> bool:
        """The usual turn, without ceremony: small answers and no file. False if anything is left for `send`."""
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
        """One write of the byte pieces up to the next file; how many bytes left."""
        pieces, size = connection.to_send(GATHERED)
        # No MSG_MORE before a file: measured on loopback it costs half of the rate of 1 MiB fetches.
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
        resume: Callable[[OSError | None, bool], None],
    ) -> bool:
        """Begins to, if it is worth while."""
        if (
            piece.length < LEAST_IN_THREAD
            or self._sending == FILE_THREADS
            or self._loop.time() - self.small_at > QUIET_S
        ):
            return False
        try:
            out = os.dup(sock.fileno())
        except OSError:
            return False  # no descriptor to spare: the loop can send without one
        self._sending += 1
        self.sends_in_threads += 1
        # The connection may be closed meanwhile, and its pieces released.
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

    def _read_in_thread(
        self, connection: Connection, piece: FileSlice, length: int, resume: Callable[[OSError | None, bool], None]
    ) -> None:
        self.reads_in_threads += 1
        # The connection may be closed meanwhile, and its pieces released.
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
    """In a thread: how many bytes of the file the socket took. OSError where it, or the file, is broken."""
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
