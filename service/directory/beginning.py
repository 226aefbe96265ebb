"""Decides whether an empty data directory may start a cluster, before anything is created, named or claimed.

An empty directory belongs to a new node, or to an old node whose disk was replaced or whose volume is not mounted. The bucket
shows which. Invariants: a cluster gets an id only after the store has answered. If the store has a cluster, a new cluster
starts only on request. The store is not queried for a directory that belongs to a cluster.

Not promised: that `--new-cluster` can safely stay on a command line. If the directory is lost later, the option starts another
new cluster.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from service.directory.verify import verify
from service.lifecycle.readiness import Readiness
from service.metadata.image import MetadataImage
from service.metadata.store import DIRECTORY as METADATA_DIRECTORY
from service.settings.derived import check_store_is_there
from service.settings.node_settings import NodeSettings
from storage_tiers import events
from storage_tiers.backoff import Backoff, BackoffSettings
from storage_tiers.clock import Clock, Rng
from storage_tiers.cold.manifest.clusters import ClusterFound
from storage_tiers.cold.process.client import TierClient
from storage_tiers.cold.process.cluster_operations import FindClusters
from storage_tiers.errors import Advice, LogError, MetadataCorrupt, StoreRefused
from storage_tiers.hot.data_dir import META_PROPERTIES, DataDirectory

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds between requests to a store that does not answer.
BACKOFF = BackoffSettings(0.5, 30.0)
#: The most clusters that a refusal names.
NAMED_CLUSTERS = 20


class StoppedBeforeStart(Exception):
    """The node was stopped while its start waited for the store or for another node's controller."""


def belongs(data_dir: str) -> bool:
    """Whether the directory belongs to a cluster, which means that its metadata log has an entry. An identity
    (`meta.properties`) alone does not suffice, because a start would then forget the topics and rename their directories to
    `-stray`."""
    folder = os.path.join(data_dir, METADATA_DIRECTORY)
    try:
        return any(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder))
    except FileNotFoundError:
        return False


def _identified(data_dir: str) -> str:
    """The text of the directory's `meta.properties`, empty if there is none."""
    try:
        with open(os.path.join(data_dir, META_PROPERTIES), encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def check_metadata(data: DataDirectory, image: MetadataImage) -> None:
    """Raises MetadataCorrupt if there are partitions but the metadata log is empty. Without the log, their topics are unknown,
    and a start would rename all their directories to `-stray`. An identity without partitions is valid, because an interrupted
    first start leaves it."""
    known = data.identity()
    if known is None or image.cluster_id:
        return
    held = [each for each in data.partitions() if os.path.basename(each.path) != METADATA_DIRECTORY]
    if held:
        raise MetadataCorrupt(
            f"{os.path.join(data.path, METADATA_DIRECTORY)} is empty, and {len(held)} partitions of cluster "
            f"{known.cluster_id} are beside it ({held[0].partition} …): the metadata log is lost; restore it from a copy, or "
            f"rebuild it from the store with --take-over {known.cluster_id}, which keeps these partitions; a broker of "
            "another node's controller needs its --controller. Nothing was changed"
        )


async def may_begin(
    settings: NodeSettings,
    client: TierClient | None,
    readiness: Readiness,
    stop: asyncio.Event,
    *,
    clock: Clock,
    rng: Rng,
) -> bool:
    """Returns when the node may use its directory: True if it must first take over the cluster `settings.take_over`. Raises
    StoreRefused, which names the clusters in the store, if the directory is empty, the store has clusters and no new one is
    requested, or if the store lacks the cluster to take over. Raises StoppedBeforeStart if `stop` is set during the wait."""
    data_dir = str(settings.data_dir)
    if client is None or belongs(data_dir):
        return False
    if settings.new_cluster and settings.take_over is None and not _identified(data_dir):
        return False
    if settings.take_over is not None:
        check_store_is_there(settings)
    readiness.store = "being asked for its clusters, because the data directory is empty"
    found = await _clusters(client, readiness, stop, clock, rng)
    if settings.take_over is not None:
        if settings.take_over in [cluster.cluster_id for cluster in found]:
            if settings.verify:
                readiness.store = f"being checked before the take-over of cluster {settings.take_over}"
                location = {"endpoint": settings.s3_endpoint, "region": settings.s3_region}
                await unless_stopped(stop, verify(settings.store, settings.take_over, **location))
            return True
        raise StoreRefused(no_such_cluster(settings.store, settings.take_over, found))
    ours = _identified(data_dir)
    if found and not (settings.new_cluster and not any(cluster.cluster_id in ours for cluster in found)):
        raise StoreRefused(refusal(data_dir, settings.store, found))
    readiness.store = "not probed yet"
    return False


async def _clusters(
    client: TierClient, readiness: Readiness, stop: asyncio.Event, clock: Clock, rng: Rng
) -> Sequence[ClusterFound]:
    backoff = Backoff(BACKOFF, rng)
    while True:
        try:
            return await unless_stopped(stop, client.ask(FindClusters()))
        except LogError as error:
            if error.advice is not Advice.RETRY:
                raise
            readiness.store = (
                f"does not answer: {error}. The data directory is empty and the store may hold its cluster, so the node "
                "waits for an answer"
            )
            if backoff.failures == 0:
                events.warning(log, "directory.waits", error=error)
        await unless_stopped(stop, clock.sleep(backoff.next_delay()))


async def unless_stopped(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T:
    """Awaits the work and returns its result. If `stop` is set first, cancels the work and raises StoppedBeforeStart."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise StoppedBeforeStart
        return working.result()
    finally:
        for task in (working, stopping):
            task.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)


def no_such_cluster(store: str, cluster_id: str, found: Sequence[ClusterFound]) -> str:
    """The error text, with the clusters in the store."""
    if not found:
        return f"{store} holds no cluster {cluster_id}, nor any other; correct --store"
    named = "; ".join(map(_described, found[:NAMED_CLUSTERS]))
    return f"{store} holds no cluster {cluster_id}: it holds {named}. Name one of those"


def refusal(data_dir: str, store: str, found: Sequence[ClusterFound]) -> str:
    """The error text, with the clusters in the store and the possible actions."""
    named = "; ".join(map(_described, found[:NAMED_CLUSTERS]))
    more = f"; and {len(found) - NAMED_CLUSTERS} more" if len(found) > NAMED_CLUSTERS else ""
    return (
        f"the data directory {data_dir} is empty{_but_for(data_dir)}, but {store} holds "
        f"{_count(len(found), 'cluster')}: {named}{more}. {_of_a_cluster(data_dir)}If the "
        "directory should not be empty (the path is wrong, or a volume is not mounted), correct that first. If its disk is "
        "lost, and the node that had it is stopped, start with --take-over CLUSTER_ID: it restores the topics, and the records "
        "that were offloaded. Start with --new-cluster to create another cluster in this store"
    )


def _but_for(data_dir: str) -> str:
    """The addition to "is empty" for a directory with an identity but without a metadata log."""
    return f" but for partitions (its {METADATA_DIRECTORY} is gone)" if _identified(data_dir) else ""


def _of_a_cluster(data_dir: str) -> str:
    """The advice for a broker's directory that never had a metadata log."""
    return "A broker of another node's controller needs its --controller. " if _identified(data_dir) else ""


def _described(cluster: ClusterFound) -> str:
    started = "without a cluster.json"
    if cluster.started_ms is not None:
        started = f"last started at {datetime.fromtimestamp(cluster.started_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
    names = ", ".join(cluster.some_topics) + (", …" if cluster.topics > len(cluster.some_topics) else "")
    topics = f"{_count(cluster.topics, 'topic')} ({names})" if cluster.topics else "no topic"
    return f"{cluster.cluster_id} with {topics}, {started}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
