"""Many writers and sweepers on a store that loses, delays and repeats requests: the seed determines the schedule.

These invariants are checked after every effect on the store:

- StepsHold: each version of the manifest follows from the one before (`broken`, `broken_step`); a deleted one stays deleted.
- NothingMissing: every object that the manifest names as live exists, byte for byte.
- NoMixture: leader epochs never decrease from one segment to the next, and each segment holds one writer's records.
- AcknowledgedOnce: at the end each segment with an acknowledged extension is in the history exactly once.
- Waits: while the store has gone backwards, the only commits that land are those sent before.

The environment misbehaves, too: the manifest vanishes or reverts to an earlier version until it is restored; the
writers' wall clocks step; an operator deletes every object that an error message says to delete.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import pytest

from storage_tiers.cold.manifest import lookup
from storage_tiers.cold.manifest.json import decode, decode_page
from storage_tiers.cold.manifest.lineage import LoadPage, SeenManifest, seen_of
from storage_tiers.cold.manifest.model import Manifest, RemoteSegment, State
from storage_tiers.cold.manifest.transitions import broken, broken_step, first_manifest
from storage_tiers.cold.segments.partition_tier import PartitionTier
from storage_tiers.cold.stores.bodies import hand_over
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.cold.stores.port import FileBody, ObjectBody, ObjectInfo, Sink, UnfinishedUpload
from storage_tiers.errors import (
    FencedWriter,
    InvalidRequest,
    LogError,
    PreconditionFailed,
    StoreBehind,
    TierUnavailable,
)
from storage_tiers.records.checksum import crc32c
from tests.storage_tiers.cold.support import HOUR, IDS, Local, batches, tier_of
from tests.support.clock import ManualClock

T = TypeVar("T")
GRACE = HOUR


class Monitor:
    """Checks the invariants after every effect on the store."""

    def __init__(self, store: MemoryStore) -> None:
        self.objects = store.blocking()
        self.manifest = first_manifest(IDS)
        self.history: list[RemoteSegment] = []
        self.puts = 0
        self.versions: list[bytes] = []
        self.astray = False

    def after_put(self, key: str, *, sent_before: bool = False) -> None:
        """`sent_before`: the write was sent before the store changed the history it shows."""
        self.puts += 1
        if key == IDS.manifest_key and self.astray:
            assert sent_before, "a commit was based on a manifest without the last one seen"
        elif key == IDS.manifest_key:
            self.versions.append(self.objects.get(key).data)
            new = decode(self.objects.get(key).data, IDS)
            assert broken(new) is None and broken_step(self.manifest, new) is None
            if new.end > self.manifest.end:
                self.history.append(new.segments[-1] if new.segments else self.live(new)[-1])
            self.manifest = new
            self.after_delete()

    def go_astray(self, version: int | None) -> None:
        """Reverts the manifest to an earlier version, or deletes it (None)."""
        self.astray = True
        if version is None:
            self.objects.delete([IDS.manifest_key])
        else:
            self.objects.put(IDS.manifest_key, self.versions[version])

    def mend(self) -> None:
        self.objects.put(IDS.manifest_key, self.versions[-1])
        self.astray = False

    def after_delete(self) -> None:
        for segment in self.live(self.manifest):
            data = self.objects.get(segment.key).data
            assert (len(data), crc32c(data)) == (segment.length, segment.crc32c)
            assert self.objects.head(segment.sidecar_key).size > 0
        if self.manifest.sidecar is not None:
            assert self.objects.head(self.manifest.sidecar.key).size > 0
        pinned = [item for item in self.manifest.removed if any(pin.holds(item) for pin in self.manifest.pins)]
        for key in itertools.chain.from_iterable(item.keys for item in pinned):
            assert self.objects.head(key).size > 0

    def live(self, manifest: Manifest) -> list[RemoteSegment]:
        return list(lookup._all_live(manifest, lambda ref: decode_page(self.objects.get(ref.key).data, IDS, ref)))


class Chaos:
    """Wraps the real store: any call may be late, fail, lose its response, or take effect after it has failed."""

    def __init__(self, memory: MemoryStore, monitor: Monitor, clock: ManualClock, chance: random.Random) -> None:
        self.memory, self.monitor, self.clock, self.chance = memory, monitor, clock, chance
        self.late: list[asyncio.Task[None]] = []
        self.calm = False

    async def put(
        self, key: str, body: bytes | FileBody, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        astray = self.monitor.astray

        async def effect() -> ObjectInfo:
            info = self.memory.blocking().put(key, body, if_absent=if_absent, if_match=if_match)
            self.monitor.after_put(key, sent_before=not astray)
            return info

        return await self._write(effect)

    async def list_folders(self, prefix: str) -> Sequence[str]:
        await self._turns()
        self._maybe_fail()
        return await self.memory.list_folders(prefix)

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


class Wall:
    """The writers' clock: its wall time steps, its monotonic time does not."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.ahead_ms = 0

    def unix_ms(self) -> int:
        return self.clock.unix_ms() + self.ahead_ms

    def steady_ms(self) -> int:
        return self.clock.steady_ms()

    def monotonic(self) -> float:
        return self.clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        await self.clock.sleep(seconds)


class Simulation:
    def __init__(self, seed: int, directory: Path) -> None:
        self.chance = random.Random(seed)
        self.clock = ManualClock()
        self.wall = Wall(self.clock)
        self.saved: Manifest | None = None
        self.blocked = self.strayed = self.obeyed = 0
        self.asking: list[int] = []
        self.leading = True
        self.memory = MemoryStore(self.clock)
        self.monitor = Monitor(self.memory)
        self.chaos = Chaos(self.memory, self.monitor, self.clock, self.chance)
        self.local = Local(directory)
        self.seeds = itertools.count(seed * 1000)
        self.acknowledged: dict[tuple[int, int], int] = {}
        self.fenced = self.replaced = 0
        self.done = False

    def tier(self, incarnation: int | None = 1) -> PartitionTier:
        async def read_saved(seen: SeenManifest) -> Manifest:
            assert self.saved is not None
            return self.saved

        seed = next(self.seeds)
        return tier_of(self.chaos, self.wall, incarnation=incarnation, seed=seed, read_saved=read_saved)

    async def ask(self, tier: PartitionTier, act: Callable[[], Awaitable[T]]) -> T:
        """One request to the tier, made with the digest of the node's saved manifest; the manifest it returns is saved."""
        known = 0 if self.saved is None else self.saved.commit
        tier.expect(None if self.saved is None else seen_of(self.saved))
        self.asking.append(known)
        try:
            done = await act()
        except StoreBehind as error:
            self.blocked += 1
            self._obey(error)
            raise
        except LogError as error:
            self._obey(error)
            raise
        finally:
            self.asking.remove(known)
        self.save(done if isinstance(done, Manifest) else tier.manifest)
        return done

    def save(self, manifest: Manifest | None) -> None:
        if manifest is not None and manifest.recent and (self.saved is None or self.saved.commit < manifest.commit):
            self.saved = manifest

    async def run(self, *, delete: bool) -> None:
        helpers = [
            asyncio.create_task(act) for act in (self._time(), self._sweeper(), self._retention(), self._compaction())
        ]
        world = asyncio.create_task(self._world())
        leaders = [asyncio.create_task(self._leader(epoch)) for epoch in range(1, 5)]
        await asyncio.gather(*leaders)
        self.leading = False
        await world
        if delete:
            last = self.tier(incarnation=4)
            await self._insist(last, last.delete_partition)
        self.done = True
        await asyncio.gather(*helpers[1:], self.chaos.close())
        self.chaos.calm = True
        last = self.tier(incarnation=4)
        await self._insist(last, lambda: self._finish(last, delete))
        helpers[0].cancel()

    async def _leader(self, epoch: int) -> None:
        """Waits for its turn, claims the partition and extends it; continues unaware after another leader has replaced it."""
        while epoch > 1 and (self.monitor.manifest.leader_epoch < epoch - 1 or self.chance.random() < 0.98):
            await asyncio.sleep(0)
        tier = self.tier(incarnation=(epoch + 1) // 2)
        try:
            manifest = await self._insist(tier, lambda: tier.claim(epoch))
            for _ in range(self.chance.randrange(4, 12)):
                job = self.local.job(manifest.end, self.chance.randrange(1, 4), epoch=epoch, text=f"leader {epoch}")
                manifest = await self._insist(tier, partial(tier.extend, job))
                if manifest.end == job.end:
                    self.acknowledged[job.base, job.end] = crc32c(Path(job.path).read_bytes())
        except FencedWriter:
            self.fenced += 1

    async def _sweeper(self) -> None:
        while not self.done:
            try:
                sweeper = self.tier(incarnation=None)
                await self.ask(sweeper, partial(sweeper.sweep, GRACE))
            except (TierUnavailable, FencedWriter, StoreBehind):
                pass
            await self.clock.sleep(self.chance.uniform(1, GRACE / 1000))

    async def _retention(self) -> None:
        tier = self.tier(incarnation=None)
        while not self.done:
            await self.clock.sleep(self.chance.uniform(1, GRACE / 1000))
            start = self.monitor.manifest.log_start
            acts: list[Callable[[], Awaitable[Manifest]]] = [
                partial(tier.expire, start + 3),
                partial(tier.raise_log_start, start + 1),
                partial(tier.pin, "held"),
                partial(tier.unpin, "held"),
            ]
            try:
                await self.ask(tier, self.chance.choice(acts))
            except (TierUnavailable, FencedWriter, InvalidRequest, StoreBehind):
                pass

    async def _compaction(self) -> None:
        """Replaces neighbours with one segment of their last records."""
        tier = self.tier(incarnation=None)
        while not self.done:
            await self.clock.sleep(self.chance.uniform(1, GRACE / 1000))
            try:
                await self.ask(tier, partial(self._replace_some, tier))
            except (TierUnavailable, FencedWriter, InvalidRequest, StoreBehind):
                pass

    async def _replace_some(self, tier: PartitionTier) -> None:
        loaded = await tier.load()
        if loaded is None:
            return
        manifest = loaded.manifest
        live = await tier.look(lambda load_page: list(lookup._all_live(manifest, load_page)))
        if len(live) < 2:
            return
        at = self.chance.randrange(len(live) - 1)
        old = tuple(live[at : min(at + self.chance.randrange(1, 5), len(live) - 1)])
        epoch = int(old[-1].key.split("/")[-1].split("-")[1])
        data = b"".join(batches(each.end - 1, 1, epoch=epoch, text="compacted") for each in old)
        base, end = old[0].base, old[-1].end
        job = self.local.job(base, end - base, epoch=epoch, data=data)
        replaced = await tier.replace(dataclasses.replace(job, leader_epoch=manifest.leader_epoch), old)
        await tier.look(lambda load_page: self._check_replaced(replaced, load_page, old))

    def _check_replaced(self, manifest: Manifest, load_page: LoadPage, old: Sequence[RemoteSegment]) -> None:
        live = list(lookup._all_live(manifest, load_page))
        assert {segment.key for segment in old}.isdisjoint(segment.key for segment in live)
        assert [each.end for each in live if each.base == old[0].base] == [old[-1].end] or (
            manifest.log_start >= old[-1].end or manifest.state is State.DELETED  # log start has risen since
        )
        self.replaced += 1

    async def _world(self) -> None:
        """External faults: for a while the store shows an earlier manifest or none, and wall clocks step."""
        while self.leading:
            await self.clock.sleep(self.chance.uniform(0.1, GRACE / 1000))
            self.wall.ahead_ms += self.chance.choice([-1, 0, 1]) * self.chance.randrange(2 * GRACE)
            known = min([*self.asking, self.saved.commit if self.saved is not None else 0])
            if known < 2 or not self.leading:
                continue  # no node has seen enough to notice
            older = range(known - 1)
            self.strayed += 1
            self.monitor.go_astray(self.chance.choice([None, self.chance.choice(older)]))
            await self.clock.sleep(self.chance.uniform(0.1, 3) * GRACE / 1000)
            self.monitor.mend()

    def _obey(self, error: LogError) -> None:
        """An operator who deletes every object that an error message says to delete."""
        told = re.findall(r"(?:delete|remove|clean|drop)s? (\S+/\S+)", str(error), re.IGNORECASE)
        present = [key.rstrip(".,;:") for key in told]
        self.obeyed += len(present)
        self.memory.blocking().delete(present)
        self.monitor.after_delete()

    async def _time(self) -> None:
        while True:
            self.clock.advance(self.chance.choice([0.001, 0.01, 0.1, 5, 600]))
            await asyncio.sleep(0)

    async def _insist(self, tier: PartitionTier, act: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await self.ask(tier, act)
            except TierUnavailable:
                await self.clock.sleep(1)
            except StoreBehind:
                await self.clock.sleep(60)

    async def _finish(self, tier: PartitionTier, delete: bool) -> None:
        await self.clock.sleep(3 * GRACE / 1000)
        if delete:
            assert (await tier.sweep_deleted(GRACE)).done
            return
        await tier.sweep(GRACE)
        if self.monitor.manifest.pins:
            await tier.unpin("held")
        for _ in range(3):  # the sweeps delete expired pages first, then the pages that named them
            await self.clock.sleep(3 * GRACE / 1000)
            await tier.sweep(GRACE)

    # --- checks at the end ----------------------------------------------------------------------------------------
    def check(self, *, delete: bool) -> None:
        history = self.monitor.history
        epochs = [int(segment.key.split("/")[-1].split("-")[1]) for segment in history]
        assert epochs == sorted(epochs)
        assert [segment.base for segment in history] == [0, *(segment.end for segment in history[:-1])]
        by_segment = {(segment.base, segment.end): segment for segment in history}
        for span, crc in self.acknowledged.items():
            assert by_segment[span].crc32c == crc, f"the acknowledged segment {span} holds other records"
        stored = {info.key for info in self.memory.blocking().list("")}
        manifest = self.monitor.manifest
        if delete:
            assert manifest.state is State.DELETED and stored == {IDS.manifest_key}
            return
        named = {key for segment in self.monitor.live(manifest) for key in (segment.key, segment.sidecar_key)}
        assert manifest.sidecar is not None
        assert stored == named | {IDS.manifest_key, manifest.sidecar.key} | {ref.key for ref in manifest.pages}


async def simulate(seed: int, directory: Path) -> Simulation:
    """Runs one schedule; every other seed has manifest bounds so small that most segments live in pages."""
    simulation = Simulation(seed, directory)
    delete = seed % 4 == 3
    bounds: dict[str, Any] = {"UNFOLDED": 1}
    if seed % 2:
        bounds |= {"MAX_SEGMENTS": 4, "MAX_PAGE_SEGMENTS": 8, "_EXPIRED_INLINE": 1}
    with mock.patch.multiple("storage_tiers.cold.manifest.pages", **bounds):
        await simulation.run(delete=delete)
    simulation.check(delete=delete)
    return simulation


async def test_the_invariants_hold_with_writers_sweepers_and_a_bad_store(tmp_path: Path) -> None:
    fenced = acknowledged = commits = strayed = blocked = replaced = 0
    for seed in range(16):
        ran = await simulate(seed, tmp_path)
        fenced += ran.fenced
        acknowledged += len(ran.acknowledged)
        commits += ran.monitor.manifest.commit
        strayed += ran.strayed
        blocked += ran.blocked
        replaced += ran.replaced
    assert fenced >= 20 and acknowledged >= 100 and commits >= 400, "the schedules must cause faults"
    assert replaced >= 15, "neighbours must be replaced"
    assert strayed >= 16 and blocked >= 50, "the store must go backwards"


@pytest.mark.faults
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", range(1000, 1200, 50))
async def test_the_invariants_hold_in_many_more_schedules(tmp_path: Path, first: int) -> None:
    for seed in range(first, first + 50):
        await simulate(seed, tmp_path)


async def test_the_same_seed_gives_the_same_run(tmp_path: Path) -> None:
    first, second = [await simulate(5, tmp_path) for _ in range(2)]
    assert first.monitor.manifest == second.monitor.manifest
    assert first.acknowledged == second.acknowledged
