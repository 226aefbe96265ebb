"""The bound of a loss: the records, and the decisions of coordinators, that may be lost with the disk of the only replica.

A *loss of records* names a key, an offset and a time: records of the key at that offset or above may be gone, if the operation
that sent them began before that time. The offset is the end of the bucket's manifest while the broker was down. Later records
get these offsets a second time. Records below the offset, and records sent after that time, must not be gone.

A *loss of decisions* names a time, transactional ids and groups whose coordinators had their logs on the disk. An id's newest
transaction that had asked to commit may be undone, wholly or in some of its keys: its coordinator answers before the markers
are written. Older transactions must not be undone, since an id's next transaction begins after the markers. A group may consume
again the records that it had consumed before that time.

A poll of a lost record is taken out of the history, and its send loses its offset: the order between the lost records and the
later records at their offsets is not judged. A record counts as lost if no whole reading after the loss holds it at its offset.
So the operations must end with readings of every key.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from tests.history.operations import Decisions, Loss, Operation, Operations, Outcome, Polled, Sent


def within_bounds(operations: Operations) -> Operations:
    """The operations without the polls and the acknowledged offsets that the losses explain. `gone` names the values that may
    be missing."""
    if not operations.losses and not operations.decisions:
        return operations
    records, undone = _LostRecords(operations), set[int]()
    for each in operations.decisions:
        undone.update(id(operation) for operation in _undecided(operations, each))
    done, gone = list[Operation](), set[int]()
    for operation in operations.done:
        kept = tuple(records.remaining(operation, gone))
        outcome = operation.outcome
        if id(operation) in undone:
            gone.update(sent.value for sent in operation.sends())
            outcome = Outcome.UNKNOWN
        done.append(replace(operation, outcome=outcome, steps=kept))
    return replace(operations, done=done, gone=frozenset(gone))


def may_repeat(operations: Operations, group: str, first: Operation, second: Operation) -> bool:
    """Whether a loss may have taken the positions that operation `first` of the group committed, before operation `second`
    ended."""
    return any(group in each.groups and first.begin < each.at < second.end for each in operations.decisions)


class _LostRecords:
    def __init__(self, operations: Operations) -> None:
        self._losses: dict[str, list[Loss]] = defaultdict(list)
        for loss in operations.losses:
            self._losses[loss.key].append(loss)
        self._begun = {sent.value: each.begin for each in operations.done for sent in each.sends()}
        #: By key, offset and value: the latest beginning of a whole reading that holds the value at the offset.
        self._held: dict[tuple[str, int, int], int] = {}
        for operation in operations.done:
            for step in operation.polls():
                if step.key in operation.whole:
                    place = step.key, step.offset, step.value
                    self._held[place] = max(operation.begin, self._held.get(place, -1))

    def remaining(self, operation: Operation, gone: set[int]) -> Iterator[Sent | Polled]:
        """The steps without those that a loss explains. Adds the values that may be missing to `gone`."""
        for step in operation.steps:
            if not self._is_lost(step):
                yield step
            elif isinstance(step, Sent):
                gone.add(step.value)
                yield replace(step, offset=None)

    def _is_lost(self, step: Sent | Polled) -> bool:
        began = self._begun.get(step.value)
        if began is None:
            return False
        held = -1 if step.offset is None else self._held.get((step.key, step.offset, step.value), -1)
        return any(
            began < loss.at and held < loss.at and (step.offset is None or step.offset >= loss.end)
            for loss in self._losses.get(step.key, ())
        )


def _undecided(operations: Operations, lost: Decisions) -> Iterator[Operation]:
    """For each process of the loss, its newest operation with sends whose commit was requested before."""
    by_process: dict[str, list[Operation]] = defaultdict(list)
    for operation in operations.done:
        asked = operation.commit is not None and operation.commit < lost.at
        if operation.process in lost.processes and asked and any(operation.sends()):
            by_process[operation.process].append(operation)
    for asked_before in by_process.values():
        yield from asked_before[-1:]
