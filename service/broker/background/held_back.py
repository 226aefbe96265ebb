"""Names the producer whose open transaction keeps a partition's closed segments out of the bucket: nothing above the last
stable offset is offloaded, so local disk fills until the transaction ends.
"""

from __future__ import annotations

import logging

from service.broker.partition.partition import Partition
from storage_tiers import events

log = logging.getLogger(__name__)


class HeldBack:
    """Looks at every partition of a walk, then `walked`. Tells each producer once; keeps what the last walk found, no more."""

    def __init__(self) -> None:
        self._told: dict[Partition, int] = {}
        self._found: dict[Partition, int] = {}

    def look(self, partition: Partition) -> None:
        hot = partition.log.hot
        producers = hot.end.producers
        first, producer_id = producers.first_undecided_offset, producers.first_undecided_producer
        told = self._told.get(partition)
        if first is None or producer_id is None or first >= hot.active_start_offset or not _is_offloaded(partition):
            if told is not None:
                events.info(log, "offload.released", partition=partition.partition)
            return
        self._found[partition] = producer_id
        if told != producer_id:
            held = hot.totals_after(first).closed_size
            events.warning(
                log,
                "offload.held_back",
                partition=partition.partition,
                producer_id=producer_id,
                offset=first,
                held_bytes=held,
            )

    def walked(self) -> None:
        self._told, self._found = self._found, {}


def _is_offloaded(partition: Partition) -> bool:
    return partition.leads and partition.log.cold is not None and partition.log.hot.settings.remote_storage_enable
