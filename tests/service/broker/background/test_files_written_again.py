"""A bucket that lost `cluster.json` or `topic.json`, or shows an older one: the node notices, and only a repair rewrites it."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from service.broker.background.store_access import StoreAccess
from service.broker.background.topic_files import TopicFiles
from service.broker.partition.partition import Partition
from service.configs.resolve import Resolver
from service.metadata import records_pb2 as pb
from service.metadata.controller import Controller
from service.metadata.log import MetadataLog
from service.serve.rounds import rounds
from storage_tiers.clock import SystemClock, SystemRng
from storage_tiers.cold.manifest import keys
from storage_tiers.cold.manifest.cluster_file import (
    TAKE_OVER_GAP,
    ClusterState,
    Holder,
    decode_cluster,
    encode_cluster,
)
from storage_tiers.cold.manifest.json import decode, encode
from storage_tiers.cold.manifest.model import Ids
from storage_tiers.cold.manifest.topic_file import TopicState, decode_topic
from storage_tiers.errors import FencedWriter, StorageError, StoreBehind, UnknownTopicOrPartition
from storage_tiers.types import TopicId, TopicPartition
from tests.service.broker.background.test_store_lineage import configure, said
from tests.service.broker.support import Running, filled, running, until
from tests.service.metadata.disks import TroubledFiles
from tests.support.faulty_store import FaultyStore

T0 = TopicPartition("t", 0)
AT_ONCE = {"tidelog.tier.delete.grace.ms": "1000"}
SHOWN = pytest.mark.parametrize("shown", ["gone", "older", "damaged"])


class Left(NamedTuple):
    """The state left by a node after two starts, with all its records in the bucket; `first` holds its files after the first
    start."""

    store: FaultyStore
    ids: Ids
    incarnation: int
    topic: TopicState
    first: dict[str, bytes]


async def left(directory: Path) -> Left:
    async with running(directory) as node:
        await filled(node, 20)
        await node.seal("t")
        cluster = node.node.cluster_id
        names = keys.cluster_key(cluster), keys.topic_file_key(cluster, "t")
        first = {name: (await node.store.get(name)).data for name in names}
    async with running(directory, node.store) as node:
        await configure(node, {"retention.ms": "86400000"})
        metadata = node.node.ground.metadata
        topic_id = metadata.image.topic_ids["t"]
        await until(lambda: metadata.image.topic_files.get(topic_id, 0) >= 3)
        return Left(node.store, led(node).ids, metadata.image.incarnation, await topic_of(node), first)


async def put(store: FaultyStore, key: str, shown: str, older: bytes) -> None:
    data = (await store.get(key)).data
    await store.delete([key])
    if shown != "gone":
        await store.put(key, older if shown == "older" else data[:-10])


async def cluster_of(node: Running) -> ClusterState:
    return decode_cluster((await node.store.get(keys.cluster_key(node.node.cluster_id))).data, node.node.cluster_id)


async def topic_of(node: Running) -> TopicState:
    key = keys.topic_file_key(node.node.cluster_id, "t")
    return decode_topic((await node.store.get(key)).data, node.node.cluster_id, "t")


def access_of(node: Running) -> StoreAccess:
    assert node.tier.access is not None
    return node.tier.access


def led(node: Running) -> Partition:
    return node.node.broker.partitions.get(T0)


# --- cluster.json -----------------------------------------------------------------------------------------------------
@SHOWN
async def test_a_cluster_file_that_is_gone_for_good_is_written_again(tmp_path: Path, shown: str) -> None:
    store, ids, held, _, first = await left(tmp_path)
    key = keys.cluster_key(ids.cluster_id)
    await put(store, key, shown, first[key])
    async with running(tmp_path, store) as node:
        access = access_of(node)
        await until(lambda: access.behind is not None)
        assert "tidelog cold repair --cluster" in str(access.behind)
        for refused in (
            await node.core.cold.repair(T0, apply=True),
            await node.core.cold.repair_topic("t", apply=True),
        ):
            assert "cluster.json comes first" in refused.refused
        before = await every_key(store)
        dry = await node.core.cold.repair_cluster(apply=False)
        assert f"incarnation {held + TAKE_OVER_GAP}" in dry.summary and (dry.refused, dry.commit) == ("", 0)
        assert await every_key(store) == before
        done = await node.core.cold.repair_cluster(apply=True)
        assert done == dry._replace(commit=held + TAKE_OVER_GAP)
        await until(lambda: access.writer is not None)
        assert (await cluster_of(node)).incarnation == held + TAKE_OVER_GAP + 1
        await node.append("t", b"x")
        await node.seal("t")
        assert (await node.core.cold.repair_cluster(apply=True)).summary == ""
    async with running(tmp_path, store) as node:
        await until(lambda: access_of(node).writer is not None)


async def every_key(store: FaultyStore) -> list[str]:
    return [info.key async for info in store.list("")]


async def test_a_cluster_file_is_not_written_below_what_another_node_has_committed(tmp_path: Path) -> None:
    store, ids, *_ = await left(tmp_path)
    manifest = decode((await store.get(ids.manifest_key)).data, ids)
    await store.put(ids.manifest_key, encode(replace(manifest, incarnation=9)))
    await store.delete([keys.cluster_key(ids.cluster_id)])
    async with running(tmp_path, store) as node:
        await until(lambda: access_of(node).behind is not None)
        refused = await node.core.cold.repair_cluster(apply=True)
        assert f"{ids.manifest_key} has incarnation 9" in refused.refused
        assert keys.cluster_key(ids.cluster_id) not in await every_key(store)


@SHOWN
async def test_a_running_node_notices_that_its_cluster_file_went_backwards(
    tmp_path: Path, shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The daily check (or one per grace, if that is shorter) notices; from then on nothing is deleted, evicted or offloaded."""
    async with running(tmp_path, broker=AT_ONCE) as node:
        await until(lambda: access_of(node).writer is not None)
        first = (await node.store.get(keys.cluster_key(node.node.cluster_id))).data
    caplog.set_level(logging.INFO)
    async with running(tmp_path, node.store, broker=AT_ONCE) as node:
        await filled(node, 20)
        await node.seal("t")
        access, key = access_of(node), keys.cluster_key(node.node.cluster_id)
        newest = (await node.store.get(key)).data
        await put(node.store, key, shown, first)
        await until(lambda: access.behind is not None)
        assert [line.levelno for line in said(caplog, "store.went_backwards")] == [logging.ERROR]
        assert "went backwards" in json.loads(node.node.ground.readiness.body())["store"]
        await node.append("t", b"x" * 1500)
        await node.append("t", b"y" * 1500)
        local = led(node).log.hot.local_start_offset
        node.store.calls.clear()
        for worker in rounds(node.node):
            if worker.name in ("tiering", "retention", "sweeping", "topic files", "sweeping of deleted topics"):
                await worker.tick()
        assert [call for call in node.store.calls if call[0] in ("put", "delete")] == []
        assert led(node).log.hot.local_start_offset == local
        done = await node.core.cold.repair_cluster(apply=True)
        assert done.commit == access.writer.incarnation  # type: ignore[union-attr]
        assert (await node.store.get(key)).data == newest, "the same start holds it"
        assert access.behind is None and said(caplog, "store.cluster_back")
        await node.seal("t")


async def test_a_running_node_stops_when_another_start_has_claimed_its_cluster(tmp_path: Path) -> None:
    with pytest.raises(BaseExceptionGroup) as stopped:
        async with asyncio.timeout(60), running(tmp_path, broker=AT_ONCE) as node:
            access = access_of(node)
            await until(lambda: access.writer is not None)
            other = replace(await cluster_of(node), incarnation=2, holder=Holder(1, "another", "start"))
            await node.store.put(keys.cluster_key(node.node.cluster_id), encode_cluster(other))
            await asyncio.Event().wait()
    assert stopped.group_contains(FencedWriter)


# --- topic.json -------------------------------------------------------------------------------------------------------
@SHOWN
@pytest.mark.parametrize("restarted", [True, False], ids=["between two starts", "while it runs"])
async def test_a_topic_file_that_went_backwards_blocks_until_it_is_written_again(
    tmp_path: Path, shown: str, restarted: bool
) -> None:
    store, ids, _, newest, first = await left(tmp_path)
    key = keys.topic_file_key(ids.cluster_id, "t")
    if restarted:
        await put(store, key, shown, first[key])
    async with running(tmp_path, store) as node:
        if not restarted:
            revision = newest.revision + 1
            await until(lambda: node.node.ground.metadata.image.topic_files[ids.topic_id] == revision)
            newest = await topic_of(node)
            await put(store, key, shown, first[key])
            await configure(node, {"retention.ms": "86400001"})
        await blocked_and_repaired(node, newest)


async def blocked_and_repaired(node: Running, newest: TopicState) -> None:
    lineage = node.node.work.tiering.lineage
    await until(lambda: led(node) in lineage)
    assert "topic.json" in json.loads(node.node.ground.readiness.body())["store_behind"]["t-0"]
    assert "tidelog cold repair t" in str(lineage.reason(led(node)))
    await node.append("t", b"x" * 1500)
    with pytest.raises(StoreBehind):
        await node.log.delete_records(T0, 5)
    dry = await node.core.cold.repair_topic("t", apply=False)
    assert f"revision {newest.revision + 1}" in dry.summary and dry.commit == 0
    done = await node.core.cold.repair_topic("t", apply=True)
    assert (done.refused, done.commit) == ("", newest.revision + 1)
    found = await topic_of(node)
    assert (found.topic_id, found.partitions) == (newest.topic_id, newest.partitions)
    await until(lambda: led(node) not in lineage)
    await node.seal("t")
    assert (await node.core.cold.repair_topic("t", apply=True)).summary == ""


async def test_a_revision_that_the_disk_refused_is_saved_by_a_later_round(tmp_path: Path) -> None:
    """A start compares the file with the saved revision: without it, a file that went backwards would go unnoticed."""
    files = TroubledFiles()
    metadata = MetadataLog.open(str(tmp_path), files, SystemRng())
    topic_id = TopicId(bytes(range(16)))
    await metadata.propose((pb.MetadataRecord(topic=pb.TopicRecord(name="t", topic_id=topic_id)),))
    controller = Controller(metadata, Resolver({}, node_id=1, has_store=True))
    topics = TopicFiles(metadata, controller, None, writes=True, grace_ms=lambda: 0, clock=SystemClock())
    topics._shown(topic_id, 5)
    files.fail["pwrite"] = 1
    with pytest.raises(StorageError):
        await topics.tick()
    await topics.tick()
    assert dict(metadata.image.topic_files) == {topic_id: 5}
    await metadata.close()


async def test_nothing_is_kept_for_an_unknown_topic(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await until(lambda: access_of(node).writer is not None)
        await filled(node, 2)
        known = len(node.node.work.topic_files._writing)
        for number in range(20):
            with pytest.raises(UnknownTopicOrPartition):
                await node.core.cold.repair_topic(f"no-{number}", apply=False)
        assert len(node.node.work.topic_files._writing) <= known
