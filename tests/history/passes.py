"""The reads of clients from a log without transactions, and a pure judge of them: was anything lost, changed, repeated,
reordered or made up, byte for byte? (`anomalies.py` judges transactions, and readers that do not begin at the beginning.)

A record's identity is its key, which no two sends share. A `Send` is a record handed to a producer, an `Ack` the broker's
answer, a `Pass` one complete reading of every partition from its beginning. The judge knows nothing of brokers. These rules
must hold after any fault of a broker, its disk or its bucket:

- offsets: a pass has neither gap nor repeat of an offset, and leader epochs never fall along a partition;
- I1: a pass holds every record acknowledged before it began, at the acknowledged offset, with the bytes that were sent;
- I2: every later pass sees the same bytes, timestamp and leader epoch at an offset as the first pass that reached it;
- exactly once: each record of an idempotent producer has one offset only, and these records are in the order of sending.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

#: Violations of one kind that are reported in full; the rest are counted.
TOLD = 5


@dataclass(frozen=True, slots=True)
class Content:
    key: bytes
    value: bytes
    timestamp: int
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Send:
    """One record handed to a producer. `number` counts the producer's sends from 0."""

    producer: str
    number: int
    partition: int
    content: Content


@dataclass(frozen=True, slots=True)
class Ack:
    """An acknowledgement. `offset` is None if the client learned that the record is stored, but not at which offset."""

    key: bytes
    offset: int | None


@dataclass(frozen=True, slots=True)
class Seen:
    offset: int
    leader_epoch: int
    content: Content


@dataclass(frozen=True, slots=True)
class Pass:
    """One reading of all partitions. `acks` is the number of acknowledgements given before it began."""

    acks: int
    partitions: Mapping[int, Sequence[Seen]]


@dataclass(slots=True)
class History:
    """Everything that clients sent and saw. `log_starts` holds the log start of each partition that does not begin at 0."""

    sends: dict[bytes, Send] = field(default_factory=dict)
    acks: list[Ack] = field(default_factory=list)
    passes: list[Pass] = field(default_factory=list)
    log_starts: dict[int, int] = field(default_factory=dict)


def violations(history: History, *, exactly_once: Collection[str]) -> list[str]:
    """One sentence per violation; empty if a sound log can have this history. `exactly_once` names the idempotent producers."""
    told: list[str] = []
    for rule in (_gaps, _invented, _lost, _changed):
        told += _first_few(rule(history))
    told += _first_few(_repeated_or_reordered(history, exactly_once))
    return told


def _first_few(found: Iterator[str]) -> list[str]:
    told: list[str] = []
    more = 0
    for sentence in found:
        if len(told) < TOLD:
            told.append(sentence)
        else:
            more += 1
    return [*told, f"... and {more} more like this"] if more else told


def _gaps(history: History) -> Iterator[str]:
    for number, found in enumerate(history.passes):
        for partition, records in found.partitions.items():
            expected, epoch = history.log_starts.get(partition, 0), -1
            for seen in records:
                if seen.offset != expected:
                    yield f"pass {number}, partition {partition}: offset {seen.offset} where {expected} was due"
                if seen.leader_epoch < epoch:
                    yield (
                        f"pass {number}, partition {partition}, offset {seen.offset}: "
                        f"leader epoch {seen.leader_epoch} after {epoch}"
                    )
                expected, epoch = seen.offset + 1, max(epoch, seen.leader_epoch)


def _invented(history: History) -> Iterator[str]:
    """Every record read was sent, to this partition, with these bytes."""
    for number, found in enumerate(history.passes):
        for partition, records in found.partitions.items():
            for seen in records:
                send = history.sends.get(seen.content.key)
                place = f"pass {number}, partition {partition}, offset {seen.offset}"
                if send is None:
                    yield f"{place}: a record that was never sent, key {seen.content.key!r}"
                elif send.partition != partition:
                    yield f"{place}: {seen.content.key!r} was sent to partition {send.partition}"
                elif send.content != seen.content:
                    yield f"{place}: {seen.content.key!r} is not as it was sent: {_difference(send.content, seen.content)}"


def _lost(history: History) -> Iterator[str]:
    for number, found in enumerate(history.passes):
        offsets: dict[bytes, set[int]] = {}
        for records in found.partitions.values():
            for seen in records:
                offsets.setdefault(seen.content.key, set()).add(seen.offset)
        for ack in history.acks[: found.acks]:
            send = history.sends[ack.key]
            at = offsets.get(ack.key, set())
            if ack.offset is not None and ack.offset < history.log_starts.get(send.partition, 0):
                continue
            if not at:
                yield f"pass {number}: {ack.key!r}, acknowledged at {send.partition}/{ack.offset}, is lost"
            elif ack.offset is not None and ack.offset not in at:
                yield (
                    f"pass {number}: {ack.key!r} was acknowledged at offset {ack.offset} of partition {send.partition} "
                    f"and is at {sorted(at)}"
                )


def _changed(history: History) -> Iterator[str]:
    """Compares each pass with the previous one."""
    for number in range(1, len(history.passes)):
        before, after = history.passes[number - 1], history.passes[number]
        for partition, records in before.partitions.items():
            now = {seen.offset: seen for seen in after.partitions.get(partition, ())}
            for seen in records:
                found = now.get(seen.offset)
                if seen.offset < history.log_starts.get(partition, 0):
                    continue
                place = f"partition {partition}, offset {seen.offset}: pass {number - 1} saw {seen.content.key!r}"
                if found is None:
                    yield f"{place}, pass {number} nothing"
                elif found.content != seen.content:
                    yield f"{place}, pass {number} {found.content.key!r}: {_difference(seen.content, found.content)}"
                elif found.leader_epoch != seen.leader_epoch:
                    yield f"{place} of epoch {seen.leader_epoch}, pass {number} of epoch {found.leader_epoch}"


def _repeated_or_reordered(history: History, exactly_once: Collection[str]) -> Iterator[str]:
    for number, found in enumerate(history.passes):
        for partition, records in found.partitions.items():
            newest: dict[str, tuple[int, int]] = {}
            for seen in records:
                send = history.sends.get(seen.content.key)
                if send is None or send.producer not in exactly_once:
                    continue
                before, offset = newest.get(send.producer, (-1, -1))
                place = f"pass {number}, partition {partition}: {seen.content.key!r} at offset {seen.offset}"
                if send.number == before:
                    yield f"{place} stands at offset {offset} too"
                elif send.number < before:
                    yield f"{place} comes after send {before} of {send.producer}, at offset {offset}: repeated or reordered"
                else:
                    newest[send.producer] = send.number, seen.offset


def _difference(one: Content, other: Content) -> str:
    differing = [
        f"{name} {mine!r:.60} and {yours!r:.60}"
        for name, mine, yours in (
            ("key", one.key, other.key),
            ("value", one.value, other.value),
            ("timestamp", one.timestamp, other.timestamp),
            ("headers", one.headers, other.headers),
        )
        if mine != yours
    ]
    return ", ".join(differing)
