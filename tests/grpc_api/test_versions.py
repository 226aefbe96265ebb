"""Versions of the metadata: those of two starts are not compared as numbers."""

from __future__ import annotations

import pytest

from grpc_api.versions import first_version, is_seen
from tests.support.clock import SeededRng

ONE, OTHER, THIRD = (first_version(SeededRng(seed)) for seed in (1, 2, 3))


def test_a_first_version_is_a_positive_int64_and_differs_between_starts() -> None:
    firsts = [first_version(SeededRng(seed)) for seed in range(50)]
    assert len({each >> 32 for each in firsts}) == 50
    assert all(0 < each < 1 << 63 and each & 0xFFFFFFFF == 1 for each in firsts)


@pytest.mark.parametrize(
    ("wanted", "shown", "before", "seen"),
    [
        (ONE + 5, ONE + 4, ONE + 4, False),
        (ONE + 5, ONE + 5, ONE + 4, True),
        (ONE + 5, OTHER, OTHER, False),  # the node that was lost has been shown so far
        (ONE + 5, OTHER + 9, OTHER, False),
        (ONE + 5, ONE + 4, OTHER, False),  # the new node, before its change
        (ONE + 5, ONE + 6, OTHER, True),
        (ONE + 5, THIRD, OTHER, True),  # the node of the change was lost, too
        (ONE + 5, THIRD, ONE + 4, True),
    ],
)
def test_a_copy_has_a_change(wanted: int, shown: int, before: int, seen: bool) -> None:
    assert is_seen(wanted, shown, before) is seen
