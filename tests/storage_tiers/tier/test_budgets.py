"""Unit tests of the byte budget, the back-off and the read-ahead window."""

from __future__ import annotations

import asyncio

import pytest

from storage_tiers.backoff import Backoff, BackoffSettings
from storage_tiers.cold.process.byte_budget import ByteBudget, Ticket
from storage_tiers.cold.process.settings import CHUNK_BYTES
from storage_tiers.cold.read.prefetch import MAX_STREAMS, MAX_WINDOW_BYTES, ReadAhead
from tests.support.clock import SeededRng


class Users:
    """Holds tickets until the test releases them, and records the order in which they were granted."""

    def __init__(self, budget: ByteBudget) -> None:
        self.budget = budget
        self.order: list[str] = []
        self.release: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.tickets: dict[str, Ticket] = {}

    async def start(self, name: str, size: int, *, urgent: bool = True, owner: int = 0) -> None:
        self.release[name] = asyncio.Event()
        self.tickets[name] = self.budget.ticket(size, urgent=urgent, owner=owner)
        self.tasks[name] = asyncio.create_task(self._hold(name))
        await asyncio.sleep(0)

    async def _hold(self, name: str) -> None:
        async with self.budget.hold(self.tickets[name]):
            self.order.append(name)
            await self.release[name].wait()

    async def end(self, name: str) -> None:
        self.release[name].set()
        await self.tasks[name]
        await asyncio.sleep(0)


async def test_bytes_and_holders_are_bounded_in_order() -> None:
    users = Users(ByteBudget(10, 2))
    for name, size in (("a", 6), ("b", 6), ("c", 1)):
        await users.start(name, size)
    assert users.order == ["a"]  # c fits, but b came first
    await users.end("a")
    assert users.order == ["a", "b", "c"] and users.budget.held_bytes == 7
    await users.start("d", 1)
    assert users.order[-1] == "c"  # two tickets are held at once
    await users.end("b")
    assert users.order[-1] == "d"
    assert users.budget.most_held_bytes == 7


async def test_urgent_and_raised_requests_come_first() -> None:
    users = Users(ByteBudget(10, 10))
    await users.start("first", 10)
    await users.start("later", 10, urgent=False)
    await users.start("ahead", 10, urgent=False)
    await users.start("now", 10)
    users.budget.raise_priority(users.tickets["ahead"])
    for name in ("first", "now", "ahead", "later"):
        assert users.order[-1] == name
        await users.end(name)
    assert users.budget.held_bytes == 0


async def test_a_request_for_more_than_the_budget_gets_all_of_it_alone() -> None:
    users = Users(ByteBudget(10, 4))
    await users.start("huge", 1000)
    await users.start("small", 1)
    assert users.order == ["huge"]
    await users.end("huge")
    assert users.order == ["huge", "small"]


async def test_a_cancelled_waiter_delays_no_other() -> None:
    users = Users(ByteBudget(10, 4))
    for name, size in (("a", 8), ("big", 10), ("small", 2)):
        await users.start(name, size)
    users.tasks["big"].cancel()
    await asyncio.gather(users.tasks["big"], return_exceptions=True)
    await asyncio.sleep(0)
    assert users.order == ["a", "small"]
    await users.end("a")
    await users.end("small")
    assert users.budget.held_bytes == 0


async def test_a_waiter_cancelled_during_its_grant_returns_it() -> None:
    users = Users(ByteBudget(10, 1))
    async with users.budget.hold(users.budget.ticket(10)):
        await users.start("b", 10)
    users.tasks["b"].cancel()  # cancelled after the grant and before the task runs
    await asyncio.gather(users.tasks["b"], return_exceptions=True)
    assert users.order == [] and users.budget.held_bytes == 0
    await users.start("c", 10)
    assert users.order == ["c"]


def test_backoff_grows_to_its_bound_and_starts_again() -> None:
    backoff = Backoff(BackoffSettings(1.0, 8.0), SeededRng(3))
    for whole in (1, 2, 4, 8, 8, 8):
        assert whole / 2 <= backoff.next_delay() <= whole
    backoff.succeeded()
    assert backoff.next_delay() <= 1.0
    for _ in range(10_000):
        assert backoff.next_delay() <= 8.0
    with pytest.raises(ValueError):
        BackoffSettings(2.0, 1.0)


def test_windows_double_along_a_stream_and_stay_bounded() -> None:
    ahead: ReadAhead[int] = ReadAhead()
    windows = [ahead.accessed(place, place - 1) for place in range(8)]
    doubling = [None, *(min(CHUNK_BYTES << step, MAX_WINDOW_BYTES) for step in range(7))]
    assert windows == doubling
    assert ahead.accessed(7, 6) is None  # the same chunk again


def test_random_reads_have_no_window_and_disturb_no_stream() -> None:
    ahead: ReadAhead[int] = ReadAhead()
    for place in range(4):
        ahead.accessed(place, place - 1)
    assert [ahead.accessed(place, place - 1) for place in (100, 50, 70, 10)] == [None] * 4
    assert ahead.accessed(4, 3) == CHUNK_BYTES << 3
    # Two readers of one chunk share a window; when the second moves on, the window has already moved.
    assert ahead.accessed(5, 4) is not None and ahead.accessed(5, 4) is None


def test_streams_are_bounded() -> None:
    ahead: ReadAhead[int] = ReadAhead()
    for place in range(0, 10 * (MAX_STREAMS + 1), 10):
        ahead.accessed(place, None)
    assert ahead.accessed(1, 0) is None  # evicted as the least recently used window
    assert ahead.accessed(11 + 10, 10 + 10) == CHUNK_BYTES


async def test_owners_take_turns() -> None:
    users = Users(ByteBudget(10, 1))
    for name in ("a1", "a2", "a3", "a4"):
        await users.start(name, 1, owner=1)
    for name in ("b1", "b2"):
        await users.start(name, 1, owner=2)
    await users.start("c1", 1, owner=3)
    for _ in range(7):
        await users.end(users.order[-1])
    assert users.order == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]


async def test_an_owner_whose_tickets_are_cancelled_has_no_turn() -> None:
    users = Users(ByteBudget(10, 1))
    for number, name in enumerate(("first", "gone", "raised", "last")):
        await users.start(name, 1, urgent=number == 0, owner=number)
    users.tasks["gone"].cancel()
    await asyncio.gather(users.tasks["gone"], return_exceptions=True)
    users.budget.raise_priority(users.tickets["raised"])
    users.budget.raise_priority(users.tickets["gone"])
    for name in ("first", "raised", "last"):
        assert users.order[-1] == name
        await users.end(name)
    assert users.budget.held_bytes == 0
