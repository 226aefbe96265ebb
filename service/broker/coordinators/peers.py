"""A coordinator's access to the other brokers of the cluster: transactions span brokers, and so do their markers.

    a batch's partition here, its coordinator there  ── AddPartitions (verification, KIP-890) ──>  that broker
    a decided transaction here, its partition there  ── WriteMarkers ──────────────────────────>  that broker
    a partition here that lost records, groups there ── LowerOffsets ──────────────────────────>  that broker

Invariants: one channel for each broker's address, opened when it is first needed. If a broker does not answer, the caller gets
a retriable error, and nothing is decided.

A leader named here may lead no longer. It then refuses the request, and the caller retries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from grpc_api.channel import NodeChannel, open_channel
from grpc_api.contract.caller import Caller
from grpc_api.contract.coordinator_errors import CoordinatorNotAvailable
from grpc_api.contract.groups import LowerOffsets
from grpc_api.contract.transactions import AddPartitions, Markers, PartitionsAdded
from grpc_api.remote_groups import RemoteGroups
from grpc_api.remote_transactions import RemoteTransactions
from service.broker.appending.verification_requests import AsksCoordinator
from service.broker.coordinators.ports import CoordinatorTopic
from service.metadata.following import Metadata
from service.metadata.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from service.metadata.parts import NO_LEADER
from storage_tiers.clock import Clock, Rng
from storage_tiers.errors import LogError
from storage_tiers.types import TopicPartition

#: Seconds within which a broker must answer a request to lower offsets. A later round asks it again.
LOWER_S = 5.0
#: The client of these requests is the broker itself.
_BROKER = Caller("User:ANONYMOUS", "", "")


class Peers:
    """All brokers in the metadata except `node_id`."""

    def __init__(self, metadata: Metadata, node_id: int, clock: Clock, rng: Rng) -> None:
        self._metadata = metadata
        self._node_id = node_id
        self._clock = clock
        self._rng = rng
        self._channels: dict[int, NodeChannel] = {}
        #: Channels to earlier addresses that are being closed.
        self._closing: set[asyncio.Task[None]] = set()

    def leader_of(self, partition: TopicPartition) -> int | None:
        """The other broker that leads the partition; None if this broker leads it, or none does."""
        image = self._metadata.image
        if len(image.brokers) < 2:
            return None
        placed = image.partition(*partition)
        return None if placed is None or placed.leader in (self._node_id, -1) else placed.leader

    def transactions(self, broker_id: int) -> RemoteTransactions:
        """Returns that broker's transaction service. Raises CoordinatorNotAvailable if the broker has registered no address."""
        return RemoteTransactions(self._channel(broker_id))

    def groups(self, broker_id: int) -> RemoteGroups:
        """Returns that broker's groups. Raises CoordinatorNotAvailable if the broker has registered no address."""
        return RemoteGroups(self._channel(broker_id))

    def _channel(self, broker_id: int) -> NodeChannel:
        broker = self._metadata.image.brokers.get(broker_id)
        if broker is None or not broker.peer:
            raise CoordinatorNotAvailable(f"broker {broker_id} has no address for other brokers; retry")
        known = self._channels.get(broker_id)
        if known is None or known.address != broker.peer:
            if known is not None:
                self._leave(known)
            known = NodeChannel(open_channel(broker.peer), broker.peer, self._clock, self._rng)
            self._channels[broker_id] = known
        return known

    async def write_markers(
        self, broker_id: int, markers: Markers, coordinator_epoch: int
    ) -> Sequence[tuple[TopicPartition, LogError]]:
        """Has that broker write the markers. Returns the partitions that have no committed marker, each with its error: all of
        them if the broker does not answer."""
        try:
            return await self.transactions(broker_id).write_markers(markers, coordinator_epoch, _BROKER)
        except LogError as error:
            return [(partition, error) for partition in markers.partitions]

    def _leave(self, channel: NodeChannel) -> None:
        task = asyncio.get_running_loop().create_task(channel.channel.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.channel.close()
        self._channels.clear()


class GroupCoordinators:
    """The coordinators of the cluster's groups: the partitions of `__consumer_offsets`."""

    def __init__(self, metadata: Metadata, node_id: int, peers: Peers) -> None:
        self._metadata = metadata
        self._node_id = node_id
        self._peers = peers

    def numbers(self) -> Collection[int]:
        topic = self._metadata.image.topic(CONSUMER_OFFSETS)
        return frozenset() if topic is None else frozenset(each.index for each in topic.partitions)

    def elsewhere(self) -> Mapping[int, int]:
        """The coordinators that other brokers have, with the ids of these brokers."""
        topic = self._metadata.image.topic(CONSUMER_OFFSETS)
        placed = () if topic is None else topic.partitions
        return {each.index: each.leader for each in placed if each.leader not in (self._node_id, NO_LEADER)}

    async def lower(self, broker_id: int, request: LowerOffsets) -> Collection[int]:
        """Returns the coordinators of that broker that have lowered their offsets; none if the broker does not answer within
        LOWER_S."""
        try:
            async with asyncio.timeout(LOWER_S):
                return await self._peers.groups(broker_id).lower_offsets(request, _BROKER)
        except (LogError, TimeoutError):
            return ()


class RoutedCoordinator:
    """Routes requests to the coordinator of a transactional id. `local` is this broker's own coordinator."""

    def __init__(self, local: AsksCoordinator, topic: CoordinatorTopic, peers: Peers) -> None:
        """`topic` is the topic that stores transactions."""
        self._local = local
        self._topic = topic
        self._peers = peers

    def add_partitions(self, request: AddPartitions, caller: Caller) -> asyncio.Future[PartitionsAdded]:
        number = self._topic.partition_of(request.transactional_id)
        leader = None if number is None else self._peers.leader_of(TopicPartition(TRANSACTION_STATE, number))
        if leader is None:
            return self._local.add_partitions(request, caller)
        return self._peers.transactions(leader).add_partitions(request, caller)
