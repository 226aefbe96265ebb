"""Peers that are slow, stop halfway, or lie about sizes: other clients are served, and memory does not grow."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.kafka_gateway.kio_frames import milliseconds, record_batch, request_frame, response
from tests.kafka_gateway.test_fuzz import Client, ends, prepare, resident_bytes
from tests.support.node import Node
from tests.transcripts.record import TOPIC

LARGEST = 104_857_600
PEERS = 100
#: Bytes that a hundred peers may cost the node besides their buffers.
PEERS_BYTES = 16 << 20
#: Bytes of the first buffer for a large announced request. The buffer grows with the bytes received, not with the announced
#: size.
FIRST_BUFFER = 4096

API_VERSIONS = request_frame("api_versions", 0)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("hostile"), settings={"delete.topic.enable": False}) as started:
        yield started


@contextlib.asynccontextmanager
async def peers(node: Node, count: int) -> AsyncIterator[list[Client]]:
    connected = [await Client.connect(node) for _ in range(count)]
    try:
        yield connected
    finally:
        for peer in connected:
            peer.writer.transport.abort()


async def is_served(node: Node) -> None:
    async with peers(node, 1) as (good,):
        assert int((await good.ask("api_versions", 0)).error_code) == 0


async def closes(peer: Client) -> bytes:
    """The bytes that still arrived before the node closed the connection."""
    async with asyncio.timeout(30):
        with contextlib.suppress(ConnectionError):
            return await peer.reader.read()
    return b""


@pytest.mark.parametrize("size", [-1, -(2**31), 0, 7, LARGEST + 1, 2**31 - 1])
async def test_a_frame_of_a_senseless_size_is_not_waited_for(node: Node, size: int) -> None:
    async with peers(node, 1) as (peer,):
        peer.writer.write(API_VERSIONS + struct.pack(">i", size))
        answered = await closes(peer)
        assert int.from_bytes(answered[:4], "big") == len(answered) - 4, "the request before it is answered"
    await is_served(node)


async def test_a_frame_announced_with_100_mebibytes_costs_only_the_received_bytes(node: Node) -> None:
    await is_served(node)
    before = resident_bytes(node)
    async with peers(node, PEERS) as promising:
        for peer in promising:
            peer.writer.write(struct.pack(">ihhi", LARGEST, 0, 9, 1) + bytes(500))
            await peer.writer.drain()
        await is_served(node)
        assert resident_bytes(node) - before < PEERS * FIRST_BUFFER + PEERS_BYTES


async def test_slow_peers_are_served_and_delay_no_other(node: Node) -> None:
    async with peers(node, PEERS) as slow:
        for place in range(len(API_VERSIONS)):
            for peer in slow:
                peer.writer.write(API_VERSIONS[place : place + 1])
            await is_served(node)
        for peer in slow:
            async with asyncio.timeout(30):
                size = int.from_bytes(await peer.reader.readexactly(4), "big")
                assert response("api_versions", 0, await peer.reader.readexactly(size)).api_keys


async def test_peers_that_close_their_half_get_their_answers(node: Node) -> None:
    whole, cut = API_VERSIONS * 3, API_VERSIONS * 2 + API_VERSIONS[:9]
    async with peers(node, 2) as (first, second):
        for peer, sent, answers in ((first, whole, 3), (second, cut, 2)):
            peer.writer.write(sent)
            peer.writer.write_eof()
            got = await closes(peer)
            size = int.from_bytes(got[:4], "big") + 4
            assert len(got) == size * answers
    await is_served(node)


async def test_peers_that_read_nothing_get_no_more_data(node: Node) -> None:
    async with peers(node, 1) as (good,):
        await prepare(good)
        before = await ends(good)
        size = resident_bytes(node)
        async with peers(node, 20) as deaf:
            for peer in deaf:
                peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
                peer.writer.write(request_frame("metadata", 9, topics=None) * 2000)
            for _ in range(20):
                await is_served(node)
            # 1 MiB of unread responses each, plus the part of the requests that has arrived.
            assert resident_bytes(node) - size < 20 * (2 << 20) + PEERS_BYTES
        assert await ends(good) == before


async def test_a_produce_that_never_ends_leaves_no_trace(node: Node) -> None:
    async with peers(node, 2) as (good, bad):
        rows = [{"index": 0, "records": record_batch(bytes(500_000))}]
        values = {"acks": -1, "timeout": milliseconds(1000), "topic_data": [{"name": TOPIC, "partition_data": rows}]}
        frame = request_frame("produce", 9, **values)  # type: ignore[arg-type]
        before = await ends(good)
        bad.writer.write(frame[:-1])
        bad.writer.write_eof()
        assert await closes(bad) == b""
        assert await ends(good) == before
