"""A client given the wrong port fails at once with a precise error; one given the right port connects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from grpc_api.preflight import require_grpc
from grpc_api.sdk.client import Client
from storage_tiers.errors import InvalidRequest, LeaderNotAvailable
from tests.grpc_api.support import Served
from tests.support.node import Node
from tests.support.ports import free_port

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]


@pytest.fixture
async def listener() -> AsyncIterator[Callable[[bytes | None], object]]:
    """Starts a listener that answers these bytes and closes the connection; with None it stays silent."""
    servers: list[asyncio.Server] = []

    async def listen(answer: bytes | None) -> str:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            if answer is not None:
                writer.write(answer)
                writer.close()

        servers.append(await asyncio.start_server(serve, "127.0.0.1", 0))
        return f"127.0.0.1:{servers[-1].sockets[0].getsockname()[1]}"

    yield listen
    for server in servers:
        server.close()


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it speaks HTTP"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "it speaks TLS"),
        (b"", "closes the connection, like a Kafka listener"),
        (b"220 mail ready\r\n", "answers b'220 mail "),
    ],
)
async def test_servers_that_do_not_speak_grpc_are_named(
    listener: Callable[..., object], answer: bytes, sentence: str
) -> None:
    address = await listener(answer)  # type: ignore[misc]
    with pytest.raises(InvalidRequest, match=f"{address} is not a gRPC listener: .*{sentence}.*; name a node's gRPC"):
        async with Client.connect(address):
            pass


async def test_a_port_without_a_listener_is_named_at_once() -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(LeaderNotAvailable, match=f"no node answers at {address}"):
        async with Client.connect(address):
            pass


async def test_silence_is_left_to_the_time_limit(
    listener: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpc_api.preflight.PATIENCE_S", 0.05)
    address: str = await listener(None)  # type: ignore[misc]
    with pytest.raises(LeaderNotAvailable, match=r"did not answer within 0\.1 s"):
        async with Client.connect(address, timeout_s=0.1):
            pass


async def test_the_grpc_listener_of_a_node_passes(node: Served) -> None:
    await require_grpc(node.address)


def test_the_other_ports_of_a_node_are_named_and_the_remedy_works(tmp_path_factory: pytest.TempPathFactory) -> None:
    node = Node(tmp_path_factory.mktemp("node"))
    node.start()
    try:
        for other, sentence in ((node.kafka, "a Kafka listener"), (node.http, "HTTP")):
            with pytest.raises(InvalidRequest, match=sentence):
                asyncio.run(require_grpc(other))
        asyncio.run(require_grpc(node.grpc))
    finally:
        node.stop()
