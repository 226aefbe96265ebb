"""The rate of offloads: it is exact in the long run, for segments of any size and for rates that change."""

from __future__ import annotations

import random

from service.broker.background.offload_quotas import LONGEST_DELAY_S, ByteRate, OffloadQuotas

UNLIMITED = (1 << 63) - 1


def offloaded(rate: ByteRate, sizes: list[int]) -> float:
    """The seconds after which all of `sizes` are offloaded, if an offload itself takes no time."""
    now = 100.0
    for size in sizes:
        while (delay_s := rate.delay_s(now)) > 0:
            assert delay_s <= LONGEST_DELAY_S
            now += delay_s
        rate.count(size, now)
    return now - 100.0


def test_the_first_offload_begins_at_once_and_each_one_waits_for_the_bytes_before_it() -> None:
    assert offloaded(ByteRate(lambda: 1000), [5000]) == 0
    assert round(offloaded(ByteRate(lambda: 1000), [5000, 1000, 1]), 6) == 6


def test_the_rate_holds_for_any_sizes() -> None:
    rng = random.Random(1)
    sizes = [rng.randrange(1, 100_000) for _ in range(200)]
    assert round(offloaded(ByteRate(lambda: 7000), sizes), 3) == round(sum(sizes[:-1]) / 7000, 3)


def test_time_without_offloads_saves_nothing_up() -> None:
    rate = ByteRate(lambda: 1000)
    rate.count(500, 0.0)
    assert rate.delay_s(1000.0) == 0
    rate.count(2000, 1000.0)
    assert rate.delay_s(1000.5) == LONGEST_DELAY_S
    assert rate.delay_s(1001.5) == 0.5


def test_without_a_limit_nothing_is_delayed() -> None:
    rate = ByteRate(lambda: UNLIMITED)
    rate.count(1 << 40, 5.0)
    assert rate.delay_s(5.001) == 0


def test_a_rate_of_zero_stops_offloads_until_it_is_raised() -> None:
    limit = [0]
    rate = ByteRate(lambda: limit[0])
    assert rate.delay_s(1.0) == rate.delay_s(1e6) == LONGEST_DELAY_S
    limit[0] = 10
    assert rate.delay_s(1e6 + 1) == 0


def test_only_moves_pay_the_rate_of_moves_and_all_pay_the_rate_of_offloads() -> None:
    quotas = OffloadQuotas(lambda: 10_000, lambda: 1000)
    quotas.count(5000, 0.0, moves=True)
    assert quotas.delay_s(0.4, moves=False) == 0.1
    assert quotas.delay_s(0.6, moves=False) == 0
    assert quotas.delay_s(0.6, moves=True) == LONGEST_DELAY_S
    quotas.count(5000, 5.0, moves=False)
    assert quotas.delay_s(5.5, moves=True) == quotas.delay_s(5.5, moves=False) == 0
