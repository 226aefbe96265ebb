"""10,000 mutated frames of real clients: the node keeps answering, and none of them changes a log.

The node has the transcripts' topic with records in it. Beforehand, every batch in a transcript is damaged and every creation
set to validate only, so that no frame that survives its mutations can legitimately change anything.
"""

from __future__ import annotations

import asyncio
import dataclasses
import io
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kio.serial import entity_reader, entity_writer

from kafka_gateway.hot_parse import HotParser
from tests.kafka_gateway.kio_frames import message, milliseconds, record_batch, request_frame, response
from tests.support.node import Node
from tests.transcripts.files import Frame, clients, read
from tests.transcripts.mutate import mutate
from tests.transcripts.record import TOPIC

FRAMES = 10_000
PARTITIONS = 4
AT_ONCE = 8
#: After this many frames, the node has imported every message class that a mutated version can name and filled its buffers.
WARM = 4_000
#: Bytes of resident memory that 6,000 further frames may add. A leak of 10 KiB per frame would add 60 MiB.
MORE_BYTES = 24 << 20
PRODUCE, FETCH, CREATE_TOPICS, CREATE_PARTITIONS = 0, 1, 19, 37
_AFTER_CORRELATION = 12


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    settings = {"auto.create.topics.enable": False, "delete.topic.enable": False}
    with Node(tmp_path_factory.mktemp("fuzz"), settings=settings) as started:
        yield started


class Client:
    """A connection of a well-behaved client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, node: Node) -> Client:
        host, _, port = node.kafka.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def ask(self, schema: str, version: int, /, **values: Any) -> Any:
        self.writer.write(request_frame(schema, version, **values))
        async with asyncio.timeout(30):
            size = int.from_bytes(await self.reader.readexactly(4), "big")
            return response(schema, version, await self.reader.readexactly(size))

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


async def prepare(client: Client) -> bytes:
    """Creates the topic with a record in each partition; returns its id."""
    topic = {"name": TOPIC, "num_partitions": PARTITIONS, "replication_factor": 1}
    created = await client.ask("create_topics", 7, topics=[topic], timeout=milliseconds(30_000))
    assert int(created.topics[0].error_code) == 0
    rows = [{"index": index, "records": record_batch(b"value")} for index in range(PARTITIONS)]
    produced = await client.ask(
        "produce", 9, acks=-1, timeout=milliseconds(30_000), topic_data=[{"name": TOPIC, "partition_data": rows}]
    )
    assert [int(row.error_code) for row in produced.responses[0].partition_responses] == [0] * PARTITIONS
    return bytes(created.topics[0].topic_id.bytes)


async def ends(client: Client) -> list[tuple[int, int, int]]:
    rows = [{"partition_index": index, "timestamp": -1, "current_leader_epoch": -1} for index in range(PARTITIONS)]
    answer = await client.ask("list_offsets", 7, replica_id=-1, topics=[{"name": TOPIC, "partitions": rows}])
    return sorted((row.partition_index, int(row.error_code), row.offset) for row in answer.topics[0].partitions)


def corpus(topic_id: bytes) -> list[bytes]:
    """All frames of all transcripts, made harmless and rewritten to this node's topic id."""
    frames = [frame for client in clients() for frame in read(client)]
    recorded = {key for frame in frames if (key := topic_id_in(frame)) is not None}
    found = []
    for frame in frames:
        data = harmless(frame)
        for known in recorded:
            data = data.replace(known, topic_id)
        found.append(data)
    return found


def topic_id_in(frame: Frame) -> bytes | None:
    if (frame.api_key, frame.version >= 13) not in ((PRODUCE, True), (FETCH, True)):
        return None
    data, parser = bytearray(frame.data), HotParser(lambda _: TOPIC)
    request = (
        parser.produce(data, memoryview(data), _AFTER_CORRELATION, len(data), frame.version)
        if frame.api_key == PRODUCE
        else parser.fetch(data, _AFTER_CORRELATION, len(data), frame.version)
    )
    return request.topics[0][0] if request is not None and request.topics else None


def harmless(frame: Frame) -> bytes:
    """The frame with wrong batch CRCs, or with creation set to validate only."""
    if frame.api_key == PRODUCE:
        data = bytearray(frame.data)
        request = HotParser(lambda _: TOPIC).produce(
            data, memoryview(data), _AFTER_CORRELATION, len(data), frame.version
        )
        assert request is not None
        for append in request.appends:
            append.batch[17] ^= 0x55
        return bytes(data)
    if frame.api_key in (CREATE_TOPICS, CREATE_PARTITIONS):
        kind = message(
            "create_topics" if frame.api_key == CREATE_TOPICS else "create_partitions", frame.version, "request"
        )
        _, at = entity_reader(kind.__header_schema__)(frame.data[4:], 0)
        request, _ = entity_reader(kind)(frame.data[4:], at)
        out = io.BytesIO()
        entity_writer(kind)(out, dataclasses.replace(request, validate_only=True))
        body = frame.data[4 : 4 + at] + out.getvalue()
        return struct.pack(">i", len(body)) + body
    return frame.data


def resident_bytes(node: Node) -> int:
    for line in Path(f"/proc/{node.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no VmRSS")


async def say(node: Node, frames: list[bytes]) -> None:
    """Sends the frames on one connection; returns once the node has closed it."""
    client = await Client.connect(node)
    try:
        client.writer.writelines(frames)
        client.writer.write_eof()
        async with asyncio.timeout(60):
            while await client.reader.read(1 << 16):
                pass
    except ConnectionError:
        pass  # the node closed before it had read everything, as Kafka does too
    finally:
        client.writer.transport.abort()


async def test_mutated_frames_change_nothing(node: Node) -> None:
    good = await Client.connect(node)
    frames = corpus(await prepare(good))
    assert len(frames) > 150, "the transcripts are missing"
    before = await ends(good)
    chance = random.Random(20_130_704)
    sent, warm_bytes = 0, 0
    while sent < FRAMES:
        talks = []
        for _ in range(AT_ONCE):
            talk = []
            for _ in range(chance.choice((1, 1, 2, 4))):
                talk.append(mutate(chance, chance.choice(frames), frames))
                sent += 1
                if chance.random() < 0.2:
                    talk.append(chance.choice(frames))
            talks.append(say(node, talk))
        await asyncio.gather(*talks)
        if sent >= WARM and not warm_bytes:
            warm_bytes = resident_bytes(node)
    assert node.running
    assert await ends(good) == before
    metadata = await good.ask("metadata", 12, topics=None)
    assert [(topic.name, int(topic.error_code), len(topic.partitions)) for topic in metadata.topics] == [
        (TOPIC, 0, PARTITIONS)
    ]
    assert resident_bytes(node) - warm_bytes < MORE_BYTES
    assert "Traceback" not in node.output(), "some random request was answered"
    await good.close()
    await still_takes_records(node, before)


async def still_takes_records(node: Node, before: list[tuple[int, int, int]]) -> None:
    fresh = await Client.connect(node)
    rows = [{"index": index, "records": record_batch(b"after")} for index in range(PARTITIONS)]
    topics = [{"name": TOPIC, "partition_data": rows}]
    produced = await fresh.ask("produce", 9, acks=-1, timeout=milliseconds(30_000), topic_data=topics)
    taken = sorted(
        (row.index, int(row.error_code), row.base_offset) for row in produced.responses[0].partition_responses
    )
    assert taken == before
    await fresh.close()
