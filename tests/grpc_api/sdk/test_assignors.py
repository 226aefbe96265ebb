"""Assignors and the bytes that members exchange: every partition has one owner, members are balanced, owners keep theirs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpc_api.sdk.assignors import (
    ASSIGNORS,
    COOPERATIVE_STICKY,
    RANGE,
    Assignment,
    Subscriber,
    _owners,
    assign,
)
from grpc_api.sdk.consumer_protocol import (
    MemberSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from storage_tiers.errors import InvalidRequest
from storage_tiers.types import TopicPartition

TOPICS = ("a", "b", "c")
partition = st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 9))
partitions = st.lists(partition, unique=True, max_size=12)


def members_of(*topics: tuple[str, ...], instances: tuple[str | None, ...] = ()) -> list[Subscriber]:
    return [
        Subscriber(f"m{index}", instances[index] if instances else None, MemberSubscription(wanted))
        for index, wanted in enumerate(topics)
    ]


def rejoined(members: list[Subscriber], assignment: Assignment, generation: int) -> list[Subscriber]:
    """The members, joined again with the partitions that they were assigned."""
    return [
        each._replace(
            subscription=each.subscription._replace(owned=assignment.get(each.member_id, []), generation=generation)
        )
        for each in members
    ]


def settled_assignment(members: list[Subscriber], counts: dict[str, int], generation: int = 1) -> Assignment:
    """The assignment once members have given up the partitions that they must give up, and have joined again."""
    assignment = assign(COOPERATIVE_STICKY, members, counts)
    owned = {each.member_id: set(each.subscription.owned) for each in members}
    # No member gets a partition that another member still owns.
    for member, parts in assignment.items():
        assert not any(each in theirs for other, theirs in owned.items() if other != member for each in parts)
    return assign(COOPERATIVE_STICKY, rejoined(members, assignment, generation + 1), counts)


# --- range ------------------------------------------------------------------------------------------------------------
def test_ranges_are_kafkas() -> None:
    found = assign(RANGE, members_of(("a", "b"), ("a",), ("a", "b")), {"a": 7, "b": 2})
    assert [[(each.topic, each.partition) for each in found[member]] for member in ("m0", "m1", "m2")] == [
        [("a", 0), ("a", 1), ("a", 2), ("b", 0)],
        [("a", 3), ("a", 4)],
        [("a", 5), ("a", 6), ("b", 1)],
    ]


def test_static_members_come_first_in_the_order_of_their_instances() -> None:
    found = assign(RANGE, members_of(("a",), ("a",), ("a",), instances=(None, "z", "y")), {"a": 3})
    assert {member: [each.partition for each in parts] for member, parts in found.items()} == {
        "m2": [0],
        "m1": [1],
        "m0": [2],
    }


def test_a_topic_that_is_gone_has_no_partitions() -> None:
    for name in ASSIGNORS:
        assert assign(name, members_of(("a", "gone")), {"a": 1}) == {"m0": [TopicPartition("a", 0)]}


# --- cooperative ------------------------------------------------------------------------------------------------------
def test_a_new_member_gets_a_partition_only_when_its_owner_has_given_it_up() -> None:
    everything = [TopicPartition("a", number) for number in range(4)]
    first, second = members_of(("a",), ("a",))
    first = first._replace(subscription=MemberSubscription(("a",), everything, 5))
    now = assign(COOPERATIVE_STICKY, [first, second], {"a": 4})
    assert now == {"m0": [TopicPartition("a", 0), TopicPartition("a", 1)], "m1": []}
    then = assign(COOPERATIVE_STICKY, rejoined([first, second], now, 6), {"a": 4})
    assert then == {
        "m0": [TopicPartition("a", 0), TopicPartition("a", 1)],
        "m1": [TopicPartition("a", 2), TopicPartition("a", 3)],
    }


def test_the_newer_generation_of_two_claimants_owns_a_partition() -> None:
    mine = [TopicPartition("a", 0)]
    old, new = members_of(("a",), ("a",))
    old = old._replace(subscription=MemberSubscription(("a",), mine, 3))
    new = new._replace(subscription=MemberSubscription(("a",), mine, 4))
    assert assign(COOPERATIVE_STICKY, [old, new], {"a": 1}) == {"m0": [], "m1": mine}
    both = [each._replace(subscription=each.subscription._replace(generation=4)) for each in (old, new)]
    assert _owners(both, {"a": 1}) == {}
    assert sum(map(len, assign(COOPERATIVE_STICKY, both, {"a": 1}).values())) == 1


wanted = st.lists(st.lists(st.sampled_from(TOPICS), unique=True, min_size=1).map(tuple), min_size=1, max_size=6)
sizes = st.fixed_dictionaries({topic: st.integers(0, 9) for topic in TOPICS})


@settings(max_examples=150, deadline=None)
@given(wanted=wanted, counts=sizes, owners=st.dictionaries(partition, st.integers(0, 5), max_size=20))
def test_every_partition_has_one_owner_and_no_member_could_take_from_one_with_two_more(
    wanted: list[tuple[str, ...]], counts: dict[str, int], owners: dict[TopicPartition, int]
) -> None:
    members = [
        each._replace(
            subscription=MemberSubscription(
                topics, [part for part, owner in owners.items() if owner == index and part.topic in topics], 1
            )
        )
        for index, (each, topics) in enumerate(zip(members_of(*wanted), wanted, strict=True))
    ]
    subscribed = {topic for topics in wanted for topic in topics}
    every = {TopicPartition(topic, number) for topic in subscribed for number in range(counts[topic])}
    found = settled_assignment(members, counts)
    assert sorted(each for parts in found.values() for each in parts) == sorted(every)
    topics_of = {each.member_id: each.subscription.topics for each in members}
    for giver, parts in found.items():
        assert all(each.topic in topics_of[giver] for each in parts)
        for each in parts:
            takers = [other for other, topics in topics_of.items() if each.topic in topics]
            assert all(len(parts) - len(found[taker]) < 2 for taker in takers)
    # A balanced group that joins again keeps everything.
    assert settled_assignment(rejoined(members, found, 3), counts, 3) == found
    ranged = assign(RANGE, members, counts)
    assert sorted(each for parts in ranged.values() for each in parts) == sorted(every)


def test_a_member_that_leaves_costs_the_others_nothing_of_theirs() -> None:
    counts = {"a": 30, "b": 11}
    members = members_of(*[("a", "b")] * 5)
    before = assign(COOPERATIVE_STICKY, members, counts)
    after = settled_assignment(rejoined(members[:-1], before, 1), counts)
    assert all(set(before[member]) <= set(parts) for member, parts in after.items())


def test_large_groups_are_balanced() -> None:
    members = members_of(*[("a",)] * 40)
    everything = [TopicPartition("a", number) for number in range(1000)]
    first = members[0]._replace(subscription=MemberSubscription(("a",), everything, 1))
    found = settled_assignment([first, *members[1:]], {"a": 1000})
    assert {len(parts) for parts in found.values()} == {25}


# --- bytes ------------------------------------------------------------------------------------------------------------
def test_the_bytes_are_kafkas() -> None:
    data = encode_subscription(MemberSubscription(["t"], [TopicPartition("t", 2), TopicPartition("t", 1)], 7))
    assert data == bytes.fromhex(
        "0003 00000001 0001 74 ffffffff 00000001 0001 74 00000002 00000001 00000002 00000007 ffff"
    )
    assert encode_assignment([TopicPartition("t", 0)]) == bytes.fromhex(
        "0000 00000001 0001 74 00000001 00000000 ffffffff"
    )


@given(st.lists(st.text(max_size=20), max_size=5), partitions, st.integers(-1, 1 << 30))
def test_bytes_written_are_read(topics: list[str], owned: list[TopicPartition], generation: int) -> None:
    read = decode_subscription(encode_subscription(MemberSubscription(topics, owned, generation)))
    assert read == MemberSubscription(topics, sorted(owned), generation)
    assert decode_assignment(encode_assignment(owned)) == sorted(owned)


def test_older_versions_have_no_owned_partitions() -> None:
    assert decode_subscription(bytes.fromhex("0000 00000001 0001 74 00000002 abcd")) == MemberSubscription(["t"], [])
    one = bytes.fromhex("0001 00000001 0001 74 ffffffff 00000001 0001 74 00000001 00000005")
    assert decode_subscription(one) == MemberSubscription(["t"], [TopicPartition("t", 5)])
    assert decode_assignment(b"") == []


@pytest.mark.parametrize("cut", range(32))
def test_cut_bytes_are_refused(cut: int) -> None:
    data = encode_subscription(MemberSubscription(["t"], [TopicPartition("t", 2)], 7))
    with pytest.raises(InvalidRequest, match="a member of the group sent a subscription"):
        decode_subscription(data[:cut])


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for decode in (decode_subscription, decode_assignment):
        try:
            decode(data)
        except InvalidRequest:
            pass
