"""The result of one event: records to write, and answers to send once they are committed.

A waiter is an object that the runtime passes in with a request and gets back with the answer; the shard only keeps it. A later
answer, such as JoinGroup's, belongs to the outcome of the event that ends the wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

# A NamedTuple's own constructor takes three times as long, and each request makes several of these tuples.
_new_tuple = tuple.__new__

NoteField = str | int | float | bool | BaseException | None


class CoordinatorRecord(NamedTuple):
    """One record of the shard's partition. A `value` of None is a tombstone."""

    key: bytes
    value: bytes | None


#: A decision that changes nothing before its records are written: the records (at least one), the changes to the shard, and
#: the answer.
PlannedDecision = tuple[list[CoordinatorRecord], Any, object]


class CoordinatorAnswer(NamedTuple):
    """`answer` is a value of the contract or a LogError, for the `waiter` that came with the request."""

    waiter: object
    answer: object


class CoordinatorNote(NamedTuple):
    """An entry for the node's log: a registered event (`storage_tiers.events`) and its fields."""

    event: str
    fields: Mapping[str, NoteField]


class Outcome:
    """Collects the decisions of one event, in order. `views` has an entry for each replaced view: the name, the view that
    readers get until the record is committed, and the record's position."""

    __slots__ = ("answers", "notes", "records", "views")

    def __init__(self) -> None:
        self.records: list[CoordinatorRecord] = []
        self.answers: list[CoordinatorAnswer] = []
        self.notes: list[CoordinatorNote] = []
        self.views: Sequence[tuple[str, Any, int]] = ()

    def note(self, event: str, **fields: NoteField) -> None:
        self.notes.append(CoordinatorNote(event, fields))

    def write(self, key: bytes, value: bytes | None) -> None:
        self.records.append(_new_tuple(CoordinatorRecord, (key, value)))

    def replace(self, name: str, view: object) -> None:
        """Declares that the next record changes `name`. Readers see `view` until the record is committed, or nothing if `view`
        is None."""
        self.views = (*self.views, (name, view, len(self.records)))

    def answer(self, waiter: object, answer: object) -> None:
        self.answers.append(_new_tuple(CoordinatorAnswer, (waiter, answer)))

    def add(self, later: Outcome) -> None:
        """Adds the outcome of a later event, whose views are already counted."""
        self.records += later.records
        self.answers += later.answers
        self.notes += later.notes
