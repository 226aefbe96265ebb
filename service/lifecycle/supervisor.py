"""Runs background work as named workers in one task group, which are cancelled together. The first unexpected failure of a
worker fails the node. A lasting LogError or OSError is logged once, and the worker continues, unless the error's advice is
STOP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from storage_tiers import events
from storage_tiers.clock import Clock
from storage_tiers.errors import Advice, LogError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Worker:
    """`tick` is called repeatedly, each time `period_s` seconds after the previous call has ended."""

    name: str
    period_s: float
    tick: Callable[[], Awaitable[None]]


async def run_forever(worker: Worker, clock: Clock) -> None:
    troubles = events.Troubles()
    while True:
        await clock.sleep(worker.period_s)
        try:
            await worker.tick()
        except (LogError, OSError) as error:
            # An OSError means a full or failing disk. The next tick plans the same work again.
            if isinstance(error, LogError) and error.advice is Advice.STOP:
                raise
            if troubles.begins(worker.name, error):
                events.warning(log, "round.failing", work=worker.name, error=error)
        else:
            if troubles.ends(worker.name) is not None:
                events.info(log, "round.back", work=worker.name)


@asynccontextmanager
async def supervised(workers: Sequence[Worker], clock: Clock) -> AsyncIterator[None]:
    """Runs the workers while the body runs."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run_forever(w, clock), name=w.name) for w in workers]
        try:
            yield
        finally:
            for task in reversed(tasks):
                task.cancel()
