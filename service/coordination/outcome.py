"""What a shard decides: records to write, and answers to release once they are committed.

A waiter is whatever the shell hands in with a request and gets back with its answer; a shard only keeps it. An answer that is
given later, as JoinGroup's, belongs to the outcome of the event that ends the wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

NoteField = str | int | float | bool | BaseException | None


class CoordinatorRecord(NamedTuple):
    """One record of the shard's partition. A `value` of None is a tombstone."""

    key: bytes
    value: bytes | None


class CoordinatorAnswer(NamedTuple):
    waiter: object
    answer: object


class CoordinatorNote(NamedTuple):
    """Something for the node's log: a registered event (`storage_tiers.events`) and its fields."""

    event: str
    fields: Mapping[str, NoteField]


class Outcome:
    """Collects the decisions of one event, in order."""

    __slots__ = ("answers", "notes", "records")

    def __init__(self) -> None:
        self.records: list[CoordinatorRecord] = []
        self.answers: list[CoordinatorAnswer] = []
        self.notes: list[CoordinatorNote] = []

    def note(self, event: str, **fields: NoteField) -> None:
        self.notes.append(CoordinatorNote(event, fields))

    def write(self, key: bytes, value: bytes | None) -> None:
        self.records.append(CoordinatorRecord(key, value))

    def answer(self, waiter: object, answer: object) -> None:
        self.answers.append(CoordinatorAnswer(waiter, answer))
