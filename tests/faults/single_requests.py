"""Single requests on their own connections, for what a client library would hide: error codes, and exact bytes."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from storage_tiers.records.checksum import crc32c
from tests.kafka_gateway.kio_frames import milliseconds, record_batch, request_frame, response

NONE = 0
OFFSET_OUT_OF_RANGE = 1
CORRUPT_MESSAGE = 2
LEADER_NOT_AVAILABLE = 5
OUT_OF_ORDER_SEQUENCE = 45
KAFKA_STORAGE_ERROR = 56
_FETCH, _PRODUCE = 11, 8
_TIMEOUT_S = 90
#: Positions of the CRC and the producer id in a batch of version 2.
_CRC_AT, _PRODUCER_AT = 17, 43


@dataclass(frozen=True, slots=True)
class Fetched:
    code: int
    high_watermark: int
    data: bytes


def fetch(address: str, topic: str, offset: int, *, partition: int = 0, wait_ms: int = 500) -> Fetched:
    """The answer to a Fetch of one partition once it has a byte or an error, or after `wait_ms`."""
    frame = request_frame(
        "fetch",
        _FETCH,
        replica_id=-1,
        max_wait=milliseconds(wait_ms),
        min_bytes=1,
        max_bytes=1 << 20,
        session_id=0,
        session_epoch=-1,
        rack_id="",
        topics=[
            {
                "topic": topic,
                "partitions": [
                    {
                        "partition": partition,
                        "current_leader_epoch": -1,
                        "fetch_offset": offset,
                        "log_start_offset": -1,
                        "partition_max_bytes": 1 << 20,
                    }
                ],
            }
        ],
    )
    answer = response("fetch", _FETCH, _exchange(address, frame))
    found = answer.responses[0].partitions[0]
    return Fetched(int(found.error_code), found.high_watermark, bytes(found.records or b""))


def produce(address: str, topic: str, *values: bytes, partition: int = 0) -> tuple[int, int]:
    """Sends one batch with acks=all; returns (error code, base offset)."""
    return send(address, topic, record_batch(*values), partition=partition)


def idempotent_batch(producer_id: int, sequence: int, *values: bytes) -> bytes:
    """A batch of producer epoch 0. The arguments alone determine its bytes."""
    batch = bytearray(record_batch(*values))
    struct.pack_into(">qhi", batch, _PRODUCER_AT, producer_id, 0, sequence)
    struct.pack_into(">I", batch, _CRC_AT, crc32c(bytes(batch[_CRC_AT + 4 :])))
    return bytes(batch)


def send(address: str, topic: str, batch: bytes, *, partition: int = 0) -> tuple[int, int]:
    """Sends a batch unchanged; returns (error code, base offset)."""
    with connected(address) as connection:
        return connection.send(topic, batch, partition=partition)


class Connection:
    """A lasting connection, for nodes that may refuse a new one."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def produce(self, topic: str, *values: bytes, partition: int = 0) -> tuple[int, int]:
        return self.send(topic, record_batch(*values), partition=partition)

    def send(self, topic: str, batch: bytes, *, partition: int = 0) -> tuple[int, int]:
        frame = request_frame(
            "produce",
            _PRODUCE,
            transactional_id=None,
            acks=-1,
            timeout=milliseconds(30_000),
            topic_data=[{"name": topic, "partition_data": [{"index": partition, "records": batch}]}],
        )
        answer = response("produce", _PRODUCE, self.exchange(frame))
        found = answer.responses[0].partition_responses[0]
        return int(found.error_code), found.base_offset

    def exchange(self, frame: bytes) -> bytes:
        self._socket.sendall(frame)
        (size,) = struct.unpack(">i", _receive(self._socket, 4))
        return _receive(self._socket, size)


@contextlib.contextmanager
def connected(address: str) -> Iterator[Connection]:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), _TIMEOUT_S) as connection:
        yield Connection(connection)


def _exchange(address: str, frame: bytes) -> bytes:
    with connected(address) as connection:
        return connection.exchange(frame)


def _receive(connection: socket.socket, count: int) -> bytes:
    received = bytearray()
    while len(received) < count:
        piece = connection.recv(count - len(received))
        if not piece:
            raise ConnectionResetError("the node ended the connection")
        received += piece
    return bytes(received)
