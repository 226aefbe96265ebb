"""The disk watermarks, which keep a long store outage from filling the disk.

Nothing may be evicted while the object store is unavailable. So produce runs at full speed until the data directory's file
system is `slow_at` full, and is slowed between `slow_at` and `refuse_at`. Above that, produce is refused, because reads,
offloads and eviction need the rest. It is also refused while the ballast is released (`storage_tiers.hot.ballast`), because
that space is needed to free more space.

Coordinators' records and transaction markers are neither slowed nor refused at these watermarks, because groups must keep
working while their producers wait. Their reserve is the share COORDINATOR_RESERVE of the space above `refuse_at`. When it is
used up, they are refused too.
"""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import dataclass

from storage_tiers import events
from storage_tiers.errors import StorageError
from storage_tiers.hot.ballast import Ballast

log = logging.getLogger(__name__)

#: The longest delay of one produce answer, in seconds.
MAX_THROTTLE_S = 1.0
#: Share of the space above the refusing watermark that coordinators may fill; offloads and eviction keep the rest.
COORDINATOR_RESERVE = 0.5


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Used shares of the file system, 0..1."""

    slow_at: float = 0.90
    refuse_at: float = 0.95

    def __post_init__(self) -> None:
        if not 0 < self.slow_at <= self.refuse_at <= 1:
            raise ValueError("disk watermarks must satisfy 0 < slow <= refuse <= 1")

    @property
    def reserve_ends_at(self) -> float:
        """The used share from which coordinators are refused, too."""
        return self.refuse_at + (1 - self.refuse_at) * COORDINATOR_RESERVE


class DiskGuard:
    """`look` is called by a background worker; `admit` costs one attribute access on the hot path. `throttled` and `refused`
    count producers' requests that were delayed, and their batches that were refused, since the start. `no_room` is the error
    with which coordinators' records and markers are refused now; None while they are accepted."""

    __slots__ = (
        "_ballast",
        "_directory",
        "_refusal",
        "_reserve_used",
        "_said",
        "_watermarks",
        "no_room",
        "refused",
        "throttle_s",
        "throttled",
        "used",
    )

    def __init__(self, directory: str, watermarks: Watermarks, ballast: Ballast | None = None) -> None:
        self._directory = directory
        self._ballast = ballast
        if ballast is not None:
            ballast.on_release = self._refuse_for_ballast
            with contextlib.suppress(OSError):  # the next call of `look` tries again
                ballast.make()
        self._watermarks = watermarks
        self._refusal: StorageError | None = None
        self.no_room: StorageError | None = None
        self._said = "taken"
        self._reserve_used = False
        self.throttle_s = 0.0
        self.used = 0.0
        self.throttled = 0
        self.refused = 0

    def look(self) -> None:
        if self._ballast is not None:
            self._ballast.make()
        stat = os.statvfs(self._directory)
        available = stat.f_bavail + stat.f_blocks - stat.f_bfree
        self.judge(1 - stat.f_bavail / available if available else 1.0)

    def judge(self, used: float) -> None:
        """Sets the throttle and the refusals from the used share of the disk, 0..1."""
        self.used = used
        self._judge_producers(used)
        self._judge_coordinators(used)

    def _judge_producers(self, used: float) -> None:
        slow, refuse = self._watermarks.slow_at, self._watermarks.refuse_at
        if used >= refuse:
            self._refusal = StorageError(
                f"{self._directory} is {used:.0%} full (produce is refused from {refuse:.0%}); "
                "free space, lower retention, or bring the object store back"
            )
            self.throttle_s = 0.0
            self._say("refused")
            return
        if self._is_ballast_released:
            self._refuse_for_ballast()
            self._say("refused")
            return
        self._refusal = None
        share = (used - slow) / (refuse - slow) if refuse > slow else 0.0
        self.throttle_s = MAX_THROTTLE_S * max(0.0, share)
        self._say("slowed" if share > 0 else "taken")

    def _judge_coordinators(self, used: float) -> None:
        end = self._watermarks.reserve_ends_at
        if used >= end:
            self.no_room = StorageError(
                f"{self._directory} is {used:.1%} full (coordinators' reserve is used from {end:.1%}); free space, lower "
                "retention, or bring the object store back"
            )
        elif self._is_ballast_released:
            self._refuse_for_ballast()
        else:
            self.no_room = None
        is_used = self.no_room is not None
        if is_used != self._reserve_used:
            self._reserve_used = is_used
            say = events.warning if is_used else events.info
            coordinators = "refused" if is_used else "taken"
            say(log, "disk.reserve", coordinators=coordinators, used=round(used, 4), path=self._directory)

    @property
    def _is_ballast_released(self) -> bool:
        return self._ballast is not None and self._ballast.is_released

    @property
    def refusal(self) -> str:
        """The reason why produce is refused; empty if it is accepted."""
        return "" if self._refusal is None else str(self._refusal)

    def _refuse_for_ballast(self) -> None:
        """Refuses all records, because they must not use the space that the ballast released. Any thread may call this."""
        self._refusal = self.no_room = StorageError(
            f"{self._directory} has no space left and its ballast is released; free space, lower retention, or "
            "bring the object store back"
        )

    def _say(self, produce: str) -> None:
        """Logs whether produce is taken, slowed or refused, if that has changed."""
        if produce != self._said:
            self._said = produce
            say = events.info if produce == "taken" else events.warning
            say(log, "disk.watermark", produce=produce, used=round(self.used, 4), path=self._directory)

    def admit(self) -> None:
        if self._refusal is not None:
            self.refused += 1
            raise self._refusal.with_traceback(None)  # all batches share one error, which must not collect tracebacks

    def admit_marker(self) -> None:
        """Raises StorageError while coordinators' records and markers are refused."""
        if self.no_room is not None:
            raise self.no_room.with_traceback(None)
