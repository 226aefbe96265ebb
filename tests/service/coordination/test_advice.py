"""The advice in errors of groups and transactions: once it is followed, the refused request is accepted."""

from __future__ import annotations

import pytest

from grpc_api.contract.coordinator_errors import (
    FencedInstanceId,
    GroupMaxSizeReached,
    GroupMetadataTooLarge,
    GroupSubscribedToTopic,
    InconsistentGroupProtocol,
    InvalidGroupId,
    InvalidProducerIdMapping,
    InvalidSessionTimeout,
    InvalidTransactionTimeout,
    NonEmptyGroup,
    ProducerFenced,
    TransactionAbortable,
    UnknownMemberId,
)
from grpc_api.contract.groups import (
    DeleteGroup,
    LeaveGroup,
    LeavingMember,
    MemberProtocol,
    OffsetDelete,
    TopicPartitionIndexes,
)
from service.coordination.groups.rebalancing import GroupSettings
from service.coordination.transactions.shard import TransactionSettings
from storage_tiers.types import TopicPartition
from tests.service.coordination.groups.driver import Driver
from tests.service.coordination.groups.shard_driver import SUBSCRIPTION, Broker
from tests.service.coordination.transactions.driver import DAY, A, Coordinator

T0 = OffsetDelete("g", [TopicPartitionIndexes("t", [0])])


# --- groups -----------------------------------------------------------------------------------------------------------
def test_processes_with_instance_ids_of_their_own_are_all_members() -> None:
    driver = Driver()
    driver.join("first", instance="same")
    driver.join("second", instance="same")
    assert driver.error("first") is FencedInstanceId
    driver.join("first again", instance="own")
    driver.wait(10_000)
    assert (driver.error("second"), driver.error("first again")) == (None, None)


def test_a_member_that_sets_its_group_id_joins() -> None:
    driver = Driver()
    driver.join("a", group="")
    assert driver.error("a") is InvalidGroupId
    driver.join("b", group="g")
    driver.wait(3_000)
    assert driver.error("b") is None


def test_a_session_timeout_within_the_bounds_or_other_bounds_let_a_member_join() -> None:
    driver = Driver(initial_rebalance_delay_ms=0)
    driver.join("a", session=1_000)
    assert driver.error("a") is InvalidSessionTimeout
    driver.join("b", session=6_000)
    driver.groups.rebalancing.settings = GroupSettings(min_session_timeout_ms=1_000, initial_rebalance_delay_ms=0)
    driver.join("c", session=1_000)
    driver.wait(0)
    assert (driver.error("b"), driver.error("c")) == (None, None)


@pytest.mark.parametrize("is_raised", [True, False])
def test_a_larger_bound_or_fewer_members_make_room(is_raised: bool) -> None:
    driver = Driver(max_size=1)
    (member,) = driver.stable("a")
    driver.join("b")
    assert driver.error("b") is GroupMaxSizeReached
    if is_raised:
        driver.groups.rebalancing.settings = GroupSettings(max_size=2)
    else:
        driver.leave(LeavingMember(member))
    driver.join("b again")
    driver.join("a again", member)
    driver.wait(3_000)
    assert driver.error("b again") is None


def test_an_assignment_strategy_that_all_members_have_lets_a_member_join() -> None:
    driver = Driver()
    (member,) = driver.stable("a")
    driver.join("b", protocols=(MemberProtocol("own", b""),))
    assert driver.error("b") is InconsistentGroupProtocol
    driver.join("b again", protocols=(MemberProtocol("own", b""), MemberProtocol("range", b"")))
    driver.join("a again", member)
    assert driver.joined("b again").protocol == "range"


@pytest.mark.parametrize("is_raised", [True, False])
def test_a_group_whose_record_did_not_fit_is_recorded_with_a_larger_bound_or_fewer_members(is_raised: bool) -> None:
    driver = Driver(max_record_bytes=700)
    driver.join("a")
    driver.join("b")
    driver.wait(6_000)
    leader, follower = driver.joined("a").member_id, driver.joined("b").member_id
    driver.sync("sync a", leader, 1, [(leader, bytes(300)), (follower, bytes(300))])
    assert driver.error("sync a") is GroupMetadataTooLarge
    if is_raised:
        driver.groups.rebalancing.settings = GroupSettings(max_record_bytes=2_000)
        driver.join("b again", follower)
    else:
        driver.leave(LeavingMember(follower))
    driver.join("a again", leader)
    driver.sync("sync a again", leader, 2, [(leader, bytes(300)), (follower, bytes(300))])
    assert driver.error("sync a again") is None


def test_a_group_whose_members_have_stopped_is_deleted() -> None:
    broker = Broker()
    member = broker.member().member_id
    assert isinstance(broker.ask(DeleteGroup("g")).error, NonEmptyGroup)
    broker.ask(LeaveGroup("g", [LeavingMember(member)]))
    assert broker.ask(DeleteGroup("g")).error is None


@pytest.mark.parametrize(
    ("protocol_type", "subscription"), [("consumer", SUBSCRIPTION), ("consumer", b"own format"), ("connect", b"")]
)
def test_offsets_of_a_group_whose_members_have_stopped_are_deleted(protocol_type: str, subscription: bytes) -> None:
    broker = Broker()
    joined = broker.member((MemberProtocol("range", subscription),), protocol_type)
    assert broker.commit(5, generation=1, member=joined.member_id) is None
    refused = broker.ask(T0)
    if protocol_type == "consumer":
        assert isinstance(refused.topics[0].partitions[0].error, GroupSubscribedToTopic)
    else:
        assert isinstance(refused.error, NonEmptyGroup)
    broker.ask(LeaveGroup("g", [LeavingMember(joined.member_id)]))
    assert broker.ask(T0).topics[0].partitions[0].error is None
    assert broker.fetch().offset == -1


def test_a_commit_counts_as_a_member_or_once_the_members_have_stopped() -> None:
    broker = Broker()
    member = broker.member().member_id
    assert broker.commit(5) is UnknownMemberId
    assert broker.commit(6, generation=1, member=member) is None
    broker.ask(LeaveGroup("g", [LeavingMember(member)]))
    assert broker.commit(7) is None
    assert broker.fetch().offset == 7


# --- transactions -----------------------------------------------------------------------------------------------------
def test_a_timeout_within_the_bound_or_a_larger_bound_lets_a_producer_begin() -> None:
    x = Coordinator()
    assert isinstance(x.init(timeout_ms=1_000_000).error, InvalidTransactionTimeout)
    assert x.init(timeout_ms=900_000).error is None
    x.shard.settings = TransactionSettings(max_timeout_ms=1_000_000)
    assert x.init(timeout_ms=1_000_000).error is None


def test_a_producer_whose_id_expired_begins_again() -> None:
    x = Coordinator()
    producer = x.producer()
    x.wait(7 * DAY)
    assert isinstance(x.add(producer, A).error, InvalidProducerIdMapping)
    assert x.add(x.producer(), A).error is None


def test_once_the_older_producer_has_stopped_the_newer_one_continues() -> None:
    x = Coordinator()
    old, new = x.producer(), x.producer()
    assert isinstance(x.add(old, A).error, ProducerFenced)
    x.committed(new, A)
    assert x.status == "CompleteCommit"


def test_a_transaction_with_a_partition_that_was_not_added_is_aborted_and_the_next_one_has_it() -> None:
    x = Coordinator()
    producer = x.producer()
    x.add(producer, A)
    missing = TopicPartition("t", 9)
    ((_, error),) = x.add(producer, missing, verify=True).errors
    assert isinstance(error, TransactionAbortable)
    following = x.end(producer, commit=False).producer
    x.mark()
    x.add(following, missing)
    assert x.add(following, missing, verify=True).errors == []
