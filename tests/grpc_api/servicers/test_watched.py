"""Many watchers of many topics: each watcher gets only the changed topics, and each turn of the loop wakes a bounded number of
watchers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from grpc_api.contract.topics import ClusterDescription, TopicDescription
from grpc_api.servicers import watched
from grpc_api.servicers.watched import WAKE_A_TURN, WatchedTopics
from storage_tiers.types import TopicId
from tests.support.clock import SeededRng


def topic(number: int, name: str = "") -> TopicDescription:
    return TopicDescription(name or f"t{number}", TopicId(number.to_bytes(16, "big")), (), internal=False)


class Topics:
    """The part of the contract that watchers need; `show` makes a change."""

    def __init__(self) -> None:
        self.shown: dict[TopicId, TopicDescription] = {}
        self.node = 1
        self.looks = 0
        self._listeners: list[Callable[[], None]] = []

    def subscribe(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def cluster(self) -> ClusterDescription:
        return ClusterDescription("cluster", self.node, [])

    def describe(self, names: None) -> Sequence[TopicDescription]:
        self.looks += 1
        return [topic._replace() for topic in self.shown.values()]

    def show(self, *topics: TopicDescription, gone: Sequence[TopicDescription] = ()) -> None:
        self.shown.update({each.topic_id: each for each in topics})
        for each in gone:
            del self.shown[each.topic_id]
        for listener in self._listeners:
            listener()


def watching() -> tuple[Topics, WatchedTopics]:
    topics: Any = Topics()
    return topics, WatchedTopics(topics, SeededRng(1))


async def test_a_change_is_looked_up_once_for_all_watchers() -> None:
    topics, shared = watching()
    topics.show(*map(topic, range(50)))
    first = [await shared.after(0) for _ in range(20)]
    assert all(each.complete and len(each.topics) == 50 and each.cluster for each in first)
    waiting = [asyncio.create_task(shared.after(each.version)) for each in first]
    await asyncio.sleep(0)
    topics.show(topic(7, "renamed"))
    for each in await asyncio.gather(*waiting):
        assert (each.topics, each.gone, each.cluster, each.complete) == ([topic(7, "renamed")], [], None, False)
    assert topics.looks == 2


async def test_a_watcher_that_is_behind_gets_all_that_changed_since() -> None:
    topics, shared = watching()
    topics.show(topic(1), topic(2), topic(3))
    old = (await shared.after(0)).version
    topics.show(topic(4), gone=[topic(2)])
    await shared.after(old)
    topics.node = 2
    topics.show(topic(1, "changed"), gone=[topic(3)])
    update = await shared.after(old)
    assert update.topics == [topic(4), topic(1, "changed")]
    assert set(update.gone) == {topic(2).topic_id, topic(3).topic_id}
    assert update.cluster == ClusterDescription("cluster", 2, [])
    topics.show(topic(2))
    again = await shared.after(old)
    assert again.topics == [topic(4), topic(1, "changed"), topic(2)]
    assert list(again.gone) == [topic(3).topic_id]


async def test_a_watcher_behind_the_remembered_deletions_gets_all_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "MAX_GONE", 2)
    topics, shared = watching()
    topics.show(*map(topic, range(5)))
    old = (await shared.after(0)).version
    for each in range(3):
        topics.show(gone=[topic(each)])
        newest = await shared.after(old)
    assert newest.complete
    assert newest.topics == [topic(3), topic(4)]
    topics.show(gone=[topic(3)])
    assert list((await shared.after(newest.version)).gone) == [topic(3).topic_id]
    assert len(shared._gone) == 2


async def test_watchers_are_woken_some_in_each_turn_of_the_loop() -> None:
    topics, shared = watching()
    version = (await shared.after(0)).version
    waiting = [asyncio.create_task(shared.after(version)) for _ in range(3 * WAKE_A_TURN)]
    await asyncio.sleep(0)
    left = len(shared._waiting)
    assert left == len(waiting)
    topics.show(topic(1))
    while left:
        await asyncio.sleep(0)
        assert left - len(shared._waiting) <= WAKE_A_TURN
        left = len(shared._waiting)
    assert len(await asyncio.gather(*waiting)) == 3 * WAKE_A_TURN


async def test_a_watcher_that_leaves_is_forgotten() -> None:
    _, shared = watching()
    version = (await shared.after(0)).version
    waiting = [asyncio.create_task(shared.after(version)) for _ in range(3)]
    await asyncio.sleep(0)
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert not shared._waiting
