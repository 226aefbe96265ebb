"""Repairs of manifests that a store which went backwards shows less of than was seen here (`storage_tiers…manifest.repair`).

The evidence of this node is the root that it saved last and the log on its disk. What was committed is saved and taken over
before anything else is asked of the partition; a crash in between leaves the store with a root of another line, which a second
repair takes over where nothing is missing of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from service.broker.leading import has_hole
from service.broker.partition import Partition
from service.broker.store_access import StoreAccess
from service.broker.tiering import Tiering
from storage_tiers import events
from storage_tiers.cold.manifest.model import Ids
from storage_tiers.cold.process.client import TierClient
from storage_tiers.cold.process.operations import Repair
from storage_tiers.cold.segments.repairer import LocalEvidence, RepairReport
from storage_tiers.errors import InvalidRequest, TierUnavailable
from storage_tiers.types import OffsetRange

log = logging.getLogger(__name__)


class Repairing:
    """`client` and `access` are None on a node without a store."""

    def __init__(
        self,
        client: TierClient | None,
        access: StoreAccess | None,
        tiering: Tiering,
        ids_of: Callable[[Partition], Ids],
    ) -> None:
        self._client = client
        self._access = access
        self._tiering = tiering
        self._ids_of = ids_of

    async def repair(self, partition: Partition, *, apply: bool) -> tuple[RepairReport, int]:
        """What was found, and the commit that was made, or 0."""
        if self._client is None or self._access is None:
            raise InvalidRequest("this node has no store, so there is nothing to repair; start it with --store")
        if self._access.writer is None:
            raise TierUnavailable(f"{partition.partition}: the object store has not answered yet; ask again")
        tier = partition.log.tier
        question = Repair(
            self._ids_of(partition),
            self._access.writer,
            _evidence(partition),
            0 if tier is None else tier.ranges,
            apply,
            self._tiering.lineage.seen(partition),
        )
        report, root = await self._client.repair(question)
        if root is None:
            return report, 0
        self._tiering.lineage.repaired(partition, root.line)
        await self._tiering.accept(partition, root)
        events.info(log, "manifest.repaired", partition=partition.partition, commit=root.commit, end_offset=root.end)
        self._tiering.kick(partition)
        return report, root.commit


def _evidence(partition: Partition) -> LocalEvidence:
    """A log with a hole stands in for nothing."""
    hot = partition.log.hot
    end = min(hot.end_offset, partition.state.high_watermark)
    held = OffsetRange(end, end) if has_hole(partition) else OffsetRange(hot.local_start_offset, end)
    return LocalEvidence(held, tuple(hot.epochs.entries()), partition.log.log_start_offset)
