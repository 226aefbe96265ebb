"""Work in steps: a generator that yields wherever it may be interrupted, and ends with its result.

`turns.Turn.through` goes through one on the event loop, in slices.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

Result = TypeVar("Result")


def at_once(steps: Generator[None, None, Result]) -> Result:
    """What the steps end with."""
    try:
        while True:
            next(steps)
    except StopIteration as end:
        result: Result = end.value
        return result


def emptying(rows: list[Any], step: int = 256) -> Generator[None, None, None]:
    """Frees what the rows hold: what 50,000 of them became takes ten milliseconds and more in one go."""
    while rows:
        del rows[-step:]
        yield
