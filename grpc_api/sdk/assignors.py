"""Assigns the partitions of subscribed topics to the members of a consumer group, as the group's leader. Pure.

    range               each topic's partitions in contiguous ranges, to its subscribers in the order of `_rank`
    cooperative-sticky  as few moves as balance allows; a partition that moves is first revoked from its owner, and assigned
                        to the other member in the next generation

Both have the names and the meaning of Kafka's assignors: any member, of this SDK or of a Kafka client, may lead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from grpc_api.sdk.consumer_protocol import MemberSubscription
from storage_tiers.types import TopicPartition

RANGE = "range"
COOPERATIVE_STICKY = "cooperative-sticky"


class Subscriber(NamedTuple):
    """A member as an assignor sees it. `instance_id` is its `group.instance.id`, None for a dynamic member."""

    member_id: str
    instance_id: str | None
    subscription: MemberSubscription


#: Partitions by member id; every member has an entry.
Assignment = dict[str, list[TopicPartition]]


def assign(name: str, members: Sequence[Subscriber], counts: Mapping[str, int]) -> Assignment:
    """`counts` are the topics' numbers of partitions; a topic that is missing in `counts` has none."""
    return ASSIGNORS[name](members, counts)


def assign_ranges(members: Sequence[Subscriber], counts: Mapping[str, int]) -> Assignment:
    assignment: Assignment = {each.member_id: [] for each in members}
    for topic, subscribers in _subscribers(sorted(members, key=_rank)).items():
        each, longer = divmod(counts.get(topic, 0), len(subscribers))
        first = 0
        for index, member in enumerate(subscribers):
            end = first + each + (index < longer)
            assignment[member] += [TopicPartition(topic, number) for number in range(first, end)]
            first = end
    return assignment


def assign_cooperatively(members: Sequence[Subscriber], counts: Mapping[str, int]) -> Assignment:
    owners = _owners(members, counts)
    return {
        member: sorted(each for each in target if owners.get(each, member) == member)
        for member, target in _Balance(members, counts, owners).assignment().items()
    }


ASSIGNORS: Mapping[str, Callable[[Sequence[Subscriber], Mapping[str, int]], Assignment]] = {
    RANGE: assign_ranges,
    COOPERATIVE_STICKY: assign_cooperatively,
}


def _rank(member: Subscriber) -> tuple[bool, str]:
    """Orders members by id, static members first. A static member's instance id, and so its rank, survives a restart."""
    return member.instance_id is None, member.instance_id or member.member_id


def _subscribers(members: Sequence[Subscriber]) -> dict[str, list[str]]:
    """Each topic's members, in the order given."""
    found: dict[str, list[str]] = defaultdict(list)
    for member in members:
        for topic in dict.fromkeys(member.subscription.topics):
            found[topic].append(member.member_id)
    return found


def _owners(members: Sequence[Subscriber], counts: Mapping[str, int]) -> dict[TopicPartition, str]:
    """The owner of each partition. If two members claim a partition, the newer generation wins; within one generation, neither
    wins."""
    claims: dict[TopicPartition, tuple[int, str | None]] = {}
    for member in members:
        subscription = member.subscription
        for each in subscription.owned:
            if each.topic not in subscription.topics or not 0 <= each.partition < counts.get(each.topic, 0):
                continue
            generation, _ = claims.get(each, (-2, None))
            if subscription.generation > generation:
                claims[each] = subscription.generation, member.member_id
            elif subscription.generation == generation:
                claims[each] = generation, None
    return {each: owner for each, (_, owner) in claims.items() if owner is not None}


class _Balance:
    """Owners keep as many partitions as balance allows; the rest goes to the members with the fewest. The result is
    balanced if no member could take a partition from a member that has at least two more."""

    def __init__(
        self, members: Sequence[Subscriber], counts: Mapping[str, int], owners: Mapping[TopicPartition, str]
    ) -> None:
        self._subscribers = _subscribers(sorted(members, key=_rank))
        #: Partition numbers by member and topic, and the total count of each member.
        self._held: dict[str, dict[str, list[int]]] = {each.member_id: defaultdict(list) for each in members}
        self._load = {each.member_id: 0 for each in members}
        for partition, member in sorted(owners.items()):
            self._give(member, partition)
        # Topics with few subscribers first: their partitions can go to the fewest members.
        for topic in sorted(self._subscribers, key=lambda each: (len(self._subscribers[each]), each)):
            for number in range(counts.get(topic, 0)):
                partition = TopicPartition(topic, number)
                if partition not in owners:
                    self._give(self._least(topic), partition)
        while self._move_one():
            pass

    def assignment(self) -> Assignment:
        return {
            member: [TopicPartition(topic, number) for topic, numbers in held.items() for number in numbers]
            for member, held in self._held.items()
        }

    def _give(self, member: str, partition: TopicPartition) -> None:
        self._held[member][partition.topic].append(partition.partition)
        self._load[member] += 1

    def _least(self, topic: str) -> str:
        return min(self._subscribers[topic], key=self._load.__getitem__)

    def _move_one(self) -> bool:
        """Moves one partition to a member that has at least two fewer. Returns False if no partition can move."""
        for giver in sorted(self._load, key=lambda member: -self._load[member]):
            for topic in sorted(topic for topic, numbers in self._held[giver].items() if numbers):
                taker = self._least(topic)
                if self._load[giver] - self._load[taker] >= 2:
                    self._give(taker, TopicPartition(topic, self._held[giver][topic].pop()))
                    self._load[giver] -= 1
                    return True
        return False
