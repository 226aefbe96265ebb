"""Clients' regular expressions for transactional ids, restricted to those whose match takes a bounded time.

Kafka matches with RE2, in time linear in the name. Python's engine backtracks, so a pattern such as `(a+)+` could block the
event loop for ever. So only a subset with a bounded number of ways to match is accepted: one repetition of a single character
and one more at the end, a few optional parts, a few alternatives. Other patterns are refused. The number of ways also grows
with the length of the name, which clients choose as well, so a name that could take more than MAX_STEPS does not match.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from grpc_api.contract.coordinator_errors import InvalidRegularExpression

#: Most characters of a pattern.
MAX_LENGTH = 1_000
#: Most optional parts, and most ways through all alternatives.
MAX_OPTIONAL, MAX_WAYS = 4, 64
#: Most character comparisons for one name, which take some milliseconds.
MAX_STEPS = 2_000_000
_SINGLE = ("LITERAL", "NOT_LITERAL", "ANY", "IN")
_REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")
_FIXED = (*_SINGLE, "AT")


class NamePattern(NamedTuple):
    """`ways` counts the ways through optional parts and alternatives, `steps` the comparisons of one way. Each of the `repeats`
    multiplies the comparisons by the length of the name, except the last repeat if it can only stop at a line's end."""

    pattern: re.Pattern[str]
    ways: int
    steps: int
    repeats: int
    ends_at_line: bool

    def matches(self, name: str) -> bool:
        """Whether the whole name matches, and the match takes at most MAX_STEPS."""
        return self.steps_of(name) <= MAX_STEPS and self.pattern.fullmatch(name) is not None

    def steps_of(self, name: str) -> int:
        """The most comparisons that the name can take."""
        repeats = self.repeats - (self.ends_at_line and "\n" not in name)
        return self.ways * self.steps * int((len(name) + 1) ** repeats)


def compiled(text: str) -> NamePattern:
    """Compiles a pattern. Raises InvalidRegularExpression if it cannot be parsed, or is outside the subset."""
    if len(text) > MAX_LENGTH:
        raise InvalidRegularExpression(f"a pattern has at most {MAX_LENGTH} characters, not {len(text)}")
    try:
        pattern = re.compile(text)
        tree = re._parser.parse(text)  # type: ignore[attr-defined]
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidRegularExpression(f"the pattern of transactional ids cannot be read: {error}") from None
    parsed = list(tree)
    repeated = optional = 0
    ends_at_line = False
    ways = 1
    last = parsed.pop() if parsed and _repeats_single(parsed[-1]) else None
    if last is not None:
        ends_at_line = last[1][1] is re._constants.MAXREPEAT and str(last[1][2][0][0]) == "ANY"  # type: ignore[attr-defined]
    for kind, count in _counted(parsed):
        if kind == "repeated":
            repeated += 1
        elif kind == "optional":
            optional += 1
        else:
            ways *= count
    if repeated > 1 or optional > MAX_OPTIONAL or ways > MAX_WAYS:
        raise _too_many_ways()
    steps = len(text) + int(tree.getwidth()[0]) + 1
    return NamePattern(pattern, ways << optional, steps, repeated + (last is not None), ends_at_line)


def _counted(items: Any) -> Iterator[tuple[str, int]]:
    """Yields each choice in a pattern, including nested ones: its kind and its number of ways. Raises
    InvalidRegularExpression if the pattern is outside the subset."""
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
        "the pattern of transactional ids can match in too many ways; repeat single characters only, once and at the end"
    )
