"""Work that follows a metadata change is proportional to the change, however many topics there are."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from grpc_api.contract.topics import AlterOp, ConfigAlteration, NewTopic, Resource, ResourceKind
from service.broker.background.topic_files import TopicFiles
from service.broker.partition.assignment import Assignment
from service.broker.partition.partition import Partition
from service.metadata.parts import TopicImage
from storage_tiers.errors import TierUnavailable
from tests.service.broker.support import Running, running, until

TOPICS = 40


async def many(node: Running) -> None:
    await node.core.topics.create([NewTopic(f"t{number}", 1, 1, {}) for number in range(TOPICS)])
    await until(lambda: all(published(node, f"t{number}") for number in range(TOPICS)))


def published(node: Running, topic: str, times: int = 1) -> bool:
    return node.store.count("put", f"/topics/{topic}/topic.json") >= times


async def alter(node: Running, topic: str, value: str) -> None:
    change = ConfigAlteration("retention.ms", AlterOp.SET, value)
    await node.core.configs.alter_configs(Resource(ResourceKind.TOPIC, topic), [change])


async def test_a_change_of_one_topic_is_work_for_that_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: Counter[str] = Counter()
    publish, assign, configure = TopicFiles._publish, Assignment._gain, Assignment._configure

    async def publishing(self: TopicFiles, topic: TopicImage) -> None:
        looked[f"publish {topic.name}"] += 1
        await publish(self, topic)

    def assigning(self: Assignment, topic: TopicImage) -> None:
        looked[f"assign {topic.name}"] += 1
        assign(self, topic)

    def configuring(self: Assignment, partition: Partition) -> None:
        looked[f"configure {partition.partition}"] += 1
        configure(self, partition)

    async with running(tmp_path / "data") as node:
        await many(node)
        monkeypatch.setattr(TopicFiles, "_publish", publishing)
        monkeypatch.setattr(Assignment, "_gain", assigning)
        monkeypatch.setattr(Assignment, "_configure", configuring)
        await node.node.work.topic_files.tick()
        assert not looked
        await alter(node, "t7", "5000")
        await node.node.work.topic_files.tick()
        assert set(looked) == {"publish t7", "configure t7-0"}
        looked.clear()
        await node.core.topics.create_partitions("t9", 2, None)
        await node.node.work.topic_files.tick()
        assert set(looked) == {"publish t9", "assign t9", "configure t9-1"}
        await until(lambda: published(node, "t9", 2))


async def test_a_topic_that_the_store_does_not_answer_for_comes_after_the_others(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as node:
        await many(node)
        for _ in range(200):
            node.store.fail(1, "put", "/topics/t3/topic.json", TierUnavailable("slow"))
        await alter(node, "t3", "5000")
        await alter(node, "t5", "5000")
        for _ in range(2):
            await node.node.work.topic_files.tick()
        assert published(node, "t5", 2)
        assert not node.store.count("put", "/topics/t5/topic.json") > 2
