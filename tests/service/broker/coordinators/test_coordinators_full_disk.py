"""Groups and transactions while the disk fills: they continue while only produce is refused, and wait while nothing can be
written."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpc_api.contract.coordinator_errors import CoordinatorNotAvailable
from grpc_api.contract.groups import (
    DescribeGroup,
    Heartbeat,
    JoinGroup,
    MemberProtocol,
    OffsetCommit,
    OffsetFetch,
    PartitionCommit,
    SyncGroup,
    TopicCommit,
)
from service.broker.appending.disk import DiskGuard
from service.broker.partition.record_loss import RecoveredEnd
from service.coordination.coordinator_runtime import partition_of
from service.coordination.shard_state import ShardState
from storage_tiers.errors import LogError, StorageError
from tests.faults.disks import fill, small_disk
from tests.service.broker.coordinators.test_groups import CALLER, coordinated, offsets
from tests.service.broker.coordinators.transactional import T0, Client, markers_in, write
from tests.service.broker.support import Running, running, until

SETTINGS = {
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
}
JOIN = JoinGroup("g", "", None, "consumer", [MemberProtocol("range", b"sub")], 30_000, 30_000, False)
#: Used shares of the disk: only produce is refused, the coordinators' reserve is used, nothing is refused.
REFUSED, RESERVE_USED, FREE = 0.96, 0.98, 0.5


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves it to the test to say how full the disk is."""
    monkeypatch.setattr(DiskGuard, "look", lambda _: None)


async def is_refused(node: Running) -> None:
    with pytest.raises(StorageError):
        await node.append("t", b"x")


async def a_member(node: Running) -> str:
    """The id of the only member of a stable group, in its first generation."""
    groups = await coordinated(node, "g")
    joined = await groups.join(JOIN, CALLER)
    member = joined.member_id
    await groups.sync(SyncGroup("g", 1, member, None, [(member, b"mine")]), CALLER)
    return str(member)


async def commit(node: Running, member: str, offset: int) -> None:
    topics = [TopicCommit("t", [PartitionCommit(0, offset)])]
    groups = await coordinated(node, "g")
    answer = await groups.commit_offsets(OffsetCommit("g", 1, member, None, topics), CALLER)
    assert answer.topics[0].partitions[0].error is None


async def beats(node: Running, member: str) -> bool:
    groups = await coordinated(node, "g")
    return (await groups.heartbeat(Heartbeat("g", 1, member, None), CALLER)).error is None


@pytest.mark.usefixtures("judged")
async def test_groups_and_transactions_continue_where_produce_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        await node.create("t")
        client = await Client(node).begin()
        node.node.work.disk.judge(REFUSED)
        await is_refused(node)
        member = await a_member(node)
        await commit(node, member, 5)
        await client.add(T0)
        assert await client.end(commit=True) is None
        await client.reaches("CompleteCommit")
        assert await beats(node, member)


@pytest.mark.usefixtures("judged")
async def test_groups_keep_their_members_while_the_reserve_is_used(tmp_path: Path) -> None:
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        await node.create("t")
        member = await a_member(node)
        groups = await coordinated(node, "g")
        host = node.node.broker.coordinators.shards.groups.host(partition_of("g", 2))
        before = host._shard
        node.node.work.disk.judge(RESERVE_USED)
        with pytest.raises(CoordinatorNotAvailable, match="reserve is used"):
            await commit(node, member, 5)
        with pytest.raises(CoordinatorNotAvailable):
            await groups.join(JOIN, CALLER)
        assert await beats(node, member)
        assert offsets(await groups.fetch_offsets(OffsetFetch("g", None), CALLER)) == {}
        node.node.work.disk.judge(FREE)
        await commit(node, member, 6)
        assert host._shard is before, "it was not dropped"
        assert [each.member_id for each in (await groups.describe_group(DescribeGroup("g"), CALLER)).members] == [
            member
        ]


@pytest.mark.usefixtures("judged")
async def test_a_decided_transaction_gets_its_markers_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        await node.create("t")
        client = await Client(node).begin()
        await client.add(T0)
        write(node, T0, client.producer)
        disk = node.node.work.disk
        assert await client.end(commit=True) is None
        disk.judge(RESERVE_USED)  # the markers are written in a later turn
        with pytest.raises(CoordinatorNotAvailable):
            await client.end(commit=True)
        assert await markers_in(node, T0) == []
        disk.judge(FREE)
        await client.reaches("CompleteCommit")
        assert len(await markers_in(node, T0)) == 1


@pytest.mark.usefixtures("judged")
async def test_a_transaction_that_a_full_disk_kept_from_completing_completes_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        await node.create("t")
        client = await Client(node).begin()
        await client.add(T0)
        disk = node.node.work.disk
        markers = node.node.broker.coordinators.markers
        whole = markers._refused_completion
        tried: list[LogError | None] = []

        def completed(*asked: object) -> LogError | None:
            if not tried:
                disk.judge(RESERVE_USED)
            tried.append(whole(*asked))  # type: ignore[arg-type]
            return tried[-1]

        monkeypatch.setattr(markers, "_refused_completion", completed)
        assert await client.end(commit=True) is None
        await until(lambda: len(tried) > 1)
        assert (await client.state(), all(tried)) == ("PrepareCommit", True)
        disk.judge(FREE)
        await client.reaches("CompleteCommit")


@pytest.mark.usefixtures("judged")
async def test_offsets_above_a_lost_end_are_lowered_once_there_is_room(tmp_path: Path) -> None:
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        await node.create("t")
        groups = await coordinated(node, "g")
        topics = [TopicCommit("t", [PartitionCommit(0, 5)])]
        await groups.commit_offsets(OffsetCommit("g", -1, "", None, topics), CALLER)
        broker, disk = node.node.broker, node.node.work.disk
        for runtime in broker.coordinators.led._runtimes.values():  # only offsets loaded from the log are lowered
            for number in tuple(runtime.hosts):
                runtime.gained(number, runtime.hosts[number]._log)
        groups = await coordinated(node, "g")
        disk.judge(RESERVE_USED)
        partition = broker.partitions.get(T0)
        partition.recovered_end = RecoveredEnd(2)
        await broker.coordinators.recovered_offsets.tick()
        assert partition.recovered_end is not None
        assert offsets(await groups.fetch_offsets(OffsetFetch("g", None), CALLER)) == {"t": [5]}
        disk.judge(FREE)
        await broker.coordinators.recovered_offsets.tick()
        assert partition.recovered_end is None
        assert offsets(await groups.fetch_offsets(OffsetFetch("g", None), CALLER)) == {"t": [2]}


async def test_a_disk_that_is_full_takes_no_member_from_its_group(tmp_path: Path) -> None:
    with small_disk(tmp_path / "data"):
        async with running(tmp_path / "data", broker=SETTINGS) as node:
            await node.create("t")
            member = await a_member(node)
            groups = await coordinated(node, "g")
            host = node.node.broker.coordinators.shards.groups.host(partition_of("g", 2))
            filler, disk = tmp_path / "data" / "filler", node.node.work.disk
            fill(filler, but=600_000)
            disk.look()
            await is_refused(node)
            await commit(node, member, 5)
            fill(filler)
            disk.look()
            for _ in range(3):
                with pytest.raises(CoordinatorNotAvailable):
                    await commit(node, member, 6)
                assert await beats(node, member)
            filler.unlink()
            disk.look()
            await commit(node, member, 7)
            assert host.state is ShardState.ACTIVE and await beats(node, member)
            assert offsets(await groups.fetch_offsets(OffsetFetch("g", None), CALLER)) == {"t": [7]}
