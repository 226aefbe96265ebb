"""Rechecks of waiting fetches take a bounded share of each turn of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpc_api.contract.log import Append, Fetch, FetchPartition
from service.broker.fetching.fetch_rechecks import FEW, FetchRechecks
from service.broker.fetching.fetching import Attempt, attempt
from storage_tiers.turns import SLICE_S
from storage_tiers.types import TopicPartition
from tests.service.broker.support import batch, running


class Looking:
    """A clock that moves only while a recheck (a `look`) runs. `made` lists the names of the rechecks that ran, in order."""

    def __init__(self) -> None:
        self.now = 0.0
        self.made: list[str] = []
        self.looks = FetchRechecks(lambda: self.now)

    def look(self, name: str, took_s: float) -> Callable[[], None]:
        def look() -> None:
            self.made.append(name)
            self.now += took_s

        return look

    async def turn(self) -> list[str]:
        """Lets the loop run one turn. Returns the names of the rechecks that ran in it."""
        self.made.clear()
        await asyncio.sleep(0)
        return list(self.made)


async def test_a_look_is_made_at_once_while_its_turn_has_time() -> None:
    looking = Looking()
    for number in range(4):
        looking.looks.add(looking.look(str(number), SLICE_S / 2), 1)
    assert looking.made == ["0", "1"] and looking.looks.waiting == 2
    assert await looking.turn() == ["2", "3"]
    looking.looks.add(looking.look("4", 0), 1)
    assert looking.made[-1] == "4" and not looking.looks.waiting


async def test_a_woken_waiter_queues_behind_earlier_ones() -> None:
    looking = Looking()
    for number in range(5):
        looking.looks.add(looking.look(str(number), SLICE_S), 1)
    assert looking.made == ["0"]
    assert await looking.turn() == ["1"]
    looking.looks.add(looking.look("5", 0), 1)
    assert [await looking.turn() for _ in range(4)] == [["2"], ["3"], ["4"], ["5"]]


async def test_a_look_at_few_partitions_does_not_wait_behind_many_looks_at_many_partitions() -> None:
    looking = Looking()
    for number in range(100):
        looking.looks.add(looking.look(str(number), SLICE_S), FEW + 1)
    looking.looks.add(looking.look("few", SLICE_S / 4), FEW)
    assert await looking.turn() == ["few", "1"]
    for _ in range(100):
        looking.looks.add(looking.look("few", SLICE_S), FEW)
    assert [await looking.turn() for _ in range(2)] == [["few", "2"], ["few", "3"]]


async def test_a_record_for_which_many_wait_costs_each_turn_a_slice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path / "data") as node:
        await node.create("t", partitions=200)
        wanted = [FetchPartition(TopicPartition("t", index), 0, 1 << 20) for index in range(200)]
        waiting = [node.log.fetch(Fetch(wanted, 60_000, 1 << 30, 1 << 20)) for _ in range(200)]
        tail = node.log.fetch(Fetch(wanted[:1], 60_000, 1, 1 << 20))
        made = 0

        def counted(*args: Any, **more: Any) -> Attempt:
            nonlocal made
            made += 1
            return attempt(*args, **more)

        monkeypatch.setattr("service.broker.fetching.fetching.attempt", counted)
        node.log.append([Append(TopicPartition("t", 0), memoryview(batch(b"wakes all of them")))])
        in_turns = []
        while made < 201:
            before = made
            await asyncio.sleep(0)
            in_turns.append(made - before)
        assert max(in_turns) < 100
        assert (await tail)[0].size  # type: ignore[misc]
        for each in waiting:
            assert isinstance(each, asyncio.Future) and not each.done()
            each.cancel()
