"""Seeded histories of simulated logs with transactions: sound logs, and logs that commit one kind of fault now and then.

A log is a list of records; markers take offsets; a reader sees up to the first record of an open transaction, as at
`read_committed`. Processes send, poll and commit in transactions that overlap, abort some, and do not learn the outcome of
others. `inflicted` counts the faults committed, so that a test knows whether there is anything to find.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from tests.history.operations import Operation, Operations, Outcome, Polled, Sent

KEYS = ("x", "y", "z")
PROCESSES = 4
#: A fault is committed at one in this many opportunities.
SELDOM = 6


class Fault(Enum):
    LOSE = auto()  # a committed record vanishes
    HIDE_THE_END = auto()  # the newest records are never shown
    REPEAT = auto()  # a record is appended twice
    SHOW_ABORTED = auto()
    SHOW_OPEN = auto()  # records of open transactions are shown
    HALVE = auto()  # one key of a transaction without an answer is committed and another aborted
    APPEND_BEFORE = auto()  # a record is put before one that was committed long ago
    APPEND_REVERSED = auto()  # the second of two sends of a transaction is put before the first
    LEAVE_OUT_FIRST = auto()  # a poll omits its first record
    LEAVE_OUT_INNER = auto()  # a poll omits a record between two others
    GO_BACK = auto()  # a poll begins with the last record of the previous poll
    ANOTHER_VALUE = auto()  # a poll shows the value of another offset
    MADE_UP = auto()  # a poll shows a value that no process sent
    POSITION_LOST = auto()  # the positions of a committed transaction are not committed with it


class Fate(Enum):
    OPEN = auto()
    COMMITTED = auto()
    ABORTED = auto()


@dataclass(slots=True)
class Entry:
    offset: int
    value: int
    fate: Fate
    gone: bool = False


class Simulation:
    """`fault` is the fault that its logs have, if any."""

    def __init__(self, seed: int, fault: Fault | None = None) -> None:
        self.rng = random.Random(seed)
        self.fault = fault
        self.inflicted = self.now = self.values = 0
        self.history = Operations()
        self.logs: dict[str, list[Entry]] = {key: [] for key in KEYS}
        self.counts = dict.fromkeys(KEYS, 0)

    def run(self, operations: int = 60) -> Operations:
        running = [SimulatedProcess(self, f"p{number}").run(operations // PROCESSES) for number in range(PROCESSES)]
        while running:
            self.now += 1
            process = self.rng.choice(running)
            if next(process, None) is None:
                running.remove(process)
        for number in range(2):
            self.read_everything(f"reader {number}")
        return self.history

    def wrong(self, fault: Fault) -> bool:
        """Whether to commit the fault here."""
        if self.fault is not fault or self.rng.randrange(SELDOM):
            return False
        self.inflicted += 1
        return True

    def append(self, key: str, value: int, fate: Fate) -> Entry:
        log = self.logs[key]
        entry = Entry(self.counts[key], value, fate)
        self.counts[key] += 4  # the gap leaves room for a record in the wrong place
        log.append(entry)
        return entry

    def visible(self, key: str) -> list[Entry]:
        log = sorted(self.logs[key], key=lambda entry: entry.offset)
        found: list[Entry] = []
        for entry in log:
            if entry.fate is Fate.OPEN:
                if self.fault is not Fault.SHOW_OPEN:
                    break
                self.inflicted += 1
                found.append(entry)
            elif entry.fate is Fate.COMMITTED and not entry.gone:
                found.append(entry)
        return found

    def poll(self, key: str, position: int, most: int) -> list[Polled]:
        found = [entry for entry in self.visible(key) if entry.offset >= position][:most]
        polled = [Polled(key, entry.value, entry.offset) for entry in found]
        if polled and self.wrong(Fault.LEAVE_OUT_FIRST):
            del polled[0]
        if len(polled) > 2 and self.wrong(Fault.LEAVE_OUT_INNER):
            del polled[1]
        if len(polled) > 1 and self.wrong(Fault.ANOTHER_VALUE):
            polled[0] = Polled(key, polled[1].value, polled[0].offset)
        if polled and self.wrong(Fault.MADE_UP):
            polled[0] = Polled(key, -polled[0].value, polled[0].offset)
        before = [entry for entry in self.visible(key) if entry.offset < position]
        if before and self.wrong(Fault.GO_BACK):
            polled.insert(0, Polled(key, before[-1].value, before[-1].offset))
        return polled

    def read_everything(self, process: str) -> None:
        self.now += 2
        began, steps = self.now, list[Polled]()
        for key in KEYS:
            entries = self.visible(key)
            if self.fault is Fault.HIDE_THE_END and entries:
                self.inflicted += 1
                entries.pop()
            steps += [Polled(key, entry.value, entry.offset) for entry in entries]
        self.now += 1
        done = Operation(process, Outcome.OK, began, self.now, tuple(steps), whole=frozenset(KEYS))
        self.history.done.append(done)


class SimulatedProcess:
    """A producer and a consumer, whose positions are committed with the producer's transactions."""

    def __init__(self, logs: Simulation, name: str) -> None:
        self.logs, self.name = logs, name
        self.rng = logs.rng
        self.positions: dict[str, int] = dict.fromkeys(KEYS, 0)
        self.moved: set[str] = set()

    def run(self, operations: int) -> Iterator[bool]:
        """Each step of the iterator is one moment."""
        for _ in range(operations):
            yield True
            if self.logs.fault is Fault.HIDE_THE_END or self.rng.random() < 0.8:
                yield from self.transact()
            else:
                began, key = self.logs.now, self.rng.choice(KEYS)
                value = self.new_value()
                yield True
                entry = self.logs.append(key, value, Fate.COMMITTED)
                yield True
                self.told(Outcome.OK, began, [Sent(key, value, entry.offset)], began)

    def transact(self) -> Iterator[bool]:
        began, before = self.logs.now, dict(self.positions)
        steps: list[Sent | Polled] = []
        mine: dict[str, list[Entry]] = {}
        for _ in range(self.rng.randrange(1, 6)):
            yield True
            key = self.rng.choice(KEYS)
            if self.rng.random() < 0.6:
                steps.append(self.send(key, mine.setdefault(key, [])))
            else:
                steps += self.poll(key)
        yield True
        if self.rng.random() < 0.2:
            yield from self.abort(began, before, steps, mine)
            return
        commit, known = self.logs.now, self.rng.random() < 0.8
        yield True
        half = not known and len(mine) > 1 and self.logs.wrong(Fault.HALVE)
        for number, (key, entries) in enumerate(mine.items()):
            self.end(key, entries, Fate.ABORTED if half and number else Fate.COMMITTED)
        yield True
        outcome = Outcome.OK if known else Outcome.UNKNOWN
        self.told(outcome, began, steps, commit)
        if any(isinstance(step, Polled) for step in steps) and known and self.logs.wrong(Fault.POSITION_LOST):
            self.go_back(before)

    def abort(
        self, began: int, before: dict[str, int], steps: list[Sent | Polled], mine: dict[str, list[Entry]]
    ) -> Iterator[bool]:
        shown = bool(mine) and self.logs.wrong(Fault.SHOW_ABORTED)
        for key, entries in mine.items():
            self.end(key, entries, Fate.COMMITTED if shown else Fate.ABORTED)
        yield True
        self.told(Outcome.FAILED, began, steps, None)
        self.go_back(before)

    def end(self, key: str, entries: list[Entry], fate: Fate) -> None:
        """Ends the transaction in `key`; the marker takes an offset."""
        self.logs.counts[key] += 4
        for entry in entries:
            entry.fate = fate
        if fate is Fate.COMMITTED and self.logs.wrong(Fault.LOSE):
            entries[-1].gone = True

    def send(self, key: str, mine: list[Entry]) -> Sent:
        value = self.new_value()
        entry = self.logs.append(key, value, Fate.OPEN)
        old = [entry for entry in self.logs.logs[key] if entry.fate is Fate.COMMITTED and entry.offset > 3]
        if mine and self.logs.wrong(Fault.APPEND_REVERSED):
            entry.offset, mine[-1].offset = mine[-1].offset - 1, entry.offset
        elif old and self.logs.wrong(Fault.APPEND_BEFORE):
            entry.offset = old[0].offset - 2
        if self.logs.wrong(Fault.REPEAT):
            mine.append(self.logs.append(key, value, Fate.OPEN))
        mine.append(entry)
        return Sent(key, value, entry.offset)

    def poll(self, key: str) -> list[Polled]:
        polled = self.logs.poll(key, self.positions[key], self.rng.randrange(1, 6))
        if polled:
            self.positions[key] = polled[-1].offset + 1
        return polled

    def go_back(self, positions: dict[str, int]) -> None:
        self.positions = positions
        self.moved = set(KEYS)

    def new_value(self) -> int:
        self.logs.values += 1
        return self.logs.values

    def told(self, outcome: Outcome, began: int, steps: list[Sent | Polled], commit: int | None) -> None:
        moved, self.moved = frozenset(self.moved), set()
        done = Operation(
            self.name, outcome, began, self.logs.now, tuple(steps), commit, moved, group=f"group of {self.name}"
        )
        self.logs.history.done.append(done)


def simulated(seed: int, fault: Fault | None = None) -> Simulation:
    simulation = Simulation(seed, fault)
    simulation.run()
    return simulation
