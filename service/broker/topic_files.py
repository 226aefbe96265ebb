"""What the bucket says about topics: `topic.json` of the live ones, and the removal of the deleted.

Deleting a topic: the metadata marks its id; `topic.json` is set to deleted while it still names that id; each partition's
manifest gets its terminal commit; the objects are swept past the grace; then the metadata forgets the id. Every step may be
repeated, and is, at every start, until done.

Invariant: of one name, one write is under way at a time, and what is published is live when it begins: a write that was
held up cannot bring back an id that was deleted meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from service.broker.store_access import StoreAccess
from service.metadata import planner
from service.metadata.image import DeletingTopic, TopicImage
from service.metadata.log import MetadataLog
from storage_tiers import events
from storage_tiers.cold.manifest.model import Ids, State
from storage_tiers.cold.manifest.topic_file import TopicState
from storage_tiers.cold.process.client import TierClient
from storage_tiers.errors import Advice, LogError, TierUnavailable
from storage_tiers.types import TopicId

log = logging.getLogger(__name__)


class TopicFiles:
    """`client` and `access` are None on a node without a store: a deleted topic is then forgotten at once."""

    def __init__(
        self,
        metadata: MetadataLog,
        client: TierClient | None,
        access: StoreAccess | None,
        *,
        grace_ms: Callable[[], int],
    ) -> None:
        self._metadata = metadata
        self._client = client
        self._access = access
        self._grace_ms = grace_ms
        self._published: dict[TopicId, tuple[int, tuple[tuple[str, str], ...]]] = {}
        self._terminated: set[TopicId] = set()
        self._writing: dict[str, asyncio.Lock] = {}
        self._troubles = events.Troubles()

    async def tick(self) -> None:
        """Publishes what changed and takes each deletion as far as it goes."""
        if self._client is not None and (self._access is None or self._access.writer is None):
            return
        image = self._metadata.image
        for topic in image.topics.values():
            await self._guarded(topic.name, self._publish(topic))
        for doomed in image.deleting.values():
            if self._client is None:
                await self._forget(doomed.topic_id)
            else:
                await self._guarded(doomed.name, self._terminate(doomed))

    async def sweep(self) -> None:
        """Deletes the objects of deleted topics past the grace, then forgets the topics."""
        if self._client is None or self._access is None or self._access.writer is None:
            return
        for doomed in self._metadata.image.deleting.values():
            if doomed.topic_id in self._terminated:
                await self._guarded(doomed.name, self._sweep(doomed))

    async def publish_now(self, name: str) -> None:
        """Returns once `topic.json` names the topic, if it is live."""
        topic = self._metadata.image.topic(name)
        if topic is not None:
            await self._publish(topic)

    async def _publish(self, seen: TopicImage) -> None:
        async with self._one_at_a_time(seen.name):
            image = self._metadata.image
            topic = image.topics.get(seen.topic_id)
            if topic is None or self._client is None:
                return
            configs = dict(image.topic_config(topic.name))
            wanted = (len(topic.partitions), tuple(sorted(configs.items())))
            if self._published.get(topic.topic_id) != wanted:
                state = self._state(topic.name, topic.topic_id, len(topic.partitions), configs)
                await self._client.put_topic_file(state)
                self._published[topic.topic_id] = wanted

    def _one_at_a_time(self, name: str) -> asyncio.Lock:
        return self._writing.setdefault(name, asyncio.Lock())

    async def _terminate(self, doomed: DeletingTopic) -> None:
        if doomed.topic_id in self._terminated:
            return
        assert self._client is not None
        assert self._access is not None
        assert self._access.writer is not None
        async with self._one_at_a_time(doomed.name):
            await self._client.mark_topic_deleted(self._state(doomed.name, doomed.topic_id, doomed.partition_count, {}))
        for ids in self._partitions_of(doomed):
            await self._client.delete_partition(ids, self._access.writer)
        self._published.pop(doomed.topic_id, None)
        self._terminated.add(doomed.topic_id)
        topic_id, count = str(doomed.topic_id), doomed.partition_count
        events.info(log, "topic.deleted_in_store", topic=doomed.name, topic_id=topic_id, partitions=count)

    async def _sweep(self, doomed: DeletingTopic) -> None:
        assert self._client is not None
        assert self._access is not None
        assert self._access.writer is not None
        done = True
        for ids in self._partitions_of(doomed):
            report = await self._client.sweep(ids, self._access.writer, self._grace_ms())
            done = done and report.done
        if done:
            await self._forget(doomed.topic_id)
            self._terminated.discard(doomed.topic_id)

    async def _forget(self, topic_id: TopicId) -> None:
        await self._metadata.change(lambda image: (planner.forget_topic(image, topic_id), None))
        image = self._metadata.image
        self._writing = {name: lock for name, lock in self._writing.items() if lock.locked() or image.topic(name)}

    def _partitions_of(self, doomed: DeletingTopic) -> list[Ids]:
        cluster_id = self._metadata.image.cluster_id
        return [Ids(cluster_id, doomed.name, doomed.topic_id, number) for number in range(doomed.partition_count)]

    def _state(self, name: str, topic_id: TopicId, partitions: int, configs: dict[str, str]) -> TopicState:
        assert self._access is not None
        assert self._access.writer is not None
        incarnation = self._access.writer.incarnation or 0
        return TopicState(self._metadata.image.cluster_id, name, topic_id, State.LIVE, partitions, incarnation, configs)

    async def _guarded(self, name: str, work: Awaitable[None]) -> None:
        try:
            await work
        except LogError as error:
            if error.advice is Advice.STOP:
                raise
            if self._troubles.begins(name, error):
                say = events.debug if isinstance(error, TierUnavailable) else events.warning
                say(log, "topic.waits", topic=name, error=error)
        else:
            self._troubles.ends(name)
