"""The contract's `Groups`, for the broker's core, for the same core over a gRPC channel, for three brokers, and for the
core in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from grpc_api.contract.caller import Caller
from grpc_api.contract.coordinator_errors import (
    FencedInstanceId,
    GroupIdNotFound,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidGroupId,
    InvalidSessionTimeout,
    MemberIdRequired,
    NonEmptyGroup,
    OffsetMetadataTooLarge,
    RebalanceInProgress,
    UnknownMemberId,
    UnstableOffsetCommit,
)
from grpc_api.contract.groups import (
    DeleteGroup,
    DescribeGroup,
    FetchedOffset,
    Groups,
    Heartbeat,
    Joined,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    ListedGroup,
    ListGroups,
    LostEnd,
    LowerOffsets,
    MemberProtocol,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    PartitionCommit,
    SyncGroup,
    TopicCommit,
    TopicPartitionIndexes,
    TxnOffsetCommit,
)
from grpc_api.contract.transactions import AddOffsets, EndTransaction, InitProducer, ProducerTransaction
from storage_tiers.errors import LogError, UnknownTopicId, UnknownTopicOrPartition
from storage_tiers.types import TopicId, TopicPartition
from tests.service.broker.support import Driven, Running, once_loaded

CALLER = Caller("User:ANONYMOUS", "app", "/10.1.2.3")
UNKNOWN_ID = TopicId(bytes(15) + b"\7")
RANGE = (MemberProtocol("range", b"\0\1sub"),)


@pytest.fixture
async def core(any_core: Driven) -> Driven:
    """A core with a topic "t" of three partitions, and every group's coordinator loaded."""
    await coordinated(any_core.core.groups)
    await any_core.create("t", partitions=3)
    return any_core


@pytest.fixture
def groups(core: Driven) -> Groups:
    return core.core.groups


async def coordinated(groups: Groups) -> None:
    """Returns once the coordinators of all partitions of the groups' topic answer."""
    for name in map(str, range(10)):
        await once_loaded(lambda name=name: groups.coordinator(name, CALLER))  # type: ignore[misc]
        await once_loaded(lambda name=name: groups.fetch_offsets(OffsetFetch(name, None), CALLER))  # type: ignore[misc]


def joining(member: str = "", instance: str | None = None, group: str = "g", wait_ms: int = 30_000) -> JoinGroup:
    return JoinGroup(group, member, instance, "consumer", RANGE, 30_000, wait_ms, False)


async def stable(groups: Groups, instance: str | None = None, group: str = "g") -> Joined:
    """A group of one member, in generation 1."""
    # A busy machine may pause the brokers for longer than their sessions, and a coordinator then loads again.
    joined = await once_loaded(lambda: groups.join(joining("", instance, group), CALLER))
    assert (joined.error, joined.generation, joined.leader) == (None, 1, joined.member_id)
    synced = await groups.sync(SyncGroup(group, 1, joined.member_id, instance, [(joined.member_id, b"\0\2")]), CALLER)
    assert (synced.error, synced.assignment) == (None, b"\0\2")
    return joined


def committing(*topics: TopicCommit, generation: int = -1, member: str = "", group: str = "g") -> OffsetCommit:
    return OffsetCommit(group, generation, member, None, topics)


async def commit(groups: Groups, topic: str, *offsets: int, group: str = "g") -> None:
    parts = [PartitionCommit(number, offset) for number, offset in enumerate(offsets)]
    done = await groups.commit_offsets(committing(TopicCommit(topic, parts), group=group), CALLER)
    assert [each.error for each in done.topics[0].partitions] == [None] * len(offsets)


async def kept(groups: Groups, topics: Sequence[TopicPartitionIndexes] | None = None) -> dict[str, list[int]]:
    fetched = await groups.fetch_offsets(OffsetFetch("g", topics), CALLER)
    assert fetched.error is None
    return {topic.topic: [each.offset for each in topic.partitions] for topic in fetched.topics}


async def until_kept(groups: Groups, expected: dict[str, list[int]]) -> None:
    """Waits until a change is visible, because a read sees only committed offsets."""
    async with asyncio.timeout(60):
        while await kept(groups) != expected:
            await asyncio.sleep(0.005)


# --- members ----------------------------------------------------------------------------------------------------------
async def test_a_member_joins_with_the_id_that_it_is_given(core: Driven, groups: Groups) -> None:
    brokers = {each.node_id for each in core.core.topics.cluster().brokers}
    assert await groups.coordinator("g", CALLER) in brokers
    first = await groups.join(joining()._replace(needs_member_id=True), CALLER)
    assert isinstance(first.error, MemberIdRequired)
    assert (first.member_id.startswith("app-"), first.generation, first.protocol) == (True, -1, None)
    joined = await groups.join(joining(first.member_id)._replace(needs_member_id=True), CALLER)
    assert (joined.error, joined.generation) == (None, 1)
    assert (joined.protocol_type, joined.protocol, joined.skip_assignment) == ("consumer", "range", False)
    assert joined.member_id == joined.leader == first.member_id
    assert [(each.member_id, each.group_instance_id, each.metadata) for each in joined.members] == [
        (first.member_id, None, b"\0\1sub")
    ]


async def test_the_leader_assigns_and_each_member_gets_its_part(groups: Groups) -> None:
    one = await stable(groups)
    waiting = groups.join(joining("", "static"), CALLER)
    beat = Heartbeat("g", 1, one.member_id, None)
    async with asyncio.timeout(60):
        while (answer := await groups.heartbeat(beat, CALLER)).error is None:
            await asyncio.sleep(0.005)
    assert isinstance(answer.error, RebalanceInProgress)
    leader = await groups.join(joining(one.member_id), CALLER)
    two = await waiting
    assert (leader.generation, two.generation, two.leader, len(two.members)) == (2, 2, one.member_id, 0)
    assert {each.member_id: each.group_instance_id for each in leader.members} == {
        one.member_id: None,
        two.member_id: "static",
    }
    follower = groups.sync(SyncGroup("g", 2, two.member_id, "static", [], "consumer", "range"), CALLER)
    parts = [(one.member_id, b"a"), (two.member_id, b"")]
    mine = await groups.sync(SyncGroup("g", 2, one.member_id, None, parts, "consumer", "range"), CALLER)
    assert (mine.error, mine.protocol_type, mine.protocol, mine.assignment) == (None, "consumer", "range", b"a")
    assert (await follower).assignment == b""
    assert (await groups.heartbeat(Heartbeat("g", 2, two.member_id, "static"), CALLER)).error is None


async def test_forbidden_requests_of_members_get_kafkas_errors(groups: Groups) -> None:
    one = await stable(groups)
    stale = await groups.heartbeat(Heartbeat("g", 7, one.member_id, None), CALLER)
    assert isinstance(stale.error, IllegalGeneration)
    stranger = await groups.heartbeat(Heartbeat("g", 1, "nobody", None), CALLER)
    assert isinstance(stranger.error, UnknownMemberId)
    other = await groups.sync(SyncGroup("g", 1, one.member_id, None, [], "connect", "range"), CALLER)
    assert isinstance(other.error, InconsistentGroupProtocol)
    short = await groups.join(joining(group="h")._replace(session_timeout_ms=1), CALLER)
    assert isinstance(short.error, InvalidSessionTimeout)
    commits = TopicCommit("t", [PartitionCommit(0, 1)])
    for generation, member, error in ((7, one.member_id, IllegalGeneration), (-1, "", UnknownMemberId)):
        done = await groups.commit_offsets(committing(commits, generation=generation, member=member), CALLER)
        assert isinstance(done.topics[0].partitions[0].error, error)
    assert await kept(groups) == {}
    with pytest.raises(InvalidGroupId):
        await groups.join(joining(group=""), CALLER)


async def test_a_static_member_that_returns_fences_the_previous_one(groups: Groups) -> None:
    old = await stable(groups, instance="i")
    again = await groups.join(joining("", "i")._replace(may_skip_assignment=True), CALLER)
    assert (again.error, again.generation, again.skip_assignment) == (None, 1, True)
    assert again.member_id != old.member_id
    fenced = await groups.heartbeat(Heartbeat("g", 1, old.member_id, "i"), CALLER)
    assert isinstance(fenced.error, FencedInstanceId)
    leaving = [LeavingMember("", "i", "an operator said so"), LeavingMember("nobody")]
    left = await groups.leave(LeaveGroup("g", leaving), CALLER)
    assert (left.error, [each.group_instance_id for each in left.members]) == (None, ["i", None])
    assert left.members[0].error is None
    assert isinstance(left.members[1].error, UnknownMemberId)


async def test_a_cancelled_join_undoes_nothing(groups: Groups) -> None:
    one = await stable(groups)
    waiting = groups.join(joining("", "late"), CALLER)
    async with asyncio.timeout(60):
        while (await groups.heartbeat(Heartbeat("g", 1, one.member_id, None), CALLER)).error is None:
            await asyncio.sleep(0.005)
    waiting.cancel()
    leader = await groups.join(joining(one.member_id), CALLER)
    assert sorted(each.group_instance_id or "" for each in leader.members) == ["", "late"]


# --- offsets ----------------------------------------------------------------------------------------------------------
async def test_offsets_are_committed_read_and_deleted(groups: Groups) -> None:
    parts = [PartitionCommit(0, 5, 3, "note"), PartitionCommit(2, 7)]
    done = await groups.commit_offsets(committing(TopicCommit("t", parts)), CALLER)
    assert [(each.partition, each.error) for each in done.topics[0].partitions] == [(0, None), (2, None)]
    fetched = await groups.fetch_offsets(OffsetFetch("g", [TopicPartitionIndexes("t", [2, 0, 1])]), CALLER)
    (topic,) = fetched.topics
    assert list(topic.partitions) == [FetchedOffset(2, 7), FetchedOffset(0, 5, 3, "note"), FetchedOffset(1)]
    assert await kept(groups) == {"t": [5, 7]}
    asked = [TopicPartitionIndexes("t", [0, 9]), TopicPartitionIndexes("gone", [0])]
    deleted = await groups.delete_offsets(OffsetDelete("g", asked), CALLER)
    assert deleted.error is None
    kinds = [[type(each.error) for each in topic.partitions] for topic in deleted.topics]
    assert kinds == [[type(None), UnknownTopicOrPartition], [UnknownTopicOrPartition]]
    await until_kept(groups, {"t": [7]})
    none = await groups.delete_offsets(OffsetDelete("nobody", [TopicPartitionIndexes("t", [0])]), CALLER)
    assert isinstance(none.error, GroupIdNotFound)


async def test_topics_are_named_or_given_by_id(core: Driven, groups: Groups) -> None:
    (described,) = core.core.topics.describe(["t"])
    assert not isinstance(described, LogError)
    topic_id = described.topic_id
    by_id = [TopicCommit("", [PartitionCommit(1, 4)], topic_id), TopicCommit("", [PartitionCommit(0, 1)], UNKNOWN_ID)]
    done = await groups.commit_offsets(committing(*by_id), CALLER)
    assert [each.topic_id for each in done.topics] == [topic_id, UNKNOWN_ID]
    assert [type(each.partitions[0].error) for each in done.topics] == [type(None), UnknownTopicId]
    asked = [TopicPartitionIndexes("", [0], UNKNOWN_ID), TopicPartitionIndexes("", [1], topic_id)]
    fetched = await groups.fetch_offsets(OffsetFetch("g", asked), CALLER)
    assert [each.topic_id for each in fetched.topics] == [UNKNOWN_ID, topic_id]
    assert isinstance(fetched.topics[0].partitions[0].error, UnknownTopicId)
    assert fetched.topics[1].partitions[0].offset == 4
    everything = await groups.fetch_offsets(OffsetFetch("g", None), CALLER)
    assert [(each.topic, each.topic_id) for each in everything.topics] == [("t", topic_id)]


async def test_offsets_above_the_end_of_a_partition_that_lost_records_are_lowered(groups: Groups) -> None:
    await commit(groups, "t", 7, 8)
    after = [PartitionCommit(2, 9, 5)]  # its reader has read a record of leader epoch 5
    await groups.commit_offsets(committing(TopicCommit("t", after)), CALLER)
    ends = {TopicPartition("t", each): LostEnd(7, 5) for each in range(3)}
    numbers = range(100)
    lowered = await groups.lower_offsets(LowerOffsets(numbers, ends), CALLER)
    assert lowered, "those of the hundred that this core has"
    assert set(lowered) <= set(numbers)
    assert await kept(groups, [TopicPartitionIndexes("t", [0, 1, 2])]) == {"t": [7, 7, 9]}
    assert not await groups.lower_offsets(LowerOffsets([99], ends), CALLER)


async def test_a_commit_of_hundreds_of_partitions_is_answered_in_its_order(core: Driven, groups: Groups) -> None:
    await core.create("wide", partitions=250)
    numbers = [*range(249, -1, -1), 999]
    wide = TopicCommit("wide", [PartitionCommit(number, number) for number in numbers])
    done = await groups.commit_offsets(committing(wide, TopicCommit("t", [PartitionCommit(0, 1)])), CALLER)
    assert [each.topic for each in done.topics] == ["wide", "t"]
    assert [each.partition for each in done.topics[0].partitions] == numbers
    errors = [each.error for each in done.topics[0].partitions]
    assert (errors[:-1], type(errors[-1])) == ([None] * 250, UnknownTopicOrPartition)
    assert sorted((await kept(groups))["wide"]) == list(range(250))


async def test_offsets_with_too_long_metadata_are_refused_and_the_others_are_committed(groups: Groups) -> None:
    parts = [PartitionCommit(0, 1, -1, "x" * 5000), PartitionCommit(1, 2, -1, "x" * 100)]
    done = await groups.commit_offsets(committing(TopicCommit("t", parts)), CALLER)
    assert [type(each.error) for each in done.topics[0].partitions] == [OffsetMetadataTooLarge, type(None)]
    assert await kept(groups) == {"t": [2]}


# --- administration ---------------------------------------------------------------------------------------------------
async def test_groups_are_listed_described_and_deleted(groups: Groups) -> None:
    await commit(groups, "t", 1, group="empty")
    joined = await stable(groups, instance="i")
    listed = await groups.list_groups(ListGroups(), CALLER)
    assert listed.error is None
    by_name = {each.group: each for each in listed.groups}
    assert by_name == {
        "empty": ListedGroup("empty", "", "Empty", "classic"),
        "g": ListedGroup("g", "consumer", "Stable", "classic"),
    }
    only = await groups.list_groups(ListGroups(frozenset({"STABLE"}), frozenset({"Classic"})), CALLER)
    assert [each.group for each in only.groups] == ["g"]
    described = await groups.describe_group(DescribeGroup("g"), CALLER)
    assert described[:5] == (None, "g", "Stable", "consumer", "range")
    (member,) = described.members
    assert member == (joined.member_id, "i", "app", "/10.1.2.3", b"\0\1sub", b"\0\2")
    nothing = await groups.describe_group(DescribeGroup("nobody"), CALLER)
    assert (type(nothing.error), nothing.group, nothing.state) == (GroupIdNotFound, "nobody", "Dead")
    refused = await groups.delete_group(DeleteGroup("g"), CALLER)
    assert (refused.group, type(refused.error)) == ("g", NonEmptyGroup)
    assert (await groups.delete_group(DeleteGroup("empty"), CALLER)) == ("empty", None)
    async with asyncio.timeout(60):
        while len((await groups.list_groups(ListGroups(), CALLER)).groups) > 1:
            await asyncio.sleep(0.005)


# --- transactions -----------------------------------------------------------------------------------------------------
async def test_offsets_of_a_transaction_count_once_it_is_committed(node: Running) -> None:
    groups, transactions = node.core.groups, node.node.broker.core.transactions
    await node.create("t")
    await coordinated(groups)
    await commit(groups, "t", 1)

    await once_loaded(lambda: transactions.coordinator("tx", CALLER))
    producer = (await once_loaded(lambda: transactions.init_producer(InitProducer("tx", 60_000), CALLER))).producer
    assert (await transactions.add_offsets(AddOffsets("tx", producer, "g"), CALLER)).error is None
    offsets = TxnOffsetCommit(
        "g", ProducerTransaction("tx"), *producer, -1, "", None, [TopicCommit("t", [PartitionCommit(0, 9, 2, "m")])]
    )
    done = await groups.commit_offsets_in_transaction(offsets, CALLER)
    assert done.topics[0].partitions[0].error is None
    assert await kept(groups) == {"t": [1]}
    asked = OffsetFetch("g", [TopicPartitionIndexes("t", [0])], require_stable=True)
    assert isinstance((await groups.fetch_offsets(asked, CALLER)).topics[0].partitions[0].error, UnstableOffsetCommit)
    ended = await transactions.end(EndTransaction("tx", producer, commit=True), CALLER)
    assert ended.error is None
    await until_kept(groups, {"t": [9]})
    assert (await groups.fetch_offsets(asked, CALLER)).topics[0].partitions[0] == FetchedOffset(0, 9, 2, "m")
