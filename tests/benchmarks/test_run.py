"""Rows of several brokers are measured side by side, and no broker is always first."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.load import LoadFailed
from benchmarks.run import Figures, row_by_row

ROWS = 6


def figures(name: str, order: list[str], rows: int = ROWS) -> Figures:
    for place in range(rows):
        order.append(name)
        yield f"row {place}", "ms", None if name == "rival" else float(place)


@pytest.mark.parametrize("rounds", [1, 3, 4])
def test_each_broker_is_the_first_in_as_many_rows_as_any_other(rounds: int) -> None:
    firsts = Counter[str]()
    for number in range(rounds):
        order: list[str] = []
        found = list(row_by_row({name: figures(name, order) for name in ("kafka", "tidelog")}, number))
        assert [row for _, (row, _, _) in found] == [f"row {place}" for place in range(ROWS) for _ in range(2)]
        assert [name for name, _ in found] == order
        firsts.update(order[::2])
    assert firsts["kafka"] == firsts["tidelog"] == rounds * ROWS // 2


def test_a_broker_that_does_not_show_a_figure_leaves_its_place_empty() -> None:
    found = list(row_by_row({"rival": figures("rival", []), "tidelog": figures("tidelog", [])}, 0))
    assert [value for name, (_, _, value) in found if name == "rival"] == [None] * ROWS


def test_different_rows_are_not_compared() -> None:
    with pytest.raises(LoadFailed, match="tidelog gave fewer figures"):
        list(row_by_row({"kafka": figures("kafka", []), "tidelog": figures("tidelog", [], ROWS - 1)}, 0))
    other = iter([("another row", "ms", 1.0)])
    with pytest.raises(LoadFailed, match="the brokers gave different rows: another row, row 0"):
        list(row_by_row({"kafka": figures("kafka", [], 1), "tidelog": other}, 0))
