"""Limits the length of the texts that are matched with a regular expression on the event loop.

Python's matcher tries every way to divide a text among a pattern's repeats and alternatives: `(a+)+b` and thirty `a`
would stop the node for minutes. So this module first counts the ways for texts of several lengths. The count is an upper bound.

Pure.
"""

from __future__ import annotations

import re
from functools import lru_cache

# The parse tree is not public, but nothing else exposes a pattern's structure.
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

#: The lengths in characters that are tried. A pattern's limit is the greatest length for which the pattern is quick; longer
#: texts never match. A pattern with three repeats in a row is quick up to the second length.
LENGTHS = (128, 64, 40)
LONGEST_MATCHED, LONGEST_OF_THREE_REPEATS, LEAST_MATCHED = LENGTHS
#: The slowest accepted pattern blocks the event loop for about two milliseconds.
MOST_WAYS = 300_000
_REPEATS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT)
_LOOKS = (_constants.ASSERT, _constants.ASSERT_NOT)
#: Most patterns whose limits are cached. One request of a client may need the patterns of many subscriptions.
_KEPT_PATTERNS = 1_000


@lru_cache(_KEPT_PATTERNS)
def longest_text(pattern: str) -> int:
    """The length of the longest text that may be matched with the pattern; 0 if the pattern is invalid, or slow for short
    texts."""
    try:
        re.compile(pattern)
        parsed = _parser.parse(pattern)
        return next((length for length in LENGTHS if _ways(parsed, length) <= MOST_WAYS), 0)
    except (re.error, OverflowError, RecursionError):
        return 0


def _ways(parsed: Any, length: int) -> int:
    """Ways to match a sequence with a text of this length: the product over its parts."""
    ways = 1
    for operation, argument in parsed:
        ways = min(ways * _ways_of(operation, argument, length), MOST_WAYS + 1)
    return ways


def _ways_of(operation: Any, argument: Any, length: int) -> int:
    if operation in _REPEATS:
        least, most, inner = argument
        most = min(int(most), length)
        return max(most - int(least), 0) + 1 if (each := _ways(inner, length)) == 1 else (each + 1) ** most
    if operation is _constants.BRANCH:
        return sum(_ways(each, length) for each in argument[1])
    if operation is _constants.SUBPATTERN:
        return _ways(argument[3], length)
    if operation is _constants.ATOMIC_GROUP:
        return _ways(argument, length)
    if operation in _LOOKS:
        return _ways(argument[1], length)
    if operation is _constants.GROUPREF_EXISTS:
        return _ways(argument[1], length) + (_ways(argument[2], length) if argument[2] else 1)
    return 1
