"""A client that is given several addresses uses one that answers, and changes to another when that node is lost."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from grpc_api import bootstrap
from grpc_api.bootstrap import target_of
from grpc_api.sdk.checking import checked_addresses
from grpc_api.sdk.client import Client
from storage_tiers.errors import InvalidRequest, LeaderNotAvailable
from tests.grpc_api.support import Served
from tests.support.cluster import Cluster
from tests.support.ports import free_port


def nowhere() -> str:
    return f"127.0.0.1:{free_port()}"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("a:1", ["a:1"]),
        ("a:1,b:2, c:3", ["a:1", "b:2", "c:3"]),
        ("a:1,[::1]:2,a:1", ["a:1", "[::1]:2"]),
    ],
)
def test_addresses_are_separated_by_commas(given: str, found: list[str]) -> None:
    assert checked_addresses(given) == found


@pytest.mark.parametrize("given", ["", "a:1,", ",a:1", "a:1,b", "a:1 b:2", "a:0", "a:1;b:2", None, ["a:1"]])
def test_each_address_is_checked(given: Any) -> None:
    with pytest.raises(InvalidRequest, match="is not the address of a node: HOST:PORT of its gRPC listener"):
        checked_addresses(given)


async def test_the_address_that_answers_comes_first(node: Served) -> None:
    lost = nowhere()
    assert await target_of([node.address]) == node.address
    assert await target_of([lost, node.address]) == f"ipv4:{node.address},{lost}"
    assert await target_of([node.address, lost]) == f"ipv4:{node.address},{lost}"


async def test_a_name_of_several_hosts_is_resolved(node: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host without an address of the answering one's family, and an unknown host, are left out."""
    hosts = {
        "127.0.0.1": [(socket.AF_INET, "127.0.0.1")],
        "six": [(socket.AF_INET6, "::5")],
        "both": [(socket.AF_INET6, "::6"), (socket.AF_INET, "10.0.0.6")],
    }

    async def require_grpc(_: str) -> None: ...

    async def getaddrinfo(host: str, port: int, **_: object) -> list[Any]:
        if host not in hosts:
            raise socket.gaierror("unknown")
        return [(family, 0, 0, "", (address, port)) for family, address in hosts[host]]

    monkeypatch.setattr(bootstrap, "require_grpc", require_grpc)
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    assert await target_of(["127.0.0.1:1", "six:2", "both:3", "gone:4"]) == "ipv4:127.0.0.1:1,10.0.0.6:3"
    assert await target_of(["six:2", "127.0.0.1:1", "both:3"]) == "ipv6:[::5]:2,[::6]:3"
    with pytest.raises(LeaderNotAvailable, match="gone:4 cannot be resolved any longer; retry"):
        await target_of(["gone:4", "127.0.0.1:1"])


async def test_all_addresses_that_do_not_answer_are_named() -> None:
    one, two = nowhere(), nowhere()
    with pytest.raises(LeaderNotAvailable, match=f"no node answers at {one} .*; no node answers at {two}"):
        async with Client.connect(f"{one},{two}"):
            pass


async def test_a_client_changes_to_another_broker(tmp_path: Path) -> None:
    """Metadata and commands go to the broker that answered first, until it is lost."""
    with Cluster(tmp_path, "none") as cluster:
        one, two = cluster.nodes[2], cluster.nodes[3]
        async with Client.connect(f"{nowhere()},{one.grpc},{two.grpc}") as client:
            await client.create_topic("before")
            await asyncio.to_thread(one.kill)
            async with asyncio.timeout(60):
                while "after" not in {topic.name for topic in client.topics()}:
                    try:
                        await client.create_topic("after")
                    except LeaderNotAvailable:
                        await asyncio.sleep(0.05)
            assert len((await client.add_partitions("after", 2)).partitions) == 2
