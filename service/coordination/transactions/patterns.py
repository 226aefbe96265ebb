"""Regular expressions of clients, for the names of transactional ids: those whose match takes a bounded time.

Kafka matches with RE2, in time linear in the name. Python's engine goes back and tries again, so a pattern such as `(a+)+` may
hold the event loop for ever. Hence a subset, in which the number of ways to try is bounded: repetition of single characters,
once and once more at the end, a few optional parts, a few alternatives. Others are refused.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from storage_tiers.errors import InvalidRegularExpression

#: Characters of a pattern.
MAX_LENGTH = 1_000
#: Parts that may be there or not, and ways through all alternatives.
MAX_OPTIONAL, MAX_WAYS = 4, 64
_SINGLE = ("LITERAL", "NOT_LITERAL", "ANY", "IN")
_REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")
_FIXED = (*_SINGLE, "AT")


def compiled(text: str) -> re.Pattern[str]:
    """InvalidRegularExpression if the pattern cannot be read, or is none of the subset."""
    if len(text) > MAX_LENGTH:
        raise InvalidRegularExpression(f"a pattern has at most {MAX_LENGTH} characters, not {len(text)}")
    try:
        pattern = re.compile(text)
        parsed = list(re._parser.parse(text))  # type: ignore[attr-defined]
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidRegularExpression(f"the pattern of transactional ids cannot be read: {error}") from None
    if parsed and _repeats_single(parsed[-1]):
        parsed.pop()  # at the end it stops at once: whatever it takes is the rest
    repeated = optional = 0
    ways = 1
    for kind, count in _counted(parsed):
        if kind == "repeated":
            repeated += 1
        elif kind == "optional":
            optional += 1
        else:
            ways *= count
    if repeated > 1 or optional > MAX_OPTIONAL or ways > MAX_WAYS:
        raise _too_many_ways()
    return pattern


def _counted(items: Any) -> Iterator[tuple[str, int]]:
    """Yields the choices of a pattern with their numbers, nested ones included."""
    for item in items:
        name, value = str(item[0]), item[1]
        if name in _FIXED:
            continue
        if name == "SUBPATTERN":
            yield from _counted(value[3])
        elif name == "BRANCH":
            yield "ways", len(value[1])
            for each in value[1]:
                yield from _counted(each)
        elif name in _REPEATS and value[0] == value[1] and _is_single(value[2]):
            continue
        elif name in _REPEATS and value[1] == 1:
            yield "optional", 1
            yield from _counted(value[2])
        elif _repeats_single(item):
            yield "repeated", 1
        else:
            raise _too_many_ways()


def _repeats_single(item: Any) -> bool:
    return str(item[0]) in _REPEATS and _is_single(item[1][2])


def _is_single(items: Any) -> bool:
    return len(items) == 1 and str(items[0][0]) in _SINGLE


def _too_many_ways() -> InvalidRegularExpression:
    return InvalidRegularExpression(
        "the pattern of transactional ids may be matched in too many ways; repeat single characters only, once and at the end"
    )
