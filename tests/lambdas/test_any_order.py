"""However the queue delivers hints and however handlers end, each segment that stays readable is recorded once, in order.

A seeded simulation: commits add and retention removes segments; hints are lost, repeated, delayed and shuffled; handlers
die or run out of time at any call; sweeps run past the grace period.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from storage_tiers.policy.new_segments import plan_new_segments
from tests.lambdas.support import READER, Context, World, hint
from tests.lambdas.test_verify_commit import Dying
from tests.storage_tiers.cold.support import DAY, IDS, page_loader, stored_live, stored_manifest

STEPS = 40


class History:
    """A partition's random history, and the checks of its readers' guarantees."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.random = random.Random(seed)
        self.queue: list[str] = []
        self.added: list[tuple[int, int]] = []  # (commit, base) of every segment ever added
        self.swept_unseen = False

    async def step(self) -> None:
        chance = self.random.random()
        if chance < 0.45:
            await self._extend()
        elif chance < 0.55 and self.world.end:
            await self.world.tier.expire(self.random.randrange(self.world.end))
            self._hint()
        elif chance < 0.6 and self.world.end:
            await self._sweep()
        else:
            self._wake()
        self._check()

    async def _extend(self) -> None:
        base = self.world.end
        await self.world.extend(self.random.randrange(1, 20))
        self.added.append((self.world.commit(), base))
        self._hint()

    def _hint(self) -> None:
        self.queue += [hint()] * self.random.choice([0, 1, 1, 1, 3])  # lost, delivered, repeated

    async def _sweep(self) -> None:
        self.world.clock.advance(3 * DAY / 1000)
        for _ in range(2):
            await self.world.tier.sweep(DAY)
        self._hint()

    def _wake(self) -> None:
        self.random.shuffle(self.queue)
        taken, self.queue = self.queue[:3], self.queue[3:]
        if not taken:
            return
        before = self.world.cursor() or 0
        plan = plan_new_segments(stored_manifest(self.world.store), page_loader(self.world.store), before)
        ending = self.random.choice(["well", "well", "death", "time"])
        context = Context([900_000, 0]) if ending == "time" else Context()
        store = self.world.store
        if ending == "death":
            store = Dying(store, self.random.randrange(1, 15), self.random.random() < 0.5)
        failed = self.world.wake(*taken, context=context, store=store)
        self.swept_unseen |= plan.missed is not None
        assert (self.world.cursor() or 0) >= before, "a cursor never goes back"
        self.queue += [taken[int(message[1:])] for message in failed]  # delivered again

    def _check(self) -> None:
        verdicts = self.world.verdicts()
        cursor = self.world.cursor() or 0
        assert len(set(verdicts)) == len(verdicts)
        assert {(commit, base) for commit, base, _ in verdicts} <= set(self.added)
        assert all(found == "sound" for *_, found in verdicts)
        recorded = {(commit, base) for commit, base, _ in verdicts}
        store = self.world.store
        live = {(segment.added.commit, segment.base) for segment in stored_live(store, stored_manifest(store))}
        assert {each for each in live if each[0] <= cursor} <= recorded, "the cursor passed a segment without a verdict"


@pytest.mark.parametrize("seed", range(20))
async def test_each_live_segment_is_recorded_once(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path)
    history = History(world, seed)
    await history._extend()
    for _ in range(STEPS):
        await history.step()
    assert world.wake() == []  # one more hint catches up on everything
    history._check()
    assert world.cursor() == world.commit()
    missed = list(world.store.list(f"{IDS.cluster_id}/readers/{READER}/missed/"))
    assert bool(missed) <= (stored_manifest(world.store).swept > 0)
    if history.swept_unseen:
        assert missed, "a sweep behind the cursor's back is reported"
