"""What a data directory that belongs to no cluster may begin as. Asked before anything is made, named or taken.

An empty directory is either a new node's or what is left of an old one (a disk replaced, a volume not mounted): the bucket
knows. Invariants: without an answer of the store no cluster is named; beside a cluster that the store holds a new one begins
only if it was asked for; a directory that belongs to a cluster is not asked about.

Not promised: that `--new-cluster` left on a command line is harmless. Where the directory is lost later, it says once more
that a new cluster shall begin.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from datetime import UTC, datetime

from service.http import Readiness
from service.metadata.image import MetadataImage
from service.metadata.store import DIRECTORY as METADATA_DIRECTORY
from service.settings import NodeSettings
from storage_tiers import events
from storage_tiers.backoff import Backoff, BackoffSettings
from storage_tiers.clock import Clock, Rng
from storage_tiers.cold.manifest.clusters import ClusterFound
from storage_tiers.cold.process.client import TierClient
from storage_tiers.errors import Advice, LogError, MetadataCorrupt, StoreRefused
from storage_tiers.hot.data_dir import META_PROPERTIES, DataDirectory

log = logging.getLogger(__name__)

#: Seconds between questions to a store that does not answer.
BACKOFF = BackoffSettings(0.5, 30.0)
#: Clusters that a refusal names.
NAMED_CLUSTERS = 20


class StoppedBeforeStart(Exception):
    """The node was told to stop while it waited for the store."""


def belongs(data_dir: str) -> bool:
    """Whether the directory has been a node's: it has an identity, or metadata."""
    return any(os.path.exists(os.path.join(data_dir, name)) for name in (META_PROPERTIES, METADATA_DIRECTORY))


def check_metadata(data: DataDirectory, image: MetadataImage) -> None:
    """MetadataCorrupt if the metadata log is empty beside partitions: without it nobody knows whose they are, and a start
    would set all of them aside."""
    known = data.identity()
    if known is None or image.cluster_id:
        return
    held = data.partitions()
    if held:
        raise MetadataCorrupt(
            f"{os.path.join(data.path, METADATA_DIRECTORY)} is empty, and {len(held)} partitions of cluster "
            f"{known.cluster_id} lie beside it ({held[0].partition} …): the metadata log is lost; put it back from a copy. "
            "Nothing was changed"
        )


async def may_begin(
    settings: NodeSettings,
    client: TierClient | None,
    readiness: Readiness,
    stop: asyncio.Event,
    *,
    clock: Clock,
    rng: Rng,
) -> None:
    """Returns once the node may go on with its directory. StoreRefused, naming what the store holds, if the directory is
    empty and the store's prefix is not; StoppedBeforeStart if `stop` was set while the store gave no answer."""
    if client is None or settings.new_cluster or belongs(str(settings.data_dir)):
        return
    readiness.store = "asked which clusters it holds: the data directory is empty"
    found = await _clusters(client, readiness, stop, clock, rng)
    if found:
        raise StoreRefused(refusal(str(settings.data_dir), settings.store, found))
    readiness.store = "not probed yet"


async def _clusters(
    client: TierClient, readiness: Readiness, stop: asyncio.Event, clock: Clock, rng: Rng
) -> Sequence[ClusterFound]:
    backoff = Backoff(BACKOFF, rng)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        while True:
            asking = asyncio.ensure_future(client.find_clusters())
            try:
                await asyncio.wait((asking, stopping), return_when=asyncio.FIRST_COMPLETED)
                if stopping.done():
                    raise StoppedBeforeStart
                return asking.result()
            except LogError as error:
                if error.advice is not Advice.RETRY:
                    raise
                readiness.store = (
                    f"does not answer: {error}. The data directory is empty and the store may hold its cluster: the node "
                    "waits for an answer"
                )
                if backoff.failures == 0:
                    events.warning(log, "directory.waits", error=error)
            finally:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
            pause = asyncio.ensure_future(clock.sleep(backoff.next_delay()))
            await asyncio.wait((pause, stopping), return_when=asyncio.FIRST_COMPLETED)
            pause.cancel()
    finally:
        stopping.cancel()


def refusal(data_dir: str, store: str, found: Sequence[ClusterFound]) -> str:
    """What is there, and what may be done."""
    named = "; ".join(map(_described, found[:NAMED_CLUSTERS]))
    more = f"; and {len(found) - NAMED_CLUSTERS} more" if len(found) > NAMED_CLUSTERS else ""
    return (
        f"the data directory {data_dir} is empty, but {store} holds {_count(len(found), 'cluster')}: {named}{more}. If the "
        "directory should not be empty (a volume that is not mounted, another path), stop here and mend that. Start with "
        "--new-cluster to begin another cluster beside what is there"
    )


def _described(cluster: ClusterFound) -> str:
    started = "without a cluster.json"
    if cluster.started_ms is not None:
        started = f"last started on at {datetime.fromtimestamp(cluster.started_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
    names = ", ".join(cluster.some_topics) + (", …" if cluster.topics > len(cluster.some_topics) else "")
    topics = f"{_count(cluster.topics, 'topic')} ({names})" if cluster.topics else "no topic"
    return f"{cluster.cluster_id} with {topics}, {started}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
