"""A controller that was started with an older directory shows a topic with fewer partitions: the logs of the missing
partitions are set aside, and used again with all their records once the newest metadata is back.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from service.metadata.image import MetadataImage
from storage_tiers.errors import UnknownTopicOrPartition
from storage_tiers.types import TopicPartition
from tests.service.broker.api.test_configs_act import alter
from tests.service.broker.partition.test_leadership import UNTIERED
from tests.service.broker.partition.test_older_epochs import newest, show, with_topic
from tests.service.broker.support import Running, running, until


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path / "data") as started:
        await started.create("t", configs=UNTIERED)
        yield started


async def grown(node: Running) -> MetadataImage:
    """Adds two partitions to t, and appends one record to each of the three; returns the image from before."""
    older = newest(node)
    await node.core.topics.create_partitions("t", 3, None)
    for number in range(3):
        await node.append("t", b"%d" % number, partition=number)
    return older


def defects(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [each for each in caplog.records if each.levelno >= logging.ERROR]


async def test_partitions_that_older_metadata_lack_are_set_aside_and_taken_up(
    node: Running, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    older = await grown(node)
    show(node, older)
    with pytest.raises(UnknownTopicOrPartition):
        await node.append("t", b"refused", partition=2)
    await until(lambda: len(list((tmp_path / "data").glob("t-*-stray"))) == 2)
    await node.append("t", b"served")
    show(node, newest(node))
    await until(lambda: node.node.broker.assignment.has_opened_all)
    await node.append("t", b"again", partition=2)
    assert [record.value for record in await node.read("t", 0, partition=2)] == [b"2", b"again"]
    assert [record.value for record in await node.read("t", 0, partition=1)] == [b"1"]
    assert defects(caplog) == []


async def test_configs_change_with_the_older_metadata(node: Running, caplog: pytest.LogCaptureFixture) -> None:
    older = await grown(node)
    await alter(node, None, log_retention_ms="60000")
    show(node, older)
    show(node, newest(node))
    await until(lambda: node.node.broker.assignment.has_opened_all)
    assert defects(caplog) == []


async def test_a_log_that_is_opened_while_the_metadata_become_older_is_set_aside(
    node: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    older, opener, opened, go_on = (
        newest(node),
        type(node.node.broker.partitions).opener,
        threading.Event(),
        threading.Event(),
    )

    def slow(*args: object, **fields: object) -> object:
        def open_it() -> object:
            opened.set()
            assert go_on.wait(60)
            return begin()

        begin = opener(*args, **fields)  # type: ignore[arg-type]
        return open_it

    topic = older.topic("t")
    assert topic is not None
    monkeypatch.setattr(type(node.node.broker.partitions), "opener", slow)
    show(node, with_topic(older, replace(topic, partitions=(*topic.partitions, replace(topic.partitions[0], index=1)))))
    await until(opened.is_set)
    show(node, older)
    go_on.set()
    await until(lambda: bool(list((tmp_path / "data").glob("t-1.*-stray"))))
    await until(lambda: node.node.broker.assignment.has_opened_all)
    assert node.node.broker.partitions.find(TopicPartition("t", 1)) is None
    assert defects(caplog) == []
