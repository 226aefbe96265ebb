"""Accepts the loss of records that the bucket held when a partition moved to this node, and that it lacks now.

The partition waits for these records, because otherwise their offsets would be assigned a second time. An operator names
exactly these offsets to give them up. The controller then elects this node again, without the point of hand-over, and the
partition begins at the end of the bucket's records. Committed offsets above this end are lowered, as after the loss of a disk.

If the node dies between the election and the note of the loss, committed offsets may stay above this end.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from service.broker.background.tiering import Tiering
from service.broker.partition.partition import Partition
from service.metadata.commands import ElectUnclean
from service.metadata.controller import Commands
from storage_tiers import events
from storage_tiers.cold.segments.repairer import RepairReport
from storage_tiers.errors import StoreBehind
from storage_tiers.types import OffsetRange

log = logging.getLogger(__name__)


class MoveLosses:
    """`commands` sends commands to the controller."""

    def __init__(self, tiering: Tiering, commands: Commands) -> None:
        self._tiering = tiering
        self._commands = commands

    async def missing(self, partition: Partition) -> OffsetRange | None:
        """The offsets for which the partition waits, judged by the store's current manifest. None if it waits for no offsets,
        or if this node has seen a newer manifest, which must be restored first. Raises LogError if the store does not
        answer."""
        if not partition.is_recovering or partition.log.hot.end_offset >= partition.moved_end:
            return None
        try:
            await self._tiering.load(partition)
        except StoreBehind:
            return None
        tier = partition.log.tier
        found = OffsetRange(0 if tier is None else tier.end, partition.moved_end)
        return found if found.base < found.end else None

    async def give_up(
        self, partition: Partition, lost: OffsetRange, accepted: Sequence[OffsetRange], *, apply: bool
    ) -> RepairReport:
        """With `apply`, gives the offsets up; otherwise reports that it would. The report is a refusal unless `accepted` names
        exactly these offsets. Raises LogError if the controller refuses."""
        (topic, number), named = partition.partition, f"[{lost.base}, {lost.end})"
        if list(accepted) != [lost]:
            return RepairReport(
                refused=f"the bucket held offsets {named} when the partition moved to this broker; put its objects back, or "
                f"give them up with `tidelog cold repair {topic} --accept-loss {number}:{lost.base}-{lost.end} --apply`"
            )
        if not apply:
            return RepairReport(summary=f"offsets {named} will be given up; new records begin at {lost.base}")
        await self._commands.execute(ElectUnclean(topic, number, lost.end))
        events.warning(
            log, "partition.loss_accepted", partition=partition.partition, first_offset=lost.base, end_offset=lost.end
        )
        self._tiering.kick(partition)
        return RepairReport(summary=f"offsets {named} are given up; new records begin at {lost.base}")
