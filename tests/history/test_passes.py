"""Tests of the judge: it must report each kind of damage done to a sound history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.history.passes import TOLD, Ack, Content, History, Pass, Seen, Send, violations

IDEMPOTENT = ("once",)


def content(key: bytes) -> Content:
    return Content(key, b"value of " + key, 1_700_000_000_000, (("h", key),))


def sound() -> History:
    """An idempotent and a plain producer send six records each over two partitions. The plain producer's last record is there
    twice, as after a retry for a lost answer. The leader epoch rises at offset 4."""
    history = History()
    for producer in ("once", "plain"):
        for number in range(6):
            key = f"{producer}-{number}".encode()
            history.sends[key] = Send(producer, number, number % 2, content(key))
    order = {
        0: [b"once-0", b"plain-0", b"once-2", b"plain-2", b"once-4", b"plain-4"],
        1: [b"once-1", b"plain-1", b"once-3", b"plain-3", b"once-5", b"plain-5", b"plain-5"],
    }
    read = {
        partition: [Seen(offset, offset // 4, content(key)) for offset, key in enumerate(keys)]
        for partition, keys in order.items()
    }
    history.acks = [Ack(key, keys.index(key)) for keys in order.values() for key in dict.fromkeys(keys)]
    history.acks[-1] = Ack(b"plain-5", None)
    history.passes = [
        Pass(4, {partition: records[:4] for partition, records in read.items()}),
        Pass(len(history.acks), read),
    ]
    return history


def judge(history: History) -> list[str]:
    return violations(history, exactly_once=IDEMPOTENT)


def edit(history: History, change: Callable[[list[Seen]], object], *, number: int = 1, partition: int = 0) -> None:
    old = history.passes[number]
    records = list(old.partitions[partition])
    change(records)
    history.passes[number] = Pass(old.acks, {**old.partitions, partition: records})


def renumber(records: list[Seen]) -> None:
    records[:] = [replace(seen, offset=offset) for offset, seen in enumerate(records)]


def test_a_sound_history_is_sound() -> None:
    assert judge(sound()) == []


def test_an_unacknowledged_record_may_be_missing() -> None:
    history = sound()
    history.sends[b"once-6"] = Send("once", 6, 0, content(b"once-6"))
    assert judge(history) == []


def test_a_lost_record_at_the_end_is_found() -> None:
    history = sound()
    edit(history, lambda records: records.pop())
    assert judge(history) == ["pass 1: b'plain-4', acknowledged at 0/5, is lost"]


def test_a_lost_record_whose_offset_was_assigned_to_the_next_is_found() -> None:
    history = sound()
    edit(history, lambda records: records.pop(4))
    edit(history, renumber)
    assert any("b'once-4', acknowledged at 0/4, is lost" in told for told in judge(history))
    assert any("acknowledged at offset 5 of partition 0 and is at [4]" in told for told in judge(history))


def test_a_record_acknowledged_without_an_offset_may_not_be_lost() -> None:
    history = sound()
    edit(history, lambda records: (records.pop(), records.pop()), partition=1)
    assert judge(history) == ["pass 1: b'plain-5', acknowledged at 1/None, is lost"]


def test_a_record_once_read_may_not_disappear() -> None:
    history = sound()
    history.acks = []
    history.passes = [Pass(0, history.passes[1].partitions), Pass(0, history.passes[1].partitions)]
    edit(history, lambda records: records.pop(), partition=1)
    assert judge(history) == ["partition 1, offset 6: pass 0 saw b'plain-5', pass 1 nothing"]


@pytest.mark.parametrize(
    "other",
    [
        replace(content(b"plain-2"), value=b"value of plain-3"),
        replace(content(b"plain-2"), timestamp=5),
        replace(content(b"plain-2"), headers=()),
    ],
)
def test_changed_bytes_are_found(other: Content) -> None:
    history = sound()
    edit(history, lambda records: records.__setitem__(3, replace(records[3], content=other)))
    told = judge(history)
    assert any("b'plain-2' is not as it was sent" in line for line in told)
    assert any(line.startswith("partition 0, offset 3: pass 0 saw") for line in told)


def test_a_changed_epoch_is_found() -> None:
    history = sound()
    edit(history, lambda records: records.__setitem__(3, replace(records[3], leader_epoch=1)))
    assert judge(history) == ["partition 0, offset 3: pass 0 saw b'plain-2' of epoch 0, pass 1 of epoch 1"]


def test_a_falling_epoch_is_found() -> None:
    history = sound()
    edit(history, lambda records: records.__setitem__(5, replace(records[5], leader_epoch=0)))
    assert judge(history) == ["pass 1, partition 0, offset 5: leader epoch 0 after 1"]


def test_a_repeated_record_of_an_idempotent_producer_is_found() -> None:
    history = sound()
    edit(history, lambda records: records.append(Seen(6, 1, content(b"once-4"))))
    assert judge(history) == ["pass 1, partition 0: b'once-4' at offset 6 stands at offset 4 too"]


def test_an_older_record_that_is_repeated_is_found() -> None:
    history = sound()
    edit(history, lambda records: records.append(Seen(6, 1, content(b"once-0"))))
    assert len(judge(history)) == 1 and "repeated or reordered" in judge(history)[0]


def test_reordered_records_of_an_idempotent_producer_are_found() -> None:
    history = sound()
    history.acks, history.passes = [], history.passes[1:]

    def swap(records: list[Seen]) -> None:
        records[0], records[2] = records[2], records[0]
        renumber(records)

    edit(history, swap, number=0)
    assert len(judge(history)) == 1 and "comes after send 2 of once" in judge(history)[0]


@pytest.mark.parametrize("offset", [4, 6])
def test_a_gap_or_a_repeated_offset_is_found(offset: int) -> None:
    history = sound()
    history.acks = []
    edit(history, lambda records: records.__setitem__(5, replace(records[5], offset=offset)))
    assert judge(history) == [f"pass 1, partition 0: offset {offset} where 5 was due"]


def test_a_record_that_was_never_sent_is_found() -> None:
    history = sound()
    edit(history, lambda records: records.append(Seen(6, 1, content(b"from nowhere"))))
    assert judge(history) == ["pass 1, partition 0, offset 6: a record that was never sent, key b'from nowhere'"]


def test_a_record_in_another_partition_is_found() -> None:
    history = sound()
    edit(history, lambda records: records.append(Seen(6, 1, content(b"plain-3"))))
    assert judge(history) == ["pass 1, partition 0, offset 6: b'plain-3' was sent to partition 1"]


def test_records_below_log_start_may_be_gone() -> None:
    history = sound()
    history.log_starts[0] = 2
    edit(history, lambda records: records.__delitem__(slice(0, 2)))
    edit(history, lambda records: records.__delitem__(slice(0, 2)), number=0)
    assert judge(history) == []


def test_only_the_first_of_many_violations_are_listed() -> None:
    history = sound()
    history.passes = [Pass(len(history.acks), {0: [], 1: []})]
    told = judge(history)
    assert len(told) == TOLD + 1
    assert told[-1] == f"... and {len(history.acks) - TOLD} more like this"
