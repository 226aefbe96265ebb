"""Drives classic groups by hand: time is a number, waiters are names, answers are kept by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grpc_api.contract.caller import Caller
from grpc_api.contract.groups import (
    Heartbeat,
    Joined,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    Left,
    MemberProtocol,
    Synced,
    SyncGroup,
)
from service.coordination.counts import GroupCounts
from service.coordination.deadlines import Deadlines
from service.coordination.group_records import GroupMetadata
from service.coordination.groups.classic_group import ClassicGroup
from service.coordination.groups.classic_groups import ClassicGroups
from service.coordination.groups.member_memory import node_memory
from service.coordination.groups.rebalancing import GroupSettings
from service.coordination.outcome import CoordinatorRecord, Outcome
from storage_tiers.errors import LogError
from tests.service.coordination.whole_values import decode_group
from tests.support.clock import SeededRng

CALLER = Caller("User:ANONYMOUS", "app", "/127.0.0.1")
RANGE = (MemberProtocol("range", b"topics"),)


class Driver:
    def __init__(self, **settings: int) -> None:
        self.deadlines = Deadlines()
        self.memory = node_memory()
        self.groups = ClassicGroups(self.deadlines, SeededRng(1), GroupSettings(**settings), self.memory, GroupCounts())
        self.now = 1_000_000
        self.answers: dict[str, Any] = {}
        self.records: list[CoordinatorRecord] = []
        self.notes: list[str] = []

    # --- requests -----------------------------------------------------------------------------------------------------
    def join(
        self,
        waiter: str,
        member_id: str = "",
        *,
        instance: str | None = None,
        protocols: Sequence[MemberProtocol] = RANGE,
        kind: str = "consumer",
        session: int = 10_000,
        rebalance: int = 60_000,
        needs_id: bool = False,
        skip: bool = False,
        group: str = "g",
    ) -> None:
        request = JoinGroup(
            *(group, member_id, instance, kind, protocols, session, rebalance),
            needs_member_id=needs_id,
            may_skip_assignment=skip,
        )
        outcome = Outcome()
        self.groups.join(request, CALLER, waiter, self.now, outcome)
        self.keep(outcome)

    def sync(
        self,
        waiter: str,
        member_id: str,
        generation: int,
        assignments: Sequence[tuple[str, bytes]] = (),
        *,
        instance: str | None = None,
        kind: str | None = None,
        protocol: str | None = None,
    ) -> None:
        outcome = Outcome()
        request = SyncGroup("g", generation, member_id, instance, assignments, kind, protocol)
        self.groups.sync(request, waiter, self.now, outcome)
        self.keep(outcome)

    def heartbeat(self, member_id: str, generation: int, instance: str | None = None) -> LogError | None:
        return self.groups.heartbeat(Heartbeat("g", generation, member_id, instance), self.now).error

    def leave(self, *members: LeavingMember) -> Left:
        outcome = Outcome()
        self.groups.leave(LeaveGroup("g", members), "leave", self.now, outcome)
        self.keep(outcome)
        left = self.answers.pop("leave")
        assert isinstance(left, Left)
        return left

    def wait(self, ms: int) -> None:
        """Moves the time by `ms`; each deadline on the way fires at its time."""
        until = self.now + ms
        while (due := self.deadlines.next_ms()) is not None and due <= until:
            self.now = max(self.now, due)
            for timer in self.deadlines.due(self.now):
                outcome = Outcome()
                self.groups.due(timer.owner, self.now, outcome)
                self.keep(outcome)
        self.now = until

    def keep(self, outcome: Outcome) -> None:
        while self.groups.rebalancing.unfinished.groups:
            self.groups.rebalancing.unfinished.step(outcome, self.now)
            assert not list(self.groups.rebalancing.unfinished.requests(bool))
        for waiter, answer in outcome.answers:
            assert waiter not in self.answers, f"{waiter} was answered twice"
            self.answers[str(waiter)] = answer
        self.records += outcome.records
        self.notes += [note.event for note in outcome.notes]

    # --- results ------------------------------------------------------------------------------------------------------
    @property
    def group(self) -> ClassicGroup:
        return self.groups.groups["g"]

    @property
    def recorded(self) -> GroupMetadata:
        """The newest record of the group."""
        value = self.records[-1].value
        assert value is not None
        return decode_group(value)

    def joined(self, waiter: str) -> Joined:
        answer = self.answers[waiter]
        assert isinstance(answer, Joined)
        return answer

    def synced(self, waiter: str) -> Synced:
        answer = self.answers[waiter]
        assert isinstance(answer, Synced)
        return answer

    def error(self, waiter: str) -> type[LogError] | None:
        error = self.answers[waiter].error
        return None if error is None else type(error)

    def stable(self, *names: str, instance: bool = False, **how: Any) -> list[str]:
        """Makes a stable group with one member per name, whose assignment is that name; returns their ids, the leader's
        first."""
        for name in names:
            self.join(f"join {name}", instance=name if instance else None, **how)
        self.wait(self.groups.rebalancing.settings.initial_rebalance_delay_ms * (len(names) + 1))
        ids = [self.joined(f"join {name}").member_id for name in names]
        generation = self.group.generation
        assignments = [(member_id, name.encode()) for member_id, name in zip(ids, names, strict=True)]
        for name, member_id in zip(reversed(names), reversed(ids), strict=True):
            self.sync(
                f"sync {name}",
                member_id,
                generation,
                assignments if member_id == self.group.leader else (),
                instance=name if instance else None,
            )
        assert self.group.state.value == "Stable"
        return ids
