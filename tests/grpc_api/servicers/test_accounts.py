"""How much memory each connection may hold, and which connection is closed when memory is short."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from grpc_api.servicers.accounts import STALLED_S, Accounts


def test_one_connection_gets_half_and_the_next_half_of_the_rest() -> None:
    accounts = Accounts(1024)
    for peer, part in (("a", 512), ("b", 256), ("c", 128)):
        taken = 0
        while accounts.fits(peer, 64):
            accounts.take(peer, 64, 0.0)
            taken += 64
        assert taken == part
        assert accounts.fits("somebody", 64)


def test_a_request_above_the_bound_waits_until_the_pool_is_empty() -> None:
    accounts = Accounts(100)
    accounts.take("a", 1, 0.0)
    assert not accounts.fits("b", 200)
    accounts.give("a", 1, 0.0)
    assert accounts.fits("b", 200)


def test_the_stalled_connection_with_most_memory_is_closed() -> None:
    accounts = Accounts(100)
    accounts.take("large but moving", 50, 0.0)
    accounts.take("small", 1, 0.0)
    accounts.take("large", 10, 0.0)
    accounts.give("large but moving", 1, STALLED_S)
    assert accounts.largest_stalled(STALLED_S) == "large"
    assert accounts.largest_stalled(STALLED_S / 2) is None
    accounts.give("large", 10, STALLED_S)
    assert accounts.largest_stalled(STALLED_S) == "small"


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 40))))
def test_the_sum_stays_within_the_bound_and_comes_back_to_nothing(asked: list[tuple[str, int]]) -> None:
    accounts = Accounts(100)
    held: list[tuple[str, int]] = []
    for peer, size in asked:
        if accounts.fits(peer, size):
            accounts.take(peer, size, 0.0)
            held.append((peer, size))
        assert accounts.held_bytes == sum(size for _, size in held) <= 100
    for peer, size in held:
        accounts.give(peer, size, 0.0)
    assert accounts.held_bytes == 0
    assert not any(accounts.holds(peer) for peer in "abcd")
