"""Plans moves of partitions between brokers: to one broker, away from one broker, or to spread them evenly over the brokers.
Pure.

Invariants: a plan depends on the placements alone, not on their order. Only live brokers get partitions. A rebalancing plan
spreads no topic less evenly than before. If every partition can move, the partition counts of any two brokers then differ by at
most one, in each topic and in total.

A plan may have more moves than are necessary, and ignores the sizes of partitions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

PartitionKey = tuple[str, int]


class Obstacle(Enum):
    """The reason why a partition cannot move."""

    UNTIERED = "its topic is not tiered"
    LEADERLESS = "it has no leader"


class Placement(NamedTuple):
    """A partition that `broker` holds. `target` is the broker to which it is moving, None if it is not moving."""

    topic: str
    partition: int
    broker: int
    target: int | None = None
    obstacle: Obstacle | None = None

    @property
    def key(self) -> PartitionKey:
        return self.topic, self.partition

    @property
    def destination(self) -> int:
        return self.broker if self.target is None else self.target


class PlannedMove(NamedTuple):
    """If `source` is `target`, the partition stays on its broker, and its move in progress is cancelled."""

    topic: str
    partition: int
    source: int
    target: int

    @property
    def key(self) -> PartitionKey:
        return self.topic, self.partition


class MovePlan(NamedTuple):
    """`under_way` are moves in progress that the plan does not change. `staying` are partitions that cannot move as requested.
    All three are sorted by topic and partition."""

    moves: Sequence[PlannedMove] = ()
    under_way: Sequence[PlannedMove] = ()
    staying: Sequence[Placement] = ()


def move_to(chosen: Iterable[Placement], target: int) -> MovePlan:
    """Moves the partitions to one broker."""
    moves, under_way, staying = [], [], []
    for each in sorted(chosen, key=_order):
        if each.target == target:
            under_way.append(_move_of(each))
        elif each.destination == target:
            continue
        elif each.obstacle is not None and target != each.broker:
            staying.append(each)
        else:
            moves.append(PlannedMove(*each.key, each.broker, target))
    return MovePlan(tuple(moves), tuple(under_way), tuple(staying))


def call_off(chosen: Iterable[Placement]) -> MovePlan:
    """Cancels the moves in progress."""
    moving = sorted((each for each in chosen if each.target is not None), key=_order)
    return MovePlan(tuple(PlannedMove(*each.key, each.broker, each.broker) for each in moving))


def drain(placements: Iterable[Placement], broker: int, live: Collection[int]) -> MovePlan:
    """Moves all partitions of the broker to the other live brokers, and cancels moves to it. Each partition goes to the broker
    with the fewest partitions of its topic, then with the fewest in total."""
    others = sorted({*live} - {broker})
    ordered = sorted(placements, key=_order)
    load, leaving = _Load(others), []
    moves, under_way, staying = [], [], []
    for each in ordered:
        if each.broker != broker and each.target == broker:
            moves.append(PlannedMove(*each.key, each.broker, each.broker))
            load.add(each.topic, each.broker)
        elif each.broker != broker or each.target in others:
            load.add(each.topic, each.destination)
            if each.broker == broker:
                under_way.append(_move_of(each))
        elif each.obstacle is not None or not others:
            staying.append(each)
        else:
            leaving.append(each)
    for each in leaving:
        target = load.lightest(each.topic)
        load.add(each.topic, target)
        moves.append(PlannedMove(*each.key, broker, target))
    return MovePlan(tuple(sorted(moves)), tuple(under_way), tuple(staying))


def rebalance(placements: Iterable[Placement], live: Collection[int]) -> MovePlan:
    """Spreads first each topic, then the totals, evenly over the live brokers. Moves in progress stay, and count at their
    target. `staying` are the partitions that keep a topic or the totals uneven."""
    ordered = sorted(placements, key=_order)
    brokers = sorted({*live})
    even = _Evening(brokers, ordered)
    for topic in sorted({each.topic for each in ordered}):
        even.even_topic(topic)
    even.even_totals()
    moves = sorted(
        PlannedMove(*each.key, each.broker, broker)
        for broker, topics in even.movable.items()
        for rows in topics.values()
        for each in rows
        if each.broker != broker
    )
    uneven = {topic for topic, counts in even.load.of_topic.items() if _spread(counts, brokers) > 1}
    is_uneven = _spread(even.load.total, brokers) > 1
    staying = [
        each
        for each in ordered
        if each.obstacle is not None and each.target is None and (is_uneven or each.topic in uneven)
    ]
    return MovePlan(tuple(moves), tuple(_move_of(each) for each in ordered if each.target is not None), tuple(staying))


class _Load:
    """The number of partitions on each broker, by topic and in total. Partitions on other brokers do not count."""

    def __init__(self, brokers: Sequence[int]) -> None:
        self._brokers = brokers
        self.total = dict.fromkeys(brokers, 0)
        self.of_topic: dict[str, dict[int, int]] = defaultdict(lambda: dict.fromkeys(brokers, 0))

    def add(self, topic: str, broker: int, count: int = 1) -> None:
        if broker in self.total:
            self.total[broker] += count
            self.of_topic[topic][broker] += count

    def lightest(self, topic: str) -> int:
        counts = self.of_topic[topic]
        return min(self._brokers, key=lambda each: (counts[each], self.total[each], each))


class _Evening:
    """The placements while they are being spread evenly. `movable` has the movable partitions of each broker by topic.
    Partitions that arrived last leave first, so that few partitions move."""

    def __init__(self, brokers: Sequence[int], ordered: Iterable[Placement]) -> None:
        self.load = _Load(brokers)
        self.movable: dict[int, dict[str, list[Placement]]] = {each: {} for each in brokers}
        self._brokers = brokers
        #: By broker, the topics of the partitions that have moved to it.
        self._arrived: dict[int, set[str]] = {each: set() for each in brokers}
        for each in ordered:
            self.load.add(each.topic, each.destination)
            if each.target is None and each.obstacle is None and each.broker in self.movable:
                self.movable[each.broker].setdefault(each.topic, []).append(each)

    def even_topic(self, topic: str) -> None:
        counts, total = self.load.of_topic[topic], self.load.total
        while holders := [each for each in self._brokers if topic in self.movable[each]]:
            fullest = max(holders, key=lambda each: (counts[each], total[each], each))
            lightest = self.load.lightest(topic)
            if counts[fullest] - counts[lightest] < 2:
                return
            self._move(topic, fullest, lightest)

    def even_totals(self) -> None:
        """Moves a partition only if the fuller broker has more partitions of its topic, so each topic stays as even as it
        is."""
        while (step := self._next_step()) is not None:
            self._move(*step)

    def _next_step(self) -> tuple[str, int, int] | None:
        total = self.load.total
        ordered = sorted(self._brokers, key=lambda each: (total[each], each))
        for fuller in reversed(ordered):
            for lighter in ordered:
                if total[fuller] - total[lighter] < 2:
                    break
                if (topic := self._topic_to_move(fuller, lighter)) is not None:
                    return topic, fuller, lighter
        return None

    def _topic_to_move(self, fuller: int, lighter: int) -> str | None:
        for topics in (sorted(self._arrived[fuller]), self.movable[fuller]):
            for topic in topics:
                counts = self.load.of_topic[topic]
                if counts[fuller] > counts[lighter]:
                    return topic
        return None

    def _move(self, topic: str, source: int, target: int) -> None:
        rows = self.movable[source][topic]
        moved = rows.pop()
        if not rows:
            del self.movable[source][topic]
        if not rows or rows[-1].broker == source:
            self._arrived[source].discard(topic)
        there = self.movable[target].setdefault(topic, [])
        if moved.broker == target:  # the partition is back on its broker
            there.insert(0, moved)
        else:
            there.append(moved)
            self._arrived[target].add(topic)
        self.load.add(topic, source, -1)
        self.load.add(topic, target)


def _order(each: Placement) -> tuple[str, int]:
    return each.key


def _move_of(each: Placement) -> PlannedMove:
    return PlannedMove(*each.key, each.broker, each.destination)


def _spread(counts: Mapping[int, int], brokers: Sequence[int]) -> int:
    return max(counts[each] for each in brokers) - min(counts[each] for each in brokers) if brokers else 0
