"""Calls go to the leader's own address, or to the home node if no such address is known."""

from __future__ import annotations

from typing import Any

import pytest

from grpc_api.channel import NodeChannel, open_channel
from grpc_api.contract.topics import BrokerDescription
from grpc_api.routes import PerNode, Routes, grouped
from storage_tiers.types import TopicPartition
from tests.support.clock import ManualClock, SeededRng

HOME, OTHER = "127.0.0.1:1", "127.0.0.1:2"
LEADERS = {TopicPartition("t", 0): (0, 5), TopicPartition("t", 1): (2, 5), TopicPartition("t", 2): (-1, 5)}


class Topics:
    """The metadata of the home node."""

    def __init__(self, *grpc: str) -> None:
        self.brokers = [BrokerDescription(number, (), grpc=each) for number, each in enumerate(grpc)]

    def cluster(self) -> Topics:
        return self

    def leader(self, partition: TopicPartition) -> tuple[int, int]:
        return LEADERS[partition]


async def routes(*grpc: str) -> Routes:
    home = NodeChannel(open_channel(HOME), HOME, ManualClock(), SeededRng(1))
    topics: Any = Topics(*grpc)
    return Routes(home, topics)


async def test_each_partition_has_its_leaders_channel() -> None:
    to = await routes(HOME, "", OTHER)
    assert [to.leader(each).address for each in LEADERS] == [HOME, OTHER, HOME]
    assert [to.has_leader(each) for each in LEADERS] == [True, True, False]
    assert to.leader(TopicPartition("t", 1)) is to.broker(2), "one channel for each address"
    assert [to.broker(each).address for each in (0, 1, 2, 9)] == [HOME, HOME, OTHER, HOME]
    assert [each.address for each in to.everywhere()] == [HOME, HOME, OTHER]
    await to.close()
    await to.home.channel.close()


async def test_a_lone_broker_is_reached_at_the_given_address() -> None:
    """The client may be unable to reach the broker's advertised address."""
    to = await routes(OTHER)
    assert {to.leader(each).address for each in LEADERS} == {HOME}
    assert [each.address for each in to.everywhere()] == [HOME]
    assert all(to.has_leader(each) for each in LEADERS), "it says why a partition has none"
    await to.home.channel.close()


async def test_each_node_has_one_client_object() -> None:
    to, made = await routes(HOME, OTHER), list[str]()

    def make(node: NodeChannel) -> str:
        made.append(node.address)
        return node.address

    stubs = PerNode(make)
    assert [stubs.at(to.broker(each)) for each in (0, 1, 0, 1)] == [HOME, OTHER, HOME, OTHER]
    assert made == list(stubs.all()) == [HOME, OTHER]
    await to.close()
    await to.home.channel.close()


@pytest.mark.parametrize(("items", "groups"), [("", []), ("abcab", [[0, 3], [1, 4], [2]])])
def test_items_are_grouped_in_the_order_of_their_keys(items: str, groups: list[list[int]]) -> None:
    assert grouped(items, lambda item: item) == groups
