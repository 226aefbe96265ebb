"""Sessions on three brokers of each side, and the coverage that a complete run must reach."""

from __future__ import annotations

import pytest

from tests.differential import counts
from tests.differential.faults import FAULTS_OF_THREE, Fault
from tests.differential.judge import OF_ONE_SETUP, Judge, Session, Setup, all_sessions, sessions_of_three
from tests.differential.rules_of_three import OF_ONE_BROKER, ONLY_OF_THREE, PURPOSE_OF_THREE
from tests.differential.test_sessions import check_reported

pytestmark = [pytest.mark.differential, pytest.mark.timeout(900), pytest.mark.xdist_group("three brokers")]


@pytest.mark.parametrize("session", sessions_of_three(), ids=str)
def test_three_answer_the_same(judge: Judge, session: Session) -> None:
    differences = judge.outcome(session).differences
    assert not differences, "\n" + "\n".join(map(str, differences))


def test_every_row_for_three_is_met(judge: Judge) -> None:
    outcomes = [judge.outcome(session) for session in sessions_of_three()]
    rules = set(ONLY_OF_THREE).difference(*(outcome.normalised for outcome in outcomes))
    rows = set(PURPOSE_OF_THREE).difference(*(outcome.on_purpose for outcome in outcomes))
    assert not rules | rows, "\n" + "\n".join(map(str, rules | rows))


@pytest.mark.parametrize("fault", FAULTS_OF_THREE, ids=lambda fault: fault.name)
def test_a_seeded_fault_of_three_is_reported(judge: Judge, fault: Fault) -> None:
    check_reported(judge, fault, sessions_of_three())


def test_sessions_stay_with_one_broker_for_a_reason() -> None:
    assert set(OF_ONE_BROKER) <= {session.name for session in all_sessions()}
    assert set(OF_ONE_SETUP) == set(Setup) - {Setup.THREE, Setup.PLAIN, Setup.GROUPS}
    assert all(len(reason) > 15 for reason in (*OF_ONE_BROKER.values(), *OF_ONE_SETUP.values()))


def test_no_less_is_compared_at_three_than_before(
    judge: Judge, pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]
) -> None:
    now = counts.counted(judge.outcome(session) for session in sessions_of_three())
    with capsys.disabled():
        print(f"\ncompared with three brokers of Apache Kafka:\n{counts.table(now)}")
        if pytestconfig.getoption("--write-counts", default=False):
            counts.write(now, counts.PATH_OF_THREE)
    assert counts.fallen(counts.read(counts.PATH_OF_THREE), now) == []
