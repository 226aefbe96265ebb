"""Whether a node is ready for requests, and the reason if it is not. The node's parts update this state, and `/readyz` shows
it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Reports:
    """The reports of a node's parts; empty until the node has parts.

    `trouble` is the current problem of a probed store, or None. `recovering` names partitions that are recovering. `refusing`
    names partitions that cannot be written or opened because of the disk. `behind` maps each partition for which the store is
    behind to the reason. `holding` is the reason why the node accepts no records yet, or empty. `full` is the reason why it
    accepts no records for lack of disk space, or empty. `fenced` is True while the node's controller keeps it fenced.
    `controller` is the reason why a broker cannot follow its controller, or None. `unreadable` maps each partition whose
    coordinator cannot be loaded to the reason."""

    trouble: Callable[[], str | None] = lambda: None
    recovering: Callable[[], list[str]] = list
    refusing: Callable[[], list[str]] = list
    holding: Callable[[], str] = str
    full: Callable[[], str] = str
    behind: Callable[[], Mapping[str, str]] = dict
    fenced: Callable[[], bool] = bool
    controller: Callable[[], str | None] = lambda: None
    unreadable: Callable[[], Mapping[str, str]] = dict


@dataclass(slots=True)
class Readiness:
    """A node is ready after recovery and the first probe of the store, and unready as soon as it has to stop.

    A store that does not answer, at the probe or later, does not make the node unready, because the node serves local data. Nor
    does a controller that does not answer, or a full disk: consumers, offloads and eviction need the node, and a restart frees
    nothing. Nor does a coordinator that cannot be loaded, because all others are served. A data directory that may be an older
    copy makes the node unready, as does a controller that keeps it fenced. The body names the problems of the store, the disk
    and the controller. It also lists four kinds of partitions: those that are recovering; those that cannot be written or
    opened because of the disk; and, each with the reason, those for which the store is behind, and those whose coordinator
    cannot be loaded.
    """

    recovered: bool = False
    probed: bool = False
    stopping: bool = False
    store: str = "not probed yet"
    reports: Reports = field(default_factory=Reports)

    @property
    def ready(self) -> bool:
        return self.recovered and self.probed and not (self.stopping or self.reports.holding() or self.reports.fenced())

    def body(self) -> str:
        reports = self.reports
        return json.dumps(
            {
                "ready": self.ready,
                "recovered": self.recovered,
                "stopping": self.stopping,
                "holding": reports.holding(),
                "fenced": reports.fenced(),
                "controller": reports.controller() or "ok",
                "store": (reports.trouble() if self.store == "ok" else None) or self.store,
                "disk": reports.full() or "ok",
                "recovering_partitions": reports.recovering(),
                "refusing_partitions": reports.refusing(),
                "store_behind": reports.behind(),
                "unreadable_coordinators": reports.unreadable(),
            }
        )
