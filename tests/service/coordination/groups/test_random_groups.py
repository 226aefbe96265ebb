"""Random lives of groups: members come, go, fall silent and send nonsense, and every request is answered.

After every step the group's counters are compared with its members. At the end all members fall silent. Then every request that
waited is answered, and the group is empty.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from grpc_api.contract.groups import LeavingMember, MemberProtocol
from service.coordination.group_records import GroupKey, decode_key
from service.coordination.groups.classic_group import ClassicGroup, GroupState
from service.coordination.groups.rebalancing import NEW_MEMBER_JOIN_TIMEOUT_MS
from tests.service.coordination.groups.driver import Driver
from tests.service.coordination.whole_values import decode_group, finish

PROTOCOLS = (
    (MemberProtocol("range", b"1"),),
    (MemberProtocol("range", b"2"), MemberProtocol("sticky", b"3")),
    (MemberProtocol("sticky", b"4"),),
)
MEMBERS = 5
#: Longer than a departed member can keep others waiting: its session or first JoinGroup expires, then the rebalance.
SILENCE_MS = 4 * (NEW_MEMBER_JOIN_TIMEOUT_MS + 60_000)

steps = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.integers(0, MEMBERS - 1), st.integers(0, 2)),
        st.tuples(st.just("sync"), st.integers(0, MEMBERS - 1), st.integers(-1, 0)),
        st.tuples(st.just("heartbeat"), st.integers(0, MEMBERS - 1), st.integers(-1, 0)),
        st.tuples(st.just("leave"), st.integers(0, MEMBERS - 1), st.just(0)),
        st.tuples(st.just("forget"), st.integers(0, MEMBERS - 1), st.just(0)),
        st.tuples(st.just("wait"), st.just(0), st.sampled_from((1, 500, 3_000, 9_000, 20_000))),
    ),
    max_size=50,
)


class Life:
    """Up to MEMBERS processes; the last two are static. A process that forgets its id joins again as a new member."""

    def __init__(self, max_size: int, delay_ms: int = 0) -> None:
        self.driver = Driver(max_size=max_size, initial_rebalance_delay_ms=delay_ms)
        self.ids = [""] * MEMBERS
        self.waits: list[str] = []

    def step(self, what: str, process: int, choice: int) -> None:
        driver, member_id = self.driver, self.ids[process]
        instance = f"static-{process}" if process >= MEMBERS - 2 else None
        generation = driver.group.generation + choice if "g" in driver.groups.groups else 0
        waiter = f"{what} {len(self.waits)}"
        if what == "join":
            self.waits.append(waiter)
            driver.join(waiter, member_id, instance=instance, protocols=PROTOCOLS[choice], needs_id=process % 2 == 0)
        elif what == "sync":
            self.waits.append(waiter)
            members = driver.groups.groups["g"].members if "g" in driver.groups.groups else {}
            driver.sync(waiter, member_id, generation, [(each, each.encode()) for each in members], instance=instance)
        elif what == "heartbeat":
            driver.heartbeat(member_id, generation, instance)
        elif what == "leave":
            driver.leave(LeavingMember(member_id, instance))
        elif what == "forget":
            self.ids[process] = ""
        else:
            driver.wait(choice)
        if what == "join":
            self.learn(process, waiter)

    def learn(self, process: int, waiter: str) -> None:
        """Notes the process's member id: from the answer if there is one, else from the group's members."""
        answer = self.driver.answers.get(waiter)
        if answer is not None:
            self.ids[process] = answer.member_id
            return
        group = self.driver.group
        self.ids[process] = next(each.member_id for each in group.members.values() if each.join_waiter == waiter)


def check(group: ClassicGroup) -> None:
    waiting = [each for each in group.members.values() if each.join_waiter is not None]
    assert group.joining == len(waiting)
    assert not waiting or group.state is GroupState.PREPARING_REBALANCE
    assert all(each.sync_waiter is None for each in group.members.values()) or (
        group.state is GroupState.COMPLETING_REBALANCE
    )
    assert (group.leader is None) == (not group.members)
    assert group.leader is None or group.leader in group.members
    assert set(group.static.values()) == {
        each.member_id for each in group.members.values() if each.group_instance_id is not None
    }
    for name in {"range", "sticky"}:
        supporters = sum(1 for each in group.members.values() if name in {p.name for p in each.protocols})
        assert group.supported[name] == supporters
    assert not set(group.pending_joins) & set(group.members)
    assert set(group.pending_syncs) <= set(group.members)
    if group.state is GroupState.EMPTY:
        assert not group.members
    if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
        assert group.members
        assert group.protocol is not None
        assert group.supported[group.protocol] == len(group.members)


@settings(max_examples=300, deadline=None)
@given(steps, st.sampled_from((2, 1_000)), st.sampled_from((0, 3_000)))
def test_every_request_is_answered_once_and_every_group_is_consistent(
    life_steps: list[tuple[str, int, int]], max_size: int, delay_ms: int
) -> None:
    life = Life(max_size, delay_ms)
    generation = 0
    for step in life_steps:
        life.step(*step)
        for group in life.driver.groups:
            check(group)
            assert group.generation >= generation
            generation = group.generation
    life.driver.wait(SILENCE_MS)
    assert set(life.waits) == set(life.driver.answers)
    for group in life.driver.groups:
        check(group)
        assert (group.state, group.pending_joins) == (GroupState.EMPTY, {})
    assert len(list(life.driver.deadlines.due(life.driver.now))) == 0


@settings(max_examples=200, deadline=None)
@given(steps)
def test_the_last_record_is_the_group_that_a_restart_finds(life_steps: list[tuple[str, int, int]]) -> None:
    life = Life(1_000)
    for step in life_steps:
        life.step(*step)
        groups = list(life.driver.groups)
        if not groups or groups[0].state not in (GroupState.STABLE, GroupState.EMPTY):
            continue
        group, record = groups[0], life.driver.records[-1]
        assert decode_key(record.key) == GroupKey("g")
        assert record.value is not None
        found = finish(ClassicGroup.loaded("g", decode_group(record.value), life.driver.now))
        check(found)
        assert (found.state, found.generation, found.leader) == (group.state, group.generation, group.leader)
        assert [(each.member_id, each.group_instance_id, each.assignment) for each in found.members.values()] == [
            (each.member_id, each.group_instance_id, each.assignment) for each in group.members.values()
        ]
