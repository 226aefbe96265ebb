"""A controller that was started with an older directory shows lower leader epochs: no broker stops, and no broker leads
under a lower epoch.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from service.broker.background.epoch_raises import EpochRaises
from service.broker.partition.phase import Phase
from service.controller.follower import changes_between
from service.metadata import records_pb2 as pb
from service.metadata.image import MetadataImage
from service.metadata.parts import TopicImage
from service.metadata.store import DIRECTORY
from storage_tiers.cold.process.operations import Claim
from storage_tiers.errors import FencedWriter, NotLeader
from storage_tiers.types import TopicPartition
from tests.service.broker.partition.test_leadership import (
    ME,
    OTHER,
    T0,
    U0,
    UNTIERED,
    change,
    elect,
    listening,
    partition,
)
from tests.service.broker.support import TIERED, Running, metadata_log, running, until


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path / "data") as started:
        for topic in ("t", "u"):
            await started.create(topic, configs=UNTIERED)
        yield started


def show(node: Running, image: MetadataImage) -> None:
    """Publishes an image, as a follower does with a snapshot."""
    changes = changes_between(node.node.broker.assignment._seen, image)
    for listener in tuple(metadata_log(node)._listeners):
        listener(image, changes)


def newest(node: Running) -> MetadataImage:
    return node.node.ground.metadata.image


def with_topic(image: MetadataImage, topic: TopicImage) -> MetadataImage:
    return replace(image, topics=image.topics.set(topic.topic_id, topic))


def refusals(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [each for each in caplog.records if each.getMessage().startswith("partition.older_epoch")]


async def test_nothing_is_led_under_a_lower_epoch(node: Running, caplog: pytest.LogCaptureFixture) -> None:
    await node.append("t", b"a")
    older = newest(node)
    await elect(node, "t", OTHER)
    assert await elect(node, "t", ME) == 2
    await node.append("t", b"b")
    listener, led = listening(node), partition(node)

    show(node, older)
    assert node.node.ground.ending.fatal is None
    assert (led.phase, led.state.leader_epoch) == (Phase.FOLLOWING, 2)
    with pytest.raises(NotLeader, match="t-0: leader epoch 0 of the metadata is below 2"):
        await node.append("t", b"refused")
    await node.append("u", b"served")

    topic = older.topic("t")
    assert topic is not None
    changed = replace(topic.partitions[0], partition_epoch=topic.partitions[0].partition_epoch + 1)
    show(node, with_topic(older, replace(topic, partitions=(changed,))))
    assert len(refusals(caplog)) == 1, "one event while the epoch stays lower"

    show(node, newest(node))
    assert led.phase is Phase.LEADING
    assert (await node.append("t", b"c")).leader_epoch == 2
    assert [record.value for record in await node.read_all("t")] == [b"a", b"b", b"c"]
    assert led.log.hot.epoch_end_offset(0) == (0, 1)
    assert listener.told == [("lost", "t-0", 2), ("gained", "t-0", 2)]

    show(node, older)
    assert len(refusals(caplog)) == 2, "a second fall is another event"


@pytest.mark.parametrize("leader", [ME, OTHER])
async def test_a_partition_that_another_node_leads_is_refused_too(node: Running, leader: int) -> None:
    if leader == OTHER:
        await elect(node, "t", OTHER)
    older = newest(node)
    await elect(node, "t", ME)
    await elect(node, "t", OTHER)
    listener = listening(node)
    show(node, older)
    assert node.node.ground.ending.fatal is None
    with pytest.raises(NotLeader, match="of the metadata is below"):
        await node.append("t", b"refused")
    show(node, newest(node))
    with pytest.raises(NotLeader, match="broker 2 leads under leader epoch"):
        await node.append("t", b"refused")
    assert not listener.told


async def test_the_rest_of_an_older_image_is_applied(node: Running) -> None:
    """The epoch of one partition falls, and another partition comes back to this node."""
    older = newest(node).topic("t")
    assert older is not None
    await elect(node, "t", ME)
    await elect(node, "u", OTHER)
    assert not partition(node, U0).leads
    image = newest(node)
    topic = image.topic("u")
    assert topic is not None
    mine = replace(topic.partitions[0], leader=ME, leader_epoch=2)
    show(node, with_topic(with_topic(image, older), replace(topic, partitions=(mine,))))
    assert (partition(node).leads, partition(node, U0).leads) == (False, True)
    assert (await node.append("u", b"a")).leader_epoch == 2


async def test_a_start_on_older_metadata_leads_under_a_higher_epoch_than_its_log_has(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All records of the log stay, even after an unclean stop: under the lower epoch, recovery would cut the newest
    ones."""
    data, older = tmp_path / "data", tmp_path / "older"
    async with running(data, store_url="none") as node:
        await node.create("t", configs=UNTIERED)
        await node.append("t", b"a")
        shutil.copytree(data / DIRECTORY, older)
        for leader in (OTHER, ME) * 4:
            epoch = await elect(node, "t", leader)
        await node.append("t", b"b")
    shutil.rmtree(data / DIRECTORY)
    older.rename(data / DIRECTORY)
    async with running(data, store_url="none") as node:
        led = partition(node)
        assert not led.leads
        with pytest.raises(NotLeader, match=f"of the metadata is below {epoch}"):
            await node.append("t", b"refused")
        assert len(refusals(caplog)) == 1
        await until(lambda: led.leads)
        assert (await node.append("t", b"c")).leader_epoch == epoch + 1
        await until(lambda: not node.node.broker.assignment.outrun)  # the metadata has the higher epoch
    (data / ".kafka_cleanshutdown").unlink()
    async with running(data, store_url="none") as node:
        assert [record.value for record in await node.read_all("t")] == [b"a", b"b", b"c"]


async def test_no_epoch_is_asked_for_a_partition_that_the_metadata_no_longer_has(node: Running) -> None:
    """A controller that is put back a second time may show a topic before it was given more partitions."""
    await node.create("v", partitions=2, configs=UNTIERED)
    topic = newest(node).topic("v")
    assert topic is not None
    outrun, log = {partition(node, TopicPartition("v", 1)): None}, metadata_log(node)
    raises = EpochRaises(outrun, log, node.node.configs.controller, node_id=ME)
    log._image = with_topic(newest(node), replace(topic, partitions=topic.partitions[:1]))
    await raises.tick()
    assert not outrun


async def test_a_replica_that_a_move_adds_begins_empty_beside_a_log_left_in_its_place(node: Running) -> None:
    """A start on metadata that may be older sets nothing aside. The log left would be led with another history's records."""
    await node.append("t", b"of another history")
    directory = Path(partition(node).log.hot.directory)
    away, here = pb.ReplicaList(nodes=[OTHER]), pb.ReplicaList(nodes=[OTHER, ME])
    await metadata_log(node).propose([change(node, "t", OTHER, replicas=away, isr=away)])
    await until(lambda: not directory.exists())
    (aside,) = directory.parent.glob("t-*-stray")
    aside.rename(directory)
    adding = pb.ReplicaList(nodes=[ME])
    await metadata_log(node).propose([change(node, "t", OTHER, replicas=here, adding=adding)])
    await until(lambda: node.node.broker.partitions.find(T0) is not None)
    assert partition(node).log.end_offset == 0
    assert len(list(directory.parent.glob("t-*-stray"))) == 1


async def test_a_start_in_place_ends_if_the_manifest_has_a_higher_epoch(tmp_path: Path) -> None:
    """The metadata is from before a move whose new leader has claimed the manifest. Without the claim of this start, it would
    accept records until its first offload was refused."""
    async with running(tmp_path) as node:
        await node.create("t", configs=TIERED)
        await node.append("t", b"a")
        await node.seal("t")
        store, access = node.store, node.tier.access
        assert access.writer is not None
        await access.client.ask(Claim(partition(node).ids, access.writer, 50))
    async with running(tmp_path, store) as node:
        await until(lambda: node.node.ground.ending.fatal is not None)
        assert isinstance(node.node.ground.ending.fatal, FencedWriter)
        assert "belongs to leader epoch 50" in str(node.node.ground.ending.fatal)
