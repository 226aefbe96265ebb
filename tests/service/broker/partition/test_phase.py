"""A partition's life cycle: every event in every phase, in the table and on a partition with a log."""

from __future__ import annotations

import ast
import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from grpc_api.contract.log import Isolation
from service.broker.partition.partition import Partition
from service.broker.partition.phase import (
    ANSWERS,
    EFFECTS,
    TRANSITIONS,
    Answers,
    Cause,
    Life,
    PartitionEvent,
    Phase,
    UnexpectedEvent,
    Use,
)
from service.broker.partition.state import PartitionState
from service.lifecycle.lease import Lease
from storage_tiers.clock import SystemClock
from storage_tiers.errors import (
    LeaderNotAvailable,
    LogError,
    NotLeader,
    OffsetNotAvailable,
    OffsetOutOfRange,
    StorageError,
    UnknownTopicOrPartition,
)
from storage_tiers.tiered_log import TieredLog
from storage_tiers.types import TopicPartition
from tests.service.broker.support import batch
from tests.storage_tiers.hot.support import open_log

SERVICE = Path(__file__).parents[4] / "service"
KEY = TopicPartition("t", 0)
#: The error that callers get for each cause.
KINDS: dict[Cause, type[LogError]] = {
    Cause.RECOVERY: LeaderNotAvailable,
    Cause.LEADERSHIP: NotLeader,
    Cause.MOVE: LeaderNotAvailable,
    Cause.FAILURE: StorageError,
    Cause.DELETION: UnknownTopicOrPartition,
}
COMPARING, RECOVERING, BEGINNING, MOVED, FAILURE = (
    LeaderNotAvailable("may be a copy"),
    LeaderNotAvailable("may lack records"),
    LeaderNotAvailable("begins to lead"),
    NotLeader("broker 2 leads"),
    StorageError("!"),
)
REPORTS: dict[PartitionEvent, Callable[[Partition], None]] = {
    PartitionEvent.COMPARE: lambda led: led.compare(COMPARING),
    PartitionEvent.RECOVER: lambda led: led.recover(RECOVERING),
    PartitionEvent.DISCARD: lambda led: led.begin_at(led.log.end_offset),
    PartitionEvent.RECONCILE: lambda led: led.reconciled(),
    PartitionEvent.LEAD: lambda led: led._apply(PartitionEvent.LEAD, BEGINNING),
    PartitionEvent.BEGIN_EPOCH: lambda led: led._apply(PartitionEvent.BEGIN_EPOCH),
    PartitionEvent.HOLD: lambda led: led.hold(),
    PartitionEvent.RELEASE: lambda led: led._apply(PartitionEvent.RELEASE),
    PartitionEvent.RESIGN: lambda led: led.resign(MOVED),
    PartitionEvent.FAIL: lambda led: led.fail(FAILURE),
    PartitionEvent.DELETE: lambda led: led.delete(),
}
PAIRS = [(phase, event) for phase in Phase for event in PartitionEvent]


def after(life: Life, event: PartitionEvent, why: str = "why") -> Life:
    cause = EFFECTS[event].cause
    return life.after(event, LeaderNotAvailable(why) if cause is None else KINDS[cause](why))


def ways() -> dict[Phase, tuple[PartitionEvent, ...]]:
    """The shortest sequence of events to every reachable phase."""
    found: dict[Phase, tuple[PartitionEvent, ...]] = {Phase.OPENING: ()}
    seen = deque([Phase.OPENING])
    while seen:
        phase = seen.popleft()
        for event, then in TRANSITIONS[phase].items():
            if then is not None and then not in found:
                found[then] = (*found[phase], event)
                seen.append(then)
    return found


def test_the_tables_name_every_phase_and_every_event() -> None:
    assert [(phase, event) for phase, row in TRANSITIONS.items() for event in row] == PAIRS
    assert list(ANSWERS) == list(Phase)
    assert list(EFFECTS) == list(PartitionEvent)
    assert set(ways()) == set(Phase)


class Facts(NamedTuple):
    """The facts about a partition that is not deleted. `log` is "unknown" if the bucket must be asked, "copy" if the
    log may be an older copy, and "known" if it matches the bucket; a follower's log is "unknown". `held`: the partition
    is about to be handed over."""

    log: str
    failed: bool = False
    opening: bool = False
    follows: bool = False
    held: bool = False


FACTS: dict[Phase, Facts] = {
    Phase.OPENING: Facts("unknown", opening=True),
    Phase.RECOVERING: Facts("unknown"),
    Phase.COMPARING: Facts("copy"),
    Phase.LEADING: Facts("known"),
    Phase.HANDING_OVER: Facts("known", held=True),
    Phase.FAILED: Facts("known", failed=True),
    Phase.FAILED_COMPARING: Facts("copy", failed=True),
    Phase.FAILED_RECOVERING: Facts("unknown", failed=True),
    Phase.FOLLOWING: Facts("unknown", follows=True),
    Phase.FAILED_FOLLOWING: Facts("unknown", failed=True, follows=True),
}


def facts_after(facts: Facts, event: PartitionEvent) -> Facts | None:
    """The facts after `event`, which changes at most one fact or the leader; None where the event cannot happen."""
    match event:
        case PartitionEvent.RESIGN:
            return Facts("unknown", facts.failed, follows=True)
        case PartitionEvent.LEAD:
            return Facts("unknown", facts.failed, opening=not facts.failed) if facts.follows else None
        case PartitionEvent.FAIL:
            return Facts(facts.log, failed=True, follows=facts.follows)
    if facts.follows:
        return facts if event is PartitionEvent.DELETE else None
    match event:
        case PartitionEvent.COMPARE:
            return Facts("copy") if facts.opening else None
        case PartitionEvent.RECOVER:
            return Facts("unknown", facts.failed)
        case PartitionEvent.DISCARD:
            return facts if facts.log == "unknown" and not facts.opening else None
        case PartitionEvent.RECONCILE:
            return None if facts.log == "known" else Facts("known", facts.failed)
        case PartitionEvent.HOLD:
            return Facts("known", held=True) if facts == Facts("known") else None
        case PartitionEvent.RELEASE:
            return Facts("known") if facts.held else None
        case PartitionEvent.BEGIN_EPOCH if facts.held:
            return Facts("known")
    return facts


@pytest.mark.parametrize(("phase", "event"), [pair for pair in PAIRS if pair[0] in FACTS], ids=lambda each: each.value)
def test_an_event_changes_only_its_own_fields(phase: Phase, event: PartitionEvent) -> None:
    phases = {facts: phase for phase, facts in FACTS.items()}
    then = facts_after(FACTS[phase], event)
    wanted = Phase.DELETED if event is PartitionEvent.DELETE else None if then is None else phases[then]
    assert TRANSITIONS[phase][event] is wanted


@pytest.mark.parametrize("phase", FACTS)
def test_callers_get_the_error_of_the_phase(phase: Phase) -> None:
    log, failed, _, follows, held = FACTS[phase]
    disk = Cause.FAILURE if failed else None
    if follows:
        moved = Cause.LEADERSHIP
        assert ANSWERS[phase] == Answers(moved, moved, moved, disk, False, failed, False)
        return
    asked = Cause.MOVE if held else None if log == "known" else Cause.RECOVERY
    read = Cause.RECOVERY if log == "unknown" else None
    assert ANSWERS[phase] == Answers(disk or asked, read, asked, disk, log != "known", failed, True)


def test_waiters_get_the_error_that_ends_their_wait() -> None:
    """An acknowledgement ends when it will never come; a fetch wakes when it can be answered, with records or an error."""
    ended = {PartitionEvent.RESIGN, PartitionEvent.FAIL, PartitionEvent.DELETE}
    ends = {event for event, effect in EFFECTS.items() if effect.ends_acknowledgements}
    assert ends == {PartitionEvent.DISCARD, *ended}
    wakes = {event for event, effect in EFFECTS.items() if effect.wakes_readers}
    assert wakes == {PartitionEvent.RECONCILE, PartitionEvent.BEGIN_EPOCH, *ended}


def test_registrations_end_with_the_leadership_and_with_the_log() -> None:
    ends = {event for event, effect in EFFECTS.items() if effect.ends_registered}
    assert ends == {PartitionEvent.RESIGN, PartitionEvent.DELETE, PartitionEvent.DISCARD}
    for row in TRANSITIONS.values():
        for event, then in row.items():
            if then is not None and not ANSWERS[then].is_leader:
                assert event in ends or event is PartitionEvent.FAIL


def test_records_are_appended_only_in_the_leading_phase() -> None:
    assert [phase for phase, answers in ANSWERS.items() if answers.write is None] == [Phase.LEADING]


def test_only_a_restart_ends_a_failure_and_nothing_ends_a_deletion() -> None:
    for phase, row in TRANSITIONS.items():
        then = {after for after in row.values() if after is not None}
        if ANSWERS[phase].is_failed:
            assert all(ANSWERS[after].is_failed or after is Phase.DELETED for after in then)
    assert set(TRANSITIONS[Phase.DELETED].values()) == {Phase.DELETED, None}


def test_each_phase_answers_with_its_known_errors_only() -> None:
    seen: set[tuple[Phase, frozenset[Cause]]] = set()
    lives = [Life.begin(KEY)]
    while lives:
        life = lives.pop()
        known = frozenset(life.causes)
        if (life.phase, known) in seen:
            continue
        seen.add((life.phase, known))
        causes = {getattr(ANSWERS[life.phase], use.value) for use in Use} - {None}
        assert known == causes
        for use in Use:
            cause = getattr(ANSWERS[life.phase], use.value)
            assert life.refusal(use) is (None if cause is None else life.causes[cause])
        lives += [after(life, event) for event, then in TRANSITIONS[life.phase].items() if then is not None]
    assert {phase for phase, _ in seen} == set(Phase)


def test_callers_get_the_latest_reason_of_each_cause() -> None:
    life = after(after(Life.begin(KEY), PartitionEvent.RECOVER, "first"), PartitionEvent.FAIL, "the disk")
    life = after(life, PartitionEvent.RECOVER, "second")
    assert [str(life.refusal(use)) for use in (Use.WRITE, Use.READ, Use.ADMIN, Use.FLUSH)] == [
        "the disk",
        "second",
        "second",
        "the disk",
    ]
    assert str(after(life, PartitionEvent.RECONCILE).refusal(Use.WRITE)) == "the disk"
    assert after(life, PartitionEvent.RECONCILE).refusal(Use.READ) is None
    life = after(after(life, PartitionEvent.RESIGN, "broker 2"), PartitionEvent.RESIGN, "broker 3")
    assert [str(life.refusal(use)) for use in (Use.WRITE, Use.READ, Use.ADMIN, Use.FLUSH)] == [
        "broker 3",
        "broker 3",
        "broker 3",
        "the disk",
    ]
    assert str(after(life, PartitionEvent.LEAD, "begins").refusal(Use.READ)) == "begins"


@pytest.mark.parametrize(
    "event", [event for event, effect in EFFECTS.items() if effect.cause or effect.ends_acknowledgements]
)
def test_an_event_reported_to_callers_needs_a_reason(event: PartitionEvent) -> None:
    life = after(Life.begin(KEY), PartitionEvent.RECOVER)
    if event is PartitionEvent.COMPARE:
        life = Life.begin(KEY)
    if event is PartitionEvent.LEAD:
        life = after(life, PartitionEvent.RESIGN)
    if event is PartitionEvent.HOLD:
        life = after(life, PartitionEvent.RECONCILE)
    with pytest.raises(TypeError, match="needs a reason"):
        life.after(event)


def in_phase(phase: Phase, root: Path) -> Partition:
    log = open_log(root)
    state = PartitionState(leader_epoch=1, log_end=log.end_offset, high_watermark=log.end_offset)
    led = Partition(
        TieredLog(log, None),
        state,
        cluster_id="c",
        lease=Lease(),
        clock=SystemClock(),
        on_flush_needed=lambda _: None,
        on_roll=lambda _: None,
    )
    led.lead(1)
    for event in ways()[phase]:
        REPORTS[event](led)
    assert led.phase is phase
    return led


def refused(work: Callable[[], object]) -> type[LogError] | None:
    try:
        work()
    except LogError as error:
        return type(error)
    return None


def answers(led: Partition) -> dict[str, type[LogError] | None]:
    """The error, or None, that each kind of request gets."""
    return {
        "write": refused(lambda: led.append(memoryview(batch(b"a")))),
        "begin": refused(
            lambda: led.begin_write(memoryview(batch(b"a")), led.validate(memoryview(batch(b"a")))[1], -1)
        ),
        "read": refused(led.check_readable),
        "admin": refused(lambda: led.check(Use.ADMIN)),
        "flush": refused(lambda: led.check(Use.FLUSH)),
    }


def expected(phase: Phase) -> dict[str, type[LogError] | None]:
    def kind(cause: Cause | None) -> type[LogError] | None:
        return None if cause is None else KINDS[cause]

    row = ANSWERS[phase]
    return {
        "write": kind(row.write),
        "begin": kind(row.write),
        "read": kind(row.read),
        "admin": kind(row.admin),
        "flush": kind(row.flush),
    }


@pytest.mark.parametrize(("phase", "event"), PAIRS, ids=lambda each: each.value)
async def test_every_event_has_its_effect_in_every_phase(tmp_path: Path, phase: Phase, event: PartitionEvent) -> None:
    led = in_phase(phase, tmp_path)
    waiting, looked = led.until_committed(1000), asyncio.Event()
    assert waiting is not None
    led.waiters.add(looked.set)
    before, then = led.life, TRANSITIONS[phase][event]
    if then is None:
        with pytest.raises(UnexpectedEvent, match=f"cannot {event.value} while it is {phase.value}"):
            REPORTS[event](led)
        assert led.life is before
    else:
        REPORTS[event](led)
        assert led.phase is then
    await asyncio.sleep(0)
    effect = EFFECTS[event]
    assert looked.is_set() == (then is not None and effect.wakes_readers)
    assert waiting.done() == (then is not None and effect.ends_acknowledgements)
    if waiting.done():
        assert isinstance(waiting.exception(), LogError)
    led.waiters.clear()
    assert answers(led) == expected(led.phase)
    led.log.hot.close(clean=True)


@pytest.mark.parametrize("phase", [phase for phase in Phase if ANSWERS[phase].read is None])
async def test_offsets_past_the_end_of_a_possible_older_copy_are_not_out_of_range(tmp_path: Path, phase: Phase) -> None:
    led = in_phase(phase, tmp_path)
    with pytest.raises(OffsetNotAvailable if led.is_recovering else OffsetOutOfRange):
        led.read(7, max_bytes=100, isolation=Isolation.READ_UNCOMMITTED, min_one=True)
    led.log.hot.close(clean=True)


async def test_an_epoch_ends_where_the_next_one_begins_even_before_the_next_one_has_a_record(tmp_path: Path) -> None:
    led = in_phase(Phase.LEADING, tmp_path)
    led.append(memoryview(batch(b"a")))
    led.lead(7)
    assert led.log.hot.epoch_end_offset(7) == (7, 1)
    led.recover(RECOVERING)
    led.lead(8)
    assert led.log.hot.epoch_end_offset(8) == (-1, -1)  # the epoch's first offset is not known yet
    led.reconciled()
    assert led.log.hot.epoch_end_offset(8) == (8, 1)
    for earlier in (partial(led.lead, 3), partial(led.follow, 3, 2)):
        with pytest.raises(ValueError, match="leader epoch 3 is below 8"):
            earlier()
        assert (led.phase, led.state.leader_epoch) == (Phase.LEADING, 8)
    led.log.hot.close(clean=True)


def test_one_method_assigns_the_phase() -> None:
    """If other code assigned it, callers could be refused for a cause that does not fit the phase."""
    assigned: list[str] = []
    for path in SERVICE.rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                assigned += [
                    f"{path.name} {function.name}"
                    for node in ast.walk(function)
                    if isinstance(node, ast.Attribute)
                    and isinstance(node.ctx, ast.Store)
                    and node.attr in ("life", "write_error", "read_error", "is_recovering", "leads")
                    and path.name != "state.py"
                ]
    assert assigned == ["partition.py _enter"] * 5
