"""Channels to all brokers of a cluster, found from one of them.

    the home node ── Watch ──> brokers with their gRPC addresses, leaders ──> the channel of a partition's leader

Invariants: there is one channel for each address, made when it is first needed. Requests for partitions without a leader go to
the home node, whose answer has the reason. With a single broker, all requests use the home node's channel, since this client
may not be able to reach the address that the broker advertises.

A leader named here may no longer lead. It then refuses the request, and the caller repeats the request with newer metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic, TypeVar

from grpc_api.channel import NodeChannel, open_channel
from grpc_api.contract.topics import BrokerDescription
from grpc_api.remote_topics import RemoteTopics
from storage_tiers.types import TopicPartition

Item = TypeVar("Item")
Stub = TypeVar("Stub")


class Routes:
    """`home` is the node whose address the client was given. `topics` has the metadata from that node."""

    def __init__(self, home: NodeChannel, topics: RemoteTopics) -> None:
        self.home = home
        self._topics = topics
        self._others: dict[str, NodeChannel] = {}

    @property
    def alone(self) -> bool:
        """Whether the cluster has only one broker."""
        return len(self._topics.cluster().brokers) < 2

    def everywhere(self) -> Sequence[NodeChannel]:
        """Every live broker's channel."""
        return [self.home] if self.alone else [self._to(broker) for broker in self._topics.cluster().brokers]

    def broker(self, node_id: int) -> NodeChannel:
        """That broker's channel; the home node's if the broker is not live."""
        for broker in self._topics.cluster().brokers if not self.alone else ():
            if broker.node_id == node_id:
                return self._to(broker)
        return self.home

    def leader(self, partition: TopicPartition) -> NodeChannel:
        return self.home if self.alone else self.broker(self._topics.leader(partition)[0])

    def has_leader(self, partition: TopicPartition) -> bool:
        return self.alone or self._topics.leader(partition)[0] >= 0

    def _to(self, broker: BrokerDescription) -> NodeChannel:
        if broker.grpc in ("", self.home.address):
            return self.home
        known = self._others.get(broker.grpc)
        if known is None:
            home = self.home
            known = NodeChannel(open_channel(broker.grpc), broker.grpc, home.clock, home.rng)
            self._others[broker.grpc] = known
        return known

    async def close(self) -> None:
        for node in self._others.values():
            await node.channel.close()
        self._others.clear()


class PerNode(Generic[Stub]):
    """One client object for each node, made by `make` at its first use."""

    def __init__(self, make: Callable[[NodeChannel], Stub]) -> None:
        self._make = make
        self._made: dict[str, Stub] = {}

    def at(self, node: NodeChannel) -> Stub:
        known = self._made.get(node.address)
        if known is None:
            known = self._made[node.address] = self._make(node)
        return known

    def all(self) -> Iterable[Stub]:
        return self._made.values()


def grouped(items: Iterable[Item], key: Callable[[Item], Hashable]) -> list[list[int]]:
    """The positions of the items, grouped by key, in the order in which the keys first appear."""
    groups: dict[Hashable, list[int]] = {}
    for position, item in enumerate(items):
        groups.setdefault(key(item), []).append(position)
    return list(groups.values())
