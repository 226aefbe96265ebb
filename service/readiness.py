"""Whether a node may be sent requests, and what it waits for: made first, told by its parts, shown by `/readyz`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Reports:
    """What a node's parts answer when asked: of a node that has none yet, nothing.

    `trouble` is what is wrong with a store that was probed; `waiting` partitions wait for it, `refusing` ones the disk keeps
    from being written or opened; `behind` tells why, of partitions of which the store shows less than was seen; `holding`
    says why the node takes nothing yet, and is empty once it may."""

    trouble: Callable[[], str | None] = lambda: None
    waiting: Callable[[], list[str]] = list
    refusing: Callable[[], list[str]] = list
    holding: Callable[[], str] = str
    behind: Callable[[], Mapping[str, str]] = dict


@dataclass(slots=True)
class Readiness:
    """True after recovery and the first probe of the store; false at once when the node is told to stop.

    A store that does not answer, at the probe or later, does not make the node unready (local data is served), but is named
    in the body, with the partitions that wait for it; so are those that the disk keeps from being written or opened, and
    those of which the store shows less than was seen, each with its reason. A data directory that may be an older copy does
    make it unready.
    """

    recovered: bool = False
    probed: bool = False
    stopping: bool = False
    store: str = "not probed yet"
    reports: Reports = field(default_factory=Reports)

    @property
    def ready(self) -> bool:
        return self.recovered and self.probed and not self.stopping and not self.reports.holding()

    def body(self) -> str:
        reports = self.reports
        return json.dumps(
            {
                "ready": self.ready,
                "recovered": self.recovered,
                "stopping": self.stopping,
                "holding": reports.holding(),
                "store": (reports.trouble() if self.store == "ok" else None) or self.store,
                "waiting_partitions": reports.waiting(),
                "refusing_partitions": reports.refusing(),
                "store_behind": reports.behind(),
            }
        )
