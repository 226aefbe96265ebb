"""Groups as readers see them: the rows of DescribeGroups and ListGroups, and the values of metrics.

Pure; answers are those of Kafka 4.2.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from grpc_api.contract.coordinator_errors import GroupIdNotFound
from grpc_api.contract.groups import DescribedGroup, ListedGroup, ListGroups
from service.coordination.groups.classic_group import DEAD, ClassicGroup, GroupState, GroupView
from service.coordination.groups.committed_offsets import CommittedOffsets
from storage_tiers.types import TopicPartition

#: The type that ListGroups shows for every group of this protocol (KIP-848's name).
CLASSIC = "classic"

#: A group as readers see it; None if they do not see it.
Seen = ClassicGroup | GroupView | None


class GroupFigures(NamedTuple):
    """One group for metrics: its state, the numbers of its members and committed offsets, and these offsets."""

    group_id: str
    state: GroupState
    members: int
    offsets: int
    committed: Iterator[tuple[TopicPartition, int]]


def figures_of(groups: Sequence[ClassicGroup], committed: CommittedOffsets) -> list[GroupFigures]:
    return [
        GroupFigures(
            each.group_id,
            each.state,
            len(each.members),
            committed.count(each.group_id),
            committed.offsets(each.group_id),
        )
        for each in groups
    ]


def described(group_id: str, seen: Seen) -> DescribedGroup:
    if seen is None:
        return DescribedGroup(GroupIdNotFound(f"Group {group_id} not found."), group_id, DEAD)
    return (seen.view() if isinstance(seen, ClassicGroup) else seen).described(group_id)


class WantedGroups:
    """Selects the groups that a ListGroups request includes. The request's names are in lower case."""

    def __init__(self, request: ListGroups) -> None:
        self._states = request.states
        #: Whether the request excludes all groups of this protocol.
        self.is_nothing = bool(request.types) and CLASSIC not in request.types

    def rows(self, groups: Iterable[tuple[str, Seen]]) -> list[ListedGroup]:
        states = self._states
        return [
            ListedGroup(group_id, seen.protocol_type or "", seen.state.value, CLASSIC)
            for group_id, seen in groups
            if seen is not None and (not states or seen.state.value.lower() in states)
        ]
