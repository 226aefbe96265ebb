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
from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from service.metadata.image import MetadataImage
from service.metadata.store import DIRECTORY as METADATA_DIRECTORY
from service.node_place import check_store_is_there
from service.readiness import Readiness
from service.settings import NodeSettings
from service.takeover.verify import verify
from storage_tiers import events
from storage_tiers.backoff import Backoff, BackoffSettings
from storage_tiers.clock import Clock, Rng
from storage_tiers.cold.manifest.clusters import ClusterFound
from storage_tiers.cold.process.client import TierClient
from storage_tiers.cold.process.operations import FindClusters
from storage_tiers.errors import Advice, LogError, MetadataCorrupt, StoreRefused
from storage_tiers.hot.data_dir import META_PROPERTIES, DataDirectory

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds between questions to a store that does not answer.
BACKOFF = BackoffSettings(0.5, 30.0)
#: Clusters that a refusal names.
NAMED_CLUSTERS = 20


class StoppedBeforeStart(Exception):
    """The node was told to stop while it waited for the store."""


def belongs(data_dir: str) -> bool:
    """Whether the directory says what it is a node of: its metadata log has an entry. An identity alone does not make it a
    node's: its topics would be forgotten, and their directories set aside."""
    folder = os.path.join(data_dir, METADATA_DIRECTORY)
    try:
        return any(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder))
    except FileNotFoundError:
        return False


def _identified(data_dir: str) -> str:
    """What the directory's identity says; empty if it has none."""
    try:
        with open(os.path.join(data_dir, META_PROPERTIES), encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def check_metadata(data: DataDirectory, image: MetadataImage) -> None:
    """MetadataCorrupt if the metadata log is empty beside partitions: without it nobody knows whose they are, and a start
    would set all of them aside. An identity without partitions is what a first start leaves that was cut off."""
    known = data.identity()
    if known is None or image.cluster_id:
        return
    held = [each for each in data.partitions() if os.path.basename(each.path) != METADATA_DIRECTORY]
    if held:
        raise MetadataCorrupt(
            f"{os.path.join(data.path, METADATA_DIRECTORY)} is empty, and {len(held)} partitions of cluster "
            f"{known.cluster_id} lie beside it ({held[0].partition} …): the metadata log is lost; put it back from a copy, or "
            f"rebuild it from the store: --take-over {known.cluster_id}, which keeps these partitions. Nothing was changed"
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
    """Returns once the node may go on with its directory; True if it shall take `settings.take_over` over. StoreRefused,
    naming what the store holds, if the directory is empty and the store's prefix is not; StoppedBeforeStart if `stop` was set
    while the store gave no answer."""
    data_dir = str(settings.data_dir)
    if client is None or belongs(data_dir):
        return False
    if settings.new_cluster and settings.take_over is None and not _identified(data_dir):
        return False
    if settings.take_over is not None:
        check_store_is_there(settings)
    readiness.store = "asked which clusters it holds: the data directory is empty"
    found = await _clusters(client, readiness, stop, clock, rng)
    if settings.take_over is not None:
        if settings.take_over in [cluster.cluster_id for cluster in found]:
            if settings.verify:
                readiness.store = f"checked before cluster {settings.take_over} is taken over"
                place = {"endpoint": settings.s3_endpoint, "region": settings.s3_region}
                await unless_stopped(stop, verify(settings.store, settings.take_over, **place))
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
                f"does not answer: {error}. The data directory is empty and the store may hold its cluster: the node "
                "waits for an answer"
            )
            if backoff.failures == 0:
                events.warning(log, "directory.waits", error=error)
        await unless_stopped(stop, clock.sleep(backoff.next_delay()))


async def unless_stopped(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T:
    """The work's result; StoppedBeforeStart, and the work is cancelled, once `stop` is set."""
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
    """What is there in its place."""
    if not found:
        return f"{store} holds no cluster {cluster_id}, nor any other: correct --store"
    named = "; ".join(map(_described, found[:NAMED_CLUSTERS]))
    return f"{store} holds no cluster {cluster_id}: it holds {named}. Name one of those"


def refusal(data_dir: str, store: str, found: Sequence[ClusterFound]) -> str:
    """What is there, and what may be done."""
    named = "; ".join(map(_described, found[:NAMED_CLUSTERS]))
    more = f"; and {len(found) - NAMED_CLUSTERS} more" if len(found) > NAMED_CLUSTERS else ""
    return (
        f"the data directory {data_dir} is empty{_but_for(data_dir)}, but {store} holds "
        f"{_count(len(found), 'cluster')}: {named}{more}. If the "
        "directory should not be empty (a volume that is not mounted, another path), stop here and correct that. If its disk "
        "is lost, and the node that had it is stopped, start with --take-over CLUSTER_ID: topics and records come back from "
        "the store, as far as they were offloaded. Start with --new-cluster to begin another cluster beside what is there"
    )


def _but_for(data_dir: str) -> str:
    """Its metadata log is what makes a directory a node's."""
    return f" but for partitions (its {METADATA_DIRECTORY} is gone)" if _identified(data_dir) else ""


def _described(cluster: ClusterFound) -> str:
    started = "without a cluster.json"
    if cluster.started_ms is not None:
        started = f"started last at {datetime.fromtimestamp(cluster.started_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
    names = ", ".join(cluster.some_topics) + (", …" if cluster.topics > len(cluster.some_topics) else "")
    topics = f"{_count(cluster.topics, 'topic')} ({names})" if cluster.topics else "no topic"
    return f"{cluster.cluster_id} with {topics}, {started}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
