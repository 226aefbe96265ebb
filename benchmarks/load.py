"""Puts load on any Kafka broker over raw sockets, with prebuilt, pipelined requests, so that the client costs little.

It uses Produce v9, Fetch v11, CreateTopics v5, DeleteTopics v5 and Metadata v9. It checks the error codes of every answer. Its
other checks cost almost nothing: first and last offsets must match the number of records sent, and fetched batches are walked
by their lengths.
"""

from __future__ import annotations

import datetime as dt
import io
import os
import select
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import crc32c
from kio.schema.create_topics.v5 import request as create_request
from kio.schema.create_topics.v5 import response as create_response
from kio.schema.delete_topics.v5 import request as delete_request
from kio.schema.delete_topics.v5 import response as delete_response
from kio.schema.fetch.v11 import request as fetch_request
from kio.schema.metadata.v9 import request as metadata_request
from kio.schema.metadata.v9 import response as metadata_response
from kio.schema.produce.v9 import request as produce_request
from kio.schema.produce.v9 import response as produce_response
from kio.schema.types import BrokerId, TopicName
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import Records, i8, i16, i32, i32Timedelta, i64


class LoadFailed(Exception):
    """A measurement failed, or an answer makes its figure meaningless."""


def frame(message: Any) -> bytes:
    """The message as a request's bytes, with length prefix and header."""
    header = type(message).__header_schema__(
        request_api_key=i16(type(message).__api_key__),
        request_api_version=i16(type(message).__version__),
        correlation_id=i32(1),
        client_id="load",
    )
    out = io.BytesIO()
    for entity in (header, message):
        entity_writer(type(entity))(out, entity)
    return struct.pack(">i", len(out.getvalue())) + out.getvalue()


def parsed(body: bytes, response: Any) -> Any:
    _, at = entity_reader(response.__header_schema__)(body, 0)
    return entity_reader(response)(body, at)[0]


def _varint(n: int) -> bytes:
    n, out = (n << 1) ^ (n >> 63), bytearray()
    while n & ~0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes(out) + bytes((n,))


def record_batch(count: int, value_size: int = 0, *, value: bytes = b"") -> bytes:
    """An uncompressed v2 batch of `count` records without keys; each value is `value`, or `value_size` random bytes."""
    value, body = value or os.urandom(value_size), bytearray()
    value_size = len(value)
    for i in range(count):
        record = b"\0" + _varint(0) + _varint(i) + _varint(-1) + _varint(value_size) + value + _varint(0)
        body += _varint(len(record)) + record
    now = int(time.time() * 1000)
    tail = struct.pack(">hiqqqhii", 0, count - 1, now, now, -1, -1, -1, count) + body
    return struct.pack(">qiibI", 0, len(tail) + 9, 0, 2, crc32c.crc32c(tail)) + tail


class Connection:
    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.reader = self.socket.makefile("rb", 4 << 20)

    def send(self, request: bytes) -> None:
        self.socket.sendall(request)

    def receive(self) -> bytes:
        (size,) = struct.unpack(">i", self.reader.read(4))
        body: bytes = self.reader.read(size)
        return body

    def call(self, message: Any, response: Any) -> Any:
        self.send(frame(message))
        return parsed(self.receive(), response)

    def close(self) -> None:
        self.reader.close()
        self.socket.close()


def create_topic(address: str, name: str, partitions: int = 1, **configs: object) -> None:
    """Creates a topic with one replica; returns when all partitions have a leader. In the names of `configs`, underscores stand
    for dots."""
    c = Connection(address)
    topic = create_request.CreatableTopic(
        name=TopicName(name),
        num_partitions=i32(partitions),
        replication_factor=i16(1),
        assignments=(),
        configs=tuple(
            create_request.CreatableTopicConfig(name=key.replace("_", "."), value=str(value))
            for key, value in configs.items()
        ),
    )
    timeout = i32Timedelta.parse(dt.timedelta(seconds=10))
    request = create_request.CreateTopicsRequest(topics=(topic,), timeout=timeout, validate_only=False)
    reply = c.call(request, create_response.CreateTopicsResponse)
    if int(reply.topics[0].error_code):
        raise LoadFailed(f"{address}: create {name}: {reply.topics[0].error_code}")
    ask = _ask_for(name)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        found = c.call(ask, metadata_response.MetadataResponse).topics[0]
        if not int(found.error_code) and not any(int(p.error_code) for p in found.partitions):
            return c.close()
        time.sleep(0.05)
    raise LoadFailed(f"{address}: no leader for {name}")


def leaders(address: str, topic: str) -> list[str]:
    """The address (HOST:PORT) of each partition's leader, in the order of the partitions."""
    c = Connection(address)
    reply = c.call(_ask_for(topic), metadata_response.MetadataResponse)
    c.close()
    of_node = {int(broker.node_id): f"{broker.host}:{int(broker.port)}" for broker in reply.brokers}
    rows = sorted(reply.topics[0].partitions, key=lambda row: int(row.partition_index))
    return [of_node[int(row.leader_id)] for row in rows]


def _ask_for(topic: str) -> metadata_request.MetadataRequest:
    return metadata_request.MetadataRequest(
        topics=(metadata_request.MetadataRequestTopic(name=TopicName(topic)),),
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )


@contextmanager
def topic_for(address: str, name: str, partitions: int = 1) -> Iterator[str]:
    """Creates a topic and deletes it at the end; the broker removes its files soon after. Otherwise the files of all rows would
    fill the disk. Also, a page cache that only grows would need memory that is new to the virtual machine, and getting that
    memory costs more processor time than the broker's own work."""
    create_topic(address, name, partitions)
    yield name
    c = Connection(address)
    timeout = i32Timedelta.parse(dt.timedelta(seconds=10))
    request = delete_request.DeleteTopicsRequest(topic_names=(TopicName(name),), timeout=timeout)
    reply = c.call(request, delete_response.DeleteTopicsResponse)
    c.close()
    if int(reply.responses[0].error_code):
        raise LoadFailed(f"{address}: delete {name}: {reply.responses[0].error_code}")


def produce_frame(topic: str, records: bytes, acks: int = 1, partitions: Sequence[int] = (0,)) -> bytes:
    """A Produce request, framed, with the same batch for each partition."""
    data = produce_request.TopicProduceData(
        name=TopicName(topic),
        partition_data=tuple(
            produce_request.PartitionProduceData(index=i32(index), records=Records.parse(records))
            for index in partitions
        ),
    )
    timeout = i32Timedelta.parse(dt.timedelta(seconds=30))
    return frame(
        produce_request.ProduceRequest(transactional_id=None, acks=i16(acks), timeout=timeout, topic_data=(data,))
    )


def check_produced(body: bytes | bytearray | memoryview, topic: str, partitions: int = 1) -> None:
    """Raises LoadFailed if an answer to `produce_frame` (without its length prefix) has an error. In a good answer each
    partition takes 33 bytes, so the check needs no parsing and costs the client almost nothing."""
    row = 4 + 1 + 1 + 1 + len(topic) + 1
    errors = row + 4
    whole = len(body) == row + 33 * partitions + 1 + 4 + 1
    if not whole or any(body[errors::33][:partitions]) or any(body[errors + 1 :: 33][:partitions]):
        answer = parsed(bytes(body), produce_response.ProduceResponse).responses[0].partition_responses
        raise LoadFailed(f"produce to {topic}: {[p.error_code for p in answer if int(p.error_code)] or len(body)}")


def base_offset(body: bytes) -> int:
    partition = parsed(body, produce_response.ProduceResponse).responses[0].partition_responses[0]
    if int(partition.error_code):
        raise LoadFailed(f"produce: {partition.error_code!r}")
    return int(partition.base_offset)


def produce(
    address: str, topic: str, records: int, value_size: int, in_flight: int, seconds: float
) -> tuple[float, float]:
    """Produces on one connection with `in_flight` requests outstanding. Returns (requests/s, MB/s)."""
    batch = record_batch(records, value_size)
    request, c = produce_frame(topic, batch), Connection(address)
    first = _first_offset(c, request, topic)
    start = time.perf_counter()
    sent, received, last = in_flight, 0, b""
    c.send(request * in_flight)
    while received < sent:
        last = c.receive()
        check_produced(last, topic)
        received += 1
        if time.perf_counter() < start + seconds:
            c.send(request)
            sent += 1
    elapsed = time.perf_counter() - start
    c.close()
    if base_offset(last) - first != received * records:
        raise LoadFailed(f"{address}: offsets {first}..{base_offset(last)} after {received} requests of {records}")
    return received / elapsed, received * len(batch) / elapsed / 1e6


def accepted(c: Connection, request: bytes, topic: str, partitions: int = 1) -> None:
    """Sends a request until it is accepted: Kafka's metadata may name a leader a moment before that leader accepts records."""
    deadline = time.monotonic() + 10
    while True:
        c.send(request)
        try:
            return check_produced(c.receive(), topic, partitions)
        except LoadFailed:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _first_offset(c: Connection, request: bytes, topic: str) -> int:
    """Sends the request until it is accepted, then once more. Returns the base offset of the second batch, from which offsets
    are counted."""
    accepted(c, request, topic)
    c.send(request)
    return base_offset(c.receive())


def produce_bytes(address: str, topic: str, records: int, value_size: int, wanted: int, in_flight: int = 5) -> None:
    """Fills a topic with at least `wanted` bytes of batches."""
    batch = record_batch(records, value_size)
    request, c = produce_frame(topic, batch), Connection(address)
    count = -(-wanted // len(batch))
    for at in range(count + in_flight):
        if at < count:
            c.send(request)
        if at >= in_flight:
            base_offset(c.receive())
    c.close()


def latencies(address: str, topic: str, rate: int, seconds: float) -> list[float]:
    """Produces `rate` requests/s of one record each. Returns latencies in ms, counted from when each request was due."""
    request, c = produce_frame(topic, record_batch(1, 120)), Connection(address)
    taken: list[float] = []
    accepted(c, request, topic)
    for _ in range(300):
        c.send(request)
        check_produced(c.receive(), topic)
    start = time.perf_counter()
    for i in range(int(rate * seconds)):
        due = start + i / rate
        while (wait := due - time.perf_counter()) > 0:
            time.sleep(wait - 0.0002 if wait > 0.0004 else 0)
        c.send(request)
        check_produced(c.receive(), topic)
        taken.append((time.perf_counter() - due) * 1e3)
    c.close()
    return taken


def latency(address: str, topic: str, rate: int, seconds: float) -> dict[str, float]:
    """Calls `latencies`; returns percentiles by name."""
    taken = sorted(latencies(address, topic, rate, seconds))
    return {name: taken[int(len(taken) * q)] for name, q in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999))}


def many(address: str, topic: str, connections: int, seconds: float) -> tuple[float, float]:
    """Produces with one 1 KiB record in flight on each of many connections. Returns (requests/s, p99 in ms)."""
    request, poll = produce_frame(topic, record_batch(1, 1000)), select.epoll()
    begun: dict[int, tuple[Connection, float]] = {}
    taken: list[float] = []
    for _ in range(connections):
        c = Connection(address)
        if not begun:
            accepted(c, request, topic)
        poll.register(c.socket.fileno(), select.EPOLLIN)
        begun[c.socket.fileno()] = c, 0.0
    start = time.perf_counter()
    for fd, (c, _) in begun.items():
        begun[fd] = c, time.perf_counter()
        c.send(request)
    left = connections
    while left:
        for fd, _ in poll.poll():
            c, since = begun[fd]
            body = c.socket.recv(4096)
            if len(body) < 4 or len(body) < 4 + struct.unpack_from(">i", body)[0]:
                raise LoadFailed(f"{address}: an answer arrived in pieces, or the connection was closed")
            check_produced(body[4:], topic)
            now = time.perf_counter()
            taken.append(now - since)
            if now < start + seconds:
                begun[fd] = c, now
                c.send(request)
            else:
                left -= 1
    elapsed = time.perf_counter() - start
    for c, _ in begun.values():
        c.close()
    taken.sort()
    return len(taken) / elapsed, taken[int(len(taken) * 0.99)] * 1e3


def fetch_frame(topic: str, offset: int, partition_bytes: int) -> bytes:
    part = fetch_request.FetchPartition(
        partition=i32(0),
        current_leader_epoch=i32(-1),
        fetch_offset=i64(offset),
        log_start_offset=i64(-1),
        partition_max_bytes=i32(partition_bytes),
    )
    return frame(
        fetch_request.FetchRequest(
            replica_id=BrokerId(-1),
            max_wait=i32Timedelta.parse(dt.timedelta(milliseconds=500)),
            min_bytes=i32(1),
            max_bytes=i32(4 * partition_bytes),
            isolation_level=i8(0),
            session_id=i32(0),
            session_epoch=i32(-1),
            topics=(fetch_request.FetchTopic(topic=TopicName(topic), partitions=(part,)),),
            forgotten_topics_data=(),
            rack_id="",
        )
    )


def high_watermark(address: str, topic: str) -> int:
    """The high watermark of partition 0."""
    c = Connection(address)
    c.send(fetch_frame(topic, 0, 0))
    body = c.receive()
    c.close()
    found: int = struct.unpack_from(">q", body, 18 + 2 + struct.unpack_from(">h", body, 18)[0] + 8 + 2)[0]
    return found


def fetch(address: str, topic: str, partition_bytes: int = 1 << 20, *, empty_answers: int = 0) -> float:
    """Reads from offset 0 to the high watermark, one request after another, as a consumer does. Returns MB/s.

    `empty_answers` is the number of consecutive answers that may be empty: a cold read may take longer than max_wait."""
    c, offset, total, start, empty = Connection(address), 0, 0, time.perf_counter(), 0
    while True:
        c.send(fetch_frame(topic, offset, partition_bytes))
        body = c.receive()
        high_watermark, at, size = _fetched(body)
        after = _walk(body, at, at + size, offset)
        if after == offset:
            empty += 1
            if empty > empty_answers:
                raise LoadFailed(f"{address}: no whole batch at {offset} of {high_watermark}")
            continue
        empty = 0
        offset, total = after, total + size
        if offset >= high_watermark:
            c.close()
            return total / (time.perf_counter() - start) / 1e6


def _fetched(body: bytes) -> tuple[int, int, int]:
    """Returns (high watermark, position of the records, their length) of an answer to `fetch_frame`. Raises LoadFailed if it is
    an error."""
    at = 4 + 4 + 2 + 4 + 4
    at += 2 + struct.unpack_from(">h", body, at)[0] + 4 + 4
    error, high_watermark = struct.unpack_from(">hq", body, at)
    if error:
        raise LoadFailed(f"fetch: error {error}")
    at += 2 + 8 + 8 + 8
    at += 4 + 16 * max(0, struct.unpack_from(">i", body, at)[0]) + 4
    return high_watermark, at + 4, struct.unpack_from(">i", body, at)[0]


def fetched_records(body: bytes) -> bytes:
    """The record batches of an answer to `fetch_frame`."""
    _, at, size = _fetched(body)
    return body[at : at + size]


def _walk(body: bytes, at: int, end: int, offset: int) -> int:
    """Returns the offset after the last whole batch in body[at:end]; `offset` if there is none."""
    while end - at >= 27:
        base, length = struct.unpack_from(">qi", body, at)
        if at + 12 + length > end:
            break
        offset = base + struct.unpack_from(">i", body, at + 23)[0] + 1
        at += 12 + length
    return offset


def one_round(address: str, tag: str, seconds: float, only: str) -> Iterator[tuple[str, str, float]]:
    """Yields (row, unit, value) for one broker."""
    for label, records, value_size, in_flight in (
        ("200 B, one at a time", 1, 120, 1),
        ("200 B, five in flight", 1, 120, 5),
        ("16 KiB batches", 16, 1000, 5),
        ("64 KiB batches", 64, 1000, 5),
        ("256 KiB batches", 256, 1000, 5),
    ):
        if only not in label:
            continue
        with topic_for(address, f"requests-{tag}-{records}-{in_flight}") as topic:
            produce(address, topic, records, value_size, in_flight, seconds / 4)
            rate, megabytes = produce(address, topic, records, value_size, in_flight, seconds)
            fetched = max(fetch(address, topic) for _ in range(2)) if records == 64 else 0.0
        yield "produce " + label, *(("requests/s", rate) if records == 1 else ("MB/s", megabytes))
        if records == 64:
            yield "fetch, 1 MiB", "MB/s", fetched
    if only in "200 connections":
        with topic_for(address, f"requests-{tag}-many") as topic:
            rate, p99 = many(address, topic, 200, seconds)
        yield "200 connections, 1 KiB each", "requests/s", rate
        yield "200 connections, p99", "ms", p99
    if only in "latency":
        with topic_for(address, f"requests-{tag}-latency") as topic:
            taken = latency(address, topic, 1000, seconds * 2)
        for name, value in taken.items():
            yield f"latency of one record at 1,000/s, {name}", "ms", value
