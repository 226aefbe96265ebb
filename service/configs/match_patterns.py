"""Decides whether a regular expression may be matched with clients' attributes on the event loop.

Python's matcher tries every way to divide a text among a pattern's repeats and alternatives: `(a+)+b` and thirty `a`
would stop the node for minutes. So the ways are counted first, for the longest text that is matched. The count is an upper
bound.
"""

from __future__ import annotations

import re

# The parse tree is not public, but nothing else exposes a pattern's structure.
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

from kafka_gateway.telemetry import LONGEST_MATCHED

#: Three consecutive repeats are below, four above. The slowest accepted pattern blocks for some ten milliseconds.
MOST_WAYS = 2_200_000
_REPEATS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT)
_LOOKS = (_constants.ASSERT, _constants.ASSERT_NOT)


def is_quick(pattern: str) -> bool:
    """Whether it is a valid pattern that cannot be slow."""
    try:
        re.compile(pattern)
        return _ways(_parser.parse(pattern)) <= MOST_WAYS
    except (re.error, OverflowError, RecursionError):
        return False


def _ways(parsed: Any) -> int:
    """Ways to match a sequence: the product over its parts."""
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
