"""The contract's `Topics` over a channel: answered from a copy of the node's metadata that one stream keeps up to date.

Invariant: when a call of this object returns, `describe` shows its changes. While the node does not answer, the copy stays
as it is, and the stream is reopened with growing pauses.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import grpc.aio

from grpc_api.channel import CALL_TIMEOUT_S, NodeChannel, answered
from grpc_api.contract.topics import ClusterDescription, CreatedTopic, NewTopic, TopicDescription
from grpc_api.messages.topics import (
    assignment_messages,
    cluster_of,
    created_of,
    deleted_of,
    new_topic_message,
    topic_of,
)
from grpc_api.proto import topics_pb2 as pb
from grpc_api.proto.topics_pb2_grpc import TopicsStub
from grpc_api.versions import is_seen
from storage_tiers.backoff import Backoff, BackoffSettings
from storage_tiers.errors import (
    InvalidTopic,
    LeaderNotAvailable,
    LogError,
    RequestTimedOut,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from storage_tiers.types import TopicId, TopicPartition

#: Pauses between attempts to open the stream again, in seconds.
RECONNECT = BackoffSettings(first=0.1, longest=2.0)
_LEGAL_NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}\Z")


class RemoteTopics:
    """Call `open` before use, and `close` at the end."""

    def __init__(self, node: NodeChannel) -> None:
        self._address = node.address
        self._stub: Any = TopicsStub(node.channel)
        self._clock = node.clock
        self._backoff = Backoff(RECONNECT, node.rng)
        self._cluster: ClusterDescription | None = None
        self._topics: dict[TopicId, TopicDescription] = {}
        self._names: dict[str, TopicId] = {}
        #: By topic; any thread may read it. Replaced as a whole, never changed.
        self.partition_counts: dict[str, int] = {}
        self._version = 0
        self._updated = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []
        self._watcher: asyncio.Task[None] | None = None

    async def open(self, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Returns once the metadata has arrived. Raises LeaderNotAvailable if it has not arrived within `timeout_s`."""
        self._watcher = asyncio.get_running_loop().create_task(self._watch())
        try:
            async with asyncio.timeout(timeout_s):
                while self._cluster is None:
                    await self._updated.wait()
        except TimeoutError:
            await self.close()
            raise LeaderNotAvailable(
                f"{self._address} did not answer within {timeout_s:g} s; is a node there, and is that its gRPC port "
                "(not Kafka's or HTTP's)?"
            ) from None

    async def close(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            with suppress(asyncio.CancelledError):
                await self._watcher

    # --- the copy -----------------------------------------------------------------------------------------------------
    async def _watch(self) -> None:
        while True:
            with suppress(grpc.aio.AioRpcError):
                await self._apply_updates()
            await self._clock.sleep(self._backoff.next_delay())

    async def _apply_updates(self) -> None:
        """Applies updates until the node ends the call."""
        parts: list[pb.MetadataUpdate] = []
        async for update in self._stub.Watch(pb.WatchRequest(), wait_for_ready=True):
            parts.append(update)
            if not update.more:
                self._apply(parts)
                parts = []
                self._backoff.succeeded()

    def _apply(self, parts: Sequence[pb.MetadataUpdate]) -> None:
        """Applies one update, which may consist of several messages."""
        if parts[0].complete:
            self._topics.clear()
        update = parts[-1]
        if update.HasField("cluster"):
            self._cluster = cluster_of(update.cluster)
        for topic_id in update.deleted_topic_ids:
            self._topics.pop(TopicId(topic_id), None)
        for message in (each for part in parts for each in part.topics):
            topic = topic_of(message)
            self._topics[topic.topic_id] = topic
        self._names = {topic.name: topic_id for topic_id, topic in self._topics.items()}
        self.partition_counts = {topic.name: len(topic.partitions) for topic in self._topics.values()}
        self._version = update.version
        updated, self._updated = self._updated, asyncio.Event()
        updated.set()
        for listener in tuple(self._listeners):
            listener()

    async def _shown(self, call: Awaitable[Any]) -> Any:
        """The answer to a change, once the copy shows the change."""
        answer = await answered(call, self._address)
        before = self._version
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                while not is_seen(answer.version, self._version, before):
                    await self._updated.wait()
        except TimeoutError:
            raise RequestTimedOut(f"{self._address} made the change, but did not show it in time; retry") from None
        return answer

    # --- queries ------------------------------------------------------------------------------------------------------
    def cluster(self) -> ClusterDescription:
        if self._cluster is None:
            raise LeaderNotAvailable(f"{self._address} has not answered yet; retry")
        return self._cluster

    def describe(
        self, names: Sequence[str] | None = None, topic_ids: Sequence[TopicId] = ()
    ) -> Sequence[TopicDescription | LogError]:
        if names is None and not topic_ids:
            return list(self._topics.values())
        answers: list[TopicDescription | LogError] = [self._named(name) for name in names or ()]
        for topic_id in topic_ids:
            known = self._topics.get(topic_id)
            answers.append(known or UnknownTopicId(f"this cluster has no topic with the id {topic_id}"))
        return answers

    def leader(self, partition: TopicPartition) -> tuple[int, int]:
        topic_id = self._names.get(partition.topic)
        known = () if topic_id is None else self._topics[topic_id].partitions
        if not 0 <= partition.partition < len(known):
            return -1, -1
        found = known[partition.partition]
        return found.leader, found.leader_epoch

    def _named(self, name: str) -> TopicDescription | LogError:
        topic_id = self._names.get(name)
        if topic_id is not None:
            return self._topics[topic_id]
        return _no_such_topic(name)

    def partition_count(self, topic: str) -> int:
        """The topic's number of partitions; any thread may call it. Raises UnknownTopicOrPartition or InvalidTopic."""
        count = self.partition_counts.get(topic)
        if count is None:
            raise _no_such_topic(topic)
        return count

    def topic_name(self, topic_id: TopicId) -> str | None:
        known = self._topics.get(topic_id)
        return None if known is None else known.name

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        self._listeners.append(listener)
        return partial(self._listeners.remove, listener)

    # --- changes ------------------------------------------------------------------------------------------------------
    async def create(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> Sequence[CreatedTopic | LogError]:
        request = pb.CreateTopicsRequest(topics=map(new_topic_message, topics), validate_only=validate_only)
        answer = await self._shown(self._stub.Create(request, timeout=CALL_TIMEOUT_S))
        return [created_of(each) for each in answer.topics]

    async def auto_create(self, names: Sequence[str]) -> None:
        request = pb.AutoCreateRequest(names=names)
        await self._shown(self._stub.AutoCreate(request, timeout=CALL_TIMEOUT_S))

    async def delete(
        self, names: Sequence[str], topic_ids: Sequence[TopicId] = ()
    ) -> Sequence[tuple[str, TopicId] | LogError]:
        request = pb.DeleteTopicsRequest(names=names, topic_ids=topic_ids)
        answer = await self._shown(self._stub.Delete(request, timeout=CALL_TIMEOUT_S))
        return [deleted_of(each) for each in answer.topics]

    async def create_partitions(
        self, topic: str, count: int, assignments: Sequence[Sequence[int]] | None, *, validate_only: bool = False
    ) -> None:
        request = pb.CreatePartitionsRequest(
            topic=topic, count=count, assignments=assignment_messages(assignments), validate_only=validate_only
        )
        await self._shown(self._stub.CreatePartitions(request, timeout=CALL_TIMEOUT_S))

    async def elect_unclean(self, partition: TopicPartition) -> None:
        request = pb.ElectUncleanRequest(topic=partition.topic, partition=partition.partition)
        await self._shown(self._stub.ElectUnclean(request, timeout=CALL_TIMEOUT_S))

    async def reassign(self, partition: TopicPartition, replicas: Sequence[int] | None) -> None:
        wanted = None if replicas is None else pb.ReplicaAssignment(node_ids=replicas)
        request = pb.ReassignRequest(topic=partition.topic, partition=partition.partition, replicas=wanted)
        await self._shown(self._stub.Reassign(request, timeout=CALL_TIMEOUT_S))

    async def unregister_broker(self, broker_id: int) -> None:
        request = pb.UnregisterBrokerRequest(broker_id=broker_id)
        await self._shown(self._stub.UnregisterBroker(request, timeout=CALL_TIMEOUT_S))


def _no_such_topic(name: str) -> LogError:
    if _LEGAL_NAME.match(name) is None:
        return InvalidTopic(f"{name!r} is not a topic name: 1 to 249 letters, digits, '.', '_' and '-'")
    return UnknownTopicOrPartition(f"this cluster has no topic {name!r}; create it with `create_topic`")
