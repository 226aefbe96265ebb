"""The leader of a partition that moves away: it consents once the bucket has all records, and appends nothing while its consent
may be in force."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from grpc_api.contract.coordinator_errors import CoordinatorNotAvailable
from service.broker.background.moving import MAX_DRAINS, MAX_MOVES, Since
from service.broker.coordinators.coordinator_log import PartitionLog
from service.broker.partition.partition import Partition
from service.broker.partition.phase import Phase
from service.broker.partition.record_loss import RecoveredEnd
from service.metadata.commands import Command, FenceBroker, HandOver, Reassign, RegisterBroker, UnfenceBroker
from service.metadata.controller import Commands
from service.metadata.parts import PartitionImage
from storage_tiers.clock import SystemClock
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.errors import (
    BrokerNotRegistered,
    InvalidRequest,
    LeaderNotAvailable,
    LogError,
    NoReassignmentInProgress,
    NotLeader,
    RequestTimedOut,
    StaleBrokerEpoch,
    StorageError,
    StoreBehind,
    UnknownTopicOrPartition,
)
from storage_tiers.records.batch import BatchHeader, read_header
from storage_tiers.types import TopicPartition
from tests.service.broker.support import TIERED, Running, batch, running, until
from tests.support.faulty_store import FaultyStore

KEY = TopicPartition("t", 0)
PRODUCER = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}


class LossyCommands:
    """The node's own commands, some of which go wrong: `lose` describes the next consents in order: whether the consent is
    carried out, and the error that its sender gets. Later consents are answered."""

    def __init__(self, node: Running, *lose: tuple[bool, LogError]) -> None:
        self._inner: Commands = node.node.broker.moving._commands
        self._lose = list(lose)
        self.sent: list[Command[Any]] = []
        #: Whether a cancellation finds no move.
        self.has_moved = False
        node.node.broker.moving._commands = self

    async def execute(self, command: Command[Any]) -> Any:
        self.sent.append(command)
        if isinstance(command, HandOver) and self._lose:
            is_done, error = self._lose.pop(0)
            if is_done:
                await self._inner.execute(command)
            raise error
        if isinstance(command, Reassign) and self.has_moved:
            raise NoReassignmentInProgress("t-0 is not being moved")
        return await self._inner.execute(command)


async def with_target(node: Running) -> None:
    """A topic of ten records, and a second broker that may lead."""
    await node.create("t", configs={**TIERED, "local.retention.bytes": "-1"})
    await append(node, 10)
    await node.node.configs.controller.execute(RegisterBroker(2, b"second", (), start_id=b"s"))


async def with_others(node: Running, count: int) -> list[Partition]:
    """The partitions of a second topic, each with a record. There must be no second broker yet."""
    await node.create("other", count, configs=TIERED)
    for index in range(count):
        await node.append("other", b"x", partition=index)
    await node.seal("other")
    return [node.node.broker.partitions.get(TopicPartition("other", index)) for index in range(count)]


async def append(node: Running, count: int) -> None:
    for number in range(count):
        await node.append("t", b"%d" % number)


async def moving(node: Running) -> None:
    await node.core.topics.reassign(KEY, [2])


def placed(node: Running) -> PartitionImage:
    found = node.node.ground.metadata.image.partition(*KEY)
    assert found is not None
    return found


def manifest_number(node: Running, field: str) -> int:
    store = node.store.store
    (key,) = (info.key for info in store.blocking().list("") if "/manifests/" in info.key)  # type: ignore[attr-defined]
    number: int = json.loads(store.blocking().get(key).data)[field]  # type: ignore[attr-defined]
    return number


def manifest_end(node: Running) -> int:
    return manifest_number(node, "end")


async def test_the_bucket_has_everything_when_another_broker_leads(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await with_target(node)
        await moving(node)
        await until(lambda: placed(node).leader == 2)
        assert (placed(node).replicas, placed(node).moved_end, placed(node).directories) == ((2,), 10, (b"second",))
        assert manifest_end(node) == 10
        await until(lambda: node.node.broker.partitions.find(KEY) is None)
        with pytest.raises(NotLeader):
            await node.append("t", b"late")
        await until(lambda: not list(tmp_path.glob("t-0*")))


async def test_a_broker_without_partitions_of_a_topic_seals_none_and_knows_the_topic(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await with_target(node)
        await moving(node)
        await until(lambda: node.node.broker.partitions.find(KEY) is None)
        assert await node.log.seal("t", wait=True, timeout_ms=1000) == []
        assert await node.core.cold.manifests("t") == []
        await node.core.topics.reassign(KEY, [1])
        await until(lambda: node.node.broker.partitions.find(KEY) is not None)
        assert await node.log.seal("t", wait=True, timeout_ms=1000) == [], "broker 2 still leads it"
        for asked in (node.log.seal("gone", wait=True, timeout_ms=1000), node.core.cold.manifests("gone")):
            with pytest.raises(UnknownTopicOrPartition):
                await asked


async def test_an_empty_partition_moves(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await node.create("t", configs=TIERED)
        await node.node.configs.controller.execute(RegisterBroker(2, b"second", (), start_id=b"s"))
        await moving(node)
        await until(lambda: placed(node).leader == 2)
        assert placed(node).moved_end == 0


async def back(node: Running, end: int = 10) -> None:
    """Moves the partition to the second broker if it is not there, and from there back to the node with the log end `end`."""
    if placed(node).leader != 2:
        await moving(node)
        await until(lambda: placed(node).leader == 2)
    await node.core.topics.reassign(KEY, [1])
    await until(lambda: node.node.broker.partitions.find(KEY) is not None)
    now = placed(node)
    topic_id = node.node.ground.metadata.image.topic_ids["t"]
    consent = HandOver(topic_id, 0, 2, 1, now.leader_epoch, now.partition_epoch, end)
    await node.node.configs.controller.execute(consent)


async def test_a_partition_that_arrives_continues_at_the_log_end_of_its_former_leader(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await with_target(node)
        await back(node)
        led = node.node.broker.partitions.get(KEY)
        await until(lambda: led.write_error is None)
        assert (await node.append("t", b"next")).base_offset == 10
        assert [record.offset for record in await node.read_all("t")] == list(range(11))
        assert led.recovered_end is None, "nothing is lost"


async def test_a_partition_that_arrives_claims_its_manifest_before_it_accepts_records(tmp_path: Path) -> None:
    """So a node with metadata from before the move cannot commit, even if nothing was offloaded since."""
    async with running(tmp_path) as node:
        await with_target(node)
        await back(node)
        led = node.node.broker.partitions.get(KEY)
        await until(lambda: led.write_error is None)
        assert manifest_number(node, "leader_epoch") == placed(node).leader_epoch
        assert manifest_end(node) == 10


async def test_a_target_that_dies_before_it_has_begun_does_not_begin_at_offset_0(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore(SystemClock()))
    async with running(tmp_path, store) as node:
        await with_target(node)
        await moving(node)
        await until(lambda: placed(node).leader == 2)
        store.down = True
        await back(node)
        led = node.node.broker.partitions.get(KEY)
        assert led.leads and led.is_recovering
        with pytest.raises(LeaderNotAvailable):
            await node.append("t", b"early")
    store.down = False
    async with running(tmp_path, store) as node:
        led = node.node.broker.partitions.get(KEY)
        await until(lambda: led.write_error is None)
        assert (await node.append("t", b"next")).base_offset == 10
        assert len(await node.read_all("t")) == 11


async def test_a_bucket_that_lacks_the_moved_records_is_waited_for(tmp_path: Path) -> None:
    """The manifest was deleted, and without the wait offsets would be assigned a second time."""
    store = FaultyStore(MemoryStore(SystemClock()))
    async with running(tmp_path, store) as node:
        await with_target(node)
        await moving(node)
        await until(lambda: placed(node).leader == 2)
    (key,) = (info.key for info in store.store.blocking().list("") if "/manifests/" in info.key)  # type: ignore[attr-defined]
    kept = (await store.get(key)).data
    await store.delete([key])
    async with running(tmp_path, store) as node:  # a process that has never seen the manifest
        await back(node)
        led = node.node.broker.partitions.get(KEY)
        known = store.count("get", "/manifests/")
        await until(lambda: store.count("get", "/manifests/") > known + 1)
        with pytest.raises(LeaderNotAvailable):
            await node.append("t", b"early")
        await store.put(key, kept)
        await until(lambda: led.write_error is None)
        assert (await node.append("t", b"next")).base_offset == 10


async def test_a_log_left_behind_by_a_crash_is_set_aside_at_the_next_start(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore(SystemClock()))
    async with running(tmp_path / "data", store) as node:
        await with_target(node)
        shutil.copytree(tmp_path / "data" / "t-0", tmp_path / "left")
        await moving(node)
        await until(lambda: placed(node).leader == 2)
    (tmp_path / "left").rename(tmp_path / "data" / "t-0")
    async with running(tmp_path / "data", store) as node:
        assert not (tmp_path / "data" / "t-0").exists()
        assert len(list((tmp_path / "data").glob("t-0.*-stray"))) == 1
    async with running(tmp_path / "data", store) as node:  # the set-aside log of the same topic id is still there
        await node.core.topics.reassign(KEY, [1])
        await until(lambda: node.node.broker.partitions.find(KEY) is not None)
        assert node.node.broker.partitions.get(KEY).log.end_offset == 0


async def test_no_move_begins_while_a_loss_is_unsettled_or_the_bucket_shows_less_than_before(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await with_target(node)
        await node.seal("t")
        led, moves = node.node.broker.partitions.get(KEY), node.node.broker.moving
        lineage = node.node.work.tiering.lineage
        assert moves._view(led, Since()).may_begin
        led.recovered_end = RecoveredEnd(5)
        assert not moves._view(led, Since()).may_begin
        led.recovered_end = None
        lineage._behind[led] = StoreBehind("the bucket went backwards")
        assert not moves._view(led, Since()).may_begin
        del lineage._behind[led]
        assert moves._view(led, Since()).may_begin


async def test_a_log_that_the_bucket_lacks_is_set_aside_and_not_deleted(tmp_path: Path) -> None:
    """The consent does not come from the leader, which only a defect can cause."""
    async with running(tmp_path) as node:
        await with_target(node)
        await node.node.broker.moving.close()
        await moving(node)
        now, topic_id = placed(node), node.node.ground.metadata.image.topic_ids["t"]
        epoch = node.node.ground.metadata.image.brokers[1].broker_epoch
        consent = HandOver(topic_id, 0, 1, epoch, now.leader_epoch, now.partition_epoch, 10)
        await node.node.configs.controller.execute(consent)
        await until(lambda: len(list(tmp_path.glob("t-0.*-stray"))) == 1)
        (log,) = tmp_path.glob("t-0.*-stray/*.log")
        assert log.stat().st_size > 0


async def test_a_replica_that_is_added_does_not_count_for_min_insync_replicas(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await node.create("t", configs={**TIERED, "min.insync.replicas": "2"})
        await node.node.configs.controller.execute(RegisterBroker(2, b"second", (), start_id=b"s"))
        await node.node.configs.controller.execute(FenceBroker(2, 1))
        await node.node.broker.moving.close()
        await moving(node)
        led = node.node.broker.partitions.get(KEY)
        await until(lambda: placed(node).adding == (2,))
        assert not led.state.is_under_min_in_sync
        await append(node, 1)


async def test_a_target_that_is_away_leaves_the_leader_as_it_is(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await with_target(node)
        await node.node.configs.controller.execute(FenceBroker(2, 1))
        commands = LossyCommands(node)
        await moving(node)
        await until(lambda: any(isinstance(each, HandOver) for each in commands.sent))
        led = node.node.broker.partitions.get(KEY)
        await until(lambda: led.write_error is None)
        await append(node, 5)
        assert not any(isinstance(each, Reassign) for each in commands.sent), "every consent was answered"
        await node.node.configs.controller.execute(UnfenceBroker(2, 1))
        await until(lambda: placed(node).leader == 2)
        assert placed(node).moved_end == manifest_end(node) == 15


async def test_a_consent_whose_answer_is_lost_is_still_one(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await with_target(node)
        commands = LossyCommands(node, (True, StorageError("the answer is lost")))
        await moving(node)
        await until(lambda: placed(node).leader == 2)
        assert len([each for each in commands.sent if isinstance(each, HandOver)]) == 1
        await until(lambda: node.node.broker.partitions.find(KEY) is None)
        with pytest.raises(NotLeader):
            await node.append("t", b"late")


@pytest.mark.parametrize(
    "error", [BrokerNotRegistered("no broker 1"), StaleBrokerEpoch("a newer start has registered")]
)
async def test_a_refused_registration_does_not_show_that_a_consent_had_no_effect(
    tmp_path: Path, error: LogError
) -> None:
    """The controller checks the registration before it looks for its answer to the same consent."""
    async with running(tmp_path) as node:
        await with_target(node)
        commands = LossyCommands(node, *[(False, error)] * 100)
        await moving(node)
        await until(lambda: any(isinstance(each, HandOver) for each in commands.sent))
        await asyncio.sleep(0.05)
        with pytest.raises(LeaderNotAvailable, match="moves to another broker"):
            await node.append("t", b"held")
        if isinstance(error, StaleBrokerEpoch):
            assert len(commands.sent) == 1, "it ends the node"
            return
        commands._lose.clear()
        await until(lambda: placed(node).leader == 2)
        assert not any(isinstance(each, Reassign) for each in commands.sent)


async def test_a_move_with_an_unanswered_consent_is_cancelled_once_the_bucket_goes_backwards(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await with_target(node)
        await node.seal("t")
        led = node.node.broker.partitions.get(KEY)
        commands = LossyCommands(node, (False, StorageError("the answer is lost")))
        await moving(node)
        await until(lambda: any(isinstance(each, HandOver) for each in commands.sent))
        node.node.work.tiering.lineage._behind[led] = StoreBehind("the bucket went backwards")
        assert led.phase is Phase.HANDING_OVER
        await until(lambda: led.write_error is None, 20)
        assert placed(node).adding == ()
        assert isinstance(commands.sent[-1], Reassign)
        with pytest.raises(LogError, match="has changed"):
            await commands.execute(commands.sent[0])
        await append(node, 1)


async def test_a_cancellation_spares_the_move_of_a_topic_with_a_reused_name(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await with_target(node)
        led = node.node.broker.partitions.get(KEY)
        await node.core.topics.delete(["t"])
        await until(lambda: node.node.broker.partitions.find(KEY) is None)
        await node.create("t", configs=TIERED)
        commands = LossyCommands(node)
        await node.node.broker.moving._cancel(led)
        assert commands.sent == []


async def test_after_a_lost_consent_nothing_is_appended_until_it_is_void(tmp_path: Path) -> None:
    """The first consent may still be under way: only a later partition epoch makes it void."""
    async with running(tmp_path) as node:
        await with_target(node)
        commands = LossyCommands(node, (False, RequestTimedOut("no answer")))
        await node.node.configs.controller.execute(FenceBroker(2, 1))
        before = placed(node).partition_epoch
        await moving(node)
        await until(lambda: len([each for each in commands.sent if isinstance(each, HandOver)]) == 1)
        with pytest.raises(LeaderNotAvailable, match="moves to another broker"):
            await node.append("t", b"held")
        why = PartitionLog(node.node.broker.partitions.get(KEY)).no_room
        assert isinstance(why, CoordinatorNotAvailable), "a coordinator keeps its state"
        await until(lambda: any(isinstance(each, Reassign) for each in commands.sent))
        led = node.node.broker.partitions.get(KEY)
        await until(lambda: led.write_error is None)
        first = next(each for each in commands.sent if isinstance(each, HandOver))
        assert (placed(node).adding, placed(node).partition_epoch) == ((), before + 2)
        with pytest.raises(LogError, match="has changed"):
            await commands.execute(first)
        await append(node, 1)


async def test_a_log_stays_held_while_the_metadata_may_lag_behind_a_consent(tmp_path: Path) -> None:
    """The first consent is in force at the controller, whose answers show it before this broker's metadata does."""
    async with running(tmp_path) as node:
        await with_target(node)
        commands = LossyCommands(
            node, (False, RequestTimedOut("no answer")), (False, InvalidRequest("t-0 has changed"))
        )
        commands.has_moved = True
        await moving(node)
        await until(lambda: any(isinstance(each, Reassign) for each in commands.sent))
        await asyncio.sleep(0)
        led = node.node.broker.partitions.get(KEY)
        with pytest.raises(LeaderNotAvailable, match="moves to another broker"):
            await node.append("t", b"held")
        commands.has_moved = False
        await until(lambda: placed(node).leader == 2)
        assert placed(node).moved_end == led.log.end_offset == 10


async def test_a_move_waits_for_an_open_transaction_and_refuses_new_ones_at_last(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await with_target(node)
        led = node.node.broker.partitions.get(KEY)
        begin_transaction(led)
        await moving(node)
        await until(lambda: led.verifications.refusal is not None)
        with pytest.raises(LogError, match="once its open transactions have ended"):
            led.verifications.begin(9, 0, 0, adds=True)
        await append(node, 1)
        await node.core.topics.reassign(KEY, None)
        await until(lambda: led.verifications.refusal is None)
        assert placed(node).leader == 1


async def test_partitions_that_cannot_move_do_not_delay_others(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        stuck = await with_others(node, MAX_MOVES + 2)
        await with_target(node)
        lineage = node.node.work.tiering.lineage
        stuck[0].fail(StorageError("fsync failed"))
        for each in stuck[1:]:
            lineage._behind[each] = StoreBehind("the bucket went backwards")
        for each in stuck:
            await node.core.topics.reassign(each.partition, [2])
        await asyncio.sleep(0.3)
        await moving(node)
        await until(lambda: placed(node).leader == 2, 20)
        assert all(each.leads for each in stuck)
        for each in stuck[1:]:
            del lineage._behind[each]
        await until(lambda: not any(each.leads for each in stuck[1:]), 20)
        assert stuck[0].leads


async def test_open_transactions_do_not_delay_others_and_few_partitions_refuse_new_ones(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        busy = await with_others(node, MAX_DRAINS + 1)
        await with_target(node)
        for each in busy:
            begin_transaction(each)
            await node.core.topics.reassign(each.partition, [2])
        refusing = [each.verifications for each in busy]
        await until(lambda: sum(each.refusal is not None for each in refusing) == MAX_DRAINS)
        await moving(node)
        await until(lambda: placed(node).leader == 2, 20)
        assert all(each.leads for each in busy)
        assert sum(each.refusal is not None for each in refusing) == MAX_DRAINS


def begin_transaction(led: Partition) -> None:
    """Appends a transactional batch without the coordinator's verification, as a replica does."""
    before = led.log.end_offset
    led.log.hot.appender.append(*begun(), leader_epoch=led.state.leader_epoch, now_ms=0)
    led.state.appended(before, led.log.end_offset, hold_until_flushed=False)
    led.settle_transactions()


def begun() -> tuple[memoryview, BatchHeader]:
    data = memoryview(batch(b"open", transactional=True, **PRODUCER))
    return data, read_header(data)
