"""DeleteRecords must not report success while an earlier offload may still land in the bucket without the new log start."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from service.broker.background.extensions import Extensions
from storage_tiers.cold.segments.offloader import ExtendJob
from storage_tiers.errors import TierUnavailable
from storage_tiers.types import TopicPartition
from tests.service.broker.support import running

JOB = ExtendJob(
    path="", position=0, length=0, base=0, end=10, leader_epoch=0, last_record_epoch=0, epochs=(), producer_snapshot=""
)


@pytest.mark.parametrize("outcome", [TierUnavailable("no answer"), asyncio.CancelledError()], ids=["lost", "cut"])
async def test_an_offload_of_unknown_outcome_counts_until_a_later_one_succeeds(
    tmp_path: Path, outcome: BaseException
) -> None:
    async with running(tmp_path) as node:
        await node.create("t")
        led = node.node.broker.partitions.get(TopicPartition("t", 0))
        extensions = Extensions()
        with pytest.raises(type(outcome)), extensions.under_way(led, JOB):
            raise outcome
        with pytest.raises(TierUnavailable, match="retry"):
            await extensions.hiding(led, 7)
        # This next offload carries the log start; the previous one may still land without it.
        with extensions.under_way(led, replace(JOB, log_start=7)):
            hiding = asyncio.ensure_future(extensions.hiding(led, 7))
            await asyncio.sleep(0)
            assert not hiding.done()
        await hiding


async def test_an_offload_that_was_refused_shows_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await node.create("t")
        led = node.node.broker.partitions.get(TopicPartition("t", 0))
        extensions = Extensions()
        with pytest.raises(ValueError), extensions.under_way(led, JOB):
            raise ValueError
        await extensions.hiding(led, 7)
