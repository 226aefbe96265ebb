"""Repairs the store without starting the node, for `tidelog cold repair --data-dir`.

The repair locks and recovers the directory like a start, so no node can run on it meanwhile. With `apply`, it raises the
incarnation in `cluster.json` before it writes anything else. This fences a copy of the directory that runs elsewhere. The
repair offloads, evicts and sweeps nothing; the node does that after its next start.

Even a dry run changes the directory, because it recovers the logs as a start does. It does not change the bucket.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence

from grpc_api.contract.cold import ColdRepair
from service.broker.background.store_access import StoreAccess
from service.build.ground import Host
from service.directory.beginning import belongs
from service.lifecycle.readiness import Readiness
from service.metadata.image import MetadataImage
from service.node import Node
from service.settings.derived import check_store_is_there
from service.settings.node_settings import NodeSettings
from storage_tiers.clock import SystemClock, SystemRng
from storage_tiers.errors import InvalidConfig, UnknownTopicOrPartition
from storage_tiers.files import OsFiles
from storage_tiers.hot.data_dir import DataDirectory
from storage_tiers.types import OffsetRange, TopicPartition


async def repaired(
    settings: NodeSettings,
    topic: str | None,
    *,
    apply: bool,
    accept_loss: Mapping[int, Sequence[OffsetRange]],
) -> AsyncGenerator[tuple[str, int, ColdRepair], None]:
    """Yields (topic, partition, repair) one by one. If `topic` is None, `cluster.json` is first (with an empty topic and
    partition -1), and all topics follow. Each topic begins with its `topic.json` (partition -1). `accept_loss` maps partitions
    of the single topic to offsets to give up. Raises LogError before the bucket is changed if the directory is in use or is not
    a node's, or if the topic or a partition is unknown."""
    node = await _opened(settings)
    claiming: asyncio.Task[None] | None = None
    try:
        # There is no background work during a repair.
        await node.broker.moving.close()
        await node.work.tiering.close()
        if node.tier is None:
            raise InvalidConfig("a repair needs the store: give its --store")
        access = node.tier.access
        image = node.ground.metadata.image
        _check_named(image, settings, topic, accept_loss)
        if apply:
            claiming = asyncio.create_task(access.run())
            await _claimed(access, claiming)
        cold = node.broker.core.cold
        if topic is None:
            yield "", -1, await cold.repair_cluster(apply=apply)
        for name in sorted(image.topic_ids) if topic is None else [topic]:
            yield name, -1, await cold.repair_topic(name, apply=apply)
            for number in range(len(image.topics[image.topic_ids[name]].partitions)):
                lost = accept_loss.get(number, ())
                found = await cold.repair(TopicPartition(name, number), apply=apply, accept_loss=lost)
                yield name, number, found
    finally:
        if claiming is not None:
            claiming.cancel()
            await asyncio.gather(claiming, return_exceptions=True)
        await node.close()


def _check_named(image: MetadataImage, settings: NodeSettings, topic: str | None, losses: Collection[int]) -> None:
    """Raises UnknownTopicOrPartition if the topic or a partition with accepted losses does not exist."""
    if topic is None:
        return
    found = image.topic(topic)
    if found is None:
        raise UnknownTopicOrPartition(f"the node in {settings.data_dir} has no topic {topic}")
    unknown = [number for number in sorted(losses) if number >= len(found.partitions)]
    if unknown:
        raise UnknownTopicOrPartition(f"--accept-loss names partition {unknown[0]}, which does not exist")


async def _opened(settings: NodeSettings) -> Node:
    if not belongs(str(settings.data_dir)):
        raise InvalidConfig(f"{settings.data_dir} is not a node's data directory: give the stopped node's directory")
    check_store_is_there(settings)
    clock, rng, files = SystemClock(), SystemRng(), OsFiles()
    data = DataDirectory.open(str(settings.data_dir), files=files, rng=rng)
    try:
        identity = data.identity()
    finally:
        data.close()
    if identity is not None:
        settings = settings.model_copy(update={"node_id": identity.node_id})
    stop = asyncio.Event()
    return await Node.open(settings, Readiness(), stop, Host(files, clock, rng))


async def _claimed(access: StoreAccess, claiming: asyncio.Task[None]) -> None:
    """Waits until this start has claimed the store, or has found an older `cluster.json`. Raises the claim's error."""
    while not claiming.done() and access.behind is None:
        await asyncio.wait((claiming,), timeout=0.05)
    if claiming.done():
        claiming.result()
