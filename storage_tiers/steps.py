"""Work in steps: a generator that yields wherever it may be interrupted, and returns its result.

`turns.Turn.through` runs one on the event loop in time slices.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_steps(steps: Generator[None, None, Result]) -> Result:
    """Runs all steps without a pause and returns their result."""
    try:
        while True:
            next(steps)
    except StopIteration as end:
        result: Result = end.value
        return result


def freeing(rows: list[Any], step: int = 256) -> Generator[None, None, None]:
    """Frees the rows `step` at a time: freeing 50,000 at once takes ten milliseconds or more."""
    while rows:
        del rows[-step:]
        yield
