"""Walks all shards of a coordinator for a list of what they have, in slices of the event loop.

A node may have millions of groups. The list is not of one moment: what comes or goes meanwhile may be in it or not, as in
Kafka, where each shard is asked in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from service.coordination.ports import Shard
from service.coordination.runtime import CoordinatorRuntime, ShardHost
from storage_tiers.errors import LogError, NotCoordinator
from storage_tiers.turns import Turn

State = TypeVar("State", bound=Shard)
Row = TypeVar("Row")


async def listed(
    runtime: CoordinatorRuntime[State], shares: Callable[[State], Iterator[Sequence[Row]]], turn: Turn
) -> tuple[LogError | None, list[Row]]:
    """The rows of the active shards. A shard that is lost, or that cannot be loaded, is left out, as in Kafka; the first error
    of the others is that of the list."""
    error: LogError | None = None
    rows: list[Row] = []
    try:
        for host in tuple(runtime.hosts.values()):
            refused = await _add_rows(host, shares, turn, rows)
            error = error or refused
    finally:
        turn.leave()
    return error, rows


async def _add_rows(
    host: ShardHost[State], shares: Callable[[State], Iterator[Sequence[Row]]], turn: Turn, rows: list[Row]
) -> LogError | None:
    """Adds the rows of one shard. Returns the error that ended them early, None if the shard is lost."""
    try:
        for share in host.look(shares):
            rows += share
            if turn.is_over:
                await turn.rest()
    except NotCoordinator:
        return None
    except LogError as refused:
        return refused
    return None
