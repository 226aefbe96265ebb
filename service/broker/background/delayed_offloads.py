"""Names the producer whose open transaction keeps a partition's closed segments out of the bucket.

Records above the last stable offset are not offloaded, so the local disk fills until the transaction ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from service.broker.partition.partition import Partition
from storage_tiers import events
from storage_tiers.errors import RequestTimedOut

log = logging.getLogger(__name__)


class HeldBackOffload(NamedTuple):
    """`offset` is the first offset of the producer's open transaction. `held_bytes` is the size of the closed segments that
    wait for its end."""

    producer_id: int
    offset: int
    held_bytes: int


def held_back(partition: Partition) -> HeldBackOffload | None:
    """Returns None if no open transaction delays an offload."""
    hot = partition.log.hot
    producers = hot.end.producers
    first, producer_id = producers.first_undecided_offset, producers.first_undecided_producer
    if first is None or producer_id is None or first >= hot.active_start_offset or not _is_offloaded(partition):
        return None
    return HeldBackOffload(producer_id, first, hot.totals_after(first).closed_size)


def delayed_by(partition: Partition, end: int) -> str:
    """A clause that names the open transaction which keeps records below `end` out of the bucket; empty if there is none."""
    producers = partition.log.hot.end.producers
    first = producers.first_undecided_offset
    if first is None or first >= end:
        return ""
    return (
        f"producer {producers.first_undecided_producer} has a transaction open since offset {first} of "
        f"{partition.partition}, and no record from that offset on is offloaded before it ends"
    )


def not_offloaded(
    late: Mapping[Partition, int], timeout_ms: int, behind: Callable[[Partition], object]
) -> RequestTimedOut:
    """The error of a timed-out wait for offloads. `late` has the partitions with records that are not in the bucket yet, and
    the end offset of these records. `behind` returns the reason if the store shows less of a partition than before. Such a
    store needs repair, and a retry would not help."""
    said = f"after {timeout_ms} ms the bucket still lacks records of {', '.join(str(each.partition) for each in late)}"
    reason = next((why for each in late if (why := behind(each)) is not None), None)
    if reason is not None:
        return RequestTimedOut(f"{said}: {reason}")
    delayed = next((why for each, end in late.items() if (why := delayed_by(each, end))), "")
    return RequestTimedOut(f"{said}; {delayed + '; ' if delayed else ''}the operation continues; retry")


class DelayedOffloads:
    """`look` is called for each partition of a walk, `walked` at its end. Logs each producer once."""

    def __init__(self) -> None:
        self._logged: dict[Partition, int] = {}
        self._found: dict[Partition, int] = {}

    def look(self, partition: Partition) -> None:
        held, logged = held_back(partition), self._logged.get(partition)
        if held is None:
            if logged is not None:
                events.info(log, "offload.released", partition=partition.partition)
            return
        self._found[partition] = held.producer_id
        if logged != held.producer_id:
            events.warning(
                log,
                "offload.held_back",
                partition=partition.partition,
                producer_id=held.producer_id,
                offset=held.offset,
                held_bytes=held.held_bytes,
            )

    def walked(self) -> None:
        self._logged, self._found = self._found, {}


def _is_offloaded(partition: Partition) -> bool:
    return partition.leads and partition.log.cold is not None and partition.log.hot.settings.remote_storage_enable
