"""Settings of Python's garbage collector. A collection stops the process for 0.25 µs per object.

Records never become Python objects, so reference counts free the objects of the hot path, and the collector finds little. It
examines each surviving object twice, soon after its creation and a little later. The thresholds keep collections small, because
a burst of requests can create hundreds of thousands of objects within a second. The objects that exist when the start ends are
never examined.

Not promised: a limit for a full collection, which happens after at least twenty million surviving objects and examines all of
them; a limit for other collections while objects are freed as fast as they are created, because the thresholds count only the
difference. A module that frees and creates thousands of objects in a row starts collections itself
(`service/coordination/answer_queue.py`).
"""

from __future__ import annotations

import gc

#: Net allocations before a collection of the youngest generation, and collections of each generation before a collection of the
#: next. With larger numbers, surviving objects are examined as often, but each collection takes longer. While thousands of
#: members join a group, a produce would then wait longer for collections than for requests.
_YOUNGEST, _MIDDLE, _OLDEST = 500, 2, 40_000
#: The most objects that a collection examines unless it is a full one: survivors of earlier collections, and the youngest
#: objects.
MOST_LOOKED_AT = (_MIDDLE + 2) * _YOUNGEST
#: The same thresholds during a start, which serves nothing yet and keeps most of the objects that it creates.
_WHILE_STARTING = 50_000, 20, 100


def collect_rarely() -> None:
    """Sets thresholds for the start, at best before the imports. With Python's own, the collector examines the imported modules
    and the partitions opened so far again and again."""
    gc.set_threshold(*_WHILE_STARTING)


def exempt_existing() -> None:
    """Exempts the existing objects from collection. After the imports of a start, to examine them takes 50 ms, and a few
    hundred of them are unreachable."""
    gc.freeze()


def collect_a_few_at_a_time() -> None:
    """Collects once, exempts the existing objects from collection, and sets the thresholds."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNGEST, _MIDDLE, _OLDEST)
