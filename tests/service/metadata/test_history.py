"""An entry of the metadata log is distinguished from another log's entry with the same offset."""

from __future__ import annotations

import pytest

from service.metadata.history import MAX_TERMS, has_entry, with_term
from service.metadata.parts import TermStart

TERMS = (TermStart(7, 1), TermStart(30, 11), TermStart(44, 21))


@pytest.mark.parametrize(
    ("offset", "term", "has"),
    [
        (0, 0, True),
        (1, 7, True),
        (10, 7, True),
        (10, 30, False),
        (11, 30, True),
        (11, 7, False),
        (20, 30, True),
        (21, 44, True),
        (21, 30, False),
        (25, 44, True),
        (26, 44, False),
        (26, 99, False),
    ],
)
def test_an_entry_is_of_the_term_that_wrote_it(offset: int, term: int, has: bool) -> None:
    assert has_entry(TERMS, 25, offset, term) is has


def test_a_log_without_entries_has_none() -> None:
    assert has_entry((), 0, 0, 0)
    assert not has_entry((), 0, 1, 7)


def test_entries_from_before_the_first_recorded_term_are_not_refused() -> None:
    """A newer version of the program continues the log of one that records no terms; its snapshots are in the bucket."""
    assert has_entry((), 25, 20, 3)
    assert not has_entry((), 25, 26, 3)
    later = (TermStart(30, 11),)
    assert has_entry(later, 25, 10, 3)
    assert not has_entry(later, 25, 11, 3)


def test_the_first_term_and_the_newest_are_kept() -> None:
    terms: tuple[TermStart, ...] = ()
    for number in range(1, MAX_TERMS + 11):
        terms = with_term(terms, TermStart(2 * number, number))
    assert len(terms) == MAX_TERMS
    assert terms[0] == TermStart(2, 1)
    assert terms[1:] == tuple(TermStart(2 * number, number) for number in range(12, MAX_TERMS + 11))
    end = MAX_TERMS + 10
    assert has_entry(terms, end, 5, 999), "its term is no longer known"
    assert has_entry(terms, end, 12, 24)
    assert not has_entry(terms, end, 12, 25)
