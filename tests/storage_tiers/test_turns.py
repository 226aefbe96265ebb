"""Work in time slices: the order in which requests take turns, and when they end."""

from __future__ import annotations

import asyncio

import pytest

from storage_tiers.turns import AT_WORK, FREE_S, SLICE_S, SMALL_BYTES, Turn, TurnScheduler


class Seconds:
    """A clock that moves only when the test sets `now`."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def work(turn: Turn, seconds: Seconds, name: str, story: list[str], slices: int) -> None:
    try:
        for n in range(slices):
            story.append(f"{name}{n}")
            seconds.now += SLICE_S
            assert turn.is_over
            await turn.rest()
            assert not turn.is_over
    finally:
        turn.leave()


async def test_work_takes_turns_and_the_loop_runs_between_them() -> None:
    seconds, story = Seconds(), list[str]()
    scheduler = TurnScheduler(seconds)
    rounds = 0

    def count() -> None:
        nonlocal rounds
        rounds += 1
        loop.call_soon(count)

    loop = asyncio.get_running_loop()
    loop.call_soon(count)
    await asyncio.gather(*(work(scheduler.turn(), seconds, name, story, 4) for name in "abc"))
    assert story == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "b2", "c2", "a3", "b3", "c3"]
    assert rounds >= len(story)


async def test_a_short_request_never_rests() -> None:
    seconds = Seconds()
    turn = TurnScheduler(seconds).turn()
    seconds.now += FREE_S * 0.9
    assert not turn.is_over
    turn.leave()


async def test_time_in_which_others_use_the_loop_is_not_the_requests() -> None:
    seconds = Seconds()
    turn = TurnScheduler(seconds).turn()
    seconds.now += FREE_S
    turn.resume()
    assert not turn.is_over
    await turn.rest()
    seconds.now += SLICE_S
    turn.resume()
    assert turn.is_over, "a request gets only one first slice"
    turn.leave()


async def test_active_requests_are_bounded_and_the_others_wait_in_order() -> None:
    seconds, story = Seconds(), list[str]()
    scheduler = TurnScheduler(seconds)
    names = [chr(ord("a") + n) for n in range(AT_WORK + 2)]
    jobs = [asyncio.ensure_future(work(scheduler.turn(), seconds, name, story, 3)) for name in names]
    while not story or story[-1] != "a2":
        await asyncio.sleep(0)
    assert scheduler.waiting == 2
    await asyncio.gather(*jobs)
    assert scheduler.waiting == 0
    late = [story.index(f"{name}1") for name in names[AT_WORK:]]
    assert late == sorted(late) and min(late) > story.index("a2")


async def test_small_requests_do_not_wait_until_large_ones_are_finished() -> None:
    scheduler = TurnScheduler()
    large = [scheduler.turn(size=SMALL_BYTES + 1) for _ in range(AT_WORK)]
    for turn in large:
        await turn.rest()
    late = asyncio.ensure_future(scheduler.turn(size=SMALL_BYTES + 1).rest())
    small = [scheduler.turn(size=SMALL_BYTES) for _ in range(AT_WORK)]
    async with asyncio.timeout(60):
        for turn in small:
            await turn.rest()
    too_many = asyncio.ensure_future(scheduler.turn(size=SMALL_BYTES).rest())
    await asyncio.sleep(0)
    assert scheduler.waiting == 2, "each kind has its bound"
    small[0].leave()
    large[0].leave()
    await asyncio.gather(too_many, late)


@pytest.mark.parametrize("is_inside", [True, False])
async def test_a_cancelled_request_makes_room(is_inside: bool) -> None:
    seconds = Seconds()
    scheduler = TurnScheduler(seconds)
    inside = [scheduler.turn() for _ in range(AT_WORK)]
    for turn in inside:
        await turn.rest()
    jobs = [asyncio.ensure_future(scheduler.turn().rest()) for _ in range(2)]
    await asyncio.sleep(0)
    assert scheduler.waiting == 2
    if is_inside:
        # The first waiter is let in, then cancelled before it resumes.
        inside[0].leave()
        jobs[0].cancel()
    else:
        jobs[0].cancel()
        inside[0].leave()
    async with asyncio.timeout(60):
        await asyncio.wait(jobs)
    assert jobs[0].cancelled() and not jobs[1].cancelled()
    assert scheduler.waiting == 0


async def test_a_request_that_is_cancelled_while_it_rests_holds_up_no_other() -> None:
    scheduler = TurnScheduler()
    cancelled, other = (asyncio.create_task(scheduler.rest()) for _ in range(2))
    await asyncio.sleep(0)
    cancelled.cancel()
    async with asyncio.timeout(60):
        await other


async def test_a_turn_that_is_left_twice_makes_room_once() -> None:
    """A request leaves its turn while it waits for its commits, and again when it is done."""
    scheduler = TurnScheduler()
    turn = scheduler.turn()
    await turn.rest()
    turn.leave()
    turn.leave()
    for other in [scheduler.turn() for _ in range(AT_WORK)]:
        await other.rest()
    late = asyncio.ensure_future(scheduler.turn().rest())
    await asyncio.sleep(0)
    assert scheduler.waiting == 1
    late.cancel()
    await asyncio.wait({late})


async def test_abandoned_work_ends_at_its_next_rest() -> None:
    wanted = True
    scheduler = TurnScheduler()
    turn = scheduler.turn(lambda: wanted)
    await turn.rest()
    wanted = False
    with pytest.raises(asyncio.CancelledError):
        await turn.rest()
    turn.leave()
    others = [scheduler.turn() for _ in range(AT_WORK)]
    for other in others:
        await other.rest()
    assert scheduler.waiting == 0


async def test_steps_that_are_due_together_share_a_slice_a_turn() -> None:
    seconds, story = Seconds(), list[str]()
    scheduler = TurnScheduler(seconds)

    def step(name: str) -> None:
        story.append(name)
        seconds.now += SLICE_S / 2

    for name in "abcde":
        scheduler.soon(lambda name=name: step(name))  # type: ignore[misc]
    scheduler.soon(lambda: scheduler.soon(lambda: step("last")))
    assert story == []
    turns = []
    while "last" not in story:
        await asyncio.sleep(0)
        turns.append("".join(story))
    assert turns[:3] == ["ab", "abcd", "abcdelast"]


async def test_a_step_that_fails_keeps_no_other_from_its_turn() -> None:
    seconds, story = Seconds(), list[str]()
    scheduler = TurnScheduler(seconds)
    failures: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["exception"]))

    def fails() -> None:
        raise ZeroDivisionError

    scheduler.soon(fails)
    scheduler.soon(lambda: story.append("next"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert story == ["next"]
    assert [type(each) for each in failures] == [ZeroDivisionError]
    scheduler.soon(lambda: story.append("later"))
    await asyncio.sleep(0)
    assert story == ["next", "later"]
