"""Bounds on connections: in total, per address and per second."""

from __future__ import annotations

from kafka_gateway.connection_quotas import ConnectionQuotas
from kafka_gateway.settings import ConnectionLimits


def test_one_address_has_its_own_bound() -> None:
    quotas = ConnectionQuotas(ConnectionLimits(per_address=2, overrides={"10.0.0.1": 0, "10.0.0.2": 3}))
    assert [quotas.add("10.0.0.9") for _ in range(3)] == [True, True, False]
    assert not quotas.add("10.0.0.1")
    assert [quotas.add("10.0.0.2") for _ in range(4)] == [True, True, True, False]
    quotas.remove("10.0.0.9")
    assert quotas.add("10.0.0.9")
    quotas.limits = ConnectionLimits(per_address=1)
    assert not quotas.add("10.0.0.9")
    assert quotas.add("10.0.0.1")


def test_all_together_have_one_too() -> None:
    quotas = ConnectionQuotas(ConnectionLimits(total=2))
    assert quotas.add("a") and not quotas.is_full
    assert quotas.add("b") and quotas.is_full
    quotas.remove("a")
    assert not quotas.is_full
    quotas.limits = ConnectionLimits(total=1)
    assert quotas.is_full


def test_the_rate_is_counted_by_the_second() -> None:
    quotas = ConnectionQuotas(ConnectionLimits(a_second=2))
    for _ in range(2):
        assert quotas.wait_s(100.0) == 0
        quotas.add("a")
    assert quotas.wait_s(100.25) == 0.75
    assert quotas.wait_s(101.0) == 0
    quotas.limits = ConnectionLimits(a_second=0)
    assert quotas.wait_s(101.5) > 0
