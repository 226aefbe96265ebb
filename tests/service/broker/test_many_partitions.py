"""A fetch of many partitions answers as one of few does, waits as it does, and leaves nothing behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from grpc_api.contract.log import Fetch, Fetched, FetchPartition
from service.broker.many_partitions import MANY
from storage_tiers.errors import UnknownTopicOrPartition
from storage_tiers.types import TopicPartition
from tests.service.broker.support import Running, running

COUNT = MANY + 100


def asked(wait_ms: int = 0, count: int = COUNT) -> Fetch:
    return Fetch([FetchPartition(TopicPartition("t", n), 0, 1 << 20) for n in range(count)], wait_ms, 1, 1 << 20)


def fetch(node: Running, wanted: Fetch) -> asyncio.Future[list[Fetched]]:
    ready = node.log.fetch(wanted)
    assert isinstance(ready, asyncio.Future)
    return ready  # type: ignore[return-value]


async def test_what_is_there_is_answered_at_once(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await node.create("t", COUNT - 1)
        await node.append("t", b"one", partition=MANY + 7)
        answers = await fetch(node, asked(60_000))
        assert [place for place, part in enumerate(answers) if part.size] == [MANY + 7]
        assert isinstance(answers[-1].error, UnknownTopicOrPartition)
        for part in answers:
            part.release_all()


async def test_it_waits_for_what_comes_and_for_no_longer_than_it_may(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await node.create("t", COUNT)
        assert not any(part.size or part.error for part in await fetch(node, asked(20)))
        waiting = fetch(node, asked(60_000))
        opened = node.node.partitions.get(TopicPartition("t", 0))
        while not opened.waiters:
            await asyncio.sleep(0)
        await node.append("t", b"late", partition=COUNT - 1)
        answers = await waiting
        assert [place for place, part in enumerate(answers) if part.size] == [COUNT - 1]
        for part in answers:
            part.release_all()
        assert not opened.waiters


async def test_who_leaves_is_forgotten(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await node.create("t", COUNT)
        waiting = fetch(node, asked(60_000))
        opened = node.node.partitions.get(TopicPartition("t", 0))
        while not opened.waiters:
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not opened.waiters
