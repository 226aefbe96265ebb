"""Loads a shard from its log, in slices of the event loop's time.

Reading a record takes only a few microseconds, because a group of thousands of members is decoded after all records are read,
member by member, and only from its newest record. Records at or above the high watermark may still be lost, with a failed disk
or under the next leader, so the shard hides them from its readers until they are committed.
"""

from __future__ import annotations

from typing import NamedTuple

from service.coordination.outcome import Outcome
from service.coordination.ports import CoordinatorLog, Shard
from service.coordination.replay import Marker, Replayed, replay
from storage_tiers.turns import Turn

#: Records between two checks of the clock; each takes a few microseconds.
LOOK_EVERY = 16


class LoadedLog(NamedTuple):
    """`records` is the number of records read. `through` is the shard's count of all records in the log, `committed` its count
    of those known to be committed. `end` is the log's end offset. `outcome` has the shard's first decisions."""

    records: int
    committed: int
    through: int
    end: int
    outcome: Outcome


async def load(shard: Shard, log: CoordinatorLog, turn: Turn, now_ms: int) -> LoadedLog:
    """Loads the whole log into a new shard. Raises LogError if the log cannot be read."""
    watermark = log.high_watermark
    records = committed = end = 0
    async for piece in log.read(turn.leave):  # a load that waits for the store delays no other load
        for step in replay(piece):
            if isinstance(step, Marker):
                end = step.offset + 1
                committed += end <= watermark
                shard.end_transaction(step.producer_id, commit=step.commit)
                await turn.rest_if_over()
                continue
            committed += await _load_records(shard, step, turn, watermark, now_ms)
            end = step.offsets[-1] + 1
            records += len(step.keys)
            await turn.rest_if_over()
    shard.committed(committed)
    through = shard.written
    return LoadedLog(records, committed, through, end, await turn.through(shard.loaded(now_ms)))


async def _load_records(shard: Shard, records: Replayed, turn: Turn, watermark: int, now_ms: int) -> int:
    """Loads the records. Returns the number of committed ones among them."""
    committed, producer_id = 0, records.producer_id
    rows = zip(records.offsets, records.keys, records.values, records.times, strict=True)
    for number, (offset, key, value, written_ms) in enumerate(rows, 1):
        is_committed = offset < watermark
        committed += is_committed
        shard.load(key, value, now_ms, is_committed=is_committed, producer_id=producer_id, written_ms=written_ms)
        if not number % LOOK_EVERY and turn.is_over:
            await turn.rest()
    return committed
