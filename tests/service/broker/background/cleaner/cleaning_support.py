"""Single passes of a log cleaner that is switched off, at a time that the test sets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from storage_tiers.policy.segments import Now
from tests.service.broker.background.cleaner.test_cleaning import cleaning, led
from tests.service.broker.support import Running, running, until
from tests.support.faulty_store import FaultyStore


@asynccontextmanager
async def by_hand(directory: Path, bucket: FaultyStore) -> AsyncIterator[Running]:
    """A node that cleans nothing by itself."""
    async with running(directory, bucket, broker={"log.cleaner.enable": "false"}) as node:
        try:
            yield node
        finally:
            await cleaning(node)._process.end()


def set_time(node: Running, ms: int) -> None:
    """Sets the time by which the cleaner lets records expire, in ms since 1970."""
    cleaning(node)._policy = cleaning(node)._policy._replace(now=lambda: Now(ms, ms))


async def clean_local(node: Running) -> bool:
    """Cleans the local segments of topic t; returns whether any were dirty."""
    due = cleaning(node)._local(led(node))
    if due is not None:
        await cleaning(node)._try(due)
        assert not cleaning(node).uncleanable
    return due is not None


async def clean_bucket(node: Running) -> bool:
    """Cleans the bucket's segments of topic t; returns whether any were dirty."""
    due = await cleaning(node)._remote(led(node))
    if due is not None:
        await cleaning(node)._try(due)
        assert not cleaning(node).uncleanable
    return due is not None


async def evict(node: Running) -> None:
    """Evicts once the segments of topic t that the bucket holds entirely. A segment that was merged when only a part of it was
    offloaded stays until the rest is offloaded."""
    log, tiering = led(node).log, node.node.work.tiering
    settings = log.hot.settings
    log.hot.reconfigure(replace(settings, local_retention_ms=0))
    tiering.kick(led(node))
    await until(lambda: all(each.active or each.end > log.tiered_end for each in log.hot.segments()))
    log.hot.reconfigure(settings)
