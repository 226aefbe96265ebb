"""A pure judge of what clients saw, in the manner of Jepsen's Kafka workload: it reports each anomaly that a sound log cannot
show.

- *invented*: a poll sees a value that no client sent, or that was sent to another key.
- *inconsistent offsets*: two values are seen, or acknowledged, at one offset of a key.
- *duplicate*: one value is seen, or acknowledged, at two offsets.
- *lost write*: a value is certain to be committed, and no poll sees it although a poll sees a higher offset of its key; or a
  reading of the whole key that begins after the end of the send does not hold the value.
- *unseen*: a value is certain to be committed, and no poll sees it or a higher offset of its key. The operations must end
  with readings of every key.
- *aborted read* (G1a): a poll sees a value of a transaction that was aborted.
- *intermediate read* (G1b): a poll sees a value of a transaction before the client requests its commit (also a value of the
  poll's own transaction); or a reading of the whole key, after the transaction was decided, holds only some of its values.
- *write cycle* (G0): two transactions do not overlap in time, and the later one has the lower offset in a key (`cycles.py`). A
  key takes the place of the list in Jepsen's list-append workload.
- *information cycle* (G1c): a cycle of write order, time, and at least one read of another transaction's value.
- *internal poll skip*: two successive polls of a key in one operation leave out an offset between them that holds a value.
- *external poll skip*: the same between the last poll of an operation and the first poll of its process's next operation; or
  between the beginning of the log and the first poll of a reading of the whole key.
- *non-monotonic poll*: the second of two such polls is at the same offset as the first, or at a lower one.
- *non-monotonic send*: the second of two successive sends of a process to a key has the lower offset.
- *consumed twice*: two committed transactions of a consumer group poll the same value.

Behaviour that Jepsen allows is no anomaly here: records of overlapping transactions interleave, as writers are not isolated in
Kafka. In a compacted key, a value may be missing anywhere if a newer value of its name may have replaced it. A value may become
visible late, but must be visible to the readings at the end. If a disk with the only replica was lost, `losses.py` bounds what
may be missing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from enum import Enum
from itertools import pairwise

from tests.history.cycles import information_cycles, write_cycles
from tests.history.logs import Logs
from tests.history.losses import may_repeat, within_bounds
from tests.history.operations import Operation, Operations, Outcome, Polled

#: Anomalies of one kind that are reported in full; the rest are counted.
TOLD = 5
FOREVER = 1 << 63


class Kind(Enum):
    INVENTED = "invented"
    INCONSISTENT_OFFSETS = "inconsistent offsets"
    DUPLICATE = "duplicate"
    LOST_WRITE = "lost write"
    UNSEEN = "unseen"
    ABORTED_READ = "aborted read (G1a)"
    INTERMEDIATE_READ = "intermediate read (G1b)"
    WRITE_CYCLE = "write cycle (G0)"
    INFORMATION_CYCLE = "information cycle (G1c)"
    INTERNAL_POLL_SKIP = "internal poll skip"
    EXTERNAL_POLL_SKIP = "external poll skip"
    NON_MONOTONIC_POLL = "non-monotonic poll"
    NON_MONOTONIC_SEND = "non-monotonic send"
    CONSUMED_TWICE = "consumed twice"


def anomalies(operations: Operations) -> dict[Kind, list[str]]:
    """A sentence for each anomaly, by kind; empty if sound logs can have had these operations."""
    logs = Logs(within_bounds(operations))
    found: dict[Kind, list[str]] = {kind: list(dict.fromkeys(rule(logs))) for kind, rule in RULES.items()}
    for kind, sentence in _poll_order(logs):
        found.setdefault(kind, []).append(sentence)
    return {kind: sentences for kind, sentences in found.items() if sentences}


def told(found: dict[Kind, list[str]]) -> str:
    """The first few anomalies of each kind, one per line."""
    lines: list[str] = []
    for kind, sentences in found.items():
        lines += [f"{kind.value}: {sentence}" for sentence in sentences[:TOLD]]
        if len(sentences) > TOLD:
            lines.append(f"{kind.value}: ... and {len(sentences) - TOLD} more")
    return "\n".join(lines)


def _polls(logs: Logs) -> Iterator[tuple[Operation, Polled]]:
    return ((operation, step) for operation in logs.operations.done for step in operation.polls())


def _invented(logs: Logs) -> Iterator[str]:
    for operation, step in _polls(logs):
        if step.value not in logs.writers:
            yield f"{operation} polled {step.value} of {step.key}/{step.offset}, which was never sent"
        elif (key := logs.writers[step.value][1].key) != step.key:
            yield f"{operation} polled {step.value} of {step.key}/{step.offset}, which was sent to {key}"


def _inconsistent_offsets(logs: Logs) -> Iterator[str]:
    for key, found in logs.values.items():
        for offset, values in found.items():
            if len(values) > 1:
                yield f"{key}/{offset} holds each of {sorted(values)}"


def _duplicates(logs: Logs) -> Iterator[str]:
    for value, offsets in logs.offsets.items():
        if len(offsets) > 1:
            yield f"{value} stands at each of the offsets {sorted(offsets)}"


def _certain(logs: Logs) -> Iterator[tuple[Operation, int, str]]:
    for operation in logs.operations.done:
        if logs.committed(operation):
            for sent in operation.sends():
                yield operation, sent.value, sent.key


def _lost_writes(logs: Logs) -> Iterator[str]:
    highest = logs.highest_polled()
    certain = list(_certain(logs))
    for writer, value, key in certain:
        lowest = min(logs.offsets.get(value, {FOREVER}))
        if value not in logs.polled and lowest < highest.get(key, -1) and not logs.may_be_gone(value, FOREVER):
            yield f"{value}, sent by {writer} to {key}/{lowest}, was polled by none, and {key}/{highest[key]} was"
    for reading in (operation for operation in logs.operations.done if operation.whole):
        held = {step.value for step in reading.polls()}
        for writer, value, key in certain:
            missing = key in reading.whole and writer.end < reading.begin and value not in held
            if missing and not logs.may_be_gone(value, reading.end):
                yield f"{value}, sent by {writer} to {key}, is not in the whole reading of {reading}"


def _unseen(logs: Logs) -> Iterator[str]:
    highest = logs.highest_polled()
    for writer, value, key in _certain(logs):
        missing = value not in logs.polled and min(logs.offsets.get(value, {FOREVER})) >= highest.get(key, -1)
        if missing and not logs.may_be_gone(value, FOREVER):
            yield f"{value}, sent by {writer} to {key}, was never polled"


def _aborted_reads(logs: Logs) -> Iterator[str]:
    for reader, step in _polls(logs):
        writer = logs.writers[step.value][0] if step.value in logs.writers else None
        if writer is not None and writer.outcome is Outcome.FAILED:
            yield f"{reader} polled {step.value} of {step.key}/{step.offset}: {writer} was aborted"


def _intermediate_reads(logs: Logs) -> Iterator[str]:
    for reader, step in _polls(logs):
        writer = logs.writers[step.value][0] if step.value in logs.writers else None
        if writer is None or writer.outcome is Outcome.FAILED:
            continue
        if writer is reader:
            yield f"{reader} polled {step.value} of {step.key}/{step.offset}, which it had sent itself"
        elif writer.commit is None or reader.end < writer.commit:
            yield f"{reader} polled {step.value} of {step.key}/{step.offset}: {writer} asked to commit at {writer.commit}"
    for reading in (operation for operation in logs.operations.done if operation.whole):
        held = {step.value for step in reading.polls()}
        for writer in logs.operations.done:
            if writer.outcome is not Outcome.UNKNOWN or writer.end >= reading.begin:
                continue
            due = [sent.value for sent in writer.sends() if sent.key in reading.whole]
            missing = [value for value in due if value not in held and not logs.may_be_gone(value, reading.end)]
            if missing and len(held.intersection(due)):
                yield f"of {writer}, {reading} holds {sorted(held.intersection(due))} and not {missing}"


def _non_monotonic_sends(logs: Logs) -> Iterator[str]:
    last: dict[tuple[str, str], tuple[int, int]] = {}
    for operation in logs.operations.done:
        for sent in operation.sends():
            offsets = logs.offsets.get(sent.value) or ({sent.offset} if sent.offset is not None else set())
            if not offsets:
                continue
            offset, (before, value) = min(offsets), last.get((operation.process, sent.key), (-1, -1))
            if offset < before:
                yield f"{operation} sent {sent.value} after {value}: {sent.key}/{offset} is before {before}"
            last[operation.process, sent.key] = offset, sent.value


def _consumed_twice(logs: Logs) -> Iterator[str]:
    consumers: dict[tuple[str, int], list[Operation]] = defaultdict(list)
    for operation in logs.operations.done:
        if operation.group and operation.outcome is Outcome.OK:
            for value in {step.value for step in operation.polls()}:
                consumers[operation.group, value].append(operation)
    for (group, value), found in consumers.items():
        found.sort(key=lambda operation: operation.end)
        if not all(may_repeat(logs.operations, group, one, other) for one, other in pairwise(found)):
            yield f"{value} is among the polls of {len(found)} committed transactions of the group {group}"


def _poll_order(logs: Logs) -> Iterator[tuple[Kind, str]]:
    last: dict[tuple[str, str], int] = {}
    for operation in logs.operations.done:
        seen: set[str] = set()
        for key in operation.moved:
            last.pop((operation.process, key), None)
        for step in operation.polls():
            place = operation.process, step.key
            before = last.get(place)
            if step.key in operation.whole and step.key not in seen:
                before = -1
            elif step.key in operation.moved:
                before = None
            if before is not None:
                yield from _successive(logs, operation, step, before, internal=step.key in seen)
            last[place] = step.offset
            seen.add(step.key)


def _successive(
    logs: Logs, operation: Operation, step: Polled, before: int, *, internal: bool
) -> Iterator[tuple[Kind, str]]:
    if step.offset <= before:
        yield Kind.NON_MONOTONIC_POLL, f"{operation} polled {step.key}/{step.offset} after {before}"
        return
    for offset in logs.between(step.key, before, step.offset):
        values = logs.values[step.key][offset]
        if not all(value in logs.writers and logs.may_be_gone(value, operation.end) for value in values):
            kind = Kind.INTERNAL_POLL_SKIP if internal else Kind.EXTERNAL_POLL_SKIP
            yield (
                kind,
                f"{operation} polled {step.key}/{step.offset} after {before} and left out {offset}: {sorted(values)}",
            )


RULES: dict[Kind, Callable[[Logs], Iterator[str]]] = {
    Kind.INVENTED: _invented,
    Kind.INCONSISTENT_OFFSETS: _inconsistent_offsets,
    Kind.DUPLICATE: _duplicates,
    Kind.LOST_WRITE: _lost_writes,
    Kind.UNSEEN: _unseen,
    Kind.ABORTED_READ: _aborted_reads,
    Kind.INTERMEDIATE_READ: _intermediate_reads,
    Kind.WRITE_CYCLE: write_cycles,
    Kind.INFORMATION_CYCLE: information_cycles,
    Kind.NON_MONOTONIC_SEND: _non_monotonic_sends,
    Kind.CONSUMED_TWICE: _consumed_twice,
}
