"""A controller that was started with an older directory shows lower leader epochs; no broker ends, and none leads under one."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from service.broker.partition.phase import Phase
from service.controller.follower import changes_between
from service.metadata.image import MetadataImage
from service.metadata.parts import TopicImage
from storage_tiers.errors import NotLeader
from tests.service.broker.partition.test_leadership import ME, OTHER, U0, UNTIERED, elect, listening, partition
from tests.service.broker.support import Running, metadata_log, running


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
    assert len(refusals(caplog)) == 1, "one event, for as long as it lasts"

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
    """The epoch of one partition falls, and another one comes back to this node."""
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
