"""Offsets of deleted topics are removed from every shard, even from one that could not write or was loading; no new topic gets
them."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from weakref import ref

import pytest

from grpc_api.contract.groups import OffsetFetch, PartitionCommit, TopicCommit, TxnOffsetCommit
from grpc_api.contract.transactions import AddOffsets, ProducerTransaction
from service.broker.appending.disk import DiskGuard
from service.broker.background.turns import GLANCES_A_TURN
from service.broker.coordinators.offset_expiry import OffsetExpiry
from service.broker.partition.record_loss import RecoveredEnd
from service.coordination.coordinator_runtime import partition_of
from service.coordination.groups.shard import GroupShard
from service.coordination.runtime import ShardHost
from service.metadata.parts import Changes
from storage_tiers.errors import NotEnoughReplicas, StorageError
from storage_tiers.types import TopicPartition
from tests.service.broker.coordinators.test_coordinators_full_disk import FREE, RESERVE_USED
from tests.service.broker.coordinators.test_groups import CALLER, SETTINGS, commit, coordinated, has_offsets, offsets
from tests.service.broker.coordinators.test_groups_restored import refuse
from tests.service.broker.coordinators.transactional import Client
from tests.service.broker.support import Running, once_loaded, running, until


def expiry_of(node: Running) -> OffsetExpiry:
    return node.node.broker.coordinators.offset_expiry


def host_of(node: Running, group: str) -> ShardHost[GroupShard]:
    return node.node.broker.coordinators.shards.groups.host(partition_of(group, 2))


async def commit_in_transaction(node: Running, client: Client, offset: int) -> None:
    groups = await coordinated(node, "g")
    asked = AddOffsets("x", client.producer, "g")
    assert (await once_loaded(lambda: client.transactions.add_offsets(asked, CALLER))).error is None
    rows = [TopicCommit("t", [PartitionCommit(0, offset)])]
    request = TxnOffsetCommit("g", ProducerTransaction("x"), *client.producer, -1, "", None, rows)
    answer = await once_loaded(lambda: groups.commit_offsets_in_transaction(request, CALLER))
    assert answer.topics[0].partitions[0].error is None


async def has_forgotten(node: Running) -> None:
    await until(lambda: not expiry_of(node)._deletions and expiry_of(node)._forgetting is None)


async def test_a_new_topic_gets_no_offsets_that_could_not_be_removed_for_want_of_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DiskGuard, "look", lambda _: None)
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        await node.create("t")
        groups = await coordinated(node, "g")
        await commit(groups, 5)
        await commit(groups, 5, group="h")
        disk = node.node.work.disk
        disk.judge(RESERVE_USED)
        await node.core.topics.delete(["t"])
        await until(lambda: expiry_of(node)._forgetting is None)
        assert offsets(await groups.fetch_offsets(OffsetFetch("g", None), CALLER)) == {"t": [5]}
        disk.judge(FREE)
        await node.create("t")
        await commit(groups, 7, group="h")
        await has_offsets(groups, {})
        await has_forgotten(node)
        assert offsets(await groups.fetch_offsets(OffsetFetch("h", None), CALLER)) == {"t": [7]}
        assert not expiry_of(node)._deleted


async def test_a_new_topic_gets_no_offsets_whose_tombstones_were_not_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        await node.create("t")
        groups = await coordinated(node, "g")
        await commit(groups, 5)
        log, refused = host_of(node, "g")._log, asyncio.Event()

        def refuse(_: bytes) -> None:
            monkeypatch.undo()
            refused.set()
            raise StorageError("the disk refuses")

        monkeypatch.setattr(log, "append", refuse)
        await node.core.topics.delete(["t"])
        await refused.wait()
        await node.create("t")
        await has_offsets(await coordinated(node, "g"), {})


async def test_a_new_topic_gets_no_offsets_from_a_shard_that_was_loading_as_the_old_one_went(tmp_path: Path) -> None:
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        await node.create("t")
        await commit(await coordinated(node, "g"), 5)
        runtime = node.node.broker.coordinators.shards.groups
        for number in tuple(runtime.hosts):
            runtime.gained(number, runtime.hosts[number]._log)
        await node.core.topics.delete(["t"])
        await node.create("t")
        await has_offsets(await coordinated(node, "g"), {})


def is_dropped(host: ShardHost[GroupShard]) -> bool:
    """Drops the host's shard; returns whether its memory is free."""
    kept = ref(host.look(lambda shard: shard))
    host._fail(NotEnoughReplicas("a write failed"))
    gc.collect()
    return kept() is None


async def test_a_dropped_shard_with_a_due_deletion_is_not_kept_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DiskGuard, "look", lambda _: None)
    async with running(tmp_path / "data", broker=SETTINGS, store_url="none") as node:
        await node.create("t")
        await commit(await coordinated(node, "g"), 5)
        node.node.work.disk.judge(RESERVE_USED)
        await node.core.topics.delete(["t"])
        await until(lambda: expiry_of(node)._forgetting is None)
        monkeypatch.setattr(OffsetExpiry, "_begin_forgetting", lambda _: None)
        assert host_of(node, "g") in expiry_of(node)._deletions[0].due
        assert is_dropped(host_of(node, "g"))


async def test_a_dropped_shard_with_an_open_transaction_to_lower_is_not_kept_in_memory(tmp_path: Path) -> None:
    broker = {**SETTINGS, "transaction.state.log.num.partitions": "2"}
    async with running(tmp_path / "data", broker=broker, store_url="none") as node:
        await node.create("t")
        await commit_in_transaction(node, await Client(node).begin(), 7)
        runtime, mine = node.node.broker.coordinators.shards.groups, partition_of("g", 2)
        runtime.gained(mine, runtime.host(mine)._log)
        await coordinated(node, "g")
        lowering = node.node.broker.coordinators.recovered_offsets
        node.node.broker.partitions.get(TopicPartition("t", 0)).recovered_end = RecoveredEnd(2)
        await lowering.tick()
        assert lowering._pending
        assert is_dropped(host_of(node, "g"))
        await lowering.tick()
        assert not lowering._pending


@pytest.mark.parametrize(("commits", "left"), [(True, {"t": [7]}), (False, {})])
async def test_a_new_topic_gets_no_offset_that_was_left_beside_one_in_an_open_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: bool, left: dict[str, list[int]]
) -> None:
    monkeypatch.setattr(DiskGuard, "look", lambda _: None)
    async with running(
        tmp_path / "data", broker={**SETTINGS, "transaction.state.log.num.partitions": "2"}, store_url="none"
    ) as node:
        await node.create("t")
        groups, client = await coordinated(node, "g"), await Client(node).begin()
        await commit(groups, 5)
        node.node.work.disk.judge(RESERVE_USED)
        await node.core.topics.delete(["t"])
        await until(lambda: expiry_of(node)._forgetting is None)
        monkeypatch.setattr(OffsetExpiry, "_begin_forgetting", lambda _: None)  # until the transaction is open
        node.node.work.disk.judge(FREE)
        await node.create("t")
        await commit_in_transaction(node, client, 7)
        monkeypatch.undo()
        monkeypatch.setattr(DiskGuard, "look", lambda _: None)
        await expiry_of(node)._forget_once()
        assert expiry_of(node)._deletions
        await once_loaded(lambda: client.end(commit=commits))
        await client.reaches("CompleteCommit" if commits else "CompleteAbort")
        await has_forgotten(node)
        await has_offsets(groups, left)


async def test_a_new_topics_offset_stays_while_another_shard_may_still_have_the_old_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        await node.create("t")
        await node.create("u")
        groups = await coordinated(node, "g")
        await commit(groups, 5)
        other = node.node.broker.coordinators.shards.groups.host(1 - partition_of("g", 2))
        monkeypatch.setattr(other, "settled", refuse)
        await node.core.topics.delete(["t"])
        await has_offsets(groups, {})
        await until(lambda: expiry_of(node)._forgetting is None)
        await node.create("t")
        await commit(groups, 7)
        await node.core.topics.delete(["u"])  # this deletion visits the first shard again
        await until(lambda: expiry_of(node)._forgetting is None)
        assert [list(each.due) for each in expiry_of(node)._deletions] == [[other], [other]]
        await host_of(node, "g").settled()
        assert offsets(await groups.fetch_offsets(OffsetFetch("g", None), CALLER)) == {"t": [7]}


# --- the periodic pass ------------------------------------------------------------------------------------------------
async def test_a_pass_removes_offsets_of_deleted_topics_from_shards_that_the_last_one_found_loading(
    tmp_path: Path,
) -> None:
    """Another node led the shard when the topic was deleted."""
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        await node.create("t")
        await commit(await coordinated(node, "g"), 5)
        runtime, mine = node.node.broker.coordinators.shards.groups, partition_of("g", 2)
        log = runtime.host(mine)._log
        runtime.lost(mine)
        await node.core.topics.delete(["t"])
        await has_forgotten(node)
        runtime.gained(mine, log)
        await expiry_of(node).tick()
        groups = await coordinated(node, "g")
        assert offsets(await groups.fetch_offsets(OffsetFetch("g", None), CALLER)) == {"t": [5]}
        await expiry_of(node).tick()
        await has_offsets(groups, {})


async def test_a_pass_keeps_the_offset_of_a_new_topic_that_has_a_deleted_ones_name(tmp_path: Path) -> None:
    async with running(tmp_path / "data", broker=SETTINGS) as node:
        await node.create("t")
        groups = await coordinated(node, "g")
        await commit(groups, 5)
        await node.core.topics.delete(["t"])
        await has_forgotten(node)
        await node.create("t")
        await commit(groups, 7)
        await expiry_of(node).tick()
        await host_of(node, "g").settled()
        assert offsets(await groups.fetch_offsets(OffsetFetch("g", None), CALLER)) == {"t": [7]}


def count_calls_of_expiry(calls: list[int]) -> Callable[[FrameType, str, object], None]:
    """Calls of the node's other tasks in the same turn are not counted: on a busy machine several tasks run in one turn."""
    counted = OffsetExpiry.__module__

    def count(frame: FrameType, event: str, _: object) -> None:
        if event not in ("call", "c_call"):
            return
        caller = frame if event == "c_call" else frame.f_back
        calls[-1] += counted in (frame.f_globals["__name__"], caller.f_globals["__name__"] if caller else "")

    return count


async def test_a_deletion_of_many_partitions_takes_few_steps_in_each_turn_of_the_loop(tmp_path: Path) -> None:
    """10,000 partitions times 20 shards would be 200,000 steps in one turn of the event loop."""
    async with running(tmp_path / "data", broker={**SETTINGS, "offsets.topic.num.partitions": "20"}) as node:
        await node.create("t")
        groups = await coordinated(node, "g")
        await commit(groups, 5)
        expiry, seen = expiry_of(node), node.node.ground.metadata.image
        topic_id = seen.topic_ids["t"]
        topic = seen.topics[topic_id]
        many = replace(topic, partitions=tuple(replace(topic.partitions[0], index=each) for each in range(10_000)))
        expiry._seen = replace(seen, topics=seen.topics.set(topic_id, many))
        without = replace(seen, topics=seen.topics.delete(topic_id))
        expiry._changed(without, Changes(topics=(topic_id,)))
        calls = [0]
        sys.setprofile(count_calls_of_expiry(calls))
        try:
            while expiry._forgetting is not None:
                calls.append(0)
                await asyncio.sleep(0)
        finally:
            sys.setprofile(None)
        assert GLANCES_A_TURN / 2 < max(calls) < 4 * GLANCES_A_TURN
        assert not expiry._deleted
        await has_offsets(groups, {})
