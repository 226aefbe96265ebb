"""Keeps the bucket's topic files current: publishes `topic.json` of live topics and removes deleted topics.

Deleting a topic: the metadata marks its id; `topic.json` is set to deleted while it still names that id; each partition's
manifest gets its terminal commit; the objects are swept past the grace; then the metadata forgets the id. Every step may be
repeated, and is repeated at every start until the deletion is complete.

Invariant: each name has at most one write under way, and a topic is live when its write begins. So a delayed write cannot
restore an id that was deleted meanwhile.

Work is proportional to changes: topics that the metadata has touched stay in a queue until the bucket agrees. If the store
does not answer for a topic, the topic goes to the queue's end and the round ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

from grpc_api.contract.topics import ResourceKind
from service.broker.background.store_access import ASK_THE_CONTROLLER, StoreAccess
from service.metadata.command_codec import MAX_TOPIC_FILES
from service.metadata.commands import ForgetTopic, TopicFilesSeen
from service.metadata.controller import Commands
from service.metadata.following import Metadata
from service.metadata.image import MetadataImage
from service.metadata.parts import Changes, DeletingTopic, TopicImage
from storage_tiers import events
from storage_tiers.clock import Clock
from storage_tiers.cold.manifest import keys
from storage_tiers.cold.manifest.model import Ids, ManifestWriter, State
from storage_tiers.cold.manifest.topic_file import TopicState, republished
from storage_tiers.cold.process.client import TierClient
from storage_tiers.cold.process.cluster_operations import MarkTopicDeleted, PublishTopic, RepublishTopic, ShownTopic
from storage_tiers.cold.process.operations import AbortUploads, DeletePartition, ListKeys, SweepDeleted
from storage_tiers.cold.segments.repairer import RepairReport
from storage_tiers.cold.segments.sweeper import Listed
from storage_tiers.errors import (
    Advice,
    FencedWriter,
    LogError,
    StoreBehind,
    TierCorrupt,
    TierUnavailable,
    UnknownTopicOrPartition,
)
from storage_tiers.types import TopicId

log = logging.getLogger(__name__)


class TopicFiles:
    """`access` is None on a node without a store: a deleted topic is then forgotten at once. A broker whose controller is in
    another process has `writes` False: the controller's node writes all files, and this object only checks the result."""

    def __init__(
        self,
        metadata: Metadata,
        controller: Commands,
        access: StoreAccess | None,
        *,
        writes: bool,
        grace_ms: Callable[[], int],
        clock: Clock,
    ) -> None:
        self._writes = writes
        self._listeners: list[Callable[[str, StoreBehind], None]] = []
        self._metadata = metadata
        self._controller = controller
        self._access = access
        self._client = None if access is None else access.client
        self._grace_ms = grace_ms
        self._clock = clock
        self._published: dict[TopicId, tuple[int, tuple[tuple[str, str], ...]]] = {}
        #: The revision of each live topic's file as the store showed it. Each round saves new revisions in the metadata at its
        #: end.
        self._revisions: dict[TopicId, int] = dict(metadata.image.topic_files)
        self._unsaved: set[TopicId] = set()
        #: For deleted topics whose manifests are all marked as deleted: the time (ms since 1970) of the last of these commits.
        self._terminated: dict[TopicId, int] = {}
        self._writing: dict[str, asyncio.Lock] = {}
        self._troubles = events.Troubles()
        #: Topics whose files may differ from the metadata, in the order in which they are checked.
        self._due: dict[TopicId, None] = {}
        if writes:
            self._due.update(dict.fromkeys((*metadata.image.topics, *metadata.image.deleting)))

    def subscribe(self, on_behind: Callable[[str, StoreBehind], None]) -> None:
        """Calls `on_behind` with each topic whose file is gone from the store, or older there than was seen."""
        self._listeners.append(on_behind)

    def apply(self, image: MetadataImage, changes: Changes) -> None:
        """Queues the changed topics; called after every metadata change."""
        if not self._writes:
            return
        self._due.update(dict.fromkeys(changes.topics))
        for resource in changes.configs:
            topic_id = image.topic_ids.get(resource.name) if resource.kind is ResourceKind.TOPIC else None
            if topic_id is not None:
                self._due[topic_id] = None

    async def tick(self) -> None:
        """Publishes changed topics and advances each deletion as far as possible."""
        if self._client is not None and (self._access is None or not self._access.is_open):
            return
        for topic_id in tuple(self._due):
            # Removed first: a change during the check queues the topic again.
            self._due.pop(topic_id, None)
            failure = await self._update(topic_id)
            if failure is not None:
                self._due[topic_id] = None
            if isinstance(failure, TierUnavailable):
                break  # each further topic would wait for the same timeout
        await self._save_revisions()

    async def _save_revisions(self) -> None:
        """Saves the revisions for later starts to compare with."""
        unsaved = list(self._unsaved)
        for first in range(0, len(unsaved), MAX_TOPIC_FILES):
            # A topic may be forgotten while an earlier part is saved.
            part = [topic_id for topic_id in unsaved[first : first + MAX_TOPIC_FILES] if topic_id in self._unsaved]
            seen = {topic_id: self._revisions[topic_id] for topic_id in part}
            await self._controller.execute(TopicFilesSeen(seen))
            # Removed only after the save, because the disk may refuse it. Revisions shown meanwhile stay unsaved.
            self._unsaved -= {
                topic_id for topic_id, revision in seen.items() if self._revisions.get(topic_id) == revision
            }

    async def _update(self, topic_id: TopicId) -> LogError | None:
        topic, doomed = self._metadata.image.topics.get(topic_id), self._metadata.image.deleting.get(topic_id)
        if topic is not None:
            return await self._guarded(topic.name, self._publish(topic))
        if doomed is None:
            return None
        return await self._guarded(
            doomed.name, self._forget(topic_id) if self._client is None else self._terminate(doomed)
        )

    async def sweep(self) -> None:
        """Deletes the objects of deleted topics past the grace, then forgets the topics."""
        if not self._writes or self._client is None or self._access is None or not self._access.is_open:
            return
        for doomed in self._metadata.image.deleting.values():
            if self._is_past_grace(doomed.topic_id):
                await self._guarded(doomed.name, self._sweep(doomed))

    def _is_past_grace(self, topic_id: TopicId) -> bool:
        since_ms = self._terminated.get(topic_id)
        return since_ms is not None and since_ms + self._grace_ms() <= self._clock.unix_ms()

    async def publish_now(self, name: str) -> None:
        """Returns once `topic.json` names the topic, if it is live. Raises TierUnavailable until the controller of another
        process has published it."""
        topic = self._metadata.image.topic(name)
        if topic is None:
            return
        if self._writes:
            await self._publish(topic)
        elif topic.topic_id not in self._metadata.image.topic_files:
            raise TierUnavailable(f"the controller has not published topic.json of {name} yet: its log says why")

    async def _publish(self, seen: TopicImage) -> None:
        async with self._one_at_a_time(seen.name):
            image = self._metadata.image
            topic = image.topics.get(seen.topic_id)
            if topic is None or self._client is None:
                return
            configs = dict(image.topic_config(topic.name))
            wanted = (len(topic.partitions), tuple(sorted(configs.items())))
            if self._published.get(topic.topic_id) == wanted:
                return
            state = self._state(topic.name, topic.topic_id, len(topic.partitions), configs)
            known = self._revisions.get(topic.topic_id, 0)
            try:
                shown = await self._client.ask(PublishTopic(replace(state, revision=known)))
            except (StoreBehind, TierCorrupt) as error:
                raise self._behind(topic.name, error) from error
            self._shown(topic.topic_id, shown.revision)
            self._published[topic.topic_id] = wanted

    def _behind(self, name: str, error: LogError) -> StoreBehind:
        """Notifies the listeners that the store shows an older `topic.json`, and returns the error."""
        behind = StoreBehind(
            f"{error}. If that version is gone for good, see what `tidelog cold repair {name}` would write"
        )
        for listener in self._listeners:
            listener(name, behind)
        return behind

    def _shown(self, topic_id: TopicId, revision: int) -> None:
        if self._revisions.get(topic_id) != revision:
            self._revisions[topic_id] = revision
            self._unsaved.add(topic_id)

    async def repair(self, name: str, *, apply: bool) -> tuple[RepairReport, int]:
        """Rewrites `topic.json` if the store shows an older one than was seen there, or none. Returns the report, and the
        revision written, or 0. Raises UnknownTopicOrPartition."""
        if not self._writes:
            return RepairReport(refused=ASK_THE_CONTROLLER), 0
        assert self._client is not None
        self._named(name)  # no lock is made for a name that no topic has
        async with self._one_at_a_time(name):
            image, topic = self._metadata.image, self._named(name)
            found = await self._client.ask(ShownTopic(image.cluster_id, name))
            known, file_key = self._revisions.get(topic.topic_id, 0), keys.topic_file_key(image.cluster_id, name)
            if found is not None and found.revision >= known:
                return RepairReport(), 0
            if found is None and known == 0 and not (await self._client.ask(ListKeys(file_key, ""))).keys:
                return RepairReport(), 0  # no revision was seen there; the periodic work publishes the first one
            count, configs = len(topic.partitions), dict(image.topic_config(name))
            state = replace(self._state(name, topic.topic_id, count, configs), revision=known)
            try:
                new = republished(found, state)
            except FencedWriter as error:
                return RepairReport(refused=str(error), checked=1), 0
            shows = "is gone, or cannot be read" if found is None else f"is at revision {found.revision}"
            report = RepairReport(
                f"topic.json of {name} {shows}, and revision {known} was seen there: it is written again as revision "
                f"{new.revision + 1}, with topic id {topic.topic_id} and {new.partitions} partitions",
                checked=1,
            )
            if not apply:
                return report, 0
            shown = await self._client.ask(RepublishTopic(state))
            if shown is None:
                raise TierUnavailable(f"{name}: the tier process sent an empty answer; retry")
            self._shown(topic.topic_id, shown.revision)
            self._published[topic.topic_id] = (count, tuple(sorted(configs.items())))
            await self._save_revisions()
            events.info(log, "topic.repaired", topic=name, revision=shown.revision)
            return report, shown.revision

    def _named(self, name: str) -> TopicImage:
        topic = self._metadata.image.topic(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"there is no topic {name}")
        return topic

    def _one_at_a_time(self, name: str) -> asyncio.Lock:
        return self._writing.setdefault(name, asyncio.Lock())

    async def _terminate(self, doomed: DeletingTopic) -> None:
        if doomed.topic_id in self._terminated:
            return
        async with self._one_at_a_time(doomed.name):
            state = self._state(doomed.name, doomed.topic_id, doomed.partition_count, {})
            await self._store()[0].ask(MarkTopicDeleted(state))
        await self._delete_partitions(doomed)
        self._published.pop(doomed.topic_id, None)
        self._revisions.pop(doomed.topic_id, None)
        self._unsaved.discard(doomed.topic_id)
        topic_id, count = str(doomed.topic_id), doomed.partition_count
        events.info(log, "topic.deleted_in_store", topic=doomed.name, topic_id=topic_id, partitions=count)

    async def _delete_partitions(self, doomed: DeletingTopic) -> None:
        """Marks every manifest as deleted. A marked manifest is not written again, unless the store went backwards."""
        client, writer = self._store()
        manifests = [await client.ask(DeletePartition(ids, writer)) for ids in self._partitions_of(doomed)]
        self._terminated[doomed.topic_id] = max((manifest.committed_at for manifest in manifests), default=0)

    async def _sweep(self, doomed: DeletingTopic) -> None:
        """Lists all objects under the topic's id once, a thousand keys a request, and sweeps them."""
        await self._delete_partitions(doomed)
        if not self._is_past_grace(doomed.topic_id):
            return
        client, _ = self._store()
        of_number = {ids.partition: ids for ids in self._partitions_of(doomed)}
        prefix = keys.topic_id_prefix(self._metadata.image.cluster_id, doomed.name, doomed.topic_id)
        done, after = True, ""
        while True:
            stretch = await client.ask(ListKeys(prefix, after))
            for number, listed in _by_partition(stretch.keys).items():
                if number in of_number:
                    done = await self._sweep_some(of_number[number], tuple(listed)) and done
            if stretch.last:
                break
            after = stretch.keys[-1].key
        await client.ask(AbortUploads(prefix, 0))
        if done:
            await self._forget(doomed.topic_id)
            self._terminated.pop(doomed.topic_id, None)

    async def _sweep_some(self, ids: Ids, listed: tuple[Listed, ...]) -> bool:
        client, writer = self._store()
        return (await client.ask(SweepDeleted(ids, writer, self._grace_ms(), listed))).done

    def _store(self) -> tuple[TierClient, ManifestWriter]:
        assert self._client is not None
        assert self._access is not None
        assert self._access.writer is not None
        return self._client, self._access.writer

    async def _forget(self, topic_id: TopicId) -> None:
        await self._controller.execute(ForgetTopic(topic_id))
        image = self._metadata.image
        self._writing = {name: lock for name, lock in self._writing.items() if lock.locked() or image.topic(name)}

    def _partitions_of(self, doomed: DeletingTopic) -> list[Ids]:
        cluster_id = self._metadata.image.cluster_id
        return [Ids(cluster_id, doomed.name, doomed.topic_id, number) for number in range(doomed.partition_count)]

    def _state(self, name: str, topic_id: TopicId, partitions: int, configs: dict[str, str]) -> TopicState:
        assert self._access is not None
        incarnation = self._access.preview_writer.incarnation or 0
        return TopicState(self._metadata.image.cluster_id, name, topic_id, State.LIVE, partitions, incarnation, configs)

    async def _guarded(self, name: str, work: Awaitable[None]) -> LogError | None:
        """Runs `work`. Returns its error, or None. Raises an error that ends the node."""
        try:
            await work
        except LogError as error:
            if error.advice is Advice.STOP:
                raise
            if self._troubles.begins(name, error):
                say = events.debug if isinstance(error, TierUnavailable) else events.warning
                say(log, "topic.waits", topic=name, error=error)
            return error
        self._troubles.ends(name)
        return None


def _by_partition(listed: Iterable[Listed]) -> dict[int, list[Listed]]:
    """Groups pages, segments and sidecars by partition. Manifests and foreign objects are left out, because they survive a
    deletion."""
    found: dict[int, list[Listed]] = {}
    for each in listed:
        try:
            parsed = keys.parse(each.key)
        except ValueError:
            continue
        if isinstance(parsed, keys.PageKey | keys.SegmentKey | keys.SidecarKey):
            found.setdefault(parsed.partition, []).append(each)
    return found
