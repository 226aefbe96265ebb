"""Periodic work for every partition: flushing by time, checkpoints, and checks for tiering."""

from __future__ import annotations

import logging

from service.broker.background.flusher import Flusher
from service.broker.background.tiering import Tiering
from service.broker.partition.partitions import Partitions
from storage_tiers import events
from storage_tiers.clock import Clock

log = logging.getLogger(__name__)


class Maintenance:
    def __init__(self, partitions: Partitions, tiering: Tiering, flusher: Flusher, *, clock: Clock) -> None:
        self._partitions = partitions
        self._tiering = tiering
        self._flusher = flusher
        self._clock = clock

    # --- by the second ------------------------------------------------------------------------------------------------
    async def flush_by_time(self) -> None:
        """Flushes partitions whose oldest unflushed record has waited `flush.ms`."""
        now_ms = self._clock.steady_ms()
        for partition in self._partitions:
            hot = partition.log.hot
            if hot.unflushed_records and now_ms - partition.flushed_ms >= hot.settings.flush_ms:
                self._flusher.request(partition)

    async def tier(self) -> None:
        await self._tiering.tick([p for p in self._partitions if p.leads and (p.log.hot.size_bytes or p.is_recovering)])

    async def checkpoint(self) -> None:
        await self._partitions.checkpoint()
        now_ms = self._clock.steady_ms()
        for partition in self._partitions:
            hot = partition.log.hot
            hot.end.producers.expire(now_ms, hot.settings.producer_id_expiration_ms)
            if forgotten := hot.end.producers.take_forgotten():
                most = hot.settings.max_producers
                events.warning(
                    log, "producers.forgotten", partition=partition.partition, forgotten=forgotten, most=most
                )
