"""Repairs of manifests that a store which went backwards shows less of than was seen here (`storage_tiers…manifest.repair`).

The evidence of this node is the manifest that it saved last and the log on its disk. The manifest that a repair commits is
saved and current before anything else is asked of the partition; a crash in between leaves the store with a manifest of another
line, which a second repair takes over where nothing is missing of it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from service.broker.background.store_access import StoreAccess
from service.broker.background.tiering import Tiering
from service.broker.background.topic_files import TopicFiles
from service.broker.partition.leading import agrees, has_hole
from service.broker.partition.partition import Partition
from service.broker.partition.partitions import Partitions
from service.broker.partition.saved_manifest import FILE_NAME
from storage_tiers import events
from storage_tiers.cold.process.operations import Repair
from storage_tiers.cold.segments.repairer import LocalEvidence, RepairReport
from storage_tiers.errors import InvalidRequest, TierUnavailable
from storage_tiers.types import OffsetRange

log = logging.getLogger(__name__)


class Repairing:
    """`access` is None on a node without a store."""

    def __init__(
        self,
        access: StoreAccess | None,
        tiering: Tiering,
        topic_files: TopicFiles,
        partitions: Partitions,
    ) -> None:
        self._topic_files = topic_files
        self._partitions = partitions
        self._access = access
        self._tiering = tiering

    async def repair_cluster(self, *, apply: bool) -> tuple[RepairReport, int]:
        """Of `cluster.json`: what was found, and the incarnation that was written, or 0."""
        access = self._store()
        found = await access.repair(apply=apply)
        if found[1]:
            await self._tiering.kick_all(self._partitions)
        return found

    async def repair_topic(self, topic: str, *, apply: bool) -> tuple[RepairReport, int]:
        """Of `topic.json`: what was found, and the revision that was written, or 0."""
        access = self._store()
        if refused := await access.nothing_there() or (apply and _why_closed(access)):
            return RepairReport(refused=refused), 0
        found = await self._topic_files.repair(topic, apply=apply)
        if found[1]:
            await self._tiering.kick_all(self._partitions.of_topic(topic))
        return found

    def _store(self) -> StoreAccess:
        if self._access is None:
            raise InvalidRequest("this node has no store, so there is nothing to repair; start it with --store")
        return self._access

    async def repair(
        self, partition: Partition, *, apply: bool, accepted: Sequence[OffsetRange] = ()
    ) -> tuple[RepairReport, int]:
        """What was found, and the commit that was made, or 0. `accepted` are the offsets that are given up."""
        access = self._store()
        if refused := await access.nothing_there() or (apply and _why_closed(access)):
            return RepairReport(refused=refused), 0
        if not apply:
            return await self._repair(access, partition, accepted, apply=False)
        with self._tiering.lineage.repairing(partition):
            found = await self._repair(access, partition, accepted, apply=True)
        if found[1]:
            self._tiering.kick(partition)
        return found

    async def _repair(
        self,
        access: StoreAccess,
        partition: Partition,
        accepted: Sequence[OffsetRange],
        *,
        apply: bool,
    ) -> tuple[RepairReport, int]:
        tier = partition.log.tier
        question = Repair(
            partition.ids,
            access.preview_writer,
            _evidence(partition),
            0 if tier is None else tier.segments,
            apply,
            self._tiering.lineage.seen(partition),
            tuple(accepted),
        )
        found = await access.client.ask(question)
        report, manifest = found.report, found.manifest
        if manifest is None:
            behind = self._tiering.lineage.reason(partition)
            if behind is not None and report == RepairReport():
                # Nothing that was saved says more than the store; what is known to be missing is not.
                report = RepairReport(refused=str(behind))
            return report, 0
        self._tiering.lineage.repaired(partition, manifest.line)
        await self._tiering.accept(partition, manifest)
        events.info(
            log, "manifest.repaired", partition=partition.partition, commit=manifest.commit, end_offset=manifest.end
        )
        return report, manifest.commit


def _why_closed(access: StoreAccess) -> str:
    """Why nothing may be written; empty if it may. TierUnavailable while the store has not answered."""
    if access.behind is not None:
        return f"cluster.json comes first: `tidelog cold repair --cluster`. {access.behind}"
    if access.writer is None:
        raise TierUnavailable("the object store has not answered yet; retry")
    return ""


def _evidence(partition: Partition) -> LocalEvidence:
    """A log with a hole, or of other records than the manifest seen, stands in for nothing. There were commits where a manifest
    was saved here, also if that is damaged by now, and where the log begins later than the partition does."""
    hot = partition.log.hot
    end = min(hot.end_offset, partition.state.high_watermark)
    tier = partition.log.tier
    stands_in = not has_hole(partition) and (tier is None or agrees(partition, tier))
    held = OffsetRange(hot.local_start_offset if stands_in else end, end)
    was_saved = tier is not None or os.path.exists(os.path.join(hot.directory, FILE_NAME))
    uncommitted = not was_saved and hot.local_start_offset <= hot.log_start_offset
    return LocalEvidence(held, tuple(hot.end.epochs.entries()), partition.log.log_start_offset, uncommitted)
