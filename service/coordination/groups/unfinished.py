"""Changes of large groups that are made in steps, and the requests that wait for them.

The end of a rebalance changes and answers every member. A LeaveGroup may name thousands of members, and a deleted group may
have a hundred thousand offsets. Such a change made at once would block the event loop for up to a second, so a shard takes one
step in each tick. Until the last step the group's other requests and its due timers wait. Then they are decided in the order of
their arrival, as if all steps had been one. Heartbeats and the commits of transactions do not wait. Pure.

Invariants: each group has at most one unfinished change. Each waiting request is returned once. Not promised: fairness between
groups, except that they take turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

from service.coordination.outcome import Outcome

#: Most members that one step changes.
MEMBERS_A_STEP = 100
#: Most offsets that one step removes or examines; each takes about ten microseconds.
OFFSETS_A_STEP = 200
#: Most waiting requests that one tick decides.
REQUESTS_A_TICK = 32

#: The first step uses the outcome and the time with which the generator was made. Each further step uses those that are sent to
#: the generator, because the process may have been paused, or the disk full, between two steps.
Steps = Generator[None, tuple[Outcome, int], None]
Request = TypeVar("Request")
Item = TypeVar("Item")


def shares(items: Sequence[Item], most: int | None = None) -> list[Sequence[Item]]:
    """Divides items into shares of one step each, with at most `most` items, by default MEMBERS_A_STEP. Without items there is
    one empty share."""
    size = MEMBERS_A_STEP if most is None else most
    return [items[at : at + size] for at in range(0, max(1, len(items)), size)]


class _Unfinished(Generic[Request]):
    __slots__ = ("requests", "steps")

    def __init__(self, steps: Steps) -> None:
        self.steps: Steps | None = steps
        self.requests: deque[Request] = deque()


class UnfinishedChanges(Generic[Request]):
    """`groups` has the changes by group id; the first group is next. A shard checks at each request whether `groups` is
    empty."""

    def __init__(self) -> None:
        self.groups: dict[str, _Unfinished[Request]] = {}

    def begin(self, group_id: str, steps: Steps) -> None:
        """Takes the first step, and keeps the others if there are more."""
        try:
            next(steps)
        except StopIteration:
            return
        found = self.groups.get(group_id)
        if found is None:
            self.groups[group_id] = _Unfinished(steps)
        else:  # a waiting request, or the last step of a change, has begun another change
            found.steps = steps

    def wait(self, group_id: str, request: Request) -> None:
        self.groups[group_id].requests.append(request)

    def step(self, outcome: Outcome, now_ms: int) -> None:
        """Takes a step of the first group."""
        found = next(iter(self.groups.values()))
        steps, found.steps = found.steps, None
        if steps is not None:
            with suppress(StopIteration):
                steps.send((outcome, now_ms))
                found.steps = steps

    def requests(self, is_enough: Callable[[], bool]) -> Iterator[Request]:
        """Yields the requests of the first group that can be decided now, until `is_enough`. The caller decides each request
        before it takes the next one. At the end the next group becomes the first."""
        group_id, found = next(iter(self.groups.items()))
        for number in range(REQUESTS_A_TICK):
            if found.steps is not None or not found.requests or (number and is_enough()):
                break
            yield found.requests.popleft()
        del self.groups[group_id]
        if found.steps is not None or found.requests:
            self.groups[group_id] = found
