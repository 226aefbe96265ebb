"""Settings of Python's garbage collector. A collection stops the process for 0.25 µs per object.

Records never become Python objects, so reference counts free what the hot path allocates, and the collector finds little. It
examines each surviving object twice, soon after its creation and a little later. Collections are small, because a burst of
callers can make a node hold hundreds of thousands of objects within a second. The objects that exist at the start are never
examined.

Not promised: a bound of a full collection, which happens after at least twenty million surviving objects and examines all of
them. Nor a bound of other collections while as many objects are freed as are created, because only the difference counts. A
module that frees and creates thousands of objects in a row starts collections itself (`service/coordination/answer_queue.py`).
"""

from __future__ import annotations

import gc

#: Net allocations before a collection of the youngest generation, and collections of each generation before one of the next.
#: With larger numbers surviving objects are examined as often, but each collection takes longer: while thousands of members
#: join a group, a produce would wait for collections more than for requests.
_YOUNGEST, _MIDDLE, _OLDEST = 500, 2, 40_000
#: Largest number of objects that a collection other than a full one examines: survivors of earlier ones, and the youngest.
MOST_LOOKED_AT = (_MIDDLE + 2) * _YOUNGEST


def collect_a_few_at_a_time() -> None:
    """Collects once, exempts the existing objects from collection, and sets the thresholds."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNGEST, _MIDDLE, _OLDEST)
