"""The contract's `Groups` and `Transactions` over the coordinators of a cluster.

A coordinator is looked up once for each group or transactional id, and again when it refuses or does not answer. A cluster of
one broker needs no look-up.

Invariant: a request for one group or transactional id goes to one broker, and is not repeated here: the caller decides what to
do after an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from itertools import chain
from typing import Any, TypeVar

from grpc_api.channel import NodeChannel
from grpc_api.contract import groups as g
from grpc_api.contract import transactions as t
from grpc_api.contract.caller import Caller
from grpc_api.contract.coordinator_errors import CoordinatorNotAvailable, NotCoordinator
from grpc_api.remote_groups import RemoteGroups
from grpc_api.remote_transactions import RemoteTransactions
from grpc_api.routes import PerNode, Routes
from storage_tiers.errors import LogError
from storage_tiers.types import TopicPartition

Answer = TypeVar("Answer")


class _Coordinators:
    """Caches which broker coordinates each key. The cache is cleared when it has MOST keys."""

    MOST = 10_000

    def __init__(self, routes: Routes, nodes: PerNode[Any]) -> None:
        self._routes = routes
        self._nodes = nodes
        self._found: dict[str, int] = {}

    @property
    def home(self) -> Any:
        return self._nodes.at(self._routes.home)

    def remote(self, node: NodeChannel) -> Any:
        return self._nodes.at(node)

    def everywhere(self) -> Sequence[Any]:
        return [self._nodes.at(node) for node in self._routes.everywhere()]

    async def find(self, key: str, caller: Caller) -> int:
        found: int = await self.home.coordinator(key, caller)
        if len(self._found) >= self.MOST:
            self._found.clear()
        self._found[key] = found
        return found

    def ask(self, key: str, caller: Caller, ask: Callable[[Any], Awaitable[Answer]]) -> asyncio.Future[Answer]:
        if self._routes.alone:
            return asyncio.ensure_future(ask(self.home))
        return asyncio.ensure_future(self._ask(key, caller, ask))

    async def _ask(self, key: str, caller: Caller, ask: Callable[[Any], Awaitable[Answer]]) -> Answer:
        found = self._found.get(key)
        if found is None:
            found = await self.find(key, caller)
        try:
            answer = await ask(self._nodes.at(self._routes.broker(found)))
        except (NotCoordinator, CoordinatorNotAvailable):
            self._found.pop(key, None)
            raise
        if _has_moved(answer):
            self._found.pop(key, None)
        return answer


def _has_moved(answer: object) -> bool:
    """Whether the answer, or a partition of it, has the error of a broker that is not the coordinator."""
    if isinstance(getattr(answer, "error", None), NotCoordinator):
        return True
    return any(
        isinstance(each.error, NotCoordinator)
        for topic in getattr(answer, "topics", ())
        for each in topic.partitions[:1]
    )


class RoutedGroups:
    def __init__(self, routes: Routes) -> None:
        self._at = _Coordinators(routes, PerNode(RemoteGroups))

    async def coordinator(self, group: str, caller: Caller) -> int:
        return await self._at.find(group, caller)

    def join(self, request: g.JoinGroup, caller: Caller) -> asyncio.Future[g.Joined]:
        return self._at.ask(request.group, caller, lambda node: node.join(request, caller))

    def sync(self, request: g.SyncGroup, caller: Caller) -> asyncio.Future[g.Synced]:
        return self._at.ask(request.group, caller, lambda node: node.sync(request, caller))

    def heartbeat(self, request: g.Heartbeat, caller: Caller) -> asyncio.Future[g.HeartbeatAnswer]:
        return self._at.ask(request.group, caller, lambda node: node.heartbeat(request, caller))

    def leave(self, request: g.LeaveGroup, caller: Caller) -> asyncio.Future[g.Left]:
        return self._at.ask(request.group, caller, lambda node: node.leave(request, caller))

    def commit_offsets(self, request: g.OffsetCommit, caller: Caller) -> asyncio.Future[g.OffsetsCommitted]:
        return self._at.ask(request.group, caller, lambda node: node.commit_offsets(request, caller))

    async def commit_offsets_in_transaction(self, request: g.TxnOffsetCommit, caller: Caller) -> g.OffsetsCommitted:
        return await self._at.ask(
            request.group, caller, lambda node: node.commit_offsets_in_transaction(request, caller)
        )

    def fetch_offsets(self, request: g.OffsetFetch, caller: Caller) -> asyncio.Future[g.OffsetsFetched]:
        return self._at.ask(request.group, caller, lambda node: node.fetch_offsets(request, caller))

    def delete_offsets(self, request: g.OffsetDelete, caller: Caller) -> asyncio.Future[g.OffsetsDeleted]:
        return self._at.ask(request.group, caller, lambda node: node.delete_offsets(request, caller))

    async def list_groups(self, request: g.ListGroups, caller: Caller) -> g.GroupsListed:
        """The groups of all brokers."""
        asked = [node.list_groups(request, caller) for node in self._at.everywhere()]
        listed: Sequence[g.GroupsListed] = await asyncio.gather(*asked)
        return g.GroupsListed(_first_error(listed), [group for each in listed for group in each.groups])

    def describe_group(self, request: g.DescribeGroup, caller: Caller) -> asyncio.Future[g.DescribedGroup]:
        return self._at.ask(request.group, caller, lambda node: node.describe_group(request, caller))

    def delete_group(self, request: g.DeleteGroup, caller: Caller) -> asyncio.Future[g.GroupDeleted]:
        return self._at.ask(request.group, caller, lambda node: node.delete_group(request, caller))

    async def lower_offsets(self, request: g.LowerOffsets, caller: Caller) -> Collection[int]:
        """Asks all brokers. Each lowers the offsets of its own coordinators."""
        asked = [node.lower_offsets(request, caller) for node in self._at.everywhere()]
        lowered: Sequence[Collection[int]] = await asyncio.gather(*asked)
        return frozenset(chain.from_iterable(lowered))


class RoutedTransactions:
    def __init__(self, routes: Routes) -> None:
        self._at = _Coordinators(routes, PerNode(RemoteTransactions))
        self._routes = routes

    async def coordinator(self, transactional_id: str, caller: Caller) -> int:
        return await self._at.find(transactional_id, caller)

    async def init_producer(self, request: t.InitProducer, caller: Caller) -> t.ProducerInitialized:
        return await self._at.ask(request.transactional_id, caller, lambda node: node.init_producer(request, caller))

    def add_partitions(self, request: t.AddPartitions, caller: Caller) -> asyncio.Future[t.PartitionsAdded]:
        return self._at.ask(request.transactional_id, caller, lambda node: node.add_partitions(request, caller))

    async def add_offsets(self, request: t.AddOffsets, caller: Caller) -> t.PartitionsAdded:
        return await self._at.ask(request.transactional_id, caller, lambda node: node.add_offsets(request, caller))

    def end(self, request: t.EndTransaction, caller: Caller) -> asyncio.Future[t.TransactionEnded]:
        return self._at.ask(request.transactional_id, caller, lambda node: node.end(request, caller))

    async def write_markers(
        self, markers: t.Markers, coordinator_epoch: int, caller: Caller
    ) -> Sequence[tuple[TopicPartition, LogError]]:
        """Sends the markers to the leaders of the partitions."""
        by_node: dict[str, list[TopicPartition]] = {}
        nodes = {}
        for partition in markers.partitions:
            node = self._routes.leader(partition)
            nodes[node.address] = node
            by_node.setdefault(node.address, []).append(partition)
        refused: list[tuple[TopicPartition, LogError]] = []
        for address, partitions in by_node.items():
            some = markers._replace(partitions=partitions)
            refused += await self._at.remote(nodes[address]).write_markers(some, coordinator_epoch, caller)
        return refused

    async def list(self, request: t.ListTransactions, caller: Caller) -> t.TransactionsListed:
        """The transactions of all brokers."""
        asked = [node.list(request, caller) for node in self._at.everywhere()]
        listed: Sequence[t.TransactionsListed] = await asyncio.gather(*asked)
        return t.TransactionsListed(_first_error(listed), [one for each in listed for one in each.transactions])

    def describe(self, transactional_id: str, caller: Caller) -> asyncio.Future[t.DescribedTransaction]:
        return self._at.ask(transactional_id, caller, lambda node: node.describe(transactional_id, caller))


def _first_error(listed: Sequence[g.GroupsListed] | Sequence[t.TransactionsListed]) -> LogError | None:
    return next((each.error for each in listed if each.error is not None), None)
