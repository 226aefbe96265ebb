"""Several listeners: each advertises its own addresses, and the bounds apply to all of them together."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from grpc_api.contract.topics import Endpoint
from grpc_api.listening import listen
from kafka_gateway.server import GatewayServer
from kafka_gateway.settings import ConnectionLimits
from tests.kafka_gateway.memory_core import MemoryCore
from tests.kafka_gateway.server_support import Client, serving, until

INSIDE = Endpoint("INSIDE", "127.0.0.1", 0)
OUTSIDE = Endpoint("OUTSIDE", "127.0.0.1", 0)
ADVERTISED = (Endpoint("INSIDE", "tidelog.pods", 9092), Endpoint("OUTSIDE", "logs.example.com", 443))


async def connect(server: GatewayServer, listener: str) -> Client:
    return Client(*await asyncio.open_connection("127.0.0.1", server.ports[listener]))


def advertise(core: MemoryCore) -> None:
    core.further_endpoints = ADVERTISED


async def test_a_client_gets_the_address_of_its_own_listener(tmp_path: Path) -> None:
    async with serving(tmp_path, listeners=(INSIDE, OUTSIDE)) as (core, server):
        advertise(core)
        for expected in ADVERTISED:
            client = await connect(server, expected.listener)
            metadata = await client.ask("metadata", 13, topics=())
            assert [(b.node_id, b.host, b.port) for b in metadata.brokers] == [(1, expected.host, expected.port)]
            cluster = await client.ask("describe_cluster", 2, include_cluster_authorized_operations=False)
            assert [(b.broker_id, b.host, b.port) for b in cluster.brokers] == [(1, expected.host, expected.port)]
            client.writer.close()


async def test_a_broker_without_the_listener_is_not_named(tmp_path: Path) -> None:
    async with serving(tmp_path, listeners=(INSIDE,)) as (core, server):
        client = await connect(server, "INSIDE")
        assert (await client.ask("metadata", 13, topics=())).brokers == ()
        advertise(core)
        assert len((await client.ask("metadata", 13, topics=())).brokers) == 1
        client.writer.close()


async def test_the_bound_of_an_address_counts_its_connections_at_all_listeners(tmp_path: Path) -> None:
    limits = ConnectionLimits(per_address=2)
    async with serving(tmp_path, listeners=(INSIDE, OUTSIDE), connections=limits) as (_, server):
        first, second = await connect(server, "INSIDE"), await connect(server, "OUTSIDE")
        await until(lambda: server.connections == 2)
        for listener in ("INSIDE", "OUTSIDE"):
            third = await connect(server, listener)
            assert await third.receive() is None
        first.writer.close()
        await until(lambda: server.connections == 1)
        again = await connect(server, "OUTSIDE")
        assert (await again.ask("api_versions", 0)).error_code == 0
        for client in (second, again):
            client.writer.close()


async def test_all_listeners_wait_while_the_node_is_full(tmp_path: Path) -> None:
    limits = ConnectionLimits(total=1)
    async with serving(tmp_path, listeners=(INSIDE, OUTSIDE), connections=limits) as (_, server):
        first = await connect(server, "INSIDE")
        await until(lambda: server.connections == 1)
        waiting = await connect(server, "OUTSIDE")
        asked = asyncio.ensure_future(waiting.ask("api_versions", 0))
        # A response to the first client shows that the loop has run; the other client has still received none.
        assert (await first.ask("api_versions", 0)).error_code == 0
        assert not asked.done()
        first.writer.close()
        assert (await asked).error_code == 0
        waiting.writer.close()


async def test_ipv4_clients_of_a_dual_stack_socket_have_ipv4_addresses(tmp_path: Path) -> None:
    everywhere = Endpoint("EVERYWHERE", "", 0)
    limits = ConnectionLimits(overrides={"127.0.0.1": 1})
    async with serving(tmp_path, listeners=(INSIDE, everywhere), connections=limits) as (_, server):
        first = await connect(server, "INSIDE")
        await until(lambda: server.connections == 1)
        second = await connect(server, "EVERYWHERE")
        assert await second.receive() is None
        first.writer.close()


def test_an_empty_host_is_every_address_of_both_families() -> None:
    with listen("", 0) as listener:
        port = listener.getsockname()[1]
        hosts = ["127.0.0.1"] + (["::1"] if listener.family is socket.AF_INET6 else [])
        for host in hosts:
            socket.create_connection((host, port)).close()
