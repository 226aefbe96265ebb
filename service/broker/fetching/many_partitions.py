"""Answers fetches of many partitions as `fetching.py` does, but each attempt runs in slices of the event loop's time.

Each fetch has one task, which waits and tries again. If a partition advances during an attempt, another attempt follows. An
answer may show its partitions at different moments.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from grpc_api.contract.log import Fetch, Fetched
from service.broker.fetching.fetching import Attempt, BytesRead, Locate, Misses, attempt_some
from service.broker.partition.partition import Partition
from storage_tiers.errors import LogError
from storage_tiers.turns import Turn, TurnScheduler

#: A fetch with more partitions than this is answered in slices.
MANY = 500
_STEP = 32


class ManyFetch:
    """Call `answers` once. If that call is cancelled, nothing stays registered with the partitions."""

    def __init__(self, fetch: Fetch, locate: Locate, read: BytesRead, scheduler: TurnScheduler) -> None:
        self._fetch = fetch
        self._locate = locate
        self._read = read
        self._scheduler = scheduler
        self._moved = asyncio.Event()
        self._is_late = fetch.max_wait_ms <= 0
        self._watched: list[Partition] = []
        self._misses = Misses(self._hydrated)
        self._failed: dict[int, LogError] = {}

    async def answers(self) -> Sequence[Fetched]:
        timer = asyncio.get_running_loop().call_later(max(0, self._fetch.max_wait_ms) / 1000, self._time_up)
        self._read.asked += len(self._fetch.partitions)
        is_first = True
        try:
            while True:
                is_last = self._is_late
                self._moved.clear()
                failed, self._failed = self._failed, {}
                if is_first:
                    await self._watch_all()
                taken = await self._attempt(failed, is_first=is_first)
                is_first = False
                if is_last or taken.ready or taken.size >= self._fetch.min_bytes:
                    taken.count(self._read)
                    return taken.answers
                self._misses.watch(taken.misses)
                taken.release()
                await self._moved.wait()
        finally:
            timer.cancel()
            for partition in self._watched:
                partition.waiters.discard(self._moved.set)
            self._misses.forget()

    async def _attempt(self, failed: Mapping[int, LogError], *, is_first: bool) -> Attempt:
        taken, partitions = Attempt(), self._fetch.partitions
        turn = self._scheduler.turn()
        try:
            for at in range(0, len(partitions), _STEP):
                attempt_some(
                    taken, self._fetch, self._locate, partitions[at : at + _STEP], at, failed, is_first=is_first
                )
                await self._rest(turn, taken)
        finally:
            turn.leave()
        return taken

    async def _rest(self, turn: Turn, taken: Attempt) -> None:
        try:
            await turn.rest_if_over()
        except BaseException:
            taken.release()
            raise

    async def _watch_all(self) -> None:
        """Registers with all partitions. Runs before the first attempt, so that no change is missed."""
        turn = self._scheduler.turn()
        notify = self._moved.set  # one object for all partitions
        try:
            for index, wanted in enumerate(self._fetch.partitions):
                try:
                    partition = self._locate(wanted.partition)
                except LogError:
                    # The first attempt answers at once, with this error.
                    return
                partition.waiters.add(notify)
                self._watched.append(partition)
                if not index % _STEP:
                    await turn.rest_if_over()
        finally:
            turn.leave()

    def _hydrated(self, failed: Mapping[int, LogError]) -> None:
        self._failed.update(failed)
        self._moved.set()

    def _time_up(self) -> None:
        self._is_late = True
        self._moved.set()
