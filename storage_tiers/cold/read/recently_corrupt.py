"""Objects that failed their checksum a moment ago: readers that retry get the same error without another GET.

A client repeats a fetch as fast as it is refused, and each time the node would download a chunk of several mebibytes only to
drop it. For a short time, because an operator may put the object back at any moment.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from storage_tiers.clock import Clock
from storage_tiers.errors import TierCorrupt

#: Seconds until a corrupt object is asked for again.
CORRUPT_S = 1.0
#: Failures remembered; the oldest make room.
MOST = 1000


class RecentlyCorrupt:
    """By the download's name."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: OrderedDict[Hashable, tuple[float, str]] = OrderedDict()

    def note(self, name: Hashable, failure: TierCorrupt) -> None:
        self._failures.pop(name, None)
        self._failures[name] = self._clock.monotonic() + CORRUPT_S, str(failure)
        if len(self._failures) > MOST:
            self._failures.popitem(last=False)

    def check(self, name: Hashable) -> None:
        """Raises TierCorrupt if that download failed so within the last CORRUPT_S seconds."""
        until, failure = self._failures.get(name, (0.0, ""))
        if not failure:
            return
        if self._clock.monotonic() < until:
            raise TierCorrupt(failure)
        del self._failures[name]
