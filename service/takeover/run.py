"""Takes over a cluster: turns an empty directory into the cluster's node, from the contents of the bucket.

    TakeOver(begin) in the directory -> incarnation raised -> every manifest claimed -> ends known
      -> each topic.json rewritten under the new incarnation -> one metadata batch, with TakeOver(done)

Every step can be repeated, and a start that finds `begin` without `done` repeats all steps. Only the claim on a manifest stops
the old node from extending it, so offsets are uncertain before the claim. No client is served before `done`.

Errors: FencedWriter if another start has taken the cluster over since this one began. StoreRefused and TierCorrupt are not
caught. Transient failures (TierUnavailable) are retried and shown in `/readyz`.

Not promised: records that the old node acknowledged but had not offloaded. Each partition's recovery point is the end of the
records in the bucket.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from service.lifecycle.readiness import Readiness
from service.metadata import frames, planner
from service.metadata import records_pb2 as pb
from service.metadata.image import MetadataImage
from service.metadata.log import MetadataLog
from service.takeover import plan
from service.takeover.plan import Claimed, Inventory, SeenTopic
from storage_tiers import events
from storage_tiers.backoff import Backoff, BackoffSettings
from storage_tiers.clock import Clock, Rng
from storage_tiers.cold.manifest import keys
from storage_tiers.cold.manifest.cluster_file import TAKE_OVER_GAP, ClusterState, Holder
from storage_tiers.cold.manifest.model import Ids, ManifestWriter, State
from storage_tiers.cold.manifest.topic_file import TopicState
from storage_tiers.cold.process.client import TierClient
from storage_tiers.cold.process.cluster_operations import (
    FindSnapshot,
    ListManifests,
    ListTopicIds,
    ListTopics,
    MarkTopicDeleted,
    OpenCluster,
    Probe,
    PublishTopic,
    ReadCluster,
    ReadTopic,
)
from storage_tiers.cold.process.operations import FetchObject, TakenPartition, TakePartition
from storage_tiers.errors import Advice, FencedWriter, LogError, MetadataCorrupt, StoreRefused
from storage_tiers.types import TopicId
from storage_tiers.uuids import uuid_text

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Most manifests and topics processed concurrently.
AT_ONCE = 16
BACKOFF = BackoffSettings(0.5, 30.0)


@dataclass(frozen=True, slots=True)
class RecoveryPoint:
    """Clients continue at `claimed.end` of this partition; records acknowledged beyond it are lost."""

    topic: str
    partition: int
    claimed: Claimed


@dataclass(frozen=True, slots=True)
class BucketContents:
    """The bucket's state before any change."""

    snapshot: MetadataImage | None
    inventory: Inventory


class TakeOver:
    """`metadata` is None for a preview."""

    def __init__(
        self,
        client: TierClient,
        metadata: MetadataLog | None,
        cluster_id: str,
        *,
        node_id: int,
        readiness: Readiness,
        clock: Clock,
        rng: Rng,
    ) -> None:
        self._client = client
        self._metadata = metadata
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._readiness = readiness
        self._clock = clock
        self._rng = rng

    # --- the directory ------------------------------------------------------------------------------------------------
    async def begin(self) -> None:
        """Records the start of the take-over, before anything else is written. Raises StoreRefused if the bucket has no such
        cluster."""
        metadata = self._log
        if metadata.image.take_over is not None:
            return
        found = await self._cluster()
        begun = pb.TakeOverRecord(incarnation=found.incarnation, start_id=found.holder.start_id)
        records = [*planner.name_cluster(metadata.proposed, self._cluster_id), pb.MetadataRecord(take_over=begun)]
        await metadata.propose(records)

    async def run(self, directory_id: str) -> tuple[ManifestWriter, list[RecoveryPoint]]:
        """Takes over the cluster. Returns when the metadata is complete and durable."""
        began = self._clock.monotonic()
        events.info(log, "takeover.started", cluster_id=self._cluster_id)
        await self._patiently(lambda: self._client.ask(Probe(f"{self._cluster_id}/")))
        # The dry run makes all refusals before the first change of the bucket. The bucket is read again after the incarnation
        # is raised, because the old node may have added to it until then.
        await self._claim(await self.look(), ManifestWriter(self._node_id, 0), dry=True)
        writer = await self._raise_incarnation(directory_id)
        bucket = await self.look()
        claimed = await self._claim(bucket, writer)
        await self._rewrite_topic_files(bucket.inventory, writer)
        records = list(plan.records(bucket.snapshot, bucket.inventory, claimed, node_id=self._node_id))
        await self._log.propose(records)
        points = recovery_points(bucket.inventory, claimed)
        for point in points:
            events.info(
                log,
                "takeover.partition",
                topic=point.topic,
                partition=point.partition,
                log_start=point.claimed.log_start,
                end_offset=point.claimed.end,
                leader_epoch=point.claimed.leader_epoch,
                committed_at=point.claimed.committed_at,
            )
        took_ms = round((self._clock.monotonic() - began) * 1000)
        topics = len(bucket.inventory.live)
        events.info(
            log, "takeover.finished", cluster_id=self._cluster_id, topics=topics, partitions=len(points), ms=took_ms
        )
        return writer, points

    # --- reading ------------------------------------------------------------------------------------------------------
    async def look(self) -> BucketContents:
        """Reads the cluster's state from the bucket and changes nothing. Raises StoreRefused if the state of a topic id is
        unknown."""
        snapshot = await self._snapshot()
        seen = await self._each(await self._topic_names(), self._seen_topic)
        found = plan.inventory(snapshot, seen)
        manifests = {(topic.name, topic_id): numbers for topic in seen for topic_id, numbers in topic.manifests.items()}
        for gone in found.unexplained:
            await self._prove_deleted(gone, manifests[gone.name, gone.topic_id])
        return BucketContents(snapshot, found)

    async def _prove_deleted(self, gone: plan.DoomedTopic, numbers: Sequence[int]) -> None:
        """Raises StoreRefused unless a manifest of the id is `deleted`. No manifest of a live topic has that state."""
        for number in numbers:
            ids = Ids(self._cluster_id, gone.name, gone.topic_id, number)
            question = TakePartition(ids, ManifestWriter(self._node_id, 0), -1, with_producers=False, dry=True)
            if (await self._patiently(lambda q=question: self._client.ask(q))).deleted:  # type: ignore[misc]
                return
        held = f"{len(numbers)} live manifests" if numbers else "objects and no manifest"
        key = keys.topic_file_key(self._cluster_id, gone.name)
        raise StoreRefused(
            f"topic {gone.name} has {held} under topic id {gone.topic_id}, and nothing says that this id was deleted or "
            f"replaced: {key} is missing or older than they are. Put the newest version of {key} back, then start again. "
            "Nothing of the topic was changed; delete nothing"
        )

    async def preview(self) -> list[RecoveryPoint]:
        """The positions at which clients would continue. Changes nothing and does not disturb concurrent writers."""
        await self._cluster()
        bucket = await self.look()
        claimed = await self._claim(bucket, ManifestWriter(self._node_id, 0), dry=True)
        return recovery_points(bucket.inventory, claimed)

    async def _cluster(self) -> ClusterState:
        found = await self._patiently(lambda: self._client.ask(ReadCluster(self._cluster_id)))
        if found is None:
            raise StoreRefused(
                f"the store holds no cluster.json of cluster {self._cluster_id}: correct --store or the cluster id, or put "
                "the file back"
            )
        return found

    async def _snapshot(self) -> MetadataImage | None:
        found = await self._patiently(lambda: self._client.ask(FindSnapshot(self._cluster_id)))
        key = found.key
        if key is None:
            return None
        ready = await self._patiently(lambda: self._client.ask(FetchObject(key, 0, found.size)))
        try:
            return await asyncio.to_thread(_decoded, ready.path, key)
        finally:
            os.unlink(ready.path)

    async def _topic_names(self) -> list[str]:
        names: list[str] = []
        while True:
            after = names[-1] if names else ""
            page = await self._patiently(lambda after=after: self._client.ask(ListTopics(self._cluster_id, after)))  # type: ignore[misc]
            if not page:
                return names
            names += page

    async def _seen_topic(self, name: str) -> SeenTopic:
        state = await self._patiently(lambda: self._client.ask(ReadTopic(self._cluster_id, name)))
        ids = await self._patiently(lambda: self._client.ask(ListTopicIds(self._cluster_id, name)))
        manifests = {}
        for text in ids:
            question = ListManifests(self._cluster_id, name, text)
            try:
                topic_id = TopicId.parse(text)
            except ValueError:
                continue  # not one of tidelog's objects
            manifests[topic_id] = await self._patiently(lambda q=question: self._client.ask(q))  # type: ignore[misc]
        return SeenTopic(name, state, manifests)

    # --- changing -----------------------------------------------------------------------------------------------------
    async def _raise_incarnation(self, directory_id: str) -> ManifestWriter:
        number, start_id = await self._settled(), self._rng.token(16)
        begun = self._log.image.take_over
        # A repeated take-over has already raised the incarnation by the gap.
        raised_by = TAKE_OVER_GAP if begun is not None and number == begun.incarnation else 1
        await self._log.propose(planner.claim_incarnation(self._node_id, number + raised_by, start_id))
        holder = Holder(self._node_id, directory_id, uuid_text(start_id))
        incarnation = await self._patiently(
            lambda: self._client.ask(OpenCluster(self._cluster_id, holder, number, raised_by))
        )
        await self._log.propose(planner.confirm_incarnation(incarnation, start_id))
        return ManifestWriter(self._node_id, incarnation)

    async def _settled(self) -> int:
        """The expected incarnation for the compare-and-swap: the one found when the take-over began, or one that this directory
        claimed. Raises FencedWriter for any other."""
        found, image = await self._cluster(), self._log.image
        begun = image.take_over
        mine = {(start.incarnation, uuid_text(start.start_id)) for start in image.unconfirmed_starts}
        mine.add((image.incarnation, uuid_text(image.start_id)))
        if begun is not None:
            mine.add((begun.incarnation, begun.start_id))
        if (found.incarnation, found.holder.start_id) not in mine:
            raise FencedWriter(
                f"the take-over of cluster {self._cluster_id} cannot continue: since it began, another start (node "
                f"{found.holder.node_id}, incarnation {found.incarnation}) has claimed the cluster. To take it over with this "
                "node nevertheless, stop that one and begin again on another, empty --data-dir"
            )
        return found.incarnation

    async def _claim(
        self, bucket: BucketContents, writer: ManifestWriter, *, dry: bool = False
    ) -> dict[tuple[TopicId, int], Claimed]:
        wanted = [
            Ids(self._cluster_id, topic.name, topic.topic_id, number)
            for topic in bucket.inventory.live
            for number in range(topic.partitions)
        ]
        with_producers = bucket.snapshot is None

        async def claim(ids: Ids) -> tuple[Ids, TakenPartition]:
            least = plan.least_epoch(bucket.snapshot, ids.topic_id, ids.partition)
            question = TakePartition(ids, writer, least, with_producers, dry)
            return ids, await self._patiently(lambda: self._client.ask(question))

        claimed = {}
        for ids, taken in await self._each(wanted, claim):
            if taken.deleted:
                raise StoreRefused(
                    f"the manifest of {ids} is deleted, but topic.json says that topic id {ids.topic_id} is live: the bucket "
                    "mixes states of different times. Put it back as it was, then start again"
                )
            claimed[ids.topic_id, ids.partition] = Claimed(
                taken.leader_epoch, taken.log_start, taken.end, taken.committed_at, taken.producer_id
            )
        return claimed

    async def _rewrite_topic_files(self, found: Inventory, writer: ManifestWriter) -> None:
        incarnation = writer.incarnation or 0

        async def publish(topic: plan.LiveTopic) -> None:
            state = self._state(topic.name, topic.topic_id, topic.partitions, incarnation, dict(topic.configs))
            await self._patiently(lambda: self._client.ask(PublishTopic(state)))

        async def bury(topic: plan.DoomedTopic) -> None:
            state = self._state(topic.name, topic.topic_id, topic.partitions, incarnation, {})
            await self._patiently(lambda: self._client.ask(MarkTopicDeleted(state)))

        await self._each(found.live, publish)
        named = {topic.name for topic in found.live}
        await self._each([gone for gone in found.doomed if gone.name not in named], bury)

    def _state(
        self, name: str, topic_id: TopicId, partitions: int, incarnation: int, configs: dict[str, str]
    ) -> TopicState:
        return TopicState(self._cluster_id, name, topic_id, State.LIVE, partitions, incarnation, configs)

    # --- common -------------------------------------------------------------------------------------------------------
    @property
    def _log(self) -> MetadataLog:
        assert self._metadata is not None
        return self._metadata

    async def _each(self, items: Iterable[T], work: Callable[[T], Awaitable[Result]]) -> list[Result]:
        waiting = asyncio.Semaphore(AT_ONCE)

        async def one(item: T) -> Result:
            async with waiting:
                return await work(item)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(item)) for item in items]
        except BaseExceptionGroup as failures:
            raise first_failure(failures) from None
        return [task.result() for task in tasks]

    async def _patiently(self, question: Callable[[], Awaitable[T]]) -> T:
        backoff = Backoff(BACKOFF, self._rng)
        while True:
            try:
                answer = await question()
            except LogError as error:
                if error.advice is not Advice.RETRY:
                    raise
                self._readiness.store = f"does not answer: {error}. The take-over of {self._cluster_id} waits for it"
                await self._clock.sleep(backoff.next_delay())
            else:
                self._readiness.store = f"taking cluster {self._cluster_id} over"
                return answer


Result = TypeVar("Result")


def recovery_points(found: Inventory, claimed: dict[tuple[TopicId, int], Claimed]) -> list[RecoveryPoint]:
    return [
        RecoveryPoint(topic.name, number, claimed[topic.topic_id, number])
        for topic in found.live
        for number in range(topic.partitions)
    ]


def first_failure(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """The failure that ended a group of tasks."""
    first: BaseException = failures
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first


def _decoded(path: str, key: str) -> MetadataImage:
    with open(path, "rb") as file:
        frame = frames.decode(file.read())
    if frame is None:
        raise MetadataCorrupt(
            f"{key}: the snapshot's checksum does not match its bytes. Move this object out of the prefix; the "
            "previous snapshot is then used"
        )
    return MetadataImage().apply_batch(pb.MetadataBatch.FromString(frame.payload).records)
