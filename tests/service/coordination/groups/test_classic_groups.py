"""The life of a classic group after its first generation: rebalances, static members, sessions, records, states."""

from __future__ import annotations

import pytest

from grpc_api.contract.coordinator_errors import (
    FencedInstanceId,
    GroupMaxSizeReached,
    GroupMetadataTooLarge,
    IllegalGeneration,
    InconsistentGroupProtocol,
    RebalanceInProgress,
    UnknownMemberId,
)
from grpc_api.contract.groups import UNKNOWN_MEMBER, LeavingMember, MemberProtocol
from service.coordination.groups.classic_group import (
    REBALANCES_FROM,
    TRANSITIONS,
    ClassicGroup,
    GroupState,
    UnexpectedTransition,
)
from service.coordination.groups.rebalancing import NEW_MEMBER_JOIN_TIMEOUT_MS
from service.coordination.groups.recorded_group import group_value
from service.coordination.outcome import Outcome
from tests.service.coordination.groups.driver import RANGE, Driver
from tests.service.coordination.whole_values import decode_group, finish

STICKY = (MemberProtocol("sticky", b"s"), MemberProtocol("range", b"r"))


# --- rebalances -------------------------------------------------------------------------------------------------------
def test_a_dynamic_member_that_does_not_join_again_is_left_behind_after_the_rebalance_timeout() -> None:
    driver = Driver()
    leader, follower = driver.stable("a", "b", rebalance=30_000, session=40_000)
    driver.join("a again", leader, rebalance=30_000, session=40_000)
    driver.wait(29_999)
    assert "a again" not in driver.answers
    driver.wait(1)
    assert [each.member_id for each in driver.joined("a again").members] == [leader]
    assert isinstance(driver.heartbeat(follower, 2), UnknownMemberId)


def test_the_group_elects_a_leader_that_has_joined() -> None:
    driver = Driver()
    leader, follower = driver.stable("a", "b", rebalance=30_000, session=40_000)
    driver.join("b again", follower, protocols=STICKY, rebalance=30_000, session=40_000)
    driver.wait(30_000)
    assert driver.joined("b again").leader == follower
    assert isinstance(driver.heartbeat(leader, 2), UnknownMemberId)


def test_members_that_wait_for_their_assignment_join_again_when_another_comes() -> None:
    driver = Driver()
    driver.join("a")
    driver.join("b")
    driver.wait(10_000)
    driver.sync("sync b", driver.joined("b").member_id, 1)
    driver.join("c")
    assert driver.error("sync b") is RebalanceInProgress
    assert driver.group.state is GroupState.PREPARING_REBALANCE


def test_members_that_never_sync_are_removed_after_the_rebalance_timeout() -> None:
    driver = Driver()
    driver.join("a", rebalance=20_000, session=30_000)
    driver.join("b", rebalance=20_000, session=30_000)
    driver.wait(6_000)  # b extended the first delay
    leader, lost = driver.joined("a").member_id, driver.joined("b").member_id
    driver.sync("sync a", leader, 1, [])
    driver.wait(19_999)
    assert driver.heartbeat(leader, 1) is None
    driver.wait(10)
    assert isinstance(driver.heartbeat(leader, 1), RebalanceInProgress)
    assert isinstance(driver.heartbeat(lost, 1), UnknownMemberId)


def test_members_that_have_not_synced_are_not_removed_for_it_during_the_next_rebalance() -> None:
    driver = Driver()
    driver.join("a", session=600_000)
    driver.join("b", session=600_000)
    driver.wait(6_000)
    ids = [driver.joined(name).member_id for name in ("a", "b")]
    driver.wait(30_000)
    driver.join("c", session=600_000)
    driver.wait(30_000)  # the SyncGroup timeout is over, the JoinGroup timeout is not
    assert list(driver.group.members)[:2] == ids
    for name, member_id in zip(("a again", "b again"), ids, strict=True):
        driver.join(name, member_id, session=600_000)
    assert driver.joined("b again").generation == 2


def test_a_withdrawn_assignment_is_not_shown() -> None:
    driver = Driver()
    leader, follower = driver.stable("a", "b")
    driver.join("a again", leader)
    driver.join("b again", follower)
    assert [each.assignment for each in driver.group.members.values()] == [b"a", b"b"]
    driver.join("c")
    assert driver.group.state is GroupState.PREPARING_REBALANCE
    assert {each.assignment for each in driver.group.view().described("g").members} == {b""}


# --- static members ---------------------------------------------------------------------------------------------------
def test_a_static_member_returns_without_a_rebalance_and_keeps_its_assignment() -> None:
    driver = Driver()
    _, old = driver.stable("a", "b", instance=True)
    driver.join("b is back", instance="b")
    answer = driver.joined("b is back")
    assert (answer.error, answer.generation, answer.skip_assignment) == (None, 1, False)
    assert answer.member_id != old
    assert driver.recorded.members[1].member_id == answer.member_id
    assert isinstance(driver.heartbeat(old, 1, "b"), FencedInstanceId)
    driver.sync("b syncs", answer.member_id, 1, instance="b")
    assert driver.synced("b syncs").assignment == b"b"


def test_a_static_member_that_returned_and_falls_silent_is_removed() -> None:
    driver = Driver()
    leader, _ = driver.stable("a", "b", instance=True, session=10_000)
    driver.wait(9_000)
    assert driver.heartbeat(leader, 1, "a") is None
    driver.join("b is back", instance="b")
    driver.wait(9_000)
    assert driver.heartbeat(leader, 1, "a") is None
    assert len(driver.group.members) == 2
    driver.wait(1_000)
    assert list(driver.group.members) == [leader]


def test_a_returning_static_leader_skips_the_assignment_if_its_version_allows() -> None:
    driver = Driver()
    old, _ = driver.stable("a", "b", instance=True)
    driver.join("new client", instance="a", skip=True)
    answer = driver.joined("new client")
    assert (answer.skip_assignment, answer.leader, len(answer.members)) == (True, answer.member_id, 2)
    driver.join("old client", instance="a")
    second = driver.joined("old client")
    assert (second.skip_assignment, second.leader, second.members) == (False, answer.member_id, ())
    assert old != answer.member_id != second.member_id


def test_a_returning_static_follower_skips_no_assignment_in_any_version() -> None:
    driver = Driver()
    leader, _ = driver.stable("a", "b", instance=True)
    driver.join("new client", instance="b", skip=True)
    answer = driver.joined("new client")
    assert (answer.error, answer.generation, answer.skip_assignment) == (None, 1, False)
    assert (answer.leader, answer.members) == (leader, ())


def test_static_members_whose_assignment_was_refused_have_sessions() -> None:
    driver = Driver(max_record_bytes=1_000)
    for name in "ab":
        driver.join(name, instance=name, session=10_000)
    driver.wait(6_000)
    leader, follower = driver.joined("a").member_id, driver.joined("b").member_id
    driver.sync("b syncs", follower, 1, instance="b")
    for _ in range(3):  # b's session would end during its wait
        driver.wait(9_000)
        assert driver.heartbeat(leader, 1, "a") is None
    driver.sync("a syncs", leader, 1, [(leader, bytes(2_000))], instance="a")
    assert driver.error("b syncs") is GroupMetadataTooLarge
    driver.wait(9_999)
    assert list(driver.group.members) == [leader, follower]
    driver.wait(1)
    assert not driver.group.members and driver.group.state is GroupState.EMPTY


def test_a_static_member_that_returns_with_other_protocols_begins_a_rebalance() -> None:
    driver = Driver()
    driver.stable("a", instance=True)
    driver.join("a is back", instance="a", protocols=(MemberProtocol("own", b""), *RANGE))
    assert driver.joined("a is back").generation == 2


def test_a_second_process_with_the_same_instance_id_fences_the_first_one_that_waits() -> None:
    driver = Driver()
    driver.join("first", instance="i")
    driver.join("second", instance="i")
    assert driver.error("first") is FencedInstanceId
    driver.wait(10_000)
    assert driver.joined("second").error is None
    assert len(driver.group.members) == 1


def test_a_static_member_that_is_away_keeps_its_place_until_its_session_ends() -> None:
    driver = Driver()
    here, away = driver.stable("a", "b", instance=True, session=50_000, rebalance=20_000)
    driver.join("a again", here, instance="a", session=50_000, rebalance=20_000)
    driver.wait(20_000)
    assert [each.member_id for each in driver.joined("a again").members] == [here, away]
    driver.sync("a syncs", here, 2, [], instance="a")
    driver.heartbeat(here, 2, "a")
    driver.wait(19_000)
    assert driver.heartbeat(here, 2, "a") is None
    driver.wait(2_000)  # `away` has not asked for its assignment
    assert away not in driver.group.members


def test_a_member_that_has_joined_leads_while_the_static_leader_is_away() -> None:
    driver = Driver()
    leader, follower = driver.stable("a", "b", instance=True, session=100_000, rebalance=10_000)
    driver.join("b again", follower, instance="b", protocols=STICKY, session=100_000, rebalance=10_000)
    driver.wait(10_000)
    joined = driver.joined("b again")
    assert (joined.leader, [each.member_id for each in joined.members]) == (follower, [leader, follower])


def test_a_static_member_that_returns_first_waits_at_most_a_rebalance_timeout_for_the_others() -> None:
    driver = Driver()
    first, second = driver.stable("a", "b", instance=True, session=100_000, rebalance=10_000)
    driver.join("c", rebalance=10_000, session=100_000)
    gone = next(member for member in driver.group.members.values() if member.group_instance_id is None)
    driver.leave(LeavingMember(gone.member_id))
    driver.wait(10_000)
    assert driver.group.state is GroupState.PREPARING_REBALANCE
    driver.join("a is back", first, instance="a", session=100_000, rebalance=10_000)
    driver.wait(10_000)
    assert [each.member_id for each in driver.joined("a is back").members] == [first, second]


def test_a_static_member_that_returns_to_a_stable_group_still_has_to_sync() -> None:
    driver = Driver()
    driver.join("a", instance="a", rebalance=20_000, session=60_000)
    driver.join("b", instance="b", rebalance=20_000, session=60_000)
    driver.wait(6_000)
    leader = driver.joined("a").member_id
    driver.sync("sync a", leader, 1, [], instance="a")
    driver.join("b is back", instance="b", rebalance=20_000, session=60_000)
    back = driver.joined("b is back").member_id
    driver.wait(20_000)
    assert back not in driver.group.members


# --- heartbeats, sessions, leaving ------------------------------------------------------------------------------------
def test_heartbeats_keep_a_member_and_silence_removes_it() -> None:
    driver = Driver()
    (member,) = driver.stable("a", session=10_000)
    for _ in range(5):
        driver.wait(9_000)
        assert driver.heartbeat(member, 1) is None
    driver.wait(10_000)
    assert isinstance(driver.heartbeat(member, 1), UnknownMemberId)
    assert (driver.group.state, driver.recorded.members, driver.recorded.generation) == (GroupState.EMPTY, (), 2)
    assert "group.member_expired" in driver.notes


def test_a_heartbeat_of_another_generation_or_unknown_member_is_refused() -> None:
    driver = Driver()
    assert isinstance(driver.heartbeat("x", 1), UnknownMemberId)
    (member,) = driver.stable("a")
    assert isinstance(driver.heartbeat(member, 0), IllegalGeneration)
    assert isinstance(driver.heartbeat("x", 1), UnknownMemberId)


def test_a_member_that_the_broker_makes_wait_does_not_expire() -> None:
    driver = Driver()
    leader, follower = driver.stable("a", "b", session=10_000, rebalance=300_000)
    driver.join("a again", leader, rebalance=300_000)
    for _ in range(10):
        driver.wait(9_000)
        driver.heartbeat(follower, 1)
    assert leader in driver.group.members


def test_a_member_that_joined_with_its_given_id_does_not_expire_with_the_id() -> None:
    driver = Driver()
    (member,) = driver.stable("a")
    driver.join("b", needs_id=True, session=10_000)
    driver.wait(9_000)
    driver.heartbeat(member, 1)
    driver.join("b joins", driver.joined("b").member_id, needs_id=True)
    driver.wait(2_000)
    assert "b joins" not in driver.answers
    driver.join("a joins", member)
    assert driver.joined("b joins").generation == 2


def test_a_member_whose_wait_for_its_assignment_was_ended_has_a_whole_session_to_join_again() -> None:
    driver = Driver()
    for name in "ab":
        driver.join(name, session=10_000)
    driver.wait(6_000)
    follower = driver.joined("b").member_id
    driver.sync("sync b", follower, 1)
    driver.wait(9_000)
    driver.join("c")
    driver.wait(9_999)
    assert follower in driver.group.members
    driver.wait(1)
    assert follower not in driver.group.members


def test_a_new_member_whose_client_has_gone_is_removed_after_five_minutes() -> None:
    driver = Driver()
    (member,) = driver.stable("a", rebalance=600_000)
    driver.join("gone", rebalance=600_000)
    for _ in range(NEW_MEMBER_JOIN_TIMEOUT_MS // 5_000):
        assert "gone" not in driver.answers
        driver.heartbeat(member, 1)
        driver.wait(5_000)
    assert driver.error("gone") is UnknownMemberId


def test_members_leave_by_id_by_instance_and_before_they_have_joined() -> None:
    driver = Driver()
    first, _ = driver.stable("a", "b", instance=True)
    driver.join("pending", needs_id=True)
    left = driver.leave(
        LeavingMember(first, "a"),
        LeavingMember("", "b"),
        LeavingMember(driver.joined("pending").member_id),
        LeavingMember("nobody"),
        LeavingMember("", "no instance"),
        LeavingMember(""),
    )
    assert left.error is None
    errors = [None if each.error is None else type(each.error) for each in left.members]
    assert errors == [None, None, None, UnknownMemberId, UnknownMemberId, UnknownMemberId]
    assert driver.group.state is GroupState.EMPTY


def test_leaving_with_ids_of_two_members_removes_neither_and_begins_no_rebalance() -> None:
    driver = Driver()
    first, _ = driver.stable("a", "b", instance=True)
    left = driver.leave(LeavingMember(first, "b"), LeavingMember(first, "c"), LeavingMember("nobody"))
    assert [type(each.error) for each in left.members] == [FencedInstanceId, UnknownMemberId, UnknownMemberId]
    assert (len(driver.group.members), driver.group.state) == (2, GroupState.STABLE)


def test_a_static_member_cannot_be_removed_under_its_old_id() -> None:
    driver = Driver()
    (old,) = driver.stable("a", instance=True)
    driver.join("a is back", instance="a")
    (left,) = driver.leave(LeavingMember(old, "a")).members
    assert isinstance(left.error, FencedInstanceId)


def test_the_last_member_that_leaves_empties_the_group_and_the_record_says_so() -> None:
    driver = Driver()
    (member,) = driver.stable("a")
    driver.leave(LeavingMember(member))
    assert (driver.recorded.generation, driver.recorded.protocol, driver.recorded.members) == (2, None, ())
    assert driver.recorded.protocol_type == "consumer"


def test_the_oldest_member_leads_when_the_leader_leaves() -> None:
    driver = Driver()
    leader, second, third = driver.stable("a", "b", "c")
    driver.leave(LeavingMember(leader))
    assert driver.group.leader == second
    driver.join("c again", third)
    driver.join("b again", second)
    assert [each.member_id for each in driver.joined("b again").members] == [second, third]


def test_a_member_that_leaves_while_it_waits_is_answered() -> None:
    driver = Driver()
    leader, _ = driver.stable("a", "b")
    driver.join("a again", leader)
    driver.leave(LeavingMember(leader))
    assert driver.error("a again") is UnknownMemberId
    assert driver.joined("a again").member_id == UNKNOWN_MEMBER


def test_a_member_that_the_new_assignment_leaves_out_loses_the_partitions_of_the_old_one() -> None:
    driver = Driver()
    leader, follower = driver.stable("a", "b")
    driver.join("a again", leader)
    driver.join("b again", follower)
    driver.sync("b's", follower, 2)
    driver.sync("a's", leader, 2, [(leader, b"all")])
    assert (driver.synced("a's").assignment, driver.synced("b's").assignment) == (b"all", b"")
    assert [each.assignment for each in driver.recorded.members] == [b"all", b""]


def test_protocols_of_members_that_have_left_are_not_remembered() -> None:
    driver = Driver()
    driver.stable("a")
    for number in range(3):
        name = f"mine-{number}"
        driver.join(name, protocols=(MemberProtocol("range", b""), MemberProtocol(name, b"")))
        member_id = next(reversed(driver.group.members))
        driver.leave(LeavingMember(member_id))
    assert dict(driver.group.supported) == {"range": 1}


def test_a_member_that_leaves_while_it_waits_for_its_assignment_is_answered() -> None:
    driver = Driver()
    driver.join("a")
    driver.join("b")
    driver.wait(6_000)
    follower = driver.joined("b").member_id
    driver.sync("sync b", follower, 1)
    driver.leave(LeavingMember(follower))
    assert driver.error("sync b") is UnknownMemberId


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"member_id": "nobody"}, UnknownMemberId),
        ({"generation": 2}, IllegalGeneration),
        ({"kind": "connect"}, InconsistentGroupProtocol),
        ({"protocol": "sticky"}, InconsistentGroupProtocol),
        ({"instance": "i"}, UnknownMemberId),
    ],
)
def test_an_impossible_sync_is_refused(how: dict[str, object], error: type) -> None:
    driver = Driver()
    (member,) = driver.stable("a")
    driver.sync("s", **{"member_id": member, "generation": 1, **how})  # type: ignore[arg-type]
    assert driver.error("s") is error


def test_a_sync_during_a_rebalance_is_answered_with_rebalance_in_progress() -> None:
    driver = Driver()
    leader, follower = driver.stable("a", "b")
    driver.join("a again", leader)
    driver.sync("s", follower, 1)
    assert driver.error("s") is RebalanceInProgress


# --- records ----------------------------------------------------------------------------------------------------------
def test_a_loaded_group_is_the_one_that_was_recorded() -> None:
    before = Driver()
    ids = before.stable("a", "b", instance=True)
    before.join("a is back", instance="a")  # the leader is no longer the first member
    ids[0] = before.joined("a is back").member_id
    after = Driver()
    after.groups.put(finish(ClassicGroup.loaded("g", before.recorded, after.now)), has_offsets=False)
    finish(after.groups.loaded(after.now, Outcome()))
    group = after.group
    assert (group.state, group.generation, group.leader, group.protocol) == (GroupState.STABLE, 1, ids[0], "range")
    assert after.heartbeat(ids[1], 1, "b") is None
    after.sync("s", ids[1], 1, instance="b")
    assert after.synced("s").assignment == b"b"
    assert decode_group(group_value(group)) == before.recorded
    after.wait(10_001)
    assert after.group.state is GroupState.EMPTY


def test_a_loaded_group_above_its_bound_rebalances_down_to_it() -> None:
    before = Driver()
    ids = before.stable("a", "b")
    after = Driver(max_size=1)
    after.groups.put(finish(ClassicGroup.loaded("g", before.recorded, after.now)), has_offsets=False)
    outcome = Outcome()
    finish(after.groups.loaded(after.now, outcome))
    after.join("first", ids[1])
    after.join("second", ids[0])
    assert after.error("second") is GroupMaxSizeReached
    assert after.joined("first").generation == 2


# --- the table --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("state", GroupState)
@pytest.mark.parametrize("after", GroupState)
def test_every_change_of_state_is_in_the_table_or_refused(state: GroupState, after: GroupState) -> None:
    group = ClassicGroup("g", 0)
    group.state = state
    if after in TRANSITIONS[state]:
        group.enter(after, 7)
        assert (group.previous_state, group.state, group.state_timestamp) == (state, after, 7)
    else:
        with pytest.raises(UnexpectedTransition):
            group.enter(after, 7)
        assert group.state is state


def test_the_table_has_every_state_and_the_states_that_rebalance() -> None:
    assert set(TRANSITIONS) == set(GroupState)
    assert {state for state in GroupState if GroupState.PREPARING_REBALANCE in TRANSITIONS[state]} == REBALANCES_FROM


# --- a record's bound -------------------------------------------------------------------------------------------------
def test_members_of_a_group_whose_record_is_too_large_get_an_error_and_rebalance() -> None:
    driver = Driver(max_record_bytes=1_000)
    driver.join("a")
    driver.join("b")
    driver.wait(6_000)
    leader, follower = driver.joined("a").member_id, driver.joined("b").member_id
    records = len(driver.records)
    driver.sync("sync b", follower, 1)
    driver.sync("sync a", leader, 1, [(follower, bytes(1_000))])
    assert (driver.error("sync a"), driver.error("sync b")) == (GroupMetadataTooLarge, GroupMetadataTooLarge)
    assert (driver.group.state, len(driver.records)) == (GroupState.PREPARING_REBALANCE, records)
    assert "group.too_large" in driver.notes
    driver.join("a again", leader)
    driver.join("b again", follower)
    driver.sync("sync a again", leader, 2, [(follower, b"less")])
    assert driver.error("sync a again") is None
