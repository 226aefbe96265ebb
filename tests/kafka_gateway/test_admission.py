"""Bounds on connections: in all, of an address, in a second."""

from __future__ import annotations

from kafka_gateway.admission import Admission
from kafka_gateway.settings import ConnectionLimits


def test_one_address_has_its_own_bound() -> None:
    admission = Admission(ConnectionLimits(per_address=2, overrides={"10.0.0.1": 0, "10.0.0.2": 3}))
    assert [admission.enter("10.0.0.9") for _ in range(3)] == [True, True, False]
    assert not admission.enter("10.0.0.1")
    assert [admission.enter("10.0.0.2") for _ in range(4)] == [True, True, True, False]
    admission.leave("10.0.0.9")
    assert admission.enter("10.0.0.9")
    admission.limits = ConnectionLimits(per_address=1)
    assert not admission.enter("10.0.0.9")
    assert admission.enter("10.0.0.1")


def test_all_together_have_one_too() -> None:
    admission = Admission(ConnectionLimits(total=2))
    assert admission.enter("a") and not admission.is_full
    assert admission.enter("b") and admission.is_full
    admission.leave("a")
    assert not admission.is_full
    admission.limits = ConnectionLimits(total=1)
    assert admission.is_full


def test_the_rate_is_counted_by_the_second() -> None:
    admission = Admission(ConnectionLimits(a_second=2))
    for _ in range(2):
        assert admission.wait_s(100.0) == 0
        admission.enter("a")
    assert admission.wait_s(100.25) == 0.75
    assert admission.wait_s(101.0) == 0
    admission.limits = ConnectionLimits(a_second=0)
    assert admission.wait_s(101.5) > 0
