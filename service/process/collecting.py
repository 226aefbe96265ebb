"""When Python's collector looks at what. While it looks, nobody is served, for 0.25 µs an object.

Records never become Python objects, so what the hot path allocates dies by count, and there is little to find. What is new
and stays is looked at twice, soon after it was made and a little later, both times a few at a time: callers who come all at
once make a node hold hundreds of thousands of objects within a second. What was there at the start is never looked at.

Not promised: a bound of a full collection, which comes after some twenty million objects that stayed, and looks at all.
"""

from __future__ import annotations

import gc

#: Objects made, less those gone, until the youngest are looked at; and such looks until those that they left are. What stays
#: is looked at as often with larger numbers, but by more milliseconds at a time.
_YOUNGEST, _MIDDLE, _OLDEST = 2_500, 2, 2_800
#: Objects that one collection but a full one looks at: what the looks before left, and the youngest.
MOST_LOOKED_AT = (_MIDDLE + 2) * _YOUNGEST


def collect_a_few_at_a_time() -> None:
    """From now on, with nothing to be collected of what there is."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNGEST, _MIDDLE, _OLDEST)
