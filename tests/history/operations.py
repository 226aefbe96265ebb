"""The history of the clients of a set of logs: a list of operations, with everything they saw and their times on one clock.

The words are those of Jepsen's Kafka workload. A *key* is one log, that is, a partition. A *value* is a number that no two
sends share, so that a polled value identifies its send. An *operation* is a transaction of sends and polls, or sends or polls
without a transaction. Times are ns of one monotonic clock that starts at 0, so an operation that ends before another begins
precedes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum


class Outcome(Enum):
    OK = "ok"
    #: The operation is certain to be aborted: no poll may see its sends. Its own polls are valid.
    FAILED = "failed"
    #: The commit was requested, and no answer came: either all of the operation's sends become visible, or none.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Sent:
    """`offset` is None if the client did not learn it. A compacted key keeps only the newest record of each `name`."""

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
    outcome is decided. `commit` is the time from which its sends may be seen: the time of the commit request, or `begin` if the
    operation is no transaction; None if there was no such request.

    `moved` names the keys whose position a seek or a rebalance has set since the process's last operation ended: the order of
    their polls is not judged. `whole` names the keys that the operation read from the beginning of the log to its end. An
    operation with a `group` commits the group's positions after its polls.
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


@dataclass(frozen=True, slots=True)
class Loss:
    """A disk with the only replica of `key` was lost: records at `end` or above, of operations that began before the time `at`,
    may be gone (`losses.py`)."""

    key: str
    end: int
    at: int


@dataclass(frozen=True, slots=True)
class Decisions:
    """A disk was lost at the time `at`, with the logs of the coordinators of `groups` and of the transactional ids of
    `processes` (`losses.py`)."""

    at: int
    processes: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()


@dataclass(slots=True)
class Operations:
    """`done` keeps each process's operations in their order. `compacted` names the keys with compaction, `gone` the values
    whose absence a loss explains."""

    done: list[Operation] = field(default_factory=list)
    compacted: frozenset[str] = frozenset()
    losses: list[Loss] = field(default_factory=list)
    decisions: list[Decisions] = field(default_factory=list)
    gone: frozenset[int] = frozenset()
