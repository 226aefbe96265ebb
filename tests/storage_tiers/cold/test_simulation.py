"""Many writers, sweepers and a store that loses, delays and repeats: the schedule follows from a seed.

After every effect on the store the named invariants are checked:

- StepsHold: each version of the manifest follows from the one before (`broken`, `broken_step`); a deleted one stays.
- NothingMissing: every object that the manifest names as live is there, byte for byte.
- NoMixture: the epochs of the ranges never fall from one to the next, and each range holds one writer's records.
- AcknowledgedOnce: at the end every range whose extension was acknowledged stands in the history exactly once.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import pytest

from storage_tiers.clock import ManualClock
from storage_tiers.cold.manifest import lookup
from storage_tiers.cold.manifest.json import decode, decode_page
from storage_tiers.cold.manifest.model import Entry, Root, State, broken, broken_step, first_root
from storage_tiers.cold.segments.partition_tier import PartitionTier
from storage_tiers.cold.stores.bodies import hand_over
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.cold.stores.port import FileBody, ObjectBody, ObjectInfo, Sink, UnfinishedUpload
from storage_tiers.errors import FencedWriter, InvalidRequest, PreconditionFailed, TierUnavailable
from storage_tiers.records.checksum import crc32c
from tests.storage_tiers.cold.support import HOUR, IDS, Local, tier_of

T = TypeVar("T")
GRACE = HOUR


class Monitor:
    """Looks at the store after every effect."""

    def __init__(self, store: MemoryStore) -> None:
        self.objects = store.blocking()
        self.root = first_root(IDS)
        self.history: list[Entry] = []
        self.puts = 0

    def after_put(self, key: str) -> None:
        self.puts += 1
        if key == IDS.manifest_key:
            new = decode(self.objects.get(key).data, IDS)
            assert broken(new) is None and broken_step(self.root, new) is None
            if new.end > self.root.end:
                self.history.append(new.entries[-1] if new.entries else self.live(new)[-1])
            self.root = new
            self.after_delete()

    def after_delete(self) -> None:
        for entry in self.live(self.root):
            data = self.objects.get(entry.key).data
            assert (len(data), crc32c(data)) == (entry.length, entry.crc32c)
            assert self.objects.head(entry.sidecar_key).size > 0
        if self.root.sidecar is not None:
            assert self.objects.head(self.root.sidecar.key).size > 0
        pinned = [item for item in self.root.removed if any(pin.holds(item) for pin in self.root.pins)]
        for key in itertools.chain.from_iterable(item.keys for item in pinned):
            assert self.objects.head(key).size > 0

    def live(self, root: Root) -> list[Entry]:
        return list(lookup._all_live(root, lambda ref: decode_page(self.objects.get(ref.key).data, IDS, ref)))


class Chaos:
    """A store in front of the real one: any call may be late, fail, lose its answer, or take effect after it failed."""

    def __init__(self, memory: MemoryStore, monitor: Monitor, clock: ManualClock, chance: random.Random) -> None:
        self.memory, self.monitor, self.clock, self.chance = memory, monitor, clock, chance
        self.late: list[asyncio.Task[None]] = []
        self.calm = False

    async def put(
        self, key: str, body: bytes | FileBody, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        async def effect() -> ObjectInfo:
            info = self.memory.blocking().put(key, body, if_absent=if_absent, if_match=if_match)
            self.monitor.after_put(key)
            return info

        return await self._write(effect)

    async def delete(self, keys: Sequence[str]) -> None:
        async def effect() -> None:
            self.memory.blocking().delete(keys)
            self.monitor.after_delete()

        await self._write(effect)

    async def get(self, key: str, start: int = 0, length: int | None = None) -> ObjectBody:
        await self._turns()
        self._maybe_fail()
        body = self.memory.blocking().get(key, start, length)
        await self._turns()
        return body

    async def get_into(self, key: str, start: int, length: int, sink: Sink) -> None:
        hand_over((await self.get(key, start, length)).data, sink)

    async def head(self, key: str) -> ObjectInfo:
        await self._turns()
        self._maybe_fail()
        info = self.memory.blocking().head(key)
        await self._turns()
        return info

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        await self._turns()
        for info in self.memory.blocking().list(prefix, start_after=start_after):
            yield info
            await self._turns()

    async def unfinished_uploads(self, prefix: str) -> AsyncIterator[UnfinishedUpload]:
        await self._turns()
        for upload in self.memory.blocking().unfinished_uploads(prefix):
            yield upload

    async def abort_upload(self, upload: UnfinishedUpload) -> None:
        self.memory.blocking().abort_upload(upload)

    async def close(self) -> None:
        await asyncio.gather(*self.late)

    async def _write(self, effect: Callable[[], Awaitable[T]]) -> T:
        await self._turns()
        fate = 1.0 if self.calm else self.chance.random()
        if fate < 0.05:
            raise TierUnavailable("the request was lost")
        if fate < 0.10:
            self.late.append(asyncio.create_task(self._later(effect)))
            raise TierUnavailable("the request seemed lost")
        if fate < 0.15:
            await self.clock.sleep(self.chance.uniform(0.5, 3) * GRACE / 1000)
        result = await effect()
        await self._turns()
        if 0.15 <= fate < 0.22:
            raise TierUnavailable("the answer was lost")
        return result

    async def _later(self, effect: Callable[[], Awaitable[object]]) -> None:
        await self.clock.sleep(self.chance.choice([0.1, 1.0, 2 * GRACE / 1000]))
        try:
            await effect()
        except PreconditionFailed:
            pass

    async def _turns(self) -> None:
        for _ in range(1 if self.calm else self.chance.randrange(1, 6)):
            await asyncio.sleep(0)

    def _maybe_fail(self) -> None:
        if not self.calm and self.chance.random() < 0.03:
            raise TierUnavailable("no answer")


class Simulation:
    def __init__(self, seed: int, directory: Path) -> None:
        self.chance = random.Random(seed)
        self.clock = ManualClock()
        self.memory = MemoryStore(self.clock)
        self.monitor = Monitor(self.memory)
        self.chaos = Chaos(self.memory, self.monitor, self.clock, self.chance)
        self.local = Local(directory)
        self.seeds = itertools.count(seed * 1000)
        self.acknowledged: dict[tuple[int, int], int] = {}
        self.fenced = 0
        self.done = False

    def tier(self, incarnation: int | None = 1) -> PartitionTier:
        return tier_of(self.chaos, self.clock, incarnation=incarnation, seed=next(self.seeds))

    async def run(self, *, delete: bool) -> None:
        helpers = [asyncio.create_task(act) for act in (self._time(), self._sweeper(), self._retention())]
        leaders = [asyncio.create_task(self._leader(epoch)) for epoch in range(1, 5)]
        await asyncio.gather(*leaders)
        if delete:
            await self._insist(self.tier(incarnation=4).delete_partition)
        self.done = True
        await asyncio.gather(*helpers[1:], self.chaos.close())
        self.chaos.calm = True
        await self._insist(lambda: self._finish(delete))
        helpers[0].cancel()

    async def _leader(self, epoch: int) -> None:
        """Waits its turn, claims, extends, and does not know when it has been replaced."""
        while epoch > 1 and (self.monitor.root.leader_epoch < epoch - 1 or self.chance.random() < 0.98):
            await asyncio.sleep(0)
        tier = self.tier(incarnation=(epoch + 1) // 2)
        try:
            root = await self._insist(lambda: tier.claim(epoch))
            for _ in range(self.chance.randrange(4, 12)):
                job = self.local.job(root.end, self.chance.randrange(1, 4), epoch=epoch, text=f"leader {epoch}")
                root = await self._insist(partial(tier.extend, job))
                if root.end == job.end:
                    self.acknowledged[job.base, job.end] = crc32c(Path(job.path).read_bytes())
        except FencedWriter:
            self.fenced += 1

    async def _sweeper(self) -> None:
        while not self.done:
            try:
                await self.tier(incarnation=None).sweep(GRACE)
            except (TierUnavailable, FencedWriter):
                pass
            await self.clock.sleep(self.chance.uniform(1, GRACE / 1000))

    async def _retention(self) -> None:
        tier = self.tier(incarnation=None)
        while not self.done:
            await self.clock.sleep(self.chance.uniform(1, GRACE / 1000))
            start = self.monitor.root.log_start
            acts: list[Callable[[], Awaitable[Root]]] = [
                partial(tier.retire, start + 3),
                partial(tier.raise_log_start, start + 1),
                partial(tier.pin, "held"),
                partial(tier.unpin, "held"),
            ]
            try:
                await self.chance.choice(acts)()
            except (TierUnavailable, FencedWriter, InvalidRequest):
                pass

    async def _time(self) -> None:
        while True:
            self.clock.advance(self.chance.choice([0.001, 0.01, 0.1, 5, 600]))
            await asyncio.sleep(0)

    async def _insist(self, act: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await act()
            except TierUnavailable:
                await self.clock.sleep(1)

    async def _finish(self, delete: bool) -> None:
        tier = self.tier(incarnation=4)
        await self.clock.sleep(3 * GRACE / 1000)
        report = await tier.sweep(GRACE)
        if delete:
            assert report.done
            return
        if self.monitor.root.pins:
            await tier.unpin("held")
        for _ in range(3):  # retired pages, then the pages that named them
            await self.clock.sleep(3 * GRACE / 1000)
            await tier.sweep(GRACE)

    # --- what must be true at the end -----------------------------------------------------------------------------
    def check(self, *, delete: bool) -> None:
        history = self.monitor.history
        epochs = [int(entry.key.split("/")[-1].split("-")[1]) for entry in history]
        assert epochs == sorted(epochs)
        assert [entry.base for entry in history] == [0, *(entry.end for entry in history[:-1])]
        by_range = {(entry.base, entry.end): entry for entry in history}
        for span, crc in self.acknowledged.items():
            assert by_range[span].crc32c == crc, f"the acknowledged range {span} holds other records"
        stored = {info.key for info in self.memory.blocking().list("")}
        root = self.monitor.root
        if delete:
            assert root.state is State.DELETED and stored == {IDS.manifest_key}
            return
        named = {key for entry in self.monitor.live(root) for key in (entry.key, entry.sidecar_key)}
        assert root.sidecar is not None
        assert stored == named | {IDS.manifest_key, root.sidecar.key} | {ref.key for ref in root.pages}


async def simulate(seed: int, directory: Path) -> Simulation:
    """Every other schedule with a root so small that most entries live in pages."""
    simulation = Simulation(seed, directory)
    delete = seed % 4 == 3
    bounds: dict[str, Any] = {"RETIRED_PAGES": 1}
    if seed % 2:
        bounds |= {"MAX_ENTRIES": 4, "MAX_PAGE_ENTRIES": 8, "_RETIRED_INLINE": 1}
    with mock.patch.multiple("storage_tiers.cold.manifest.pages", **bounds):
        await simulation.run(delete=delete)
    simulation.check(delete=delete)
    return simulation


async def test_writers_sweepers_and_a_bad_store(tmp_path: Path) -> None:
    fenced = acknowledged = commits = 0
    for seed in range(16):
        ran = await simulate(seed, tmp_path)
        fenced += ran.fenced
        acknowledged += len(ran.acknowledged)
        commits += ran.monitor.root.commit
    assert fenced >= 20 and acknowledged >= 100 and commits >= 400, "the schedules must bite"


@pytest.mark.faults
@pytest.mark.timeout(1200)
async def test_many_more_schedules(tmp_path: Path) -> None:
    for seed in range(1000, 1400):
        await simulate(seed, tmp_path)


async def test_the_same_seed_gives_the_same_run(tmp_path: Path) -> None:
    first, second = [await simulate(5, tmp_path) for _ in range(2)]
    assert first.monitor.root == second.monitor.root
    assert first.acknowledged == second.acknowledged
