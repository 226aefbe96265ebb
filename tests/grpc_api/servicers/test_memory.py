"""Callers that wait for memory get it in order, and a cancelled caller keeps none."""

from __future__ import annotations

import asyncio

from grpc_api.servicers.memory import CallerMemory


def nobody_closed(limit_bytes: int) -> CallerMemory:
    return CallerMemory(limit_bytes, lambda _: None)


async def test_a_waiter_cancelled_in_the_turn_of_its_grant_keeps_nothing() -> None:
    memory = nobody_closed(100)

    async def take() -> None:
        async with memory.hold("b", 50):
            raise AssertionError("it had given up")

    first = memory.try_hold("a", 100)
    assert first is not None
    waiting = asyncio.ensure_future(take())
    await asyncio.sleep(0)
    first.resize(0)
    assert memory.held_bytes == 50
    waiting.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled() and memory.held_bytes == 0


async def test_a_cancelled_waiter_lets_others_pass() -> None:
    memory = nobody_closed(100)
    first = memory.try_hold("a", 60)
    assert first is not None

    async def take(peer: str, size: int) -> int:
        async with memory.hold(peer, size):
            return memory.held_bytes

    large, small = asyncio.ensure_future(take("b", 80)), asyncio.ensure_future(take("c", 10))
    await asyncio.sleep(0)
    assert memory.try_hold("d", 1) is None, "others are already waiting"
    large.cancel()
    await asyncio.wait({large})
    async with asyncio.timeout(60):
        assert await small == 70, "no connection is closed for it"
    first.resize(0)
    assert memory.held_bytes == 0


async def test_waiters_are_served_in_order() -> None:
    memory, served = nobody_closed(100), list[str]()
    first = memory.try_hold("a", 100)
    assert first is not None

    async def take(peer: str, size: int) -> None:
        async with memory.hold(peer, size):
            served.append(peer)

    takers = [asyncio.ensure_future(take(peer, size)) for peer, size in (("b", 80), ("c", 10))]
    await asyncio.sleep(0)
    first.resize(50)
    await asyncio.sleep(0)
    assert served == [] and memory.held_bytes == 50
    first.resize(0)
    await asyncio.gather(*takers)
    assert served == ["b", "c"] and memory.held_bytes == 0
