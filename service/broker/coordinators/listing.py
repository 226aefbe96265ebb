"""Collects a list from all shards of a coordinator, in slices of the event loop's time.

A node may have millions of groups. The list is not a snapshot: a group that is created or removed meanwhile may or may not be
listed. Kafka, too, queries one shard after another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from grpc_api.contract.coordinator_errors import NotCoordinator
from service.coordination.coordinator_runtime import CoordinatorRuntime
from service.coordination.ports import Shard
from service.coordination.runtime import ShardHost
from storage_tiers.errors import LogError
from storage_tiers.turns import Turn

#: Names between two checks of the clock.
_LOOK = 64

State = TypeVar("State", bound=Shard)
Row = TypeVar("Row")


async def listed(
    runtime: CoordinatorRuntime[State], shares: Callable[[State], Iterator[Sequence[Row]]], turn: Turn
) -> tuple[LogError | None, list[Row]]:
    """The rows of the active shards, and the first error. As in Kafka, a shard that is lost or cannot be loaded is left out
    without an error."""
    error: LogError | None = None
    rows: list[Row] = []
    for host in tuple(runtime.hosts.values()):
        refused = await _add_rows(host, shares, turn, rows)
        error = error or refused
        await turn.rest_if_over()  # also after a shard without rows
    return error, rows


async def lower_case(names: Iterable[str], turn: Turn) -> frozenset[str]:
    """Returns the names of a case-insensitive filter in lower case. A client may send tens of thousands of names."""
    made = set()
    for at, name in enumerate(names):
        made.add(name.lower())
        if not at % _LOOK:
            await turn.rest_if_over()
    return frozenset(made)


async def _add_rows(
    host: ShardHost[State], shares: Callable[[State], Iterator[Sequence[Row]]], turn: Turn, rows: list[Row]
) -> LogError | None:
    """Adds the rows of one shard. Returns the error that ended the list early; None if the shard is lost or cannot be
    loaded."""
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
