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


def in_batches(records: list[CoordinatorRecord], max_bytes: int) -> list[list[CoordinatorRecord]]:
    """Consecutive records that fit one batch each. A record alone in its batch may be too large: the log refuses it."""
    batches: list[list[CoordinatorRecord]] = []
    room = 0
    for record in records:
        size = len(record.key) + len(record.value or b"") + _RECORD_OVERHEAD
        if size > room:
            batches.append([])
            room = max_bytes - _BATCH_OVERHEAD
        batches[-1].append(record)
        room -= size
    return batches


#: Bytes of a batch besides its records, and at most of a record besides its key and value.
_BATCH_OVERHEAD, _RECORD_OVERHEAD = 61, 32
