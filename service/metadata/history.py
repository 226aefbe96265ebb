"""Decides whether an entry of the metadata log belongs to another log's history.

A broker has applied the metadata up to an entry, and a controller that starts with an older data directory lacks it. The
controller's own entries may have reached the same offset by then, so the offset alone shows nothing. Each process of a
controller writes under a term of its own, which its first entry records.

Pure. Not promised: that entries are distinguished from another log's if their term is neither the first nor among the newest
MAX_TERMS - 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from service.metadata.parts import TermStart

#: Most terms of the metadata log that an image keeps: the first, which differs between logs that have nothing in common, and
#: the newest.
MAX_TERMS = 1024


def with_term(terms: Sequence[TermStart], began: TermStart) -> tuple[TermStart, ...]:
    """The terms to keep once `began` has begun."""
    return (*terms[:1], *terms[1:][-(MAX_TERMS - 2) :], began)


def has_entry(terms: Sequence[TermStart], end: int, offset: int, term: int) -> bool:
    """Whether a log that ends with the entry at `end` has the entry with that offset and term. Returns True for offset 0, which
    is before the first entry, and for an entry whose term is not in `terms`: the term is no longer kept, or its first entry
    does not record it."""
    if offset > end:
        return False
    if not terms or offset < terms[0].offset:
        return True
    begun = [each.term for each in terms if each.offset <= offset]
    is_kept = len(terms) < MAX_TERMS or len(begun) > 1
    return not is_kept or begun[-1] == term
