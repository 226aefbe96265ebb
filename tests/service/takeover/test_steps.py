"""A take-over that is interrupted at any step is completed by the next start."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from service.metadata.image import MetadataImage
from service.metadata.planner import PRODUCER_ID_GAP
from service.takeover.plan import EPOCH_GAP
from storage_tiers.clock import SystemClock
from storage_tiers.cold.manifest import keys
from storage_tiers.cold.manifest.cluster_file import TAKE_OVER_GAP
from storage_tiers.cold.manifest.model import Ids, State
from storage_tiers.cold.manifest.topic_file import TopicState, decode_topic, encode_topic
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.errors import FencedWriter, LogError, StoreRefused
from storage_tiers.files import Buffer, OsFiles
from storage_tiers.types import TopicId
from tests.service.broker.support import TIERED, running
from tests.service.takeover.support import SNAPSHOTS, copied, left_behind, taking
from tests.support.faulty_store import FaultyStore


class Cut(LogError):
    """The process dies at this step."""


class FailingFiles(OsFiles):
    """Fails write number `fail_at`, counted from 1."""

    def __init__(self, fail_at: int) -> None:
        self.left = fail_at

    def pwrite(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        self.left -= 1
        if self.left == 0:
            raise OSError(5, "cut")
        return super().pwrite(fd, buffers, position)


def told(image: MetadataImage) -> object:
    """The metadata that must be the same however often the take-over was interrupted."""
    return (image.cluster_id, image.topics, image.deleting, image.configs, image.features, image.next_producer_id)


def incarnations(store: MemoryStore, topic: str) -> set[int]:
    found = set()
    for info in store.blocking().list(""):
        if f"/topics/{topic}/" in info.key and info.key.endswith(".json"):
            found.add(json.loads(store.blocking().get(info.key).data)["incarnation"])
    return found


async def test_a_take_over_that_is_cut_anywhere_is_made_to_its_end(tmp_path: Path) -> None:
    left, before = await left_behind(tmp_path / "lost")
    cluster = before.cluster_id
    whole = FaultyStore(await copied(left))
    async with taking(tmp_path / "whole", whole, cluster) as start:
        writer, points = await start.run()
        wanted = start.metadata.image
    assert wanted.take_over is None
    assert writer.incarnation == before.incarnation + TAKE_OVER_GAP
    assert [(point.topic, point.partition, point.claimed.end) for point in points] == [
        ("t", 0, 10),
        ("t", 1, 10),
        ("u", 0, 0),
    ]
    assert wanted.topic_ids == before.topic_ids
    assert {gone.name for gone in wanted.deleting.values()} == {"gone"}
    assert wanted.configs == before.configs
    assert wanted.next_producer_id == before.next_producer_id + PRODUCER_ID_GAP
    for topic in before.topics.values():
        for old, new in zip(topic.partitions, wanted.topics[topic.topic_id].partitions, strict=True):
            assert new.leader_epoch == old.leader_epoch + EPOCH_GAP
            assert new.partition_epoch == old.partition_epoch + EPOCH_GAP
    assert incarnations(whole.store, "t") == incarnations(whole.store, "u") == {writer.incarnation}  # type: ignore[arg-type]

    cuts: list[tuple[str, int]] = [("call", number) for number in range(1, len(whole.calls) + 1)]
    cuts += [("answer", number) for number in range(1, whole.count("put") + 1)]
    cuts += [("write", number) for number in range(1, 5)]
    assert len(cuts) > 30
    survived: list[tuple[str, int]] = []
    for kind, number in cuts:
        store = FaultyStore(await copied(left))
        files = OsFiles()
        if kind == "call":
            store.fail(number, error=Cut(f"call {number}"))
        elif kind == "answer":
            store.lose_answer(number, "put", error=Cut(f"answer {number}"))
        else:
            files = FailingFiles(number)
        directory = tmp_path / f"{kind}-{number}"
        async with taking(directory, store, cluster, files) as start:
            try:
                await start.run()
                survived.append((kind, number))  # the probe ignores an error when it deletes its own key
            except LogError:
                assert not start.metadata.image.topics, "nothing is shown before it is complete"
                assert start.metadata.image.take_over is not None or not start.metadata.image.cluster_id
        if survived and survived[-1] == (kind, number):
            continue
        async with taking(directory, store, cluster) as start:
            writer, _ = await start.run()
            assert told(start.metadata.image) == told(wanted), (kind, number)
            assert start.metadata.image.take_over is None
            assert 0 <= start.metadata.image.incarnation - before.incarnation - TAKE_OVER_GAP <= 1
        assert incarnations(store.store, "t") == {writer.incarnation}, (kind, number)  # type: ignore[arg-type]
    assert len(survived) <= 4, survived


async def test_changes_of_the_old_node_count_until_the_incarnation_is_raised(tmp_path: Path) -> None:
    """The old node still runs, and alters a topic's config after the take-over's first look at the bucket."""
    left, before = await left_behind(tmp_path / "lost")
    store, key = FaultyStore(left), keys.topic_file_key(before.cluster_id, "t")
    gate = store.hold(1, "put", "cluster.json")
    async with taking(tmp_path / "new", store, before.cluster_id) as start:
        taken = asyncio.ensure_future(start.run())
        await gate.reached.wait()
        state = decode_topic(left.blocking().get(key).data, before.cluster_id, "t")
        altered = replace(state, configs={**state.configs, "retention.ms": "123456"}, revision=state.revision + 1)
        await left.put(key, encode_topic(altered))
        gate.open()
        await taken
        assert start.metadata.image.topic_config("t") == altered.configs
    assert decode_topic(left.blocking().get(key).data, before.cluster_id, "t").configs == altered.configs


async def test_a_recovery_point_is_of_the_time_its_end_was_committed_not_of_the_claim(tmp_path: Path) -> None:
    left, before = await left_behind(tmp_path / "lost")
    cluster, offloaded = before.cluster_id, {}
    for info in left.blocking().list(f"{cluster}/topics/t/"):
        if isinstance(parsed := keys.parse(info.key), keys.ManifestKey):
            newest = json.loads(left.blocking().get(info.key).data)["segments"][-1]
            offloaded[parsed.partition] = newest["added"][1]
    for name in ("first", "second"):  # the second take-over finds the claims of the first one as the newest commits
        async with taking(tmp_path / name, left, cluster) as start:
            previewed = await start.take.preview()
            _, points = await start.run()
        for found in (previewed, points):
            assert {p.partition: p.claimed.committed_at for p in found if p.topic == "t"} == offloaded
            assert {p.claimed.committed_at for p in found if p.topic == "u"} == {0}


async def test_a_take_over_stops_if_another_start_came_in_between(tmp_path: Path) -> None:
    left, before = await left_behind(tmp_path / "lost")
    store = FaultyStore(left)
    store.fail(1, "put", "cluster.json", Cut("before the swap"))
    async with taking(tmp_path / "first", store, before.cluster_id) as start:
        with pytest.raises(LogError, match="before the swap"):
            await start.run()
    async with taking(tmp_path / "second", store, before.cluster_id) as start:
        await start.run()
    async with taking(tmp_path / "first", store, before.cluster_id) as start:
        with pytest.raises(FencedWriter, match="another start"):
            await start.run()


async def test_without_a_snapshot_metadata_come_from_manifests_and_topic_files(tmp_path: Path) -> None:
    left, before = await left_behind(tmp_path / "lost")
    await left.delete([info.key for info in left.blocking().list(keys.metadata_prefix(before.cluster_id))])
    async with taking(tmp_path / "new", left, before.cluster_id) as start:
        await start.run()
        image = start.metadata.image
    assert image.topic_ids == before.topic_ids
    assert {gone.name for gone in image.deleting.values()} == {"gone"}
    assert image.topic_config("t") == before.topic_config("t")
    assert image.next_producer_id >= PRODUCER_ID_GAP


async def metadata_removed(store: MemoryStore, cluster: str) -> None:
    await store.delete([info.key for info in store.blocking().list(keys.metadata_prefix(cluster))])


async def refused(directory: Path, left: MemoryStore, cluster: str, why: str) -> None:
    """Asserts that a preview and a take-over both refuse, and leave the bucket unchanged."""
    store = FaultyStore(left)
    before = {info.key: left.blocking().get(info.key).data for info in left.blocking().list("")}
    async with taking(directory, store, cluster) as start:
        with pytest.raises(StoreRefused, match=why):
            await start.take.preview()
        with pytest.raises(StoreRefused, match=why):
            await start.run()
        assert not start.metadata.image.topics
        assert not start.metadata.image.deleting
    assert {info.key: left.blocking().get(info.key).data for info in left.blocking().list("")} == before


async def test_a_live_topic_with_a_missing_or_older_file_is_not_deleted(tmp_path: Path) -> None:
    left, before = await left_behind(tmp_path / "lost")
    cluster = before.cluster_id
    await metadata_removed(left, cluster)
    key, topic_id = keys.topic_file_key(cluster, "t"), before.topic_ids["t"]
    newest = left.blocking().get(key).data
    await left.delete([key])
    why = rf"topic t has 2 live manifests under topic id {topic_id}.*Put the newest version of {key} back"
    await refused(tmp_path / "gone", left, cluster, why)
    earlier = TopicState(cluster, "t", TopicId(b"e" * 16), State.DELETED, 1, 1, revision=2)
    await left.put(key, encode_topic(earlier))
    await refused(tmp_path / "older", left, cluster, why)
    await left.put(key, newest)
    for directory in ("gone", "older"):
        copy = await copied(left)
        async with taking(tmp_path / directory, copy, cluster) as start:
            _, points = await start.run()
        assert [point.claimed.end for point in points if point.topic == "t"] == [10, 10]


@pytest.mark.parametrize("put_back", ["gone", "older"])
async def test_a_manifest_that_is_gone_or_older_is_not_taken_over(tmp_path: Path, put_back: str) -> None:
    memory = MemoryStore(SystemClock())
    async with running(tmp_path / "lost", FaultyStore(memory), SNAPSHOTS) as node:
        await node.create("t", 1, TIERED)
        cluster = node.node.cluster_id
        ids = Ids(cluster, "t", node.node.ground.metadata.image.topic_ids["t"], 0)
        olders = []
        for number in range(3):
            await node.append("t", b"%03d" % number * 50)
            await node.seal("t")
            olders.append(memory.blocking().get(ids.manifest_key).data)
    newest = memory.blocking().get(ids.manifest_key).data
    assert json.loads(newest)["end"] == 3
    await memory.delete([ids.manifest_key])
    if put_back == "older":
        await memory.put(ids.manifest_key, olders[0])
    why = rf"t-0 .*were committed after that.*Put the newest version of {ids.manifest_key} back"
    await refused(tmp_path / "new", memory, cluster, why)
    await memory.put(ids.manifest_key, newest)
    async with taking(tmp_path / "new", memory, cluster) as start:
        _, points = await start.run()
    assert [point.claimed.end for point in points] == [3]


async def test_an_offload_that_was_cut_does_not_refuse_a_take_over(tmp_path: Path) -> None:
    left, before = await left_behind(tmp_path / "lost")
    ids = Ids(before.cluster_id, "t", before.topic_ids["t"], 0)
    (first, *_) = [info.key for info in left.blocking().list(ids.segments_prefix) if info.key.endswith(".idx")]
    for partition, base in ((ids, 10), (Ids(before.cluster_id, "u", before.topic_ids["u"], 0), 0)):
        for uuid in ("a" * 32, "b" * 32):  # the take-over was interrupted twice
            key = keys.key(
                keys.SidecarKey(
                    partition.cluster_id, partition.topic, partition.topic_id, partition.partition, base, 0, uuid
                )
            )
            await left.put(key, left.blocking().get(first).data)
    async with taking(tmp_path / "new", left, before.cluster_id) as start:
        _, points = await start.run()
    assert [point.claimed.end for point in points] == [10, 10, 0]


async def test_an_id_whose_manifests_say_deleted_stays_deleted_without_a_topic_file(tmp_path: Path) -> None:
    left, before = await left_behind(tmp_path / "lost")
    cluster = before.cluster_id
    await metadata_removed(left, cluster)
    await left.delete([keys.topic_file_key(cluster, "gone")])
    async with taking(tmp_path / "new", left, cluster) as start:
        await start.run()
        assert {gone.name for gone in start.metadata.image.deleting.values()} == {"gone"}


async def test_a_preview_changes_nothing(tmp_path: Path) -> None:
    left, before = await left_behind(tmp_path / "lost")
    store = FaultyStore(left)
    async with taking(tmp_path / "new", store, before.cluster_id) as start:
        points = await start.take.preview()
        assert [(point.topic, point.partition, point.claimed.end) for point in points] == [
            ("t", 0, 10),
            ("t", 1, 10),
            ("u", 0, 0),
        ]
        with pytest.raises(StoreRefused, match=r"no cluster\.json of cluster other"):
            async with taking(tmp_path / "other", store, "other") as other:
                await other.take.preview()
    assert store.count("put") == store.count("delete") == 0
