"""Repairs manifests from the data directory of a stopped node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from service.cli.repair_answers import Loss, PartitionRepair

if TYPE_CHECKING:
    from service.settings.node_settings import NodeSettings


def repairs_offline(
    settings: NodeSettings, topic: str | None, *, apply: bool, losses: Sequence[Loss]
) -> Iterator[PartitionRepair]:
    """Like `client.repair.repairs`, but from the data directory of a stopped node. Raises LogError if the directory is in use
    or is not a node's, or if the topic or a partition is unknown."""
    from service.offline.repair import repaired
    from storage_tiers.types import OffsetRange

    accepted: dict[int, list[OffsetRange]] = {}
    for loss in losses:
        accepted.setdefault(loss.partition, []).append(OffsetRange(loss.base, loss.end))

    answers = repaired(settings, topic, apply=apply, accept_loss=accepted)

    async def following() -> PartitionRepair | None:
        async for name, number, found in answers:
            return PartitionRepair(name, number, found.summary, found.refused, found.checked, found.commit)
        return None

    with asyncio.Runner() as runner:
        try:
            while (answer := runner.run(following())) is not None:
                yield answer
        finally:
            runner.run(answers.aclose())
