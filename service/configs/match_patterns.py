"""Which regular expressions may be matched with what clients say of themselves, on the event loop.

Python's matcher tries every way in which a text can be divided among a pattern's repeats and alternatives, one after the
other: `(a+)+b` and thirty times an `a` would stop the node for minutes, and whoever may set configs could do so. So the
ways are counted before, for the longest text that is matched at all. The count is an upper bound, not the truth.
"""

from __future__ import annotations

import re

# The parse tree is not public, but the only place where a pattern's structure can be had.
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

from kafka_gateway.telemetry import LONGEST_MATCHED

#: Three repeats of anything in a row are below, four are above. The slowest that is taken blocks for a fraction of a second.
MOST_WAYS = 10_000_000
_REPEATS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT)
_LOOKS = (_constants.ASSERT, _constants.ASSERT_NOT)


def is_quick(pattern: str) -> bool:
    """Whether it is a pattern, and one that cannot take long."""
    try:
        re.compile(pattern)
        return _ways(_parser.parse(pattern)) <= MOST_WAYS
    except (re.error, OverflowError, RecursionError):
        return False


def _ways(parsed: Any) -> int:
    """Of matching a sequence: those of its parts, multiplied."""
    ways = 1
    for operation, argument in parsed:
        ways = min(ways * _ways_of(operation, argument), MOST_WAYS + 1)
    return ways


def _ways_of(operation: Any, argument: Any) -> int:
    if operation in _REPEATS:
        least, most, inner = argument
        most = min(int(most), LONGEST_MATCHED)
        return max(most - int(least), 0) + 1 if (each := _ways(inner)) == 1 else (each + 1) ** most
    if operation is _constants.BRANCH:
        return sum(map(_ways, argument[1]))
    if operation is _constants.SUBPATTERN:
        return _ways(argument[3])
    if operation is _constants.ATOMIC_GROUP:
        return _ways(argument)
    if operation in _LOOKS:
        return _ways(argument[1])
    if operation is _constants.GROUPREF_EXISTS:
        return _ways(argument[1]) + (_ways(argument[2]) if argument[2] else 1)
    return 1
