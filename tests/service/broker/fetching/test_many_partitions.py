"""A fetch of many partitions answers and waits as a fetch of few does, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from grpc_api.contract.log import Fetch, Fetched, FetchPartition
from service.broker.fetching.fetching import DelayedFetch
from service.broker.fetching.many_partitions import MANY, ManyFetch
from storage_tiers.errors import UnknownTopicOrPartition
from storage_tiers.turns import SLICE_S
from storage_tiers.types import TopicPartition
from tests.service.broker.support import Running, running, until

COUNT = MANY + 100


def asked(wait_ms: int = 0, count: int = COUNT) -> Fetch:
    return Fetch([FetchPartition(TopicPartition("t", n), 0, 1 << 20) for n in range(count)], wait_ms, 1, 1 << 20)


def fetch(node: Running, wanted: Fetch) -> asyncio.Future[list[Fetched]]:
    ready = node.log.fetch(wanted)
    assert isinstance(ready, asyncio.Future)
    return ready  # type: ignore[return-value]


async def test_existing_records_are_answered_at_once(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await node.create("t", COUNT - 1)
        await node.append("t", b"one", partition=MANY + 7)
        answers = await fetch(node, asked(60_000))
        assert [place for place, part in enumerate(answers) if part.size] == [MANY + 7]
        assert isinstance(answers[-1].error, UnknownTopicOrPartition)
        for part in answers:
            part.release_all()


async def test_it_waits_for_new_records_until_its_deadline(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await node.create("t", COUNT)
        assert not any(part.size or part.error for part in await fetch(node, asked(20)))
        waiting = fetch(node, asked(60_000))
        opened = node.node.broker.partitions.get(TopicPartition("t", 0))
        while not opened.waiters:
            await asyncio.sleep(0)
        await node.append("t", b"late", partition=COUNT - 1)
        answers = await waiting
        assert [place for place, part in enumerate(answers) if part.size] == [COUNT - 1]
        for part in answers:
            part.release_all()
        assert not opened.waiters


@pytest.mark.parametrize("count", [3, COUNT])
async def test_one_object_waits_in_all_partitions_of_a_fetch(tmp_path: Path, count: int) -> None:
    """Otherwise thousands of concurrent fetches would leave the collector one object per partition each."""
    async with running(tmp_path) as node:
        await node.create("t", count)
        waiting = fetch(node, asked(60_000, count))
        led = [node.node.broker.partitions.get(TopicPartition("t", n)) for n in range(count)]
        await until(lambda: all(each.waiters for each in led))
        assert len({id(waiter) for each in led for waiter in each.waiters}) == 1
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


@pytest.mark.parametrize("count", [1, MANY + 1])
async def test_a_fetch_that_ended_is_freed_without_the_garbage_collector(tmp_path: Path, count: int) -> None:
    """Full collections are rare: if waiting fetches ended in reference cycles, they would take gigabytes."""
    async with running(tmp_path / "data") as node:
        await node.create("t", count)
        gc.collect()
        gc.disable()
        try:
            waiting = fetch(node, asked(60_000, count))
            opened = node.node.broker.partitions.get(TopicPartition("t", count - 1))
            await until(lambda: bool(opened.waiters))
            waiting.cancel()
            await asyncio.wait({waiting})
            del waiting
            await until(lambda: not opened.waiters)
            await asyncio.sleep(0)
            left = [type(each) for each in gc.get_objects() if isinstance(each, ManyFetch | DelayedFetch)]
        finally:
            gc.enable()
        assert left == []


async def test_a_cancelled_fetch_is_forgotten(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await node.create("t", COUNT)
        waiting = fetch(node, asked(60_000))
        opened = node.node.broker.partitions.get(TopicPartition("t", 0))
        while not opened.waiters:
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not opened.waiters


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], None]], None]:
    """Calls a function at each slice of a fetch, numbered from 1, and makes the fetch rest after each slice."""

    def at_each(act: Callable[[int], None]) -> None:
        rest, slices = ManyFetch._rest, 0

        async def slowly(self: ManyFetch, *args: object) -> None:
            nonlocal slices
            slices += 1
            act(slices)
            began = time.perf_counter()
            while time.perf_counter() < began + SLICE_S:
                pass
            await rest(self, *args)  # type: ignore[arg-type]

        monkeypatch.setattr(ManyFetch, "_rest", slowly)

    return at_each


async def test_records_that_arrive_in_a_checked_partition_are_not_missed(
    tmp_path: Path, looks: Callable[[Callable[[int], None]], None]
) -> None:
    async with running(tmp_path) as node:
        await node.create("t", COUNT)
        coming: list[asyncio.Task[object]] = []

        def come(slices: int) -> None:
            if slices == 2:
                coming.append(asyncio.ensure_future(node.append("t", b"late", partition=0)))

        looks(come)
        async with asyncio.timeout(60):
            answers = await fetch(node, asked(600_000))
        await asyncio.gather(*coming)
        assert [place for place, part in enumerate(answers) if part.size] == [0]
        for part in answers:
            part.release_all()


@pytest.mark.parametrize("while_it", ["looks", "waits"])
async def test_a_cancelled_fetch_holds_no_file(
    tmp_path: Path, looks: Callable[[Callable[[int], None]], None], while_it: str
) -> None:
    async with running(tmp_path) as node:
        await node.create("t", COUNT)
        await node.append("t", b"too little", partition=0)
        file = node.node.broker.partitions.get(TopicPartition("t", 0)).log.hot._segments.newest.file()
        before, looked = file.users, 0

        def leave(slices: int) -> None:
            nonlocal looked
            looked = slices
            assert file.users > before or while_it == "waits"
            if slices == 2 and while_it == "looks":
                waiting.cancel()

        looks(leave)
        waiting = fetch(node, asked(60_000)._replace(min_bytes=1 << 20))
        if while_it == "waits":
            await until(lambda: looked * 32 >= COUNT and file.users == before)
            waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert file.users == before
