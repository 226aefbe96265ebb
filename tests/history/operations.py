"""What clients did to a set of logs, and what they saw: a list of operations with their times on one clock.

The words are those of Jepsen's Kafka workload. A *key* is one log, that is a partition. A *value* is a number that no two sends
share, so that a poll tells which send it sees. An *operation* is a transaction of sends and polls, a send of its own, or a poll
of its own. Times are those of one monotonic clock, from 0 on, so that an operation that ends before another begins precedes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum


class Outcome(Enum):
    OK = "ok"
    #: It was aborted for certain: its sends must never be seen. What it polled is valid all the same.
    FAILED = "failed"
    #: Its commit was asked for, and no answer came: all of its sends are to be seen, or none.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Sent:
    """`offset` is None if the client was told none. Of the records of one `name` in a compacted key only the newest stays."""

    key: str
    value: int
    offset: int | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class Polled:
    key: str
    value: int
    offset: int


@dataclass(frozen=True, slots=True)
class Operation:
    """`process` does one operation after another.

    An operation whose answer is lost ends when the next producer of its transactional id is initialised, which is when its
    outcome is decided. `commit` is when its sends were first allowed to be seen: when its commit was asked for, or `begin` if
    it is no transaction; None if that never came.

    `moved` names the keys whose position in the log was set anew, by a seek or a rebalance, since the process's last operation
    ended: nothing is said of the order of their polls.
    `whole` names the keys that it read from the beginning of the log to its end. The positions after the polls of an operation
    with a `group` are committed with it.
    """

    process: str
    outcome: Outcome
    begin: int
    end: int
    steps: tuple[Sent | Polled, ...] = ()
    commit: int | None = None
    moved: frozenset[str] = frozenset()
    whole: frozenset[str] = frozenset()
    group: str = ""

    def sends(self) -> Iterator[Sent]:
        return (step for step in self.steps if isinstance(step, Sent))

    def polls(self) -> Iterator[Polled]:
        return (step for step in self.steps if isinstance(step, Polled))

    def __str__(self) -> str:
        return f"{self.process} at {self.begin}"


@dataclass(slots=True)
class Operations:
    """Those of one process in the order in which it did them. `compacted` names the keys that compaction removes records of."""

    done: list[Operation] = field(default_factory=list)
    compacted: frozenset[str] = frozenset()
