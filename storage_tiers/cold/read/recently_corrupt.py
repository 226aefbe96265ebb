"""Objects that failed their checksum twice in a row: readers that retry get the same error for a while without another GET.

A client repeats a fetch as fast as it is refused, and each time the node would download a chunk of several mebibytes only to
drop it. The first failure causes no pause: bytes may have been damaged in transit, and the next download repairs that. The
pause is short, because an operator may put the object back at any moment.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import NamedTuple

from storage_tiers.clock import Clock
from storage_tiers.errors import TierCorrupt

#: Seconds after its second failure before a corrupt object is requested again.
CORRUPT_S = 1.0
#: The most failures remembered; the oldest is dropped first.
MOST = 1000


class _Failure(NamedTuple):
    """`until` is in the clock's monotonic seconds; `is_repeated` means at least two failures in a row."""

    text: str
    until: float
    is_repeated: bool


class RecentlyCorrupt:
    """Remembers failures by the download's name."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: OrderedDict[Hashable, _Failure] = OrderedDict()

    def note(self, name: Hashable, failure: TierCorrupt) -> None:
        is_repeated = self._failures.pop(name, None) is not None
        self._failures[name] = _Failure(str(failure), self._clock.monotonic() + CORRUPT_S, is_repeated)
        if len(self._failures) > MOST:
            self._failures.popitem(last=False)

    def forget(self, name: Hashable) -> None:
        """Forgets the failures of a download that has succeeded."""
        self._failures.pop(name, None)

    def check(self, name: Hashable) -> None:
        """Raises TierCorrupt if the download's last two attempts were corrupt, the second one less than CORRUPT_S seconds
        ago."""
        failure = self._failures.get(name)
        if failure is not None and failure.is_repeated and self._clock.monotonic() < failure.until:
            raise TierCorrupt(failure.text)
