"""The core's contract over a channel: a gateway in another process uses it instead of the core.

    async with RemoteCore.connect("127.0.0.1:9093", clock=SystemClock(), rng=SystemRng()) as core:
        core.topics.describe(None)

One address is enough: requests go to the brokers that lead the partitions or coordinate the groups and transactional ids
(`routes.py`).

`RemoteCore` satisfies the core's Protocols and passes the same tests (`tests/conformance/test_contract*.py`). A channel adds
errors: LeaderNotAvailable if the node cannot be reached, RequestTimedOut for a call past its time limit and for an append whose
answer was lost, and RecordTooLarge for a message above a bound of the channel.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from grpc_api.channel import CALL_TIMEOUT_S, NodeChannel, answered, open_channel
from grpc_api.contract.cold import ColdManifest, ColdRepair, ColdSegment
from grpc_api.contract.topics import ConfigAlteration, ConfigEntry, Resource
from grpc_api.messages.cold import manifest_of, repair_of, segment_of
from grpc_api.messages.topics import alteration_message, entry_of
from grpc_api.proto import cold_pb2
from grpc_api.proto import configs_pb2 as pb
from grpc_api.proto.cold_pb2_grpc import ColdStub
from grpc_api.proto.configs_pb2_grpc import ConfigsStub
from grpc_api.remote_topics import RemoteTopics
from grpc_api.routed_coordinators import RoutedGroups, RoutedTransactions
from grpc_api.routed_log import RoutedLog
from grpc_api.routes import PerNode, Routes
from storage_tiers.clock import Clock, Rng
from storage_tiers.errors import LogError
from storage_tiers.types import OffsetRange, TopicPartition

#: The time limit of a repair, in seconds. A repair checks every object of a partition.
REPAIR_TIMEOUT_S = 3600.0


class RemoteConfigs:
    """`contract.topics.Configs` over a channel."""

    def __init__(self, node: NodeChannel) -> None:
        self._address = node.address
        self._stub: Any = ConfigsStub(node.channel)

    async def describe_configs(self, resource: Resource, keys: Sequence[str] | None = None) -> Sequence[ConfigEntry]:
        request = pb.DescribeConfigsRequest(
            resource=pb.Resource(kind=resource.kind, name=resource.name),
            names=None if keys is None else pb.ConfigNames(names=keys),
        )
        answer = await answered(self._stub.Describe(request, timeout=CALL_TIMEOUT_S), self._address)
        return [entry_of(each) for each in answer.entries]

    async def alter_configs(
        self,
        resource: Resource,
        alterations: Sequence[ConfigAlteration],
        *,
        validate_only: bool = False,
        replace: bool = False,
    ) -> None:
        request = pb.AlterConfigsRequest(
            resource=pb.Resource(kind=resource.kind, name=resource.name),
            alterations=map(alteration_message, alterations),
            validate_only=validate_only,
            replace=replace,
        )
        await answered(self._stub.Alter(request, timeout=CALL_TIMEOUT_S), self._address)


class RemoteCold:
    """`contract.cold.Cold` over a channel."""

    def __init__(self, node: NodeChannel) -> None:
        self._address = node.address
        self._stub: Any = ColdStub(node.channel)

    async def manifests(self, topic: str) -> Sequence[ColdManifest | LogError]:
        request = cold_pb2.ManifestsRequest(topic=topic)
        answer = await answered(self._stub.Manifests(request, timeout=CALL_TIMEOUT_S), self._address)
        return [manifest_of(each) for each in answer.manifests]

    async def segments(self, partition: TopicPartition, start_offset: int) -> Sequence[ColdSegment]:
        request = cold_pb2.SegmentsRequest(
            topic=partition.topic, partition=partition.partition, start_offset=start_offset
        )
        call = self._stub.Segments(request, timeout=CALL_TIMEOUT_S)
        try:
            first = await answered(anext(aiter(call), None), self._address)
        finally:
            call.cancel()
        return [] if first is None else [segment_of(each) for each in first.segments]

    async def repair(
        self, partition: TopicPartition, *, apply: bool, accept_loss: Sequence[OffsetRange] = ()
    ) -> ColdRepair:
        accepted = [cold_pb2.LostRange(base=each.base, end=each.end) for each in accept_loss]
        request = cold_pb2.RepairRequest(
            topic=partition.topic, partition=partition.partition, apply=apply, accept_loss=accepted
        )
        return repair_of(await answered(self._stub.Repair(request, timeout=REPAIR_TIMEOUT_S), self._address))

    async def repair_topic(self, topic: str, *, apply: bool) -> ColdRepair:
        request = cold_pb2.RepairTopicRequest(topic=topic, apply=apply)
        return repair_of(await answered(self._stub.RepairTopic(request, timeout=REPAIR_TIMEOUT_S), self._address))

    async def repair_cluster(self, *, apply: bool) -> ColdRepair:
        request = cold_pb2.RepairClusterRequest(apply=apply)
        return repair_of(await answered(self._stub.RepairCluster(request, timeout=REPAIR_TIMEOUT_S), self._address))


class RoutedCold:
    """`contract.cold.Cold` over the leaders of a cluster. Repairs of a topic and of the cluster go to the home node."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._nodes = PerNode(RemoteCold)

    async def manifests(self, topic: str) -> Sequence[ColdManifest | LogError]:
        """Each broker answers for the partitions that it leads."""
        asked = [self._nodes.at(node).manifests(topic) for node in self._routes.everywhere()]
        found = [each for manifests in await asyncio.gather(*asked) for each in manifests]
        return sorted(found, key=lambda each: (isinstance(each, LogError), getattr(each, "partition", -1)))

    async def segments(self, partition: TopicPartition, start_offset: int) -> Sequence[ColdSegment]:
        return await self._nodes.at(self._routes.leader(partition)).segments(partition, start_offset)

    async def repair(
        self, partition: TopicPartition, *, apply: bool, accept_loss: Sequence[OffsetRange] = ()
    ) -> ColdRepair:
        at = self._nodes.at(self._routes.leader(partition))
        return await at.repair(partition, apply=apply, accept_loss=accept_loss)

    async def repair_topic(self, topic: str, *, apply: bool) -> ColdRepair:
        return await self._nodes.at(self._routes.home).repair_topic(topic, apply=apply)

    async def repair_cluster(self, *, apply: bool) -> ColdRepair:
        return await self._nodes.at(self._routes.home).repair_cluster(apply=apply)


class RemoteCore:
    """Satisfies `grpc_api.contract.core.Core`. `connect` makes one. The queries about a node's own state
    (`grpc_api.contract.node`) are not available over a channel."""

    def __init__(self, node: NodeChannel) -> None:
        self.topics = RemoteTopics(node)
        self.routes = Routes(node, self.topics)
        self.log = RoutedLog(self.routes, self.topics.topic_name)
        self.configs = RemoteConfigs(node)
        self.cold = RoutedCold(self.routes)
        self.groups = RoutedGroups(self.routes)
        self.transactions = RoutedTransactions(self.routes)

    async def close(self) -> None:
        """Does not close the channel to `node`."""
        await self.log.close()
        await self.topics.close()
        await self.routes.close()

    @classmethod
    @asynccontextmanager
    async def connect(cls, address: str, *, clock: Clock, rng: Rng) -> AsyncIterator[RemoteCore]:
        """A core on the node at `address` (HOST:PORT of its gRPC listener), until the block ends."""
        async with open_channel(address) as channel:
            core = cls(NodeChannel(channel, address, clock, rng))
            await core.topics.open()
            try:
                yield core
            finally:
                await core.close()
