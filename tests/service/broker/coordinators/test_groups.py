"""Consumer groups on a whole node: the topic is made when asked for, requests find their shard, and answered requests outlive
restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from grpc_api.contract.caller import Caller
from grpc_api.contract.coordinator_errors import (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    InvalidGroupId,
    NotCoordinator,
    UnknownMemberId,
)
from grpc_api.contract.groups import (
    DeleteGroup,
    DescribeGroup,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    ListGroups,
    MemberProtocol,
    OffsetCommit,
    OffsetFetch,
    OffsetsFetched,
    PartitionCommit,
    SyncGroup,
    TopicCommit,
    TopicPartitionIndexes,
)
from grpc_api.contract.topics import AlterOp, ConfigAlteration, Resource, ResourceKind
from service.broker.api.group_service import GroupService
from service.coordination.coordinator_runtime import partition_of
from storage_tiers.clock import SystemClock
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.errors import InvalidTopic, LogError, UnknownTopicId, UnknownTopicOrPartition
from storage_tiers.types import TopicId, TopicPartition
from tests.service.broker.support import Running, running
from tests.support.faulty_store import FaultyStore

CALLER = Caller("User:ANONYMOUS", "app", "/127.0.0.1")
SETTINGS = {"offsets.topic.num.partitions": "2", "group.initial.rebalance.delay.ms": "0"}


def groups_of(node: Running) -> GroupService:
    return node.node.broker.core.groups


async def coordinated(node: Running, group: str) -> GroupService:
    """The node's groups, once the group's coordinator is loaded."""
    groups = groups_of(node)

    async def asked() -> bool:
        try:
            await groups.coordinator(group, CALLER)
            await groups.fetch_offsets(OffsetFetch(group, None), CALLER)
        except (CoordinatorNotAvailable, CoordinatorLoading, NotCoordinator):
            return False
        return True

    async with asyncio.timeout(60):
        while not await asked():
            await asyncio.sleep(0.005)
    await node.node.broker.assignment.settled()  # other partitions of the topic may still be opened
    return groups


async def commit(groups: GroupService, offset: int, *, topic: str = "t", group: str = "g", partition: int = 0) -> None:
    topics = [TopicCommit(topic, [PartitionCommit(partition, offset)])]
    answer = await groups.commit_offsets(OffsetCommit(group, -1, "", None, topics), CALLER)
    error = answer.topics[0].partitions[0].error
    if error is not None:
        raise error


def offsets(answer: OffsetsFetched) -> dict[str, list[int]]:
    return {topic.topic: [each.offset for each in topic.partitions] for topic in answer.topics}


async def has_offsets(groups: GroupService, expected: dict[str, list[int]]) -> None:
    """Waits until the group has these offsets: readers see a removal only once it is committed."""
    async with asyncio.timeout(60):
        while offsets(await groups.fetch_offsets(OffsetFetch("g", None), CALLER)) != expected:
            await asyncio.sleep(0.005)


async def test_the_first_look_for_a_coordinator_creates_the_topic(tmp_path: Path) -> None:
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        with pytest.raises(CoordinatorNotAvailable):
            await groups_of(node).coordinator("g", CALLER)
        groups = await coordinated(node, "g")
        assert await groups.coordinator("g", CALLER) == 1
        (described,) = node.core.topics.describe(["__consumer_offsets"])
        assert not isinstance(described, LogError)
        assert described.internal and len(described.partitions) == 2
        settings = node.node.broker.partitions.get(TopicPartition("__consumer_offsets", 0)).log.hot.settings
        assert (settings.cleanup_compact, settings.cleanup_delete, settings.segment_bytes) == (True, False, 100 << 20)
        assert (settings.local_retention_ms, settings.local_retention_bytes) == (-1, -1)


async def test_nothing_is_committed_under_the_empty_name_and_an_unknown_id_is_refused(tmp_path: Path) -> None:
    asked = [TopicPartitionIndexes("", [0]), TopicPartitionIndexes("", [0], TopicId(bytes(15) + b"\7"))]
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        groups = await coordinated(node, "g")
        found = await groups.fetch_offsets(OffsetFetch("g", asked), CALLER)
        (named,), (by_id,) = (topic.partitions for topic in found.topics)
        assert (named.offset, named.error) == (-1, None)
        assert isinstance(by_id.error, UnknownTopicId)


async def test_a_group_without_a_coordinator_topic_is_sent_to_find_one(tmp_path: Path) -> None:
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        with pytest.raises(NotCoordinator):
            await groups_of(node).fetch_offsets(OffsetFetch("g", None), CALLER)


async def test_the_empty_group_id_is_refused_before_a_coordinator_is_looked_for(tmp_path: Path) -> None:
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        with pytest.raises(InvalidGroupId):
            await groups_of(node).heartbeat(Heartbeat("", 1, "m", None), CALLER)


async def test_offsets_and_generation_outlive_a_restart(tmp_path: Path) -> None:
    join = JoinGroup("g", "", "i", "consumer", [MemberProtocol("range", b"sub")], 30_000, 30_000, False)
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        await node.create("t")
        groups = await coordinated(node, "g")
        await commit(groups, 7)
        joined = await groups.join(join, CALLER)
        assert (joined.error, joined.generation, joined.leader) == (None, 1, joined.member_id)
        synced = await groups.sync(SyncGroup("g", 1, joined.member_id, "i", [(joined.member_id, b"mine")]), CALLER)
        assert synced.assignment == b"mine"
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        groups = await coordinated(node, "g")
        described = await groups.describe_group(DescribeGroup("g"), CALLER)
        assert described.state == "Stable" and [each.member_id for each in described.members] == [joined.member_id]
        assert offsets(await groups.fetch_offsets(OffsetFetch("g", None), CALLER)) == {"t": [7]}
        listed = await groups.list_groups(ListGroups(), CALLER)
        assert (listed.error, [each.group for each in listed.groups]) == (None, ["g"])


async def test_partitions_that_do_not_exist_are_refused_and_the_others_committed(tmp_path: Path) -> None:
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        await node.create("t", partitions=2)
        groups = await coordinated(node, "g")
        unknown = TopicId(bytes(15) + b"\7")
        request = OffsetCommit(
            "g",
            -1,
            "",
            None,
            [
                TopicCommit("gone", [PartitionCommit(0, 1)]),
                TopicCommit("t", [PartitionCommit(5, 1), PartitionCommit(1, 3)]),
                TopicCommit("", [PartitionCommit(0, 1)], unknown),
            ],
        )
        answer = await groups.commit_offsets(request, CALLER)
        kinds = [[type(each.error) for each in topic.partitions] for topic in answer.topics]
        assert kinds == [[UnknownTopicOrPartition], [UnknownTopicOrPartition, type(None)], [UnknownTopicId]]
        assert offsets(await groups.fetch_offsets(OffsetFetch("g", None), CALLER)) == {"t": [3]}
        # A commit whose every partition is refused creates no group.
        with pytest.raises(UnknownTopicOrPartition):
            await commit(groups, 1, topic="gone", group="other")
        assert [each.group for each in (await groups.list_groups(ListGroups(), CALLER)).groups] == ["g"]


async def test_topics_are_found_by_id(tmp_path: Path) -> None:
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        await node.create("t")
        (described,) = node.core.topics.describe(["t"])
        assert not isinstance(described, LogError)
        groups, topic_id, unknown = await coordinated(node, "g"), described.topic_id, TopicId(bytes(15) + b"\7")
        commit_by_id = [TopicCommit("", [PartitionCommit(0, 4)], topic_id)]
        answer = await groups.commit_offsets(OffsetCommit("g", -1, "", None, commit_by_id), CALLER)
        assert [(each.topic_id, each.partitions[0].error) for each in answer.topics] == [(topic_id, None)]
        asked = [TopicPartitionIndexes("", [0], unknown), TopicPartitionIndexes("", [0, 1], topic_id)]
        fetched = await groups.fetch_offsets(OffsetFetch("g", asked), CALLER)
        assert [each.topic_id for each in fetched.topics] == [unknown, topic_id]
        assert isinstance(fetched.topics[0].partitions[0].error, UnknownTopicId)
        assert [each.offset for each in fetched.topics[1].partitions] == [4, -1]
        everything = await groups.fetch_offsets(OffsetFetch("g", None), CALLER)
        assert [(each.topic, each.topic_id) for each in everything.topics] == [("t", topic_id)]


async def test_a_deleted_topic_takes_its_offsets_with_it(tmp_path: Path) -> None:
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        await node.create("t")
        await node.create("kept")
        groups = await coordinated(node, "g")
        await commit(groups, 1)
        await commit(groups, 2, topic="kept")
        await node.core.topics.delete(["t"])
        await has_offsets(groups, {"kept": [2]})


async def test_the_pass_removes_offsets_of_topics_that_went_while_a_shard_was_loading(tmp_path: Path) -> None:
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        await node.create("t")
        groups = await coordinated(node, "g")
        await commit(groups, 1)
        expiry = node.node.broker.coordinators.offset_expiry
        await expiry.tick()
        assert offsets(await groups.fetch_offsets(OffsetFetch("g", None), CALLER)) == {"t": [1]}
        for each in node.node.broker.coordinators.led._runtimes.values():
            for number in tuple(each.hosts):
                each.gained(number, each.hosts[number]._log)
        await node.core.topics.delete(["t"])
        groups = await coordinated(node, "g")
        await expiry.tick()
        await has_offsets(groups, {})


async def test_an_empty_group_is_deleted(tmp_path: Path) -> None:
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        await node.create("t")
        groups = await coordinated(node, "g")
        await commit(groups, 1)
        assert (await groups.delete_group(DeleteGroup("g"), CALLER)).error is None
        await has_offsets(groups, {})
        assert (await groups.list_groups(ListGroups(), CALLER)).groups == []


async def test_while_a_shard_loads_heartbeats_are_answered_without_an_error_and_other_requests_are_refused(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        groups = await coordinated(node, "g")
        (led,) = (each for each in node.node.broker.coordinators.led._runtimes.values() if each.hosts)
        number = partition_of("g", 2)
        led.gained(number, led.hosts[number]._log)
        assert (await groups.heartbeat(Heartbeat("g", 1, "member", None), CALLER)).error is None
        with pytest.raises(CoordinatorLoading):
            await groups.leave(LeaveGroup("g", [LeavingMember("member")]), CALLER)
        await coordinated(node, "g")
        assert isinstance((await groups.heartbeat(Heartbeat("g", 1, "member", None), CALLER)).error, UnknownMemberId)


async def test_requests_that_wait_end_when_the_node_stops(tmp_path: Path) -> None:
    slow = {**SETTINGS, "group.initial.rebalance.delay.ms": "60000"}
    join = JoinGroup("g", "", None, "consumer", [MemberProtocol("range", b"")], 30_000, 120_000, False)
    async with running(tmp_path / "data", broker=slow) as node:
        groups = await coordinated(node, "g")
        waiting = groups.join(join, CALLER)
        assert not waiting.done()
    with pytest.raises(NotCoordinator):
        await waiting


# --- the internal topic -----------------------------------------------------------------------------------------------
async def test_clients_neither_append_to_it_nor_delete_its_records(tmp_path: Path) -> None:
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        groups = await coordinated(node, "g")
        number = partition_of("g", 2)
        end = await node.end("__consumer_offsets", number)
        with pytest.raises(InvalidTopic, match="Cannot append to internal topic"):
            await node.append("__consumer_offsets", b"x", partition=number)
        with pytest.raises(InvalidTopic, match="Cannot delete records of internal topic"):
            await node.log.delete_records(TopicPartition("__consumer_offsets", number), 0)
        await node.core.configs.alter_configs(
            Resource(ResourceKind.TOPIC, "__consumer_offsets"),
            [ConfigAlteration("segment.bytes", AlterOp.SET, "5000000")],
        )
        with pytest.raises(InvalidTopic):
            await node.append("__consumer_offsets", b"x", partition=number)
        assert await node.end("__consumer_offsets", number) == end
        await node.create("t")
        await commit(groups, 1)


async def test_groups_load_and_work_while_the_store_is_away(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore(SystemClock()))
    async with running(tmp_path / "data", store, broker=SETTINGS) as node:
        await node.create("t")
        groups = await coordinated(node, "g")
        for offset in range(50):
            await commit(groups, offset)
        await node.seal("__consumer_offsets")
        await commit(groups, 50)
    store.down = True
    async with running(tmp_path / "data", store, broker=SETTINGS) as node:
        groups = await coordinated(node, "g")
        assert offsets(await groups.fetch_offsets(OffsetFetch("g", None), CALLER)) == {"t": [50]}
        await commit(groups, 51)
        await has_offsets(groups, {"t": [51]})


async def test_groups_come_back_from_the_bucket_alone(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore(SystemClock()))
    async with running(tmp_path / "data", store, broker=SETTINGS) as node:
        await node.create("t")
        groups = await coordinated(node, "g")
        await commit(groups, 7)
        await node.seal("__consumer_offsets")
        cluster = node.node.cluster_id
    async with running(tmp_path / "new", store, broker=SETTINGS, take_over=cluster) as node:
        groups = await coordinated(node, "g")
        assert offsets(await groups.fetch_offsets(OffsetFetch("g", None), CALLER)) == {"t": [7]}
