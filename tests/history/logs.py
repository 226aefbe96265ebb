"""The logs as a list of operations shows them: the writer and the offsets of each value, and the order of the values.

A key's values are ordered by offset. Offsets need not be contiguous: markers and aborted records take some. An
offset counts if a poll saw it, or if the send that was acknowledged with it is certain to be committed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict

from tests.history.operations import Operation, Operations, Outcome, Sent


class Logs:
    def __init__(self, operations: Operations) -> None:
        self.operations = operations
        #: By value: the operation that sent it, and that operation's step (`Sent`).
        self.writers: dict[int, tuple[Operation, Sent]] = {}
        self.polled: set[int] = set()
        for operation in operations.done:
            self.polled.update(step.value for step in operation.polls())
            for sent in operation.sends():
                assert sent.value not in self.writers, f"{sent.value} was sent twice"
                self.writers[sent.value] = operation, sent
        #: `values`: by key and offset, every value that was seen there. `offsets`: by value, every offset.
        self.values: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
        self.offsets: dict[int, set[int]] = defaultdict(set)
        for operation in operations.done:
            committed = self.committed(operation)
            for step in operation.steps:
                if step.offset is not None and (committed or not isinstance(step, Sent)):
                    self.values[step.key][step.offset].add(step.value)
                    self.offsets[step.value].add(step.offset)
        self._order = {key: sorted(found) for key, found in self.values.items()}
        self._named: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        for value, (operation, sent) in self.writers.items():
            if sent.key in operations.compacted:
                for offset in self.offsets.get(value, ()):
                    self._named[sent.key, sent.name].append((offset, operation.begin))

    def committed(self, operation: Operation) -> bool:
        """Whether the operation is certain to be committed: its client got that answer, or a poll saw one of its values."""
        if operation.outcome is Outcome.UNKNOWN:
            return any(sent.value in self.polled for sent in operation.sends())
        return operation.outcome is Outcome.OK

    def between(self, key: str, first: int, last: int) -> list[int]:
        """The offsets above `first` and below `last` that are known to hold a value."""
        order = self._order.get(key, [])
        return order[bisect_right(order, first) : bisect_left(order, last)]

    def highest_polled(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for operation in self.operations.done:
            for step in operation.polls():
                found[step.key] = max(step.offset, found.get(step.key, -1))
        return found

    def may_be_gone(self, value: int, until: int) -> bool:
        """Whether a loss may have taken a value, or compaction may have removed it: the operation that sent a newer value of
        its name began before the time `until`."""
        if value in self.operations.gone:
            return True
        _, sent = self.writers[value]
        if sent.key not in self.operations.compacted:
            return False
        lowest = min(self.offsets.get(value, {-1}))
        return any(
            offset > lowest and begin < until and offset not in self.offsets.get(value, ())
            for offset, begin in reversed(self._named[sent.key, sent.name])  # newer values are mostly near the end
        )
