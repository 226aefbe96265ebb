"""A shard's decisions are written at the end of the caller's turn, or else in the next turn of the event loop."""

from __future__ import annotations

import asyncio

import pytest

from service.coordination.turn_writes import TurnWrites


async def test_records_of_a_turn_are_written_once_at_its_end_in_order() -> None:
    writes, written = TurnWrites(), list[str]()
    writes.begin()
    writes.add(lambda: written.append("first"))
    writes.add(lambda: written.append("second"))
    assert written == []
    writes.end()
    assert written == ["first", "second"]
    writes.end()
    await asyncio.sleep(0)
    assert written == ["first", "second"]


async def test_a_turn_knows_whether_its_end_writes() -> None:
    writes = TurnWrites()
    writes.begin()
    assert not writes.has_writes
    writes.add(lambda: None)
    assert writes.has_writes
    writes.end()
    assert not writes.has_writes


async def test_records_added_outside_a_turn_are_written_in_the_next_turn_of_the_loop() -> None:
    writes, written = TurnWrites(), list[str]()
    writes.add(lambda: written.append("first"))
    assert written == []
    await asyncio.sleep(0)
    assert written == ["first"]


async def test_a_turn_includes_earlier_records() -> None:
    writes, written = TurnWrites(), list[str]()
    writes.add(lambda: written.append("before"))
    writes.begin()
    writes.add(lambda: written.append("inside"))
    writes.end()
    assert written == ["before", "inside"]
    await asyncio.sleep(0)
    assert written == ["before", "inside"]


async def test_each_turn_of_a_caller_is_another() -> None:
    writes, turns = TurnWrites(), list[int]()
    for _ in range(2):
        writes.begin()
        turns.append(writes.turn)
        writes.end()
    assert (len({*turns, 0}), writes.turn) == (3, 0)


async def test_a_write_that_fails_by_a_defect_holds_up_no_other() -> None:
    writes, written = TurnWrites(), list[str]()

    def fails() -> None:
        raise ZeroDivisionError

    writes.begin()
    writes.add(fails)
    writes.add(lambda: written.append("second"))
    writes.add(lambda: written.append("third"))
    with pytest.raises(ZeroDivisionError):
        writes.end()
    await asyncio.sleep(0)
    assert written == ["second", "third"]


async def test_records_added_by_a_write_are_written_in_the_next_turn_of_the_loop() -> None:
    writes, written = TurnWrites(), list[str]()
    writes.begin()
    writes.add(lambda: writes.add(lambda: written.append("added")))
    writes.end()
    assert written == []
    await asyncio.sleep(0)
    assert written == ["added"]
