"""Joining a classic group: its first generation, ids, protocols, bounds."""

from __future__ import annotations

import pytest

from grpc_api.contract.coordinator_errors import (
    GroupMaxSizeReached,
    InconsistentGroupProtocol,
    InvalidGroupId,
    InvalidSessionTimeout,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
)
from grpc_api.contract.groups import MemberProtocol
from service.coordination.groups.classic_group import (
    GroupState,
)
from tests.service.coordination.groups.driver import RANGE, Driver

STICKY = (MemberProtocol("sticky", b"s"), MemberProtocol("range", b"r"))


# --- a group's first generation ---------------------------------------------------------------------------------------
def test_the_first_members_join_after_the_initial_delay_and_one_leads() -> None:
    driver = Driver()
    driver.join("a")
    driver.wait(2_999)
    assert driver.answers == {}
    driver.wait(1)
    answer = driver.joined("a")
    assert answer.error is None
    assert (answer.generation, answer.protocol_type, answer.protocol) == (1, "consumer", "range")
    assert answer.leader == answer.member_id
    assert [(each.member_id, each.metadata) for each in answer.members] == [(answer.member_id, b"topics")]
    assert driver.group.state is GroupState.COMPLETING_REBALANCE


def test_a_new_groups_empty_record_is_written_before_its_first_generation() -> None:
    driver = Driver()
    driver.join("a")
    assert (driver.recorded.generation, driver.recorded.protocol_type, driver.recorded.members) == (0, "", ())


def test_each_member_that_comes_during_the_delay_extends_it_up_to_the_rebalance_timeout() -> None:
    driver = Driver()
    driver.join("a", rebalance=7_000)
    driver.wait(2_000)
    driver.join("b", rebalance=7_000)
    driver.wait(3_999)  # the first delay ended and began again
    assert driver.answers == {}
    driver.join("c", rebalance=7_000)
    driver.wait(1_000)  # 6,999 ms: the last extension lasts one second
    assert driver.answers == {}
    driver.wait(1)
    assert {driver.joined(name).generation for name in "abc"} == {1}


def test_a_delay_of_zero_does_not_wait() -> None:
    driver = Driver(initial_rebalance_delay_ms=0)
    driver.join("a")
    driver.wait(0)
    assert driver.joined("a").generation == 1


def test_only_the_leader_gets_the_members() -> None:
    driver = Driver()
    driver.join("a")
    driver.join("b")
    driver.wait(10_000)
    first, second = driver.joined("a"), driver.joined("b")
    assert {each.member_id for each in first.members} == {first.member_id, second.member_id}
    assert (second.members, second.leader) == ((), first.member_id)


def test_the_leaders_assignment_is_recorded_and_given_to_all_that_wait() -> None:
    driver = Driver()
    ids = driver.stable("a", "b")
    assert [driver.synced(f"sync {name}").assignment for name in "ab"] == [b"a", b"b"]
    assert {(driver.synced(f"sync {name}").protocol_type, driver.synced(f"sync {name}").protocol) for name in "ab"} == {
        ("consumer", "range")
    }
    assert [(member.member_id, member.assignment) for member in driver.recorded.members] == [
        (ids[0], b"a"),
        (ids[1], b"b"),
    ]
    assert (driver.recorded.generation, driver.recorded.leader) == (1, ids[0])
    assert driver.notes == ["group.rebalances", "group.stable"]


def test_a_member_without_an_assignment_gets_an_empty_one() -> None:
    driver = Driver()
    driver.join("a")
    driver.join("b")
    driver.wait(10_000)
    first, second = driver.joined("a").member_id, driver.joined("b").member_id
    driver.sync("sync b", second, 1)
    driver.sync("sync a", first, 1, [(first, b"all")])
    assert (driver.synced("sync a").assignment, driver.synced("sync b").assignment) == (b"all", b"")


def test_a_follower_that_syncs_after_the_leader_is_answered_at_once() -> None:
    driver = Driver()
    driver.join("a")
    driver.join("b")
    driver.wait(10_000)
    first, second = driver.joined("a").member_id, driver.joined("b").member_id
    driver.sync("sync a", first, 1, [(second, b"b")])
    driver.sync("sync b", second, 1)
    assert driver.synced("sync b").assignment == b"b"


# --- joining ----------------------------------------------------------------------------------------------------------
def test_a_member_without_an_id_is_given_one_and_joins_with_it() -> None:
    driver = Driver()
    driver.join("first", needs_id=True)
    required = driver.joined("first")
    assert driver.error("first") is MemberIdRequired
    assert required.member_id.startswith("app-")
    driver.join("again", required.member_id, needs_id=True)
    driver.wait(3_000)
    assert (driver.joined("again").member_id, driver.joined("again").error) == (required.member_id, None)


def test_an_unused_member_id_expires_and_does_not_delay_a_rebalance() -> None:
    driver = Driver()
    (member,) = driver.stable("a", rebalance=300_000)
    driver.join("pending", needs_id=True, session=10_000)
    driver.join("rejoin a", member, protocols=STICKY)
    driver.wait(9_999)
    assert driver.heartbeat(member, 1) is not None
    assert "rejoin a" not in driver.answers
    driver.wait(1)
    assert driver.joined("rejoin a").generation == 2
    driver.join("late", driver.joined("pending").member_id, needs_id=True)
    assert driver.error("late") is UnknownMemberId


def test_a_first_rebalance_ends_with_the_last_id_or_session_that_it_waits_for() -> None:
    driver = Driver(initial_rebalance_delay_ms=60_000)
    driver.join("pending", needs_id=True, session=10_000)
    driver.join("a", rebalance=300_000)
    driver.wait(9_999)
    assert "a" not in driver.answers
    driver.wait(1)
    assert driver.joined("a").generation == 1


def test_a_static_member_is_never_sent_away_for_an_id() -> None:
    driver = Driver()
    driver.join("a", instance="i", needs_id=True)
    driver.wait(3_000)
    assert driver.joined("a").error is None
    assert driver.joined("a").member_id.startswith("i-")


@pytest.mark.parametrize("session", [6_000, 1_800_000])
def test_a_session_timeout_at_its_bound_is_accepted(session: int) -> None:
    driver = Driver()
    driver.join("a", session=session)
    driver.wait(3_000)
    assert driver.joined("a").error is None


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"group": ""}, InvalidGroupId),
        ({"session": 5_999}, InvalidSessionTimeout),
        ({"session": 1_800_001}, InvalidSessionTimeout),
        ({"protocols": ()}, InconsistentGroupProtocol),
        ({"kind": ""}, InconsistentGroupProtocol),
        ({"member_id": "unknown"}, UnknownMemberId),
    ],
)
def test_an_impossible_join_is_refused_and_leaves_no_member(how: dict[str, object], error: type) -> None:
    driver = Driver()
    driver.join("a", **how)  # type: ignore[arg-type]
    assert driver.error("a") is error
    assert all(not group.members for group in driver.groups)


def test_a_member_of_another_kind_or_without_a_common_protocol_is_refused() -> None:
    driver = Driver()
    driver.stable("a")
    driver.join("other kind", kind="connect")
    driver.join("other protocol", protocols=(MemberProtocol("own", b""),))
    assert (driver.error("other kind"), driver.error("other protocol")) == (InconsistentGroupProtocol,) * 2
    assert driver.group.state is GroupState.STABLE


def test_the_protocol_is_the_one_that_all_support_and_most_prefer() -> None:
    driver = Driver()
    driver.join("a", protocols=STICKY)
    driver.join("b", protocols=STICKY)
    driver.join("c", protocols=tuple(reversed(STICKY)))
    driver.wait(6_000)
    assert driver.joined("a").protocol == "sticky"
    driver.join("d", protocols=RANGE)
    for name in "abc":
        driver.join(f"{name} again", driver.joined(name).member_id, protocols=STICKY)
    assert driver.joined("d").protocol == "range"


def test_a_protocol_that_only_some_members_support_admits_no_member() -> None:
    driver = Driver()
    driver.stable("a", protocols=STICKY)
    driver.join("b")
    driver.join("c", protocols=STICKY[:1])
    assert driver.error("c") is InconsistentGroupProtocol


def test_a_full_group_refuses_new_members_and_keeps_its_own() -> None:
    driver = Driver(max_size=1)
    (member,) = driver.stable("a")
    driver.join("b")
    assert driver.error("b") is GroupMaxSizeReached
    driver.join("a again", member)
    assert driver.joined("a again").generation == 2


def test_a_leader_that_joins_a_stable_group_begins_a_rebalance_and_a_follower_does_not() -> None:
    driver = Driver()
    leader, follower = driver.stable("a", "b")
    driver.join("b again", follower)
    assert (driver.joined("b again").generation, driver.joined("b again").members) == (1, ())
    driver.join("a again", leader)
    assert driver.group.state is GroupState.PREPARING_REBALANCE
    assert driver.heartbeat(follower, 1).__class__ is RebalanceInProgress
    driver.join("b third", follower)
    assert {driver.joined(name).generation for name in ("a again", "b third")} == {2}


def test_a_follower_with_other_protocols_begins_a_rebalance() -> None:
    driver = Driver()
    _, follower = driver.stable("a", "b")
    driver.join("b again", follower, protocols=STICKY)
    assert driver.group.state is GroupState.PREPARING_REBALANCE


def test_a_member_that_lost_the_answer_to_its_join_gets_it_again() -> None:
    driver = Driver()
    driver.join("a")
    driver.wait(3_000)
    member = driver.joined("a").member_id
    driver.join("a again", member)
    assert driver.joined("a again") == driver.joined("a")


def test_a_sync_that_is_sent_twice_ends_the_first() -> None:
    driver = Driver()
    driver.join("a")
    driver.join("b")
    driver.wait(6_000)
    leader, follower = (driver.joined(name).member_id for name in ("a", "b"))
    driver.sync("first", follower, 1)
    driver.sync("second", follower, 1)
    assert (driver.error("first"), "second" in driver.answers) == (RebalanceInProgress, False)
    driver.sync("leader", leader, 1, [(follower, b"b")])
    assert driver.synced("second").assignment == b"b"


def test_a_join_that_is_sent_twice_ends_the_first() -> None:
    driver = Driver()
    ids = driver.stable("a", "b")
    driver.join("first", ids[0])
    driver.join("second", ids[0])
    assert driver.error("first") is RebalanceInProgress
    assert "second" not in driver.answers
