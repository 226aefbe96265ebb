"""Decides the next steps of a supervisor from the states of its brokers. Pure: times are arguments, in seconds of one clock.

    no process ── start ──> runs ── announced ──> serves ── ends ──> no process, for a growing pause ── start ──> …

Invariants: brokers that need the controller start only after the controller's broker has served once, and get SIGTERM before it
does. A broker that ends is started again whatever the others do, at once after steady service and otherwise with back-off. If a
broker cannot run and has never served, its settings are wrong, and all brokers are stopped. A broker that does not stop within
STOP_S after SIGTERM is killed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

#: After a process that lived this long the next one starts at once, and the back-off begins again.
STEADY_S = 30.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0
#: Seconds from SIGTERM to SIGKILL. The supervisor stops the other brokers, then the controller's broker. Our systemd units and
#: Kubernetes manifests allow two minutes, which is enough for both steps.
STOP_S = 50.0


@dataclass(frozen=True, slots=True)
class BrokerState:
    """A broker's state in its supervisor. `pid` is None while no process runs; `ended_s` is None before the first one ends."""

    broker_id: int
    goes_first: bool = False
    pid: int | None = None
    started_s: float = 0.0
    serves: bool = False
    has_served: bool = False
    ended_s: float | None = None
    cannot_run: bool = False
    failures: int = 0
    restarts: int = 0
    asked_s: float | None = None
    killed: bool = False

    # --- the state after an event -------------------------------------------------------------------------------------
    def started(self, pid: int, now: float) -> BrokerState:
        again = self.restarts + (self.ended_s is not None)
        return replace(self, pid=pid, started_s=now, serves=False, cannot_run=False, restarts=again)

    def announced(self) -> BrokerState:
        return replace(self, serves=True, has_served=True)

    def ended(self, now: float, *, cannot_run: bool) -> BrokerState:
        failures = 0 if now - self.started_s >= STEADY_S else self.failures + 1
        return replace(self, pid=None, serves=False, ended_s=now, cannot_run=cannot_run, failures=failures)

    def not_started(self, now: float) -> BrokerState:
        """The state after the system could not start a process."""
        return replace(self, started_s=now).ended(now, cannot_run=False)

    def asked(self, now: float) -> BrokerState:
        return replace(self, asked_s=now)

    def killed_now(self) -> BrokerState:
        return replace(self, killed=True)

    @property
    def due_s(self) -> float:
        """The time of the broker's next start."""
        if self.ended_s is None:
            return 0.0
        if not self.failures:
            return self.ended_s
        pause_s: float = FIRST_PAUSE_S * 2 ** min(self.failures - 1, 30)
        return self.ended_s + min(pause_s, LONGEST_PAUSE_S)


class Verb(Enum):
    START, ASK, KILL = 1, 2, 3


class Step(NamedTuple):
    verb: Verb
    broker_id: int


class Decision(NamedTuple):
    """`steps` are due now. `again_s` is the time of the next decision if nothing happens, None for never. `over` says that
    all brokers have ended."""

    steps: tuple[Step, ...] = ()
    again_s: float | None = None
    over: bool = False


def cannot_go_on(brokers: Sequence[BrokerState]) -> bool:
    """Whether a broker's settings are wrong, so that all must stop."""
    return any(each.cannot_run and not each.has_served for each in brokers)


def decide(brokers: Sequence[BrokerState], now: float, *, stopping: bool) -> Decision:
    return _stop(brokers, now) if stopping else _run(brokers, now)


def _run(brokers: Sequence[BrokerState], now: float) -> Decision:
    controlled = all(each.has_served for each in brokers if each.goes_first)
    waiting = [each for each in brokers if each.pid is None and (each.goes_first or controlled)]
    steps = tuple(Step(Verb.START, each.broker_id) for each in waiting if each.due_s <= now)
    return Decision(steps, _first(waiting, lambda each: each.due_s, now))


def _stop(brokers: Sequence[BrokerState], now: float) -> Decision:
    alive = [each for each in brokers if each.pid is not None]
    leaving = [each for each in alive if not each.goes_first] or alive
    steps: list[Step] = []
    for each in leaving:
        if each.asked_s is None:
            steps.append(Step(Verb.ASK, each.broker_id))
        elif each.asked_s + STOP_S <= now and not each.killed:
            steps.append(Step(Verb.KILL, each.broker_id))
    return Decision(tuple(steps), _first(leaving, lambda each: (each.asked_s or now) + STOP_S, now), over=not alive)


def _first(brokers: Sequence[BrokerState], due: Callable[[BrokerState], float], now: float) -> float | None:
    return min((at for each in brokers if (at := due(each)) > now), default=None)
