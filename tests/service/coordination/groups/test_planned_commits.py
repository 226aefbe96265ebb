"""A commit that is planned, written and applied, against the same commit decided by `handle`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpc_api.contract.groups import LeaveGroup, LeavingMember, OffsetCommit
from service.coordination.counts import GroupCounts
from service.coordination.groups.shard import GroupEvent
from tests.service.coordination.groups.shard_driver import Broker


class PlanningBroker(Broker):
    """Plans each commit if nothing waits to be committed, as the runtime does."""

    def __init__(self) -> None:
        super().__init__(GroupCounts())
        self.planned = 0
        self.uncommitted = False

    def ask(self, event: GroupEvent) -> Any:
        before, visible = self.shard.written, self._visible()
        if not isinstance(event, OffsetCommit) or self.uncommitted:
            answer = super().ask(event)
        elif (planned := self.shard.plan_commit(event, self.now)) is None:
            assert (self.shard.written, self._visible()) == (before, visible)
            answer = super().ask(event)
        else:
            records, changes, answer = planned
            assert (self.shard.written, self._visible()) == (before, visible)
            self.log += [(record, -1) for record in records]
            assert self.shard.wrote_commit(changes, not self.held) == before + len(records)
            self.planned += 1
        self.uncommitted = self.held
        return answer

    def _visible(self) -> str:
        return repr([self.fetch(partition=each, stable=stable) for each in range(2) for stable in (False, True)])

    def release(self) -> None:
        self.held = self.uncommitted = False
        self.shard.committed(self.shard.written)


def test_a_members_commit_is_planned_once_its_group_has_offsets() -> None:
    broker = PlanningBroker()
    member = broker.member().member_id
    for number in range(3):
        assert broker.commit(number, generation=1, member=member) is None
        assert (broker.planned, broker.fetch().offset) == (number, number)


def test_a_commit_from_outside_the_protocol_is_planned_once_its_group_has_offsets() -> None:
    broker = PlanningBroker()
    for number in range(3):
        assert broker.commit(number) is None
        assert (broker.planned, broker.fetch().offset) == (number, number)


def test_a_planned_commit_prolongs_the_session() -> None:
    broker = PlanningBroker()
    member = broker.member().member_id
    for _ in range(4):
        broker.now += 20_000
        assert broker.commit(1, generation=1, member=member) is None
        broker.keep(broker.shard.tick(broker.now))
    assert broker.planned == 3
    assert broker.commit(1, generation=1, member=member) is None


@pytest.mark.parametrize(
    "how",
    [
        {"generation": 2},
        {"member": "another"},
        {"instance": "static"},
        {"retention": 60_000},
        {"metadata": "m" * 5_000},
        {"group": "another"},
    ],
    ids=str,
)
def test_an_unusual_commit_is_not_planned(how: dict[str, Any]) -> None:
    broker = PlanningBroker()
    member = broker.member().member_id
    broker.commit(1, generation=1, member=member)
    broker.commit(2, **{"generation": 1, "member": member, **how})
    assert broker.planned == 0


how_to_commit = st.fixed_dictionaries(
    {},
    optional={
        "partition": st.integers(0, 1),
        "metadata": st.sampled_from(["", "m", "m" * 200]),
        "generation": st.integers(-1, 2),
        "instance": st.just("static"),
        "retention": st.just(60_000),
        "is_member": st.booleans(),
    },
)
steps = st.one_of(
    st.tuples(st.just("commit"), st.integers(0, 99), how_to_commit),
    st.tuples(st.just("commit"), st.integers(0, 99), st.just({"generation": 1, "is_member": True})),
    st.tuples(st.just("in_transaction"), st.integers(0, 99)),
    st.tuples(st.just("marker"), st.booleans()),
    st.tuples(st.sampled_from(["join", "leave", "hold", "release"])),
    st.tuples(st.just("wait"), st.integers(0, 40_000)),
)


@settings(deadline=None)
@given(st.lists(steps, max_size=20))
def test_planned_and_decided_commits_do_the_same(steps: list[Any]) -> None:
    decided, planned = Broker(GroupCounts()), PlanningBroker()
    members = ["", ""]
    for what, *arguments in steps:
        answers = []
        for nth, broker in enumerate((decided, planned)):
            answers.append(_step(broker, what, arguments, members, nth))
        assert answers[0] == answers[1]
        assert planned.log == decided.log
        assert planned.shard.written == decided.shard.written
        assert planned.shard.next_deadline_ms() == decided.shard.next_deadline_ms()
        assert planned.counts == decided.counts
        for at in range(2):
            for stable in (False, True):
                seen = [repr(each.fetch(partition=at, stable=stable)) for each in (decided, planned)]
                assert seen[0] == seen[1]
        assert planned.listed() == decided.listed()


def _step(broker: Broker, what: str, arguments: list[Any], members: list[str], nth: int) -> object:
    match what:
        case "commit":
            offset, how = arguments
            how = dict(how)
            member = members[nth] if how.pop("is_member", False) else ""
            return broker.commit(offset, member=member, **how)
        case "in_transaction":
            return broker.commit_in_transaction(arguments[0])
        case "marker":
            broker.marker(7, commit=arguments[0])
            if isinstance(broker, PlanningBroker):
                broker.uncommitted = False
        case "join" if not members[nth]:
            members[nth] = broker.member().member_id
        case "leave":
            broker.ask(LeaveGroup("g", [LeavingMember(members[nth], None)]))
            members[nth] = "gone"
        case "hold":
            broker.held = True
        case "release":
            broker.held = False
            broker.shard.committed(broker.shard.written)
            if isinstance(broker, PlanningBroker):
                broker.release()
        case "wait":
            broker.now += arguments[0]
            broker.keep(broker.shard.tick(broker.now))
    return None
