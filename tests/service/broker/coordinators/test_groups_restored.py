"""Committed offsets after a change of the directory or the clock: none is lost, and no older offset is answered."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from immutables import Map

from grpc_api.contract.coordinator_errors import CoordinatorLoading, NotCoordinator
from grpc_api.contract.groups import OffsetFetch, PartitionCommit, TopicCommit, TxnOffsetCommit
from grpc_api.contract.transactions import AddOffsets, ProducerTransaction
from service.broker.api.group_service import GroupService
from service.broker.coordinators.recovered_offsets import RecoveredOffsets
from service.broker.partition.partition import Partition
from service.broker.partition.record_loss import RecoveredEnd
from service.broker.partition.recovered_end import read_recovered_end
from service.coordination.coordinator_runtime import partition_of
from service.coordination.shard_state import ShardState
from storage_tiers.clock import SystemClock
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.errors import LeaderNotAvailable
from storage_tiers.hot.checkpoints import CLEAN_SHUTDOWN, RECOVERY_POINTS
from storage_tiers.types import TopicPartition
from tests.service.broker.background.test_clocks import YEAR_MS, SetClock
from tests.service.broker.coordinators.test_groups import (
    CALLER,
    SETTINGS,
    commit,
    coordinated,
    groups_of,
    has_offsets,
    offsets,
)
from tests.service.broker.coordinators.transactional import Client
from tests.service.broker.support import metadata_log, once_loaded, running, until
from tests.support.faulty_store import FaultyStore

OFFSETS = f"__consumer_offsets-{partition_of('g', 2)}"


async def test_an_older_copy_answers_no_offsets_before_its_comparison(tmp_path: Path) -> None:
    """An answer without an offset, or with an older one, makes a reader skip records or read them again."""
    data, store = tmp_path / "data", FaultyStore(MemoryStore(SystemClock()))
    async with running(data, store, broker=SETTINGS) as node:
        await node.create("t")
        await commit(await coordinated(node, "g"), 1)
    shutil.copytree(data / OFFSETS, tmp_path / "copy")
    async with running(data, store, broker=SETTINGS) as node:
        await commit(await coordinated(node, "g"), 2)
        await node.seal("__consumer_offsets")
    (data / RECOVERY_POINTS).write_text("0\n0\n")
    (data / CLEAN_SHUTDOWN).unlink()
    shutil.rmtree(data / OFFSETS)
    shutil.copytree(tmp_path / "copy", data / OFFSETS)
    store.down = True
    async with running(data, store, broker=SETTINGS) as node:
        host = node.node.broker.coordinators.led._runtimes["__consumer_offsets"].host(partition_of("g", 2))
        attempts, load_once = [0], host._load_once

        async def counted() -> None:
            attempts[0] += 1
            await load_once()

        host._load_once = counted  # type: ignore[method-assign]
        await until(lambda: attempts[0] > 2)
        assert host.state is ShardState.LOADING
        with pytest.raises(CoordinatorLoading):
            await groups_of(node).fetch_offsets(OffsetFetch("g", None), CALLER)
        store.down = False
        await has_offsets(await coordinated(node, "g"), {"t": [2]})


async def test_offsets_outlive_a_process_that_began_with_its_clock_behind(tmp_path: Path) -> None:
    """The clock of a machine without a battery is set after the node has started."""
    store, clock = FaultyStore(MemoryStore(SystemClock())), SetClock()
    clock._began_ns -= YEAR_MS * 1_000_000
    async with running(tmp_path / "data", store, broker=SETTINGS, clock=clock) as node:
        await node.create("t")
        await commit(await coordinated(node, "g"), 1)
    async with running(tmp_path / "data", store, broker=SETTINGS) as node:
        groups = await coordinated(node, "g")
        await node.node.broker.coordinators.offset_expiry.tick()
        await commit(groups, 3, group="other")
        assert offsets(await groups.fetch_offsets(OffsetFetch("g", None), CALLER)) == {"t": [1]}


async def test_no_offset_expires_by_a_clock_that_is_ahead_of_the_stores(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore(SystemClock()))
    async with running(tmp_path / "data", store, broker=SETTINGS) as node:
        await node.create("t")
        await commit(await coordinated(node, "g"), 1)
    clock = SetClock()
    clock._began_ns += YEAR_MS * 1_000_000
    clock.step_ms = YEAR_MS
    async with running(tmp_path / "data", store, broker=SETTINGS, clock=clock) as node:
        groups = await coordinated(node, "g")
        node.node.work.expiry._log_steps(SystemClock().unix_ms())
        assert node.node.work.expiry.step_ms > 0
        await node.node.broker.coordinators.offset_expiry.tick()
        await commit(groups, 3, group="other")
        assert offsets(await groups.fetch_offsets(OffsetFetch("g", None), CALLER)) == {"t": [1]}
        # Once the clock is trusted, the offset is a year old.
        node.node.work.expiry._watch._offset_ms += YEAR_MS
        await node.node.broker.coordinators.offset_expiry.tick()
        await has_offsets(groups, {})


async def test_offsets_of_a_topic_that_the_metadata_do_not_have_stay(tmp_path: Path) -> None:
    """As with an older metadata log: the topic's records are set aside and may be put back."""
    data, store = tmp_path / "data", FaultyStore(MemoryStore(SystemClock()))
    async with running(data, store, broker=SETTINGS) as node:
        await node.create("t")
        await node.create("u")
        groups = await coordinated(node, "g")
        await commit(groups, 1)
        await commit(groups, 2, topic="u")
        metadata = metadata_log(node)
        newest = metadata.image
        older = Map({known: topic for known, topic in newest.topics.items() if topic.name != "u"})
        try:
            metadata._image = replace(newest, topics=older, topic_ids=Map({t.name: i for i, t in older.items()}))
            await node.node.broker.coordinators.offset_expiry.tick()
            await commit(groups, 3, group="other")
        finally:
            metadata._image = newest
        assert offsets(await groups.fetch_offsets(OffsetFetch("g", None), CALLER)) == {"t": [1], "u": [2]}


async def test_after_a_take_over_no_group_skips_new_records(tmp_path: Path) -> None:
    """The bucket holds less than the lost disk did; new records get the offsets that were lost."""
    store = FaultyStore(MemoryStore(SystemClock()))
    async with running(tmp_path / "data", store, broker=SETTINGS) as node:
        await node.create("t")
        await node.append("t", b"0", b"1")
        await node.seal("t")
        await node.append("t", b"lost", b"lost", b"lost")
        await commit(await coordinated(node, "g"), 5)
        await commit(await coordinated(node, "h"), 1, group="h")
        await node.seal("__consumer_offsets")
        cluster = node.node.cluster_id
        store.down = True
    store.down = False
    async with running(tmp_path / "new", store, broker=SETTINGS, take_over=cluster) as node:
        groups = await coordinated(node, "g")
        led = node.node.broker.partitions.get(TopicPartition("t", 0))
        await until(lambda: not led.is_recovering and led.recovered_end is None)
        assert await node.end("t") == 2
        assert offsets(await groups.fetch_offsets(OffsetFetch("g", None), CALLER)) == {"t": [2]}
        assert offsets(await groups.fetch_offsets(OffsetFetch("h", None), CALLER)) == {"t": [1]}
        await commit(groups, 9)  # offsets committed from now on are not lowered
        led.recovered_end = RecoveredEnd(2)
        await until(lambda: led.recovered_end is None)
        assert offsets(await groups.fetch_offsets(OffsetFetch("g", None), CALLER)) == {"t": [9]}
    async with running(tmp_path / "new", store, broker=SETTINGS) as node:
        assert offsets(await (await coordinated(node, "h")).fetch_offsets(OffsetFetch("h", None), CALLER)) == {"t": [1]}


async def test_after_a_take_over_no_group_skips_new_records_where_the_bucket_held_nothing(
    tmp_path: Path,
) -> None:
    store = FaultyStore(MemoryStore(SystemClock()))
    async with running(tmp_path / "data", store, broker=SETTINGS) as node:
        await node.create("t", 2)
        await node.append("t", b"0", partition=1)
        await node.seal("t")
        await node.append("t", b"lost", b"lost", b"lost")
        await commit(await coordinated(node, "g"), 3)
        await node.seal("__consumer_offsets")
        cluster = node.node.cluster_id
        store.down = True
    store.down = False
    async with running(tmp_path / "new", store, broker=SETTINGS, take_over=cluster) as node:
        groups = await coordinated(node, "g")
        led = node.node.broker.partitions.get(TopicPartition("t", 0))
        await until(lambda: not led.is_recovering and led.recovered_end is None)
        assert await node.end("t") == 0
        assert offsets(await groups.fetch_offsets(OffsetFetch("g", None), CALLER)) == {"t": [0]}


async def test_after_a_disk_lost_flushed_records_no_group_skips_new_records(tmp_path: Path) -> None:
    """A node without a store, whose disk gives back less than it had taken."""
    data = tmp_path / "data"
    async with running(data, broker=SETTINGS, store_url="none") as node:
        await node.create("t")
        await node.append("t", b"0", b"1")
        groups = await coordinated(node, "g")
        await commit(groups, 2)
    kept = (data / "t-0" / "00000000000000000000.log").read_bytes()
    async with running(data, broker=SETTINGS, store_url="none") as node:
        await node.append("t", b"lost", b"lost")
        await commit(await coordinated(node, "g"), 4)
    (data / "t-0" / "00000000000000000000.log").write_bytes(kept)
    (data / CLEAN_SHUTDOWN).unlink()
    async with running(data, broker=SETTINGS, store_url="none") as node:
        groups = await coordinated(node, "g")
        assert await node.end("t") == 2
        await has_offsets(groups, {"t": [2]})


async def test_after_a_power_loss_no_group_skips_new_records(tmp_path: Path) -> None:
    """Records below the high watermark that were not flushed are gone, while the group's flushed offset remains."""
    data = tmp_path / "data"
    async with running(data, broker=SETTINGS, store_url="none") as node:
        await node.create("t")
        await node.append("t", b"0", b"1")
    kept, points = (data / "t-0" / "00000000000000000000.log").read_bytes(), (data / RECOVERY_POINTS).read_text()
    async with running(data, broker=SETTINGS, store_url="none") as node:
        await node.append("t", b"lost", b"lost")
        await commit(await coordinated(node, "g"), 4)
    (data / "t-0" / "00000000000000000000.log").write_bytes(kept)
    (data / CLEAN_SHUTDOWN).unlink()
    flushed = re.search(r"^t 0 \d+$", points, re.MULTILINE)
    assert flushed is not None
    newer = (data / RECOVERY_POINTS).read_text()
    (data / RECOVERY_POINTS).write_text(re.sub(r"^t 0 \d+$", flushed[0], newer, flags=re.MULTILINE))
    async with running(data, broker=SETTINGS, store_url="none") as node:
        groups = await coordinated(node, "g")
        assert await node.end("t") == 2
        await has_offsets(groups, {"t": [2]})


@pytest.mark.parametrize(("commits", "offset"), [(True, 2), (False, 1)])
async def test_an_offset_in_a_transaction_that_was_open_is_lowered_once_it_is_committed(
    tmp_path: Path, commits: bool, offset: int
) -> None:
    data = tmp_path / "data"
    async with running(data, broker=SETTINGS, store_url="none") as node:
        await node.create("t")
        await node.append("t", b"0", b"1")
        await commit(await coordinated(node, "g"), 1)
    kept = (data / "t-0" / "00000000000000000000.log").read_bytes()
    async with running(data, broker=SETTINGS, store_url="none") as node:
        await node.append("t", b"lost", b"lost")
        groups, client = await coordinated(node, "g"), await Client(node).begin()
        asked = AddOffsets("x", client.producer, "g")
        assert (await once_loaded(lambda: client.transactions.add_offsets(asked, CALLER))).error is None
        await commit_in_transaction(groups, client, "t")
    (data / "t-0" / "00000000000000000000.log").write_bytes(kept)
    (data / CLEAN_SHUTDOWN).unlink()
    async with running(data, broker=SETTINGS, store_url="none") as node:
        groups = await coordinated(node, "g")
        await has_lowered(node.node.broker.partitions.get(TopicPartition("t", 0)))
        assert offsets(await groups.fetch_offsets(OffsetFetch("g", None), CALLER)) == {"t": [1]}
        after = Client(node)
        after.producer = client.producer
        assert await once_loaded(lambda: after.end(commit=commits)) is None
        await after.reaches("CompleteCommit" if commits else "CompleteAbort")
        await has_offsets(groups, {"t": [offset]})
    async with running(data, broker=SETTINGS, store_url="none") as node:
        await has_offsets(await coordinated(node, "g"), {"t": [offset]})


async def commit_in_transaction(groups: GroupService, client: Client, *topics: str) -> None:
    """Commits offset 4 of each topic's partition 0 in the client's transaction, to which the group was added."""
    rows = [TopicCommit(topic, [PartitionCommit(0, 4)]) for topic in topics]
    request = TxnOffsetCommit("g", ProducerTransaction("x"), *client.producer, -1, "", None, rows)
    answer = await once_loaded(lambda: groups.commit_offsets_in_transaction(request, CALLER))
    assert [topic.partitions[0].error for topic in answer.topics] == [None for _ in topics]


async def test_offsets_in_a_transaction_that_was_open_are_lowered_for_each_loss(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with running(data, broker=SETTINGS, store_url="none") as node:
        for topic in ("t", "u"):
            await node.create(topic)
        groups, client = await coordinated(node, "g"), await Client(node).begin()
        asked = AddOffsets("x", client.producer, "g")
        assert (await once_loaded(lambda: client.transactions.add_offsets(asked, CALLER))).error is None
        await commit_in_transaction(groups, client, "t", "u")
    async with running(data, broker=SETTINGS, store_url="none") as node:
        groups = await coordinated(node, "g")
        for topic, end in (("t", 2), ("u", 1)):
            led = node.node.broker.partitions.get(TopicPartition(topic, 0))
            led.recovered_end = RecoveredEnd(end)
            await has_lowered(led)
        after = Client(node)
        after.producer = client.producer
        assert await once_loaded(lambda: after.end(commit=True)) is None
        await after.reaches("CompleteCommit")
        await has_offsets(groups, {"t": [2], "u": [1]})


async def test_offsets_stay_while_the_bucket_may_have_the_records_that_the_log_lacks(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with running(data, broker=SETTINGS, store_url="none") as node:
        await node.create("t")
        await node.append("t", *(b"%d" % number for number in range(6)))
        await commit(await coordinated(node, "g"), 5)
    async with running(data, broker=SETTINGS, store_url="none") as node:
        groups, coordinators = await coordinated(node, "g"), node.node.broker.coordinators
        led = node.node.broker.partitions.get(TopicPartition("t", 0))
        led.recover(LeaderNotAvailable("the bucket may have more records"))
        led.recovered_end = RecoveredEnd(2)
        await coordinators.recovered_offsets.tick()
        await coordinators.shards.groups.host(partition_of("g", 2)).settled()
        assert offsets(await groups.fetch_offsets(OffsetFetch("g", None), CALLER)) == {"t": [5]}
        assert led.recovered_end is not None
        led.reconciled()
        await has_lowered(led)
        assert offsets(await groups.fetch_offsets(OffsetFetch("g", None), CALLER)) == {"t": [2]}


@pytest.mark.parametrize("written", [0, 1, 4])
async def test_a_node_that_is_killed_before_it_has_lowered_offsets_lowers_them_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """Records written before the kill must not hide the loss."""
    store = FaultyStore(MemoryStore(SystemClock()))
    async with running(tmp_path / "data", store, broker=SETTINGS) as node:
        await node.create("t")
        await node.append("t", b"0", b"1")
        await node.seal("t")
        await node.append("t", b"lost", b"lost", b"lost")
        await commit(await coordinated(node, "g"), 5)
        await node.seal("__consumer_offsets")
        cluster = node.node.cluster_id
        store.down = True
    store.down = False

    async def nothing(_: RecoveredOffsets) -> None: ...

    with monkeypatch.context() as patch:
        patch.setattr(RecoveredOffsets, "tick", nothing)
        async with running(tmp_path / "new", store, broker=SETTINGS, take_over=cluster) as node:
            led = node.node.broker.partitions.get(TopicPartition("t", 0))
            await until(lambda: not led.is_recovering)
            for number in range(written):
                await node.append("t", b"new %d" % number)
    for _ in range(2):
        async with running(tmp_path / "new", store, broker=SETTINGS) as node:
            groups = await coordinated(node, "g")
            led = node.node.broker.partitions.get(TopicPartition("t", 0))
            await has_lowered(led)
            assert await node.end("t") == 2 + written
            assert offsets(await groups.fetch_offsets(OffsetFetch("g", None), CALLER)) == {"t": [2]}
            assert read_recovered_end(led) is None


async def refuse(*_: object) -> None:
    raise NotCoordinator("unreadable")


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_newer_offsets_are_kept_while_another_coordinator_has_still_to_lower_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_restarted: bool
) -> None:
    """A coordinator that has lowered its offsets and is then loaded again has loaded the newer offsets, too."""
    data, mine = tmp_path / "data", partition_of("g", 2)
    async with running(data, broker=SETTINGS, store_url="none") as node:
        await node.create("t")
        await node.append("t", *(b"%d" % number for number in range(20)))
        groups, coordinators = await coordinated(node, "g"), node.node.broker.coordinators
        led = node.node.broker.partitions.get(TopicPartition("t", 0))
        monkeypatch.setattr(coordinators.shards.groups.host(1 - mine), "settled", refuse)
        led.recovered_end = RecoveredEnd(2)
        await coordinators.recovered_offsets.tick()
        await commit(groups, 15)
        if not is_restarted:
            coordinators.shards.groups.gained(mine, coordinators.shards.groups.host(mine)._log)
            await coordinated(node, "g")
            await coordinators.recovered_offsets.tick()
            assert led.recovered_end is not None
            await has_offsets(groups, {"t": [15]})
            monkeypatch.undo()
            await has_lowered(led)
            assert offsets(await groups.fetch_offsets(OffsetFetch("g", None), CALLER)) == {"t": [15]}
            return
        noted = read_recovered_end(led)
        assert noted is not None and (noted.offset, noted.lowered_in) == (2, frozenset({mine}))
    monkeypatch.undo()
    async with running(data, broker=SETTINGS, store_url="none") as node:
        groups = await coordinated(node, "g")
        led = node.node.broker.partitions.get(TopicPartition("t", 0))
        await has_lowered(led)
        assert read_recovered_end(led) is None
        assert offsets(await groups.fetch_offsets(OffsetFetch("g", None), CALLER)) == {"t": [15]}


async def has_lowered(partition: Partition) -> None:
    await until(lambda: not partition.is_recovering and partition.recovered_end is None)
