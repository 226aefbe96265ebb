"""Only a full collection examines many objects, however many are created and survive."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from service.process.collecting import MOST_LOOKED_AT, collect_a_few_at_a_time


@pytest.fixture
def looked_at() -> Iterator[list[tuple[int, int]]]:
    """The generation of each collection and the number of objects it examined. The policy is undone afterwards."""
    found: list[tuple[int, int]] = []

    def look(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            generation = info["generation"]
            found.append((generation, sum(len(gc.get_objects(each)) for each in range(generation + 1))))

    before = gc.get_threshold()
    collect_a_few_at_a_time()
    gc.callbacks.append(look)
    yield found
    gc.callbacks.remove(look)
    gc.set_threshold(*before)
    gc.unfreeze()


def test_a_collection_examines_few_objects_however_many_survive(looked_at: list[tuple[int, int]]) -> None:
    kept = [[number] for number in range(500_000)]
    assert {generation for generation, _ in looked_at} == {0, 1}
    assert max(count for _, count in looked_at) < MOST_LOOKED_AT + 1000
    assert MOST_LOOKED_AT <= 2_000  # 0.5 ms
    assert len(kept) == 500_000


def test_frozen_objects_are_never_examined(looked_at: list[tuple[int, int]]) -> None:
    there = gc.get_freeze_count()
    assert there > MOST_LOOKED_AT
    made = [[number] for number in range(MOST_LOOKED_AT)]
    # Some frozen objects are freed meanwhile, by their reference count.
    assert there >= gc.get_freeze_count() > there - 1000
    assert max(count for _, count in looked_at) < MOST_LOOKED_AT + 1000
    assert made
