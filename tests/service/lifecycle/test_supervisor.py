"""Workers tick, survive temporary failures, and stop the node on all other failures."""

from __future__ import annotations

import asyncio

import pytest

from service.lifecycle.supervisor import Worker, supervised
from storage_tiers.errors import FencedWriter, LogError, TierUnavailable
from tests.support.clock import ManualClock


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_worker_ticks_every_period_and_stops_with_its_owner() -> None:
    clock, ticks = ManualClock(), list[float]()

    async def tick() -> None:
        ticks.append(clock.monotonic())

    async with supervised([Worker("beat", 2.0, tick)], clock):
        for _ in range(3):
            await turn()
            clock.advance(2.0)
        await turn()
    clock.advance(2.0)
    await turn()
    assert ticks == [2.0, 4.0, 6.0]


async def test_a_transient_error_is_survived() -> None:
    clock, ticks = ManualClock(), 0

    async def tick() -> None:
        nonlocal ticks
        ticks += 1
        raise TierUnavailable("the store did not answer") if ticks == 1 else OSError(28, "No space left on device")

    async with supervised([Worker("offload", 1.0, tick)], clock):
        for _ in range(3):
            await turn()
            clock.advance(1.0)
        await turn()
    assert ticks == 3


@pytest.mark.parametrize("failure", [FencedWriter("a newer incarnation"), ZeroDivisionError("a bug")])
async def test_a_fatal_error_ends_the_node(failure: Exception) -> None:
    clock = ManualClock()

    async def tick() -> None:
        raise failure

    with pytest.raises(ExceptionGroup) as caught:
        async with supervised([Worker("commit", 1.0, tick)], clock):
            await turn()
            clock.advance(1.0)
            await asyncio.Event().wait()
    assert caught.value.exceptions == (failure,)
    assert isinstance(failure, LogError | ZeroDivisionError)
