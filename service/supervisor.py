"""One lifecycle for background work: named workers under one task group, cancelled together; the first failure that a
worker does not expect fails the node. A LogError that may pass is logged, once until it passes, and the worker ticks on."""

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
    """`tick` is called every `period_s`, never twice at once."""

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
            # OSError: a full or failing disk. What was planned is planned again at the next tick.
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
