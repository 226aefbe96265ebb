"""Framing, order and memory of one connection, without a socket."""

from __future__ import annotations

import itertools
import os
import random
import struct
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_gateway.connection import KEPT_BUFFER, LARGE_FRAME, PRODUCE, Connection, InvalidFrame, PendingReply
from kafka_gateway.settings import Limits
from storage_tiers.types import FileSlice, SharedFile

FETCH, METADATA = 1, 3
SCRATCH = 256


def frame(key: int, correlation: int, body: bytes = b"") -> bytes:
    return struct.pack(">ihhi", 8 + len(body), key, 0, correlation) + body


def make(scratch: int = SCRATCH, **limits: int) -> Connection:
    return Connection(Limits(**limits), bytearray(scratch))


def feed(connection: Connection, data: bytes) -> list[tuple[int, int, bytes]]:
    """Receives all of `data` as a server does; returns (api key, correlation id, body) of each request that may start."""
    taken = []
    while data:
        target = connection.target()
        count = min(len(target), len(data))
        assert count, "no space to receive into"
        target[:count] = data[:count]
        del target  # a live view would stop the buffer from growing
        data = data[count:]
        connection.received(count)
        taken += take(connection)
        connection.settle()
    return taken


def take(connection: Connection) -> list[tuple[int, int, bytes]]:
    taken = []
    while (request := connection.next_request()) is not None:
        key, _, correlation, start, end = request
        taken.append((key, correlation, bytes(connection.data[start:end])))
    return taken


def sent(connection: Connection) -> list[bytes]:
    return [bytes(piece) for piece in connection.out if not isinstance(piece, FileSlice)]


frames = st.lists(st.binary(max_size=3 * SCRATCH), max_size=12)


@given(bodies=frames, cuts=st.lists(st.integers(0, 12 * 3 * SCRATCH), max_size=30))
def test_any_split_of_the_bytes_gives_the_same_requests(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(frame(PRODUCE, place, body) for place, body in enumerate(bodies))
    connection, taken = make(), []
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    for begin, end in itertools.pairwise(edges):
        taken += feed(connection, stream[begin:end])
    assert taken == [(PRODUCE, place, body) for place, body in enumerate(bodies)]
    assert connection.held_bytes == 0


def test_many_connections_share_one_buffer_and_keep_only_incomplete_frames() -> None:
    scratch = bytearray(SCRATCH)
    first, second = Connection(Limits(), scratch), Connection(Limits(), scratch)
    whole = frame(PRODUCE, 1, b"first body")
    assert feed(first, whole[:15]) == []
    assert feed(second, frame(PRODUCE, 2, b"the other one")) == [(PRODUCE, 2, b"the other one")]
    assert feed(first, whole[15:]) == [(PRODUCE, 1, b"first body")]
    assert (first.held_bytes, second.held_bytes) == (0, 0)


def test_a_buffer_grows_with_received_and_not_with_announced_bytes() -> None:
    connection = make(scratch=1 << 16)
    feed(connection, frame(PRODUCE, 1, bytes(90 << 20))[: 1 << 16])
    assert connection.held_bytes <= 1 << 20


@pytest.mark.parametrize("is_looked_at", [False, True])
def test_a_buffer_grows_in_place_unless_it_is_viewed(is_looked_at: bool) -> None:
    connection, body = make(scratch=1 << 20), random.Random(5).randbytes(9 << 20)
    whole = frame(PRODUCE, 1, body)
    assert feed(connection, whole[: 1 << 20]) == []
    buffer, looked_at = connection.data, connection.view[:5] if is_looked_at else b""
    assert feed(connection, whole[1 << 20 : 5 << 20]) == []
    assert (connection.data is buffer) is not is_looked_at
    assert feed(connection, whole[5 << 20 :]) == [(PRODUCE, 1, body)]
    assert bytes(looked_at) == (whole[:5] if is_looked_at else b"")
    assert connection.held_bytes == 0


@pytest.mark.parametrize("seed", range(6))
def test_frames_of_all_sizes_are_read_from_pieces_of_all_sizes(seed: int) -> None:
    chance = random.Random(seed)
    bodies = [chance.randbytes(chance.choice((0, 9, 700, LARGE_FRAME, 70_000, KEPT_BUFFER + 5))) for _ in range(40)]
    stream = b"".join(frame(PRODUCE, place, body) for place, body in enumerate(bodies))
    connection, taken, at = make(scratch=1 << 16), [], 0
    while at < len(stream):
        size = chance.choice((1, 11, 4096, 60_000, 300_000))
        taken += feed(connection, stream[at : at + size])
        at += size
    assert taken == [(PRODUCE, place, body) for place, body in enumerate(bodies)]
    assert connection.held_bytes <= KEPT_BUFFER


@pytest.mark.parametrize("promised", [LARGE_FRAME, 100_000, KEPT_BUFFER, 90 << 20])
@pytest.mark.parametrize("arrived", [1, 112, 5000, 15_000])
def test_a_buffer_is_a_small_multiple_of_the_received_bytes(promised: int, arrived: int) -> None:
    """Otherwise thousands of connections would fill the request memory pool with a hundred bytes each."""
    connection = make(scratch=1 << 16)
    feed(connection, frame(PRODUCE, 1, bytes(promised))[:arrived])
    assert connection.held_bytes <= max(4096, 16 * arrived)


def test_a_client_of_large_frames_keeps_one_buffer_for_them() -> None:
    connection = make(scratch=1 << 16)
    large = frame(PRODUCE, 1, bytes(100_000))
    feed(connection, large[:50_000])
    buffer = connection.data
    taken = feed(connection, large[50_000:] + 9 * large + large[:50])
    assert len(taken) == 10
    assert connection.data is buffer
    assert connection.held_bytes == 4 * len(large)
    feed(connection, large[50:])
    connection.discard()
    assert connection.held_bytes == 0


@pytest.mark.parametrize("size", [-1, -(2**31), 0, 7, 1001, 2**31 - 1])
def test_a_frame_of_a_refused_size_closes_the_connection(size: int) -> None:
    connection = make(request_max_bytes=1000)
    with pytest.raises(InvalidFrame, match=str(size)):
        feed(connection, struct.pack(">ihhi", size, 0, 0, 0))
    with pytest.raises(InvalidFrame, match=str(size)):
        feed(make(request_max_bytes=1000), struct.pack(">i", size))


def test_the_start_of_an_incomplete_frame_is_parsed_early() -> None:
    connection = make()
    feed(connection, frame(77, 5, b"x" * 100)[:9])
    assert connection.begun() == (77, 0)


def test_produce_requests_start_while_earlier_ones_wait() -> None:
    connection = make()
    pending = []
    for correlation in range(3):
        assert feed(connection, frame(PRODUCE, correlation)) == [(PRODUCE, correlation, b"")]
        pending.append(connection.delay(PRODUCE))
    connection.complete(pending[2], (b"three",))
    connection.complete(pending[0], (b"one",))
    assert sent(connection) == [b"one"]
    connection.complete(pending[1], (b"two",))
    assert sent(connection) == [b"one", b"two", b"three"]


def test_an_answer_known_at_once_stays_behind_those_that_wait() -> None:
    connection = make()
    feed(connection, frame(PRODUCE, 1))
    pending = connection.delay(PRODUCE)
    feed(connection, frame(PRODUCE, 2))
    connection.answer((b"second",))
    assert sent(connection) == []
    connection.complete(pending, (b"first",))
    assert sent(connection) == [b"first", b"second"]


def test_any_other_request_waits_for_all_before_it() -> None:
    connection = make()
    feed(connection, frame(PRODUCE, 1))
    pending = connection.delay(PRODUCE)
    assert feed(connection, frame(METADATA, 2)) == []
    connection.complete(pending, (b"1",))
    assert take(connection) == [(METADATA, 2, b"")]


def test_a_delayed_fetch_delays_all_requests_behind_it() -> None:
    connection = make()
    feed(connection, frame(FETCH, 1))
    pending = connection.delay(FETCH)
    assert connection.stalled
    assert feed(connection, frame(PRODUCE, 2) + frame(PRODUCE, 3)) == []
    connection.complete(pending, (b"1",))
    assert [correlation for _, correlation, _ in take(connection)] == [2, 3]


def test_requests_without_an_answer_leave_no_gap() -> None:
    connection = make()
    pending: list[PendingReply] = []
    for correlation in (1, 2, 3):
        feed(connection, frame(PRODUCE, correlation))
        pending.append(connection.delay(PRODUCE))
    for each, pieces in zip(pending, ((b"1",), (), (b"3",)), strict=True):
        connection.complete(each, pieces)
    assert sent(connection) == [b"1", b"3"]


def test_no_request_starts_while_too_much_is_unsent() -> None:
    connection = make(unsent_bytes=100)
    feed(connection, frame(METADATA, 1))
    connection.answer((bytes(101),))
    assert connection.stalled
    assert feed(connection, frame(METADATA, 2)) == []
    connection.sent(50)
    assert take(connection) == [(METADATA, 2, b"")]


def test_the_number_of_outstanding_answers_is_bounded() -> None:
    connection = make(requests_in_flight=2)
    for correlation in (1, 2):
        feed(connection, frame(PRODUCE, correlation))
        connection.delay(PRODUCE)
    assert feed(connection, frame(PRODUCE, 3)) == []
    assert connection.stalled


@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=10), steps=st.lists(st.integers(1, 60), min_size=1))
def test_partial_sends_leave_exactly_the_rest(sizes: list[int], steps: list[int]) -> None:
    connection = make()
    pieces = [os.urandom(size) for size in sizes]
    connection.answer(pieces)
    everything = b"".join(pieces)
    gone = 0
    for step in steps:
        if not connection.out:
            break
        offered, size = connection.to_send(3)
        assert b"".join(offered) == everything[gone : gone + size]
        count = min(step, size)
        connection.sent(count)
        gone += count
    assert connection.unsent == len(everything) - gone
    assert b"".join(sent(connection)) == everything[gone:]


def shared_file(size: int) -> SharedFile:
    fd, path = tempfile.mkstemp()
    os.write(fd, bytes(size))
    os.unlink(path)
    return SharedFile(path, fd)


def test_a_file_is_released_once_its_last_byte_is_sent() -> None:
    connection, file = make(), shared_file(100)
    connection.answer((b"head", FileSlice(file, 0, 60), b"tail"))
    assert connection.to_send(64) == ([b"head"], 4)
    connection.sent(4)
    connection.sent_of_file(25)
    assert connection.out[0] == FileSlice(file, 25, 35)
    connection.sent_of_file(35)
    assert file.users == 0
    assert connection.to_send(64) == ([b"tail"], 4)


def test_an_abandoned_connection_releases_every_file() -> None:
    connection, file = make(), shared_file(10)
    feed(connection, frame(PRODUCE, 1))
    connection.delay(PRODUCE)
    feed(connection, frame(PRODUCE, 2))
    connection.answer((FileSlice(file.acquire(), 0, 10),))
    connection.abandon()
    assert file.users == 1
    file.release()
