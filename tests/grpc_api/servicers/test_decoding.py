"""A decoding turn ends when its thread ends, and reads that wait share the bounded memory for inflated batches."""

from __future__ import annotations

import asyncio
import threading

import pytest

from grpc_api import limits
from grpc_api.servicers import decoding
from grpc_api.servicers.decoding import Decoding
from tests.service.broker.support import until


async def test_a_cancelled_turn_ends_with_its_thread_and_tells_it_to_stop() -> None:
    turns = Decoding()
    begun, may_end = threading.Event(), threading.Event()
    order: list[str] = []

    def long(stopped: threading.Event) -> None:
        begun.set()
        may_end.wait()
        order.append(f"stopped={stopped.is_set()}")

    def short(stopped: threading.Event) -> str:
        order.append("next")
        return "result"

    first = asyncio.create_task(turns.turn(long))
    try:
        await until(begun.is_set)
        second = asyncio.create_task(turns.turn(short))
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        third = asyncio.create_task(turns.turn(short))
        await asyncio.sleep(0)
        assert order == []
    finally:
        may_end.set()
    assert (await second, await third) == ("result", "result")
    assert order == ["stopped=True", "next", "next"]


async def test_an_error_in_a_turn_is_raised_to_its_caller_and_frees_the_turn() -> None:
    def broken(stopped: threading.Event) -> None:
        raise ValueError("broken")

    turns = Decoding()
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            await turns.turn(broken)


async def test_kept_batches_stay_within_the_bound_and_young_ones_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "INFLATED_BYTES", 100)
    monkeypatch.setattr(decoding, "KEPT_S", 1000.0)
    turns = Decoding()
    first, second = turns.try_keep(60), turns.try_keep(40)
    assert first is not None
    assert second is not None
    assert (turns.try_keep(1), turns.kept_bytes) == (None, 100)
    waiting = asyncio.create_task(turns.keep(50))
    await asyncio.sleep(0)
    turns.release(second)
    turns.release(second)
    assert turns.try_keep(10) is None  # the waiting read comes first
    turns.release(first)
    assert (await waiting).size == 50
    assert turns.kept_bytes == 50


async def test_a_batch_past_its_time_is_dropped_for_a_read_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "INFLATED_BYTES", 100)
    monkeypatch.setattr(decoding, "KEPT_S", 0.0)
    turns = Decoding()
    used, unused = turns.try_keep(60), turns.try_keep(40)
    assert used is not None
    assert unused is not None
    used.is_used = True
    assert (await turns.keep(30)).is_held
    assert (used.is_held, unused.is_held) == (True, False)
    assert turns.try_keep(80) is None
    used.is_used = False
    assert (await turns.keep(1000)).size == 100
    assert (used.is_held, turns.kept_bytes) == (False, 100)


async def test_a_read_changes_the_size_of_its_room_while_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "INFLATED_BYTES", 100)
    monkeypatch.setattr(decoding, "KEPT_S", 1000.0)
    turns = Decoding()
    kept = turns.try_keep(60)
    assert kept is not None
    waiting = asyncio.create_task(turns.keep(50))
    await asyncio.sleep(0)
    assert [turns.resize(kept, size) for size in (101, 100, 61)] == [False, True, True]
    assert (turns.kept_bytes, waiting.done()) == (61, False)
    assert turns.resize(kept, 50)
    assert (await waiting).size == 50
    turns.release(kept)
    assert (turns.resize(kept, 1), turns.kept_bytes) == (False, 50)
