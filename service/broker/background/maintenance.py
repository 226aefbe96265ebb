"""Periodic work for every partition: flushing by time, checkpoints, and checks for tiering."""

from __future__ import annotations

import asyncio
import logging

from service.broker.background.delayed_offloads import DelayedOffloads
from service.broker.background.flusher import Flusher
from service.broker.background.tiering import Tiering
from service.broker.background.turns import GLANCES_A_TURN, slices
from service.broker.partition.partitions import Partitions
from storage_tiers import events
from storage_tiers.clock import Clock

log = logging.getLogger(__name__)

#: Producers that are checked for expiry in one turn of the event loop, which takes half a millisecond.
PRODUCERS_A_TURN = 5000
#: A partition without producers takes as much time as this number of producers.
PRODUCERS_A_PARTITION = 10


class Maintenance:
    """Rounds over all partitions; `service.serve.rounds` sets their intervals."""

    def __init__(self, partitions: Partitions, tiering: Tiering, flusher: Flusher, *, clock: Clock) -> None:
        self._partitions = partitions
        self._tiering = tiering
        self._flusher = flusher
        self._clock = clock
        self._held_back = DelayedOffloads()

    # --- rounds -------------------------------------------------------------------------------------------------------
    async def flush_by_time(self) -> None:
        """Flushes partitions whose oldest unflushed record has waited `flush.ms`."""
        now_ms = self._clock.steady_ms()
        async for some in slices(self._partitions, GLANCES_A_TURN):
            for partition in some:
                hot = partition.log.hot
                if hot.unflushed_records and now_ms - partition.flushed_ms >= hot.settings.flush_ms:
                    self._flusher.request(partition)

    async def tier(self) -> None:
        """Checks led partitions for work in the bucket: those with records, and recovering ones."""
        await self._tiering.tick(self._partitions)

    async def checkpoint(self) -> None:
        """Writes the checkpoints of all partitions, expires idle producers, and logs the producers that delay offloads."""
        await self._partitions.checkpoint()
        await self._expire_producers()

    async def _expire_producers(self) -> None:
        """Expires idle producers. A turn ends after a number of producers instead of partitions, because one partition may have
        thousands, and most have none."""
        now_ms, walked = self._clock.steady_ms(), 0
        for partition in self._partitions:
            hot = partition.log.hot
            walked += PRODUCERS_A_PARTITION + len(hot.end.producers.producers)
            if walked > PRODUCERS_A_TURN:
                await asyncio.sleep(0)
                walked = 0
            self._held_back.look(partition)
            hot.end.producers.expire(now_ms, hot.settings.producer_id_expiration_ms)
            if forgotten := hot.end.producers.take_forgotten():
                most = hot.settings.max_producers
                events.warning(
                    log, "producers.forgotten", partition=partition.partition, forgotten=forgotten, most=most
                )
        self._held_back.walked()
