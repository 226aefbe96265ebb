"""Detects a copied or restored directory whose metadata lacks something that its cluster has done since.

With an older copy of the metadata, a node would create a topic or partition that the bucket already has. Under another id, the
existing one would count as deleted. Under the same id, offsets would be assigned a second time. `topic.json` reveals an older
copy: it records the metadata of its writer, and metadata never goes backwards. All other changes, such as moves of partitions,
are in the bucket's snapshot of the metadata log. Its key names the log's entry, which an older copy lacks.

A change that neither a `topic.json` nor a snapshot shows is not noticed. When the original stops, they are at most a second and
one `tidelog.metadata.snapshot.interval.ms` old.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from service.metadata.following import Metadata
from service.metadata.history import has_entry
from service.metadata.image import MetadataImage
from storage_tiers.cold.manifest import keys
from storage_tiers.cold.manifest.model import State
from storage_tiers.cold.manifest.topic_file import TopicState
from storage_tiers.cold.process.client import TierClient
from storage_tiers.cold.process.cluster_operations import FindSnapshot, ListTopics, ShownTopic
from storage_tiers.errors import FencedWriter

#: Topics queried at the same time.
AT_ONCE = 16


def missed(image: MetadataImage, shown: TopicState) -> str | None:
    """Describes the change of a topic that the metadata lacks; None if it lacks none. Pure."""
    known = image.topic(shown.topic)
    if known is not None and known.topic_id == shown.topic_id:
        if shown.state is State.DELETED:
            return f"topic {shown.topic} was deleted"
        if shown.partitions > len(known.partitions):
            return f"topic {shown.topic} was given {shown.partitions} partitions, and has {len(known.partitions)} here"
        return None
    if known is not None and known.topic_id in shown.earlier:
        return f"topic {shown.topic} was deleted and created again"
    deleted_here = shown.topic_id in image.deleting or shown.topic_id in image.gone
    if shown.state is State.LIVE and not deleted_here:
        return f"topic {shown.topic} was created, with topic id {shown.topic_id}"
    return None


async def check_topics(client: TierClient, image: MetadataImage) -> None:
    """Raises FencedWriter if the bucket shows a topic's change that the metadata lacks. Changes nothing. Reads every
    `topic.json`."""
    async for shown in _shown_topics(client, image.cluster_id):
        why = missed(image, shown)
        if why is not None:
            raise _older(image, why)


async def check_snapshot(client: TierClient, metadata: Metadata, incarnation: int) -> None:
    """Raises FencedWriter if the bucket has a snapshot of this directory's `incarnation`, and the metadata lacks its last
    entry. Snapshots of earlier incarnations are older than this directory's claim, and perhaps of a log from before a
    take-over. Lists the snapshots once."""
    image, (end, _) = metadata.image, metadata.applied
    found = await client.ask(FindSnapshot(image.cluster_id))
    shown = None if found.key is None else keys.parse(found.key)
    if not isinstance(shown, keys.SnapshotKey) or shown.incarnation != incarnation:
        return
    if not has_entry(image.terms, end, shown.index, shown.term):
        why = f"its metadata has reached entry {shown.index} of term {shown.term}, and the metadata here end at {end}"
        raise _older(image, why)


def _older(image: MetadataImage, why: str) -> FencedWriter:
    return FencedWriter(
        f"this data directory was copied, restored or moved, and is older than its cluster {image.cluster_id}: since then "
        f"{why}. A node that continued from it would assign names and offsets twice; nothing was changed. Start the newer "
        f"directory again. {advice_if_lost(image, 'If its disk is lost')}"
    )


def advice_if_lost(image: MetadataImage, condition: str) -> str:
    """How to continue the cluster without its newest directory. A take-over ends the cluster's other brokers, so their newest
    records have to be in the bucket before."""
    first = "first let the other brokers offload their records (The disk was lost, in docs/operations.md), then "
    return (
        f"{condition}, {first if len(image.brokers) > 1 else ''}keep this one and start on another, empty --data-dir with "
        f"--take-over {image.cluster_id}"
    )


async def _shown_topics(client: TierClient, cluster_id: str) -> AsyncIterator[TopicState]:
    """Every `topic.json` of the cluster that can be read."""
    after = ""
    while names := await client.ask(ListTopics(cluster_id, after)):
        for first in range(0, len(names), AT_ONCE):
            asked = (client.ask(ShownTopic(cluster_id, name)) for name in names[first : first + AT_ONCE])
            for shown in filter(None, await asyncio.gather(*asked)):
                yield shown
        after = names[-1]
