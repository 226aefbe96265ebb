"""Repairs manifests after a store went backwards and shows less than this node has seen (`storage_tiers.cold.manifest.repair`).

This node's evidence is its last saved manifest and the log on its disk. A repair saves the manifest that it commits, and makes
it current before any other request for the partition. After a crash between commit and save, the store's manifest does not
continue the saved one. A second repair then accepts the store's manifest if none of its objects is missing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from service.broker.api.move_losses import MoveLosses
from service.broker.background.store_access import StoreAccess
from service.broker.background.tiering import Tiering
from service.broker.background.topic_files import TopicFiles
from service.broker.partition.leading import agrees, has_hole
from service.broker.partition.partition import Partition
from service.broker.partition.partitions import Partitions
from storage_tiers import events
from storage_tiers.cold.manifest.saved_manifest import FILE_NAME
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
        move_losses: MoveLosses,
    ) -> None:
        self._topic_files = topic_files
        self._partitions = partitions
        self._access = access
        self._tiering = tiering
        self._move_losses = move_losses

    async def repair_cluster(self, *, apply: bool) -> tuple[RepairReport, int]:
        """Repairs `cluster.json`. Returns the report, and the incarnation written, or 0."""
        access = self._store()
        found = await access.repair(apply=apply)
        if found[1]:
            await self._tiering.kick_all(self._partitions)
        return found

    async def repair_topic(self, topic: str, *, apply: bool) -> tuple[RepairReport, int]:
        """Repairs `topic.json`. Returns the report, and the revision written, or 0."""
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
        """Repairs a manifest. Returns the report, and the commit made, or 0. `accepted` are the offsets accepted as lost."""
        access = self._store()
        if refused := await access.nothing_there() or (apply and _why_closed(access)):
            return RepairReport(refused=refused), 0
        if (lost := await self._move_losses.missing(partition)) is not None:
            return await self._move_losses.give_up(partition, lost, accepted, apply=apply), 0
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
                # No saved manifest shows more than the store, yet offsets are known to be missing.
                report = RepairReport(refused=str(behind))
            return report, 0
        self._tiering.lineage.repaired(partition, manifest.line)
        await self._tiering.accept(partition, manifest)
        events.info(
            log, "manifest.repaired", partition=partition.partition, commit=manifest.commit, end_offset=manifest.end
        )
        return report, manifest.commit


def _why_closed(access: StoreAccess) -> str:
    """The reason why this node may not write; empty if it may. Raises TierUnavailable while the store has not answered."""
    if access.behind is not None:
        return f"cluster.json comes first: `tidelog cold repair --cluster`. {access.behind}"
    if access.writer is None:
        raise TierUnavailable("the object store has not answered yet; retry")
    return ""


def _evidence(partition: Partition) -> LocalEvidence:
    """This node's evidence. A log proves nothing if it has a hole or differs from the last manifest that this node has seen.
    `uncommitted` is False if a manifest was saved here, even a damaged one, or if the local log begins above log start. Either
    proves that there were commits."""
    hot = partition.log.hot
    end = min(hot.end_offset, partition.state.high_watermark)
    tier = partition.log.tier
    stands_in = not has_hole(partition) and (tier is None or agrees(partition, tier))
    held = OffsetRange(hot.local_start_offset if stands_in else end, end)
    was_saved = tier is not None or os.path.exists(os.path.join(hot.directory, FILE_NAME))
    uncommitted = not was_saved and hot.local_start_offset <= hot.log_start_offset
    return LocalEvidence(held, tuple(hot.end.epochs.entries()), partition.log.log_start_offset, uncommitted)
