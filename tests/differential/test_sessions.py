"""Every session on both brokers, and the coverage that a complete run must reach."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

import pytest

from tests.differential import counts, pinned
from tests.differential.faults import FAULTS, Fault, seeded
from tests.differential.judge import SERVED, Heard, Judge, Session, all_sessions, judged
from tests.differential.peer import SILENT
from tests.differential.rules import EXPECTED, NORMALISED

pytestmark = [pytest.mark.differential, pytest.mark.timeout(900), pytest.mark.xdist_group("judge")]

#: Each fault is tried in at most this many sessions; the fault's name is the seed of the choice.
PLACES = 40


@pytest.mark.parametrize("session", all_sessions(), ids=str)
def test_both_answer_the_same(judge: Judge, session: Session) -> None:
    differences = judge.outcome(session).differences
    assert not differences, "\n" + "\n".join(map(str, differences))


def test_lowest_middle_and_highest_version_of_every_served_api_are_compared(judge: Judge) -> None:
    met = {(e.api, e.version) for session in all_sessions() for e in judge.heard(session).tidelog}
    wanted = {(api, version) for api, (_, low, high) in SERVED.items() for version in {low, (low + high) // 2, high}}
    assert wanted - met == set()


def test_every_row_of_the_tables_is_met(judge: Judge) -> None:
    outcomes = [judge.outcome(session) for session in all_sessions()]
    rules = set(NORMALISED).difference(*(outcome.normalised for outcome in outcomes))
    rows = set(EXPECTED).difference(*(outcome.on_purpose for outcome in outcomes))
    assert not rules | rows, "\n" + "\n".join(map(str, rules | rows))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_seeded_fault_is_reported(judge: Judge, fault: Fault) -> None:
    check_reported(judge, fault, all_sessions())


def check_reported(judge: Judge, fault: Fault, among: Iterable[Session]) -> None:
    """Asserts that the fault adds a difference in its step, in each session where it is tried."""
    tried = 0
    for session, heard, step in places(judge, fault, among):
        sound = {str(difference) for difference in judge.outcome(session).differences}
        new = [d for d in judged(session, heard).differences if str(d) not in sound]
        assert new, (session, heard.kafka[step], heard.tidelog[step])
        assert heard.kafka[step] in [difference.exchange for difference in new]
        tried += 1
    assert tried > 0


def places(judge: Judge, fault: Fault, among: Iterable[Session]) -> Iterable[tuple[Session, Heard, int]]:
    chance = random.Random(fault.name)
    sessions = [s for s in among if any(e.api == fault.api for e in judge.heard(s).tidelog)]
    chance.shuffle(sessions)
    for session in itertools.islice(sessions, PLACES):
        heard = judge.heard(session)
        # Where Kafka gives no answer, there is nothing that a fault could differ from.
        found = [each for each in seeded(fault, heard.tidelog) if heard.kafka[each[0]].answer != SILENT]
        if found:
            step, transcript = chance.choice(found)
            yield session, Heard(heard.kafka, transcript, heard.sides), step


def test_faults_have_names_of_their_own() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


def test_our_answers_match_the_recorded_ones(judge: Judge, pytestconfig: pytest.Config) -> None:
    now = pinned.collected((session.name, session.version, judge.outcome(session)) for session in all_sessions())
    if pytestconfig.getoption("--write-counts", default=False):
        pinned.write(now)
    assert pinned.gone(pinned.read(), now) == []


def test_no_less_is_compared_than_before(
    judge: Judge, pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]
) -> None:
    now = counts.counted(judge.outcome(session) for session in all_sessions())
    with capsys.disabled():
        print(f"\ncompared with Apache Kafka:\n{counts.table(now)}")
        if pytestconfig.getoption("--write-counts", default=False):
            counts.write(now)
        elif counts.risen(counts.read(), now):
            print("more than before: `make differential ARGS=--write-counts` writes it down")
    assert counts.fallen(counts.read(), now) == []
