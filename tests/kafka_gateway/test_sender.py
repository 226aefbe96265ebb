"""Files are sent in shares, and a thread waits for reads from the disk."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import tempfile
from collections.abc import Iterator

import pytest

from kafka_gateway.connection import Connection
from kafka_gateway.sender import (
    ALL_FILE_BYTES_A_TURN,
    FILE_THREADS,
    JOINED_BYTES,
    LARGEST_SHARE,
    LEAST_IN_THREAD,
    LEAST_SHARE,
    Progress,
    Resume,
    Sender,
)
from kafka_gateway.settings import Limits
from storage_tiers.types import FileSlice, SharedFile


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    for end in (near, far):
        end.setblocking(False)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
    yield near, far
    near.close()
    far.close()


def drained(sock: socket.socket) -> bytes:
    out = []
    try:
        while True:
            out.append(sock.recv(1 << 20))
    except BlockingIOError:
        return b"".join(out)


def shared_file(content: bytes) -> SharedFile:
    fd, path = tempfile.mkstemp()
    os.write(fd, content)
    os.unlink(path)
    return SharedFile(path, fd)


def answering(*pieces: bytes | FileSlice) -> Connection:
    connection = Connection(Limits(), bytearray(16))
    connection.answer(pieces)
    return connection


def nobody(_: object, __: OSError | None, ___: bool) -> None:
    raise AssertionError("a thread read or sent something")


async def finish(sender: Sender, near: socket.socket, far: socket.socket, connection: Connection) -> bytes:
    out = []
    while connection.out:
        sender.new_turn(1)
        sender.send(near, connection, None, nobody)
        out.append(drained(far))
    return b"".join(out)


async def test_a_large_file_is_sent_in_shares(sockets: tuple[socket.socket, socket.socket]) -> None:
    content = os.urandom(LARGEST_SHARE + 1000)
    file = shared_file(content)
    sender, connection = (
        Sender(asyncio.get_running_loop()),
        answering(b"head", FileSlice(file, 0, len(content)), b"tail"),
    )
    progress = sender.send(sockets[0], connection, None, nobody)
    first = drained(sockets[1])
    assert progress in (Progress.SHARED, Progress.BLOCKED)
    assert len(first) <= 4 + LARGEST_SHARE
    assert first + await finish(sender, *sockets, connection) == b"head" + content + b"tail"
    assert (file.users, connection.unsent) == (0, 0)


async def test_all_connections_share_one_budget(sockets: tuple[socket.socket, socket.socket]) -> None:
    sender, readers = Sender(asyncio.get_running_loop()), 100
    file = shared_file(bytes(LARGEST_SHARE))
    sender.new_turn(readers)
    sent = []
    for _ in range(readers):
        connection = answering(FileSlice(file.acquire(), 0, LARGEST_SHARE))
        sender.send(sockets[0], connection, None, nobody)
        sent.append(len(drained(sockets[1])))
        connection.abandon()
    assert max(sent) <= LEAST_SHARE
    assert ALL_FILE_BYTES_A_TURN - LEAST_SHARE < sum(sent) < ALL_FILE_BYTES_A_TURN + LEAST_SHARE
    file.release()


async def test_a_small_part_of_a_file_does_not_wait_for_the_budget(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    """Otherwise it would wait behind hundreds of large answers for as many turns as their shares take."""
    sender = Sender(asyncio.get_running_loop())
    large, small = shared_file(bytes(ALL_FILE_BYTES_A_TURN)), shared_file(bytes(JOINED_BYTES))
    sender.new_turn(1)
    while sender.send(sockets[0], connection := answering(FileSlice(large.acquire(), 0, LARGEST_SHARE)), None, nobody):
        drained(sockets[1])
        if connection.unsent:
            connection.abandon()
            break
    connection = answering(b"head", FileSlice(small, 0, JOINED_BYTES))
    assert sender.send(sockets[0], connection, None, nobody) is Progress.DONE
    assert len(drained(sockets[1])) == 4 + JOINED_BYTES
    large.release()


async def test_many_small_answers_are_one_write(sockets: tuple[socket.socket, socket.socket]) -> None:
    sender, connection = Sender(asyncio.get_running_loop()), answering(*(b"%d," % place for place in range(50)))
    assert sender.send(sockets[0], connection, None, nobody) is Progress.DONE
    assert drained(sockets[1]) == b"".join(b"%d," % place for place in range(50))


@pytest.mark.parametrize("size", [1, 8 << 10])
async def test_a_large_answer_is_sent_in_shares(
    sockets: tuple[socket.socket, socket.socket], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shares are bounded by bytes and by the number of send calls."""
    monkeypatch.setattr("kafka_gateway.sender.LARGEST_SHARE", 40 << 10)
    monkeypatch.setattr("kafka_gateway.sender.LEAST_SHARE", 40 << 10)
    monkeypatch.setattr("kafka_gateway.sender.LEAST_COUNTED", 10 << 10)
    monkeypatch.setattr("kafka_gateway.sender.GATHERED", 3)
    sender = Sender(asyncio.get_running_loop())
    sender.new_turn(2)
    pieces = [os.urandom(size) for _ in range(30)]
    connection = answering(*pieces)
    assert sender.send(sockets[0], connection, None, nobody) is Progress.SHARED
    first = drained(sockets[1])
    assert len(first) == (4 * 3 if size == 1 else 2 * 3 * size)
    assert first + await finish(sender, *sockets, connection) == b"".join(pieces)


async def test_bytes_before_a_file_do_not_count_in_its_share(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    """Otherwise every response whose file has the size of a share would be cut in two."""
    content = os.urandom(LEAST_SHARE)
    sender = Sender(asyncio.get_running_loop())
    sender.new_turn(1000)
    connection = answering(b"head", FileSlice(shared_file(content), 0, len(content)), b"tail")
    assert sender.send(sockets[0], connection, None, nobody) is Progress.DONE
    assert drained(sockets[1]) == b"head" + content + b"tail"


async def test_a_full_socket_counts_as_blocked(sockets: tuple[socket.socket, socket.socket]) -> None:
    sender = Sender(asyncio.get_running_loop())
    pieces = [os.urandom(1 << 20) for _ in range(40)]
    connection = answering(*pieces)
    while (progress := sender.send(sockets[0], connection, None, nobody)) is Progress.SHARED:
        pass
    assert progress is Progress.BLOCKED
    first = drained(sockets[1])
    assert first + await finish(sender, *sockets, connection) == b"".join(pieces)


async def test_small_answers_are_sent_directly(sockets: tuple[socket.socket, socket.socket]) -> None:
    sender, connection = Sender(asyncio.get_running_loop()), answering(b"one", b"two")
    assert sender.send_small(sockets[0], connection)
    assert (drained(sockets[1]), connection.unsent, list(connection.out)) == (b"onetwo", 0, [])
    assert sender.send_small(sockets[0], connection)
    file = shared_file(b"x")
    connection.answer((b"head", FileSlice(file, 0, 1)))
    assert not sender.send_small(sockets[0], connection)
    assert drained(sockets[1]) == b""
    connection.abandon()
    assert not sender.send_small(sockets[0], answering(bytes(1 << 20)))


async def test_an_empty_slice_at_the_end_is_released(sockets: tuple[socket.socket, socket.socket]) -> None:
    file = shared_file(b"")
    sender, connection = Sender(asyncio.get_running_loop()), answering(b"a", FileSlice(file, 0, 0))
    assert sender.send(sockets[0], connection, None, nobody) is Progress.DONE
    assert (drained(sockets[1]), file.users) == (b"a", 0)


async def test_an_empty_slice_is_released(sockets: tuple[socket.socket, socket.socket]) -> None:
    file = shared_file(b"")
    sender, connection = Sender(asyncio.get_running_loop()), answering(b"a", FileSlice(file, 0, 0), b"b")
    assert sender.send(sockets[0], connection, None, nobody) is Progress.DONE
    assert (drained(sockets[1]), file.users) == (b"ab", 0)


async def test_a_file_shorter_than_promised_is_an_error(sockets: tuple[socket.socket, socket.socket]) -> None:
    sender, connection = Sender(asyncio.get_running_loop()), answering(FileSlice(shared_file(b"short"), 0, 50))
    with pytest.raises(OSError, match="ends before 50"):
        sender.send(sockets[0], connection, None, nobody)
        sender.send(sockets[0], connection, None, nobody)
    connection.abandon()


async def test_pages_outside_the_page_cache_are_read_in_a_thread_first(
    sockets: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = os.urandom(LEAST_SHARE + 5)
    file = shared_file(content)
    sender, connection = Sender(asyncio.get_running_loop()), answering(b"head", FileSlice(file, 0, len(content)))
    sender.new_turn(1000)
    resumed: asyncio.Queue[OSError | None] = asyncio.Queue()

    def resume(_: object, failure: OSError | None, is_full: bool) -> None:
        assert not is_full
        resumed.put_nowait(failure)

    def cold(*_: object) -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "preadv", cold)
    assert sender.send(sockets[0], connection, None, resume) is Progress.THREAD
    assert drained(sockets[1]) == b"head"
    assert file.users == 2
    assert await resumed.get() is None
    assert file.users == 1
    # The share that the thread has read is sent without a second probe; the next share is not in memory either.
    assert sender.send(sockets[0], connection, None, resume) is Progress.SHARED
    sender.new_turn(1000)
    assert sender.send(sockets[0], connection, None, resume) is Progress.THREAD
    assert await resumed.get() is None
    assert sender.send(sockets[0], connection, None, resume) is Progress.DONE
    assert drained(sockets[1]) == content
    assert (sender.reads_in_threads, file.users) == (2, 0)
    sender.close()


async def test_a_disk_failure_in_the_thread_is_reported(
    sockets: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = answering(FileSlice(shared_file(bytes(10)), 0, 10))
    sender, told = Sender(asyncio.get_running_loop()), asyncio.get_running_loop().create_future()

    def cold(*_: object) -> int:
        raise BlockingIOError

    def broken(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", cold)
    monkeypatch.setattr(os, "pread", broken)
    assert sender.send(sockets[0], connection, "owner", lambda owner, failure, _: told.set_result((owner, failure)))
    owner, failure = await told
    assert owner == "owner"
    assert failure.errno == 5
    connection.abandon()
    sender.close()


# --- while others get small responses ---------------------------------------------------------------------------------
def told() -> tuple[asyncio.Queue[tuple[OSError | None, bool]], Resume[object]]:
    resumed: asyncio.Queue[tuple[OSError | None, bool]] = asyncio.Queue()
    return resumed, lambda _, failure, is_full: resumed.put_nowait((failure, is_full))


def busy_sender() -> Sender:
    """The sender of a server that has just sent a small response."""
    sender = Sender(asyncio.get_running_loop())
    sender.small_at = asyncio.get_running_loop().time()
    return sender


async def test_a_thread_sends_large_answers_while_small_ones_are_sent(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    content = os.urandom(32 << 20)
    sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    file, (resumed, resume) = shared_file(content), told()
    sender, connection = busy_sender(), answering(b"head", FileSlice(file, 0, len(content)), b"tail")
    got, fulls = bytearray(), 0
    while connection.out:
        if sender.send(sockets[0], connection, None, resume) is Progress.THREAD:
            failure, is_full = await resumed.get()
            assert failure is None
            fulls += is_full
        got += drained(sockets[1])
    assert bytes(got) == b"head" + content + b"tail"
    # A partial write is not mistaken for a complete one.
    assert sender.sends_in_threads > FILE_THREADS, "a finished sender makes room for the next"
    assert fulls == sender.sends_in_threads - 1
    assert (file.users, connection.unsent) == (0, 0)
    sender.close()


async def test_a_small_part_of_a_file_is_not_worth_a_thread(sockets: tuple[socket.socket, socket.socket]) -> None:
    sender, file = busy_sender(), shared_file(bytes(LEAST_IN_THREAD - 1))
    connection = answering(FileSlice(file, 0, LEAST_IN_THREAD - 1))
    assert sender.send(sockets[0], connection, None, nobody) is Progress.DONE


async def test_a_connection_that_closes_while_a_thread_sends_leaves_nothing_behind(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    file, (resumed, resume) = shared_file(bytes(8 << 20)), told()
    sender, connection = busy_sender(), answering(FileSlice(file, 0, 8 << 20))
    assert sender.send(sockets[0], connection, None, resume) is Progress.THREAD
    # The next socket with the same descriptor number receives none of the bytes.
    number = sockets[0].fileno()
    sockets[0].close()
    connection.abandon()
    other, taken = socket.socketpair()
    assert number in (other.fileno(), taken.fileno())
    await resumed.get()
    for end in (other, taken):
        end.setblocking(False)
        assert drained(end) == b""
    other.close()
    taken.close()
    assert (file.users, connection.unsent) == (0, 0)
    # The descriptor that the thread sent on is closed, as is the socket.
    assert len(os.listdir("/proc/self/fd")) == before - 1
    sender.close()


async def test_no_more_files_are_sent_by_threads_than_there_are_threads(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    sender, (resumed, resume) = busy_sender(), told()
    file = shared_file(bytes(LARGEST_SHARE))
    connections = [answering(FileSlice(file.acquire(), 0, LARGEST_SHARE)) for _ in range(FILE_THREADS + 1)]
    progress = [sender.send(sockets[0], connection, None, resume) for connection in connections]
    assert progress[:-1] == [Progress.THREAD] * FILE_THREADS
    assert progress[-1] is not Progress.THREAD
    for _ in range(FILE_THREADS):
        await resumed.get()
    for connection in connections:
        connection.abandon()
    file.release()
    assert file.users == 0
    sender.close()


async def test_without_a_free_descriptor_the_loop_sends(
    sockets: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(_: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "dup", short)
    content = os.urandom(LEAST_IN_THREAD)
    sender, connection = busy_sender(), answering(FileSlice(shared_file(content), 0, len(content)))
    assert await finish(sender, *sockets, connection) == content


async def test_a_file_that_ends_too_early_is_reported_by_the_thread(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    sender, (resumed, resume) = busy_sender(), told()
    connection = answering(FileSlice(shared_file(b"short"), 0, LEAST_IN_THREAD))
    assert sender.send(sockets[0], connection, None, resume) is Progress.THREAD
    failure, _ = await resumed.get()
    assert "ends before" in str(failure)
    connection.abandon()
    sender.close()
