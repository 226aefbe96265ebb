"""Loads a shard from its log, in slices of the event loop's time.

What lies at or above the high watermark may still be taken back, by a failed disk or by the next leader: the shard is told, so
that its readers do not see it before it is committed.
"""

from __future__ import annotations

from typing import NamedTuple

from service.coordination.ports import CoordinatorLog, Shard
from service.coordination.replay import Marker, replay
from storage_tiers.turns import Turn


class LoadedLog(NamedTuple):
    """What was read: how many records, how many of them and of the markers are committed, and the offset behind the last."""

    records: int
    committed: int
    end: int


async def load(shard: Shard, log: CoordinatorLog, turn: Turn, now_ms: int) -> LoadedLog:
    """All of the log into a new shard. LogError if it cannot be read."""
    watermark = log.high_watermark
    records = committed = end = 0
    async for piece in log.read(turn.leave):  # whatever waits for the store holds up no other load
        for step in replay(piece):
            if isinstance(step, Marker):
                end = step.offset + 1
                committed += end <= watermark
                shard.end_transaction(step.producer_id, commit=step.commit)
                continue
            producer_id = step.producer_id
            for offset, key, value, written_ms in zip(step.offsets, step.keys, step.values, step.times, strict=True):
                is_committed = offset < watermark
                committed += is_committed
                shard.load(
                    key, value, now_ms, is_committed=is_committed, producer_id=producer_id, written_ms=written_ms
                )
            end = step.offsets[-1] + 1
            records += len(step.keys)
            if turn.is_over:
                await turn.rest()
    shard.committed(committed)
    return LoadedLog(records, committed, end)
