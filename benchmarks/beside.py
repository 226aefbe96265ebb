"""Measures concurrent work: producing while segments roll and are offloaded, the latency of records meanwhile, and consumers at
the end of a log.

Apache Kafka keeps its segments on disk in these rows, as it does by default. So only tidelog's figures include the cost of
offloading. The disk's queue is emptied (`sync`) before a producing row. Otherwise the row would include the wait for the writes
of earlier rows.
"""

from __future__ import annotations

import os
import select
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import crc32c

from benchmarks import background, load
from benchmarks.brokers import Broker

#: Segment size of the sustained row: small, so that several segments roll and are offloaded during one measurement.
SEGMENT_BYTES = 64 << 20
SUSTAINED_S = 15.0
#: Bytes a second that are produced in the background, and records a second whose latency is measured meanwhile.
BACKGROUND_BYTES = 20 << 20
RATE = 1000
LATENCY_S = 10.0
#: Records a second in the tailing rows, and their duration.
TAIL_RATE = 2000
TAIL_S = 5.0
READERS = (1, 20, 200)


def sustained(broker: Broker, tag: str, only: str) -> Iterator[tuple[str, str, float | None]]:
    """Yields (row, unit, value) for one broker. A value is None if it is unknown for that broker."""
    row = "sustained produce, segments of 64 MiB roll"
    if only in row:
        topic = f"sustained-{tag}"
        load.create_topic(broker.address, topic, segment_bytes=SEGMENT_BYTES)
        os.sync()
        before, stored_before = broker.processor_seconds(), broker.stored_bytes()
        _, megabytes = load.produce(broker.address, topic, 64, 1000, 5, SUSTAINED_S)
        after, stored = broker.processor_seconds(), broker.stored_bytes()
        yield row, "MB/s", megabytes
        spent = None if before is None or after is None else (after - before) / (megabytes * SUSTAINED_S / 1e3)
        yield f"{row}: broker processor", "s/GB", spent
        produced = megabytes * SUSTAINED_S * 1e6
        share = None if stored_before is None or stored is None else 100 * (stored - stored_before) / produced
        yield f"{row}: in the bucket at its end", "%", share
    row = "latency at 1,000/s while 20 MiB/s roll segments"
    if only in row:
        topic, other = f"latency-{tag}", f"background-{tag}"
        load.create_topic(broker.address, topic)
        load.create_topic(broker.address, other, segment_bytes=16 << 20)
        os.sync()
        with background.produced(broker.address, other, BACKGROUND_BYTES):
            for name, value in load.latency(broker.address, topic, RATE, LATENCY_S).items():
                yield f"{row}, {name}", "ms", value


# --- tailing ----------------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class _Tail:
    """One consumer at the end of the log. A record's value begins with the time when the record was due, so all times come from
    one clock."""

    connection: load.Connection
    request: bytearray
    offset: int
    unread: bytearray = field(default_factory=bytearray)

    def ask(self) -> None:
        """Sends the request with the current offset. The request is encoded only once, because encoding each one would make the
        client the bottleneck."""
        struct.pack_into(">q", self.request, _place_of_offset(self.request), self.offset)
        self.connection.send(bytes(self.request))

    def readable(self, now: float, taken: list[float]) -> None:
        piece = self.connection.socket.recv(1 << 18)
        if not piece:
            raise load.LoadFailed("a consumer's connection was closed")
        self.unread += piece
        while len(self.unread) >= 4 and len(self.unread) >= 4 + struct.unpack_from(">i", self.unread)[0]:
            size = 4 + struct.unpack_from(">i", self.unread)[0]
            records = load.fetched_records(bytes(self.unread[4:size]))
            del self.unread[:size]
            for after, due in _dues(records):
                self.offset = after
                taken.append((now - due) * 1e3)
            self.ask()


class _Produce:
    """A Produce request of one record. The request is encoded once; `due` writes the record's due time into it before each
    send."""

    def __init__(self, topic: str) -> None:
        batch = load.record_batch(1, _VALUE_BYTES)
        self._frame = bytearray(load.produce_frame(topic, batch))
        self._batch = self._frame.index(batch)
        self._end = self._batch + len(batch)

    def due(self, when: float) -> bytes:
        struct.pack_into(">d", self._frame, self._end - _VALUE_BYTES - 1, when)
        summed = crc32c.crc32c(memoryview(self._frame)[self._batch + 21 : self._end])
        struct.pack_into(">I", self._frame, self._batch + 17, summed)
        return bytes(self._frame)


def _place_of_offset(request: bytearray) -> int:
    """The position of the fetch offset. A Fetch v11 request ends with this offset, the log start offset, the partition's
    maximum of bytes, no forgotten topics, and no rack."""
    return len(request) - (8 + 8 + 4 + 4 + 2)


def _dues(records: bytes) -> Iterator[tuple[int, float]]:
    """Yields (next offset, due time) of each whole batch. `_Produce` made the batches, with one record each."""
    at = 0
    while len(records) - at >= 61:
        base, length = struct.unpack_from(">qi", records, at)
        if at + 12 + length > len(records):
            return
        (due,) = struct.unpack_from(">d", records, at + 12 + length - _VALUE_BYTES - 1)
        yield base + 1, due
        at += 12 + length


#: Bytes of a value: the time when the record was due, then padding.
_VALUE_BYTES = 120


def tailing(broker: Broker, tag: str, only: str) -> Iterator[tuple[str, str, float | None]]:
    """Yields (row, unit, value) as `sustained` does. The latency is the time from when a record was due until a consumer has
    it."""
    for readers in READERS:
        row = f"tailing at 2,000/s, {readers} consumer{'s' if readers > 1 else ''}"
        if only not in row:
            continue
        topic = f"tail-{tag}-{readers}"
        load.create_topic(broker.address, topic)
        before = broker.processor_seconds()
        taken = sorted(_tailed(broker.address, topic, readers))
        after = broker.processor_seconds()
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            yield f"{row}, {name}", "ms", taken[int(len(taken) * share)]
        spent = None if before is None or after is None else (after - before) / TAIL_S
        yield f"{row}: broker processor", "of a core", spent


def _tailed(address: str, topic: str, readers: int) -> list[float]:
    """The latency in ms of every record at every consumer."""
    producer, poll, tails, taken = load.Connection(address), select.epoll(), dict[int, _Tail](), list[float]()
    made = _Produce(topic)
    load.accepted(producer, load.produce_frame(topic, load.record_batch(1, _VALUE_BYTES)), topic)
    for _ in range(readers):
        tail = _Tail(load.Connection(address), bytearray(load.fetch_frame(topic, 0, 1 << 20)), 1)
        tails[tail.connection.socket.fileno()] = tail
        poll.register(tail.connection.socket.fileno(), select.EPOLLIN)
        tail.ask()
    poll.register(producer.socket.fileno(), select.EPOLLIN)
    began, count, sent, unread = time.perf_counter(), int(TAIL_RATE * TAIL_S), 0, 0
    deadline = began + TAIL_S + 30
    while len(taken) < count * readers:
        now = time.perf_counter()
        if now > deadline:
            raise load.LoadFailed(f"{address}: {len(taken)} of {count * readers} records reached {readers} consumers")
        while sent < count and began + sent / TAIL_RATE <= now:
            producer.send(made.due(began + sent / TAIL_RATE))
            sent, unread = sent + 1, unread + 1
        pause = max(0.0, began + sent / TAIL_RATE - time.perf_counter()) if sent < count else 1.0
        for fd, _ in poll.poll(pause):
            if fd == producer.socket.fileno():
                load.check_produced(producer.receive(), topic)
                unread -= 1
            else:
                tails[fd].readable(time.perf_counter(), taken)
    while unread:
        load.check_produced(producer.receive(), topic)
        unread -= 1
    producer.close()
    for tail in tails.values():
        tail.connection.close()
    return taken
