"""Shared by the gateway's socket tests: a server on an in-memory core, and a client that sends raw frames."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from grpc_api.contract.topics import NewTopic
from kafka_gateway.options import Options
from kafka_gateway.server import GatewayServer, serve
from kafka_gateway.settings import GatewaySettings
from storage_tiers.types import TopicPartition
from tests.kafka_gateway.kio_frames import milliseconds, record_batch, request_frame, response
from tests.kafka_gateway.memory_core import MemoryCore

BATCH = record_batch(b"x" * 100)
PARTITION = TopicPartition("topic", 0)
#: Longer than any of these tests may take; every wait is for a condition.
PATIENCE_S = 60


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, *frames: bytes) -> None:
        self.writer.write(b"".join(frames))

    async def receive(self) -> bytes | None:
        """A response without its size; None once the server has closed the connection."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                size = struct.unpack(">i", await self.reader.readexactly(4))[0]
                return await self.reader.readexactly(size)
            except (asyncio.IncompleteReadError, ConnectionError):
                return None

    async def correlation(self) -> int | None:
        body = await self.receive()
        return None if body is None else int.from_bytes(body[:4], "big")

    async def ask(self, schema: str, version: int, /, **values: Any) -> Any:
        self.send(request_frame(schema, version, **values))
        body = await self.receive()
        assert body is not None
        return response(schema, version, body)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def serving(
    directory: Path, options: Options | None = None, **settings: Any
) -> AsyncIterator[tuple[MemoryCore, GatewayServer]]:
    core = MemoryCore(str(directory))
    await core.create([NewTopic("topic", partitions=2)])
    options = dataclasses.replace(options or Options(), settings=GatewaySettings(**settings))
    server = await serve(core, options)
    core.port = server.port
    yield core, server
    await server.stop()
    # A sending thread's file is released later, on the event loop, possibly long after the client has gone.
    await until(lambda: all(partition.file.users == 1 for partition in core.partitions.values()))
    core.close()


@contextlib.asynccontextmanager
async def connected(server: GatewayServer) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    yield Client(reader, writer)
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


def produce(correlation: int = 1, *, acks: int = 1, partition: int = 0, batch: bytes | None = BATCH) -> bytes:
    data = [{"name": "topic", "partition_data": [{"index": partition, "records": batch}]}]
    return request_frame("produce", 9, correlation=correlation, acks=acks, topic_data=data)


def fetch(
    correlation: int = 1,
    *,
    partition: int = 0,
    offset: int = 0,
    wait_ms: int = 0,
    max_bytes: int = 1 << 26,
    version: int = 11,
) -> bytes:
    rows = [{"partition": partition, "fetch_offset": offset, "partition_max_bytes": max_bytes}]
    return request_frame(
        "fetch",
        version,
        correlation=correlation,
        replica_id=-1,
        max_wait=milliseconds(wait_ms),
        min_bytes=1,
        session_epoch=-1,
        topics=[{"topic": "topic", "partitions": rows}],
    )


def metadata(correlation: int = 1) -> bytes:
    return request_frame("metadata", 9, correlation=correlation, topics=None)
