"""Seeded histories: a sound log has no anomaly, and a faulty log's anomaly is named."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.history.anomalies import Kind, anomalies, told
from tests.history.simulation import Fault, simulated

SEEDS = st.integers(0, 1 << 32)
SEEDS_OF_A_FAULT = range(30)
#: The anomaly that each fault causes in every history in which it was committed, perhaps beside others.
ALWAYS = {
    Fault.REPEAT: Kind.DUPLICATE,
    Fault.SHOW_ABORTED: Kind.ABORTED_READ,
    Fault.HALVE: Kind.INTERMEDIATE_READ,
    Fault.APPEND_BEFORE: Kind.WRITE_CYCLE,
    Fault.APPEND_REVERSED: Kind.NON_MONOTONIC_SEND,
    Fault.LEAVE_OUT_INNER: Kind.INTERNAL_POLL_SKIP,
    Fault.GO_BACK: Kind.NON_MONOTONIC_POLL,
    Fault.ANOTHER_VALUE: Kind.INCONSISTENT_OFFSETS,
    Fault.MADE_UP: Kind.INVENTED,
}
#: The anomalies that only some histories of a fault show, depending on the other processes.
IN_SOME = {
    Fault.LOSE: {Kind.LOST_WRITE},
    Fault.HIDE_THE_END: {Kind.UNSEEN},
    Fault.SHOW_OPEN: {Kind.INTERMEDIATE_READ, Kind.INFORMATION_CYCLE},
    Fault.LEAVE_OUT_FIRST: {Kind.EXTERNAL_POLL_SKIP},
    Fault.POSITION_LOST: {Kind.CONSUMED_TWICE},
}


@given(SEEDS)
@settings(max_examples=200)
def test_a_sound_log_has_no_anomaly(seed: int) -> None:
    found = anomalies(simulated(seed).history)
    assert not found, told(found)


@pytest.mark.parametrize("fault", ALWAYS)
def test_the_fault_of_a_log_is_named(fault: Fault) -> None:
    """Some of the histories have no opportunity for the fault."""
    simulations = [simulated(seed, fault) for seed in SEEDS_OF_A_FAULT]
    faulty = [simulation.history for simulation in simulations if simulation.inflicted]
    assert len(faulty) > len(simulations) // 3
    assert [history for history in faulty if ALWAYS[fault] not in anomalies(history)] == []


@pytest.mark.parametrize("fault", IN_SOME)
def test_the_effect_of_a_faulty_log_is_named(fault: Fault) -> None:
    found = [set(anomalies(simulated(seed, fault).history)) for seed in SEEDS_OF_A_FAULT]
    for kind in IN_SOME[fault]:
        assert sum(kind in kinds for kinds in found) > len(SEEDS_OF_A_FAULT) // 6, kind


def test_every_anomaly_is_shown_to_be_found() -> None:
    assert set(ALWAYS.values()).union(*IN_SOME.values()) == set(Kind)
    assert ALWAYS.keys() | IN_SOME.keys() == set(Fault)
