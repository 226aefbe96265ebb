"""Prunes segments that a query's filters exclude, by the manifest alone.

Pure and conservative: a pruned segment holds no row that a filter would keep, and Spark filters all rows again. Partitions
and ranges of offsets are exact. A timestamp's lower bound prunes segments whose newest record is older. An upper bound prunes
nothing, because a segment's `min_timestamp` is only the smallest first timestamp of its batches, and older records may follow.
Keys prune nothing yet, because a manifest does not list them.

Pruning by time relies on the newest timestamp of each segment, which comes from batch headers. With `CreateTime` and
`tidelog.record.validation=header`, the broker trusts the clients' headers, so that timestamp may be wrong.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

COLUMNS = ("partition", "offset", "timestamp")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INT64_MAX = (1 << 63) - 1

_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "in": lambda value, values: value in values,
}


class Comparison(NamedTuple):
    """`column` `operator` `value`. The operator is =, >, >=, <, <= or in. For `in` the value is a tuple."""

    column: str
    operator: str
    value: Any

    def __str__(self) -> str:
        return f"{self.column} {self.operator} {self.value}"


@dataclass(frozen=True, slots=True)
class Pruning:
    """Comparisons. A wanted row satisfies all of them."""

    comparisons: tuple[Comparison, ...] = ()

    def __str__(self) -> str:
        return ", ".join(map(str, self.comparisons)) or "nothing"

    def wants_partition(self, partition: int) -> bool:
        return all(_COMPARE[each.operator](partition, each.value) for each in self._of("partition"))

    def offsets(self, start: int, end: int) -> tuple[int, int]:
        """The part of [start, end) that may hold wanted rows, possibly empty."""
        least, most = start, end
        for each in self._of("offset"):
            low, stop = _bounds(each)
            least, most = max(least, low), min(most, stop)
        least = min(least, end)
        return least, max(least, most)

    def wants_newest(self, timestamp: int) -> bool:
        """Whether a segment with this largest timestamp (ms) may hold a wanted row."""
        newest = timestamp * 1000
        for each in self._of("timestamp"):
            if each.operator in ("<", "<="):
                continue
            value = _microseconds(min(each.value) if each.operator == "in" else each.value)
            if newest < value or (each.operator == ">" and newest == value):
                return False
        return True

    def _of(self, column: str) -> list[Comparison]:
        return [each for each in self.comparisons if each.column == column]


NOTHING = Pruning()


def _bounds(comparison: Comparison) -> tuple[int, int]:
    """The smallest matching offset, and the one after the largest."""
    value = comparison.value
    match comparison.operator:
        case "=":
            return value, value + 1
        case ">":
            return value + 1, _INT64_MAX
        case ">=":
            return value, _INT64_MAX
        case "<":
            return 0, value
        case "<=":
            return 0, value + 1
        case _:
            return min(value), max(value) + 1


def _microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)
