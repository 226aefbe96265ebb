"""A minimal broker that shows how fast any broker in Python could be in a benchmark.

It uses uvloop, hand-packed Produce and Fetch, one CRC-32C and one write per batch, and one pread per fetch. It has no
durability, no groups and no error responses. It shows only the speed of Python on this machine at this moment.

  python -m benchmarks.floor PORT DIR     speaks Produce v9, Fetch v11, CreateTopics v5, DeleteTopics v5, Metadata v9
"""

from __future__ import annotations

import asyncio
import bisect
import datetime as dt
import io
import os
import socket
import struct
import sys
from typing import Any

import crc32c
import uvloop
from kio.schema.create_topics.v5 import request as create_request
from kio.schema.create_topics.v5 import response as create_response
from kio.schema.delete_topics.v5 import request as delete_request
from kio.schema.delete_topics.v5 import response as delete_response
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v9 import request as metadata_request
from kio.schema.metadata.v9 import response as metadata_response
from kio.schema.types import BrokerId
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i16, i32, i32Timedelta

OK = ErrorCode.none
NO_THROTTLE = i32Timedelta.parse(dt.timedelta(0))
NODE = BrokerId(1)
INDEX_EVERY_BYTES = 4096
#: index, error, base offset, append time, log start, no record errors, no message, no tags
pack_partition = struct.Struct(">ihqqqbbb").pack


class Log:
    def __init__(self, directory: str, name: str) -> None:
        self.path = f"{directory}/{name}.log"
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        self.next_offset = self.size = self.indexed = 0
        self.index = [(0, 0)]

    def append(self, batch: memoryview) -> int:
        if crc32c.crc32c(batch[21:]) != int.from_bytes(batch[17:21], "big"):
            raise ValueError("CRC")
        base = self.next_offset
        os.writev(self.fd, (struct.pack(">q", base), batch[8:12], b"\0\0\0\0", batch[16:]))
        if self.size - self.indexed >= INDEX_EVERY_BYTES:
            self.index.append((base, self.size))
            self.indexed = self.size
        self.next_offset += int.from_bytes(batch[23:27], "big") + 1
        self.size += len(batch)
        return base

    def remove(self) -> None:
        os.close(self.fd)
        os.unlink(self.path)

    def read(self, offset: int, limit: int) -> bytes:
        at = self.index[bisect.bisect_right(self.index, (offset, 1 << 62)) - 1][1]
        return os.pread(self.fd, min(limit, self.size - at), at)


class Floor:
    def __init__(self, port: int, directory: str) -> None:
        self.port = port
        self.directory = directory
        self.logs: dict[str, Log] = {}

    def produce(self, frame: bytes, correlation: int) -> list[bytes]:
        view = memoryview(frame)
        out: list[bytes] = []
        at = 10 + max(0, int.from_bytes(frame[8:10], "big", signed=True)) + 1
        size, at = varint(frame, at)
        at += max(0, size - 1) + 6
        topics, at = varint(frame, at)
        for _ in range(topics - 1):
            size, at = varint(frame, at)
            name = frame[at : at + size - 1]
            log, at = self.logs[name.decode()], at + size - 1
            partitions, at = varint(frame, at)
            out += bytes((size,)), name, bytes((partitions,))
            for _ in range(partitions - 1):
                index = int.from_bytes(frame[at : at + 4], "big")
                size, at = varint(frame, at + 4)
                out.append(pack_partition(index, 0, log.append(view[at : at + size - 1]), -1, 0, 1, 0, 0))
                at += size
            out.append(b"\0")
            at += 1
        body = b"".join(out)
        return [struct.pack(">iibb", len(body) + 11, correlation, 0, topics) + body + bytes(5)]

    def fetch(self, frame: bytes, correlation: int) -> list[bytes]:
        at = 8
        at += 2 + max(0, struct.unpack_from(">h", frame, at)[0]) + 4 + 4 + 4 + 4 + 1 + 4 + 4 + 4
        (size,) = struct.unpack_from(">h", frame, at)
        name = frame[at + 2 : at + 2 + size].decode()
        partition, _, offset, _, limit = struct.unpack_from(">iiqqi", frame, at + 2 + size + 4)
        log = self.logs[name]
        data = log.read(offset, limit) if offset < log.next_offset else b""
        end = log.next_offset
        head = struct.pack(">iihiih", correlation, 0, 0, 0, 1, size) + name.encode()
        head += struct.pack(">iihqqqiii", 1, partition, 0, end, end, 0, 0, -1, len(data))
        return [struct.pack(">i", len(head) + len(data)) + head, data]

    def create(self, frame: bytes, correlation: int) -> list[bytes]:
        topics = parsed(frame, create_request.CreateTopicsRequest).topics
        self.logs.update((t.name, Log(self.directory, t.name)) for t in topics)
        results = tuple(
            create_response.CreatableTopicResult(
                name=t.name,
                error_code=OK,
                error_message=None,
                topic_config_error_code=i16(0),
                num_partitions=i32(1),
                replication_factor=i16(1),
                configs=(),
            )
            for t in topics
        )
        return answer(correlation, create_response.CreateTopicsResponse(throttle_time=NO_THROTTLE, topics=results))

    def delete(self, frame: bytes, correlation: int) -> list[bytes]:
        names = parsed(frame, delete_request.DeleteTopicsRequest).topic_names
        for name in names:
            self.logs.pop(name).remove()
        results = tuple(
            delete_response.DeletableTopicResult(name=name, error_code=OK, error_message=None) for name in names
        )
        return answer(correlation, delete_response.DeleteTopicsResponse(throttle_time=NO_THROTTLE, responses=results))

    def metadata(self, frame: bytes, correlation: int) -> list[bytes]:
        partition = metadata_response.MetadataResponsePartition(
            error_code=OK,
            partition_index=i32(0),
            leader_id=NODE,
            leader_epoch=i32(0),
            replica_nodes=(NODE,),
            isr_nodes=(NODE,),
            offline_replicas=(),
        )
        broker = metadata_response.MetadataResponseBroker(
            node_id=NODE, host="127.0.0.1", port=i32(self.port), rack=None
        )
        topics = tuple(
            metadata_response.MetadataResponseTopic(
                error_code=OK, name=t.name, is_internal=False, partitions=(partition,)
            )
            for t in parsed(frame, metadata_request.MetadataRequest).topics
        )
        return answer(
            correlation,
            metadata_response.MetadataResponse(
                throttle_time=NO_THROTTLE, cluster_id="floor", controller_id=NODE, brokers=(broker,), topics=topics
            ),
        )

    def handle(self, frame: bytes) -> list[bytes]:
        key, _, correlation = struct.unpack_from(">hhi", frame)
        return {0: self.produce, 1: self.fetch, 19: self.create, 20: self.delete, 3: self.metadata}[key](
            frame, correlation
        )


def answer(correlation: int, entity: Any) -> list[bytes]:
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    body = struct.pack(">ib", correlation, 0) + out.getvalue()
    return [struct.pack(">i", len(body)) + body]


def parsed(frame: bytes, request: Any) -> Any:
    _, at = entity_reader(request.__header_schema__)(frame, 0)
    return entity_reader(request)(frame, at)[0]


def varint(frame: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = frame[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


class Connection(asyncio.BufferedProtocol):
    def __init__(self, floor: Floor) -> None:
        self.floor = floor
        self.buffer, self.start, self.end, self.need = bytearray(1 << 20), 0, 0, 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.transport.set_write_buffer_limits(high=8 << 20)

    def get_buffer(self, hint: int) -> memoryview:
        if len(self.buffer) - self.end < 65536 or self.need > len(self.buffer) - self.start:
            fresh = bytearray(max(1 << 20, self.need + 65536))
            kept = self.end - self.start
            fresh[:kept] = memoryview(self.buffer)[self.start : self.end]
            self.buffer, self.start, self.end = fresh, 0, kept
        return memoryview(self.buffer)[self.end :]

    def buffer_updated(self, count: int) -> None:
        self.end += count
        view = memoryview(self.buffer)
        out: list[bytes] = []
        while self.end - self.start >= 4:
            size = int.from_bytes(view[self.start : self.start + 4], "big")
            if self.end - self.start < size + 4:
                self.need = size + 4
                break
            self.need = 0
            frame = bytes(view[self.start + 4 : self.start + 4 + size])
            self.start += 4 + size
            out += self.floor.handle(frame)
        if self.start == self.end:
            self.start = self.end = 0
        if out:
            self.transport.writelines(out)


async def main(port: int, directory: str) -> None:
    os.makedirs(directory, exist_ok=True)
    floor = Floor(port, directory)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(floor), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.install()
    asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
