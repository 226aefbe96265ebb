"""The core's contract over a channel: a gateway in another process uses it in place of the core.

    async with RemoteCore.connect("127.0.0.1:9093", clock=SystemClock(), rng=SystemRng()) as core:
        core.topics.describe(None)

It satisfies the same Protocols and the same tests (`tests/conformance/contract.py`). A channel adds two errors:
LeaderNotAvailable if the node cannot be reached, and RequestTimedOut for an append whose answer was lost.
"""

from __future__ import annotations

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
from grpc_api.remote_groups import RemoteGroups
from grpc_api.remote_log import RemoteLog
from grpc_api.remote_topics import RemoteTopics
from grpc_api.remote_transactions import RemoteTransactions
from storage_tiers.clock import Clock, Rng
from storage_tiers.errors import LogError
from storage_tiers.types import OffsetRange, TopicPartition

#: A repair looks at every object of a partition.
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


class RemoteCore:
    """Satisfies `grpc_api.contract.core.Core`. Made by `connect`. Excludes queries about the node's own state
    (`grpc_api.contract.node`)."""

    def __init__(self, node: NodeChannel) -> None:
        self.topics = RemoteTopics(node)
        self.log = RemoteLog(node, self.topics.topic_name)
        self.configs = RemoteConfigs(node)
        self.cold = RemoteCold(node)
        self.groups = RemoteGroups(node)
        self.transactions = RemoteTransactions(node)

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
                await core.log.close()
                await core.topics.close()
