"""A node loses partitions to other nodes and gains them again: waits end, callers are sent to the new leader, and
listeners are called.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from grpc_api.contract.log import Append, Fetch, Fetched, FetchPartition, OffsetQuery, OffsetSpec
from grpc_api.contract.ready import settled
from service.broker.partition.partition import Partition
from service.broker.partition.phase import Phase
from service.metadata import records_pb2 as pb
from storage_tiers.errors import (
    FencedLeaderEpoch,
    LeaderNotAvailable,
    LogError,
    NotLeader,
    OffsetNotAvailable,
    StorageError,
    UnknownLeaderEpoch,
    UnknownTopicOrPartition,
)
from storage_tiers.files import OsFiles
from storage_tiers.hot.checkpoints import HIGH_WATERMARKS, read_offsets, write_offsets
from storage_tiers.records.recompress import recompress
from storage_tiers.types import TimestampOffset, TopicPartition
from tests.service.broker.support import Running, batch, filled, metadata_log, records, running, until

T0, U0 = TopicPartition("t", 0), TopicPartition("u", 0)
ME, OTHER = 1, 2
UNTIERED = {"remote.storage.enable": "false"}
#: Far below the time that the requests may wait for.
SOON_S = 60


class Leaderships:
    """A listener that records each gain and loss of leadership."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, int]] = []
        self.seen: list[bool] = []

    def gained(self, partition: Partition, leader_epoch: int) -> None:
        self.told.append(("gained", str(partition.partition), leader_epoch))
        self.seen.append(partition.leads)

    def lost(self, partition: Partition, leader_epoch: int) -> None:
        self.told.append(("lost", str(partition.partition), leader_epoch))
        self.seen.append(partition.leads)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path / "data") as started:
        yield started


def change(node: Running, topic: str, leader: int, **fields: Any) -> pb.MetadataRecord:
    known = node.node.ground.metadata.image.topic(topic)
    assert known is not None
    return pb.MetadataRecord(
        partition_change=pb.PartitionChangeRecord(topic_id=known.topic_id, index=0, leader=leader, **fields)
    )


async def elect(node: Running, topic: str, leader: int) -> int:
    """Makes `leader` (-1 for none) lead partition 0 in the next image; returns its leader epoch."""
    await metadata_log(node).propose([change(node, topic, leader)])
    image = node.node.ground.metadata.image.topic(topic)
    assert image is not None
    return image.partitions[0].leader_epoch


async def in_sync(node: Running, *nodes: int) -> None:
    """Makes this node lead partition 0 of t with these replicas, all in sync."""
    replicas = pb.ReplicaList(nodes=nodes)
    await metadata_log(node).propose([change(node, "t", ME, replicas=replicas, isr=replicas)])


def partition(node: Running, key: TopicPartition = T0) -> Partition:
    return node.node.broker.partitions.get(key)


def listening(node: Running) -> Leaderships:
    listener = Leaderships()
    node.node.broker.assignment.subscribe(listener)
    return listener


async def answered(node: Running, *wanted: FetchPartition, min_bytes: int = 1 << 20) -> list[Fetched]:
    answers: Sequence[Fetched] = await settled(node.log.fetch(Fetch(wanted, 600_000, min_bytes, 1 << 20)))
    return list(answers)


async def waiting(node: Running, *wanted: FetchPartition) -> asyncio.Task[list[Fetched]]:
    """A fetch that waits for more records than the log has."""
    task = asyncio.ensure_future(answered(node, *wanted))
    await until(lambda: all(partition(node, each.partition).waiters for each in wanted))
    return task


async def test_it_is_led_lost_followed_and_led_again_under_a_later_epoch(node: Running) -> None:
    await node.create("t", configs=UNTIERED)
    listener, led = listening(node), partition(node)
    await node.append("t", b"a")
    assert await elect(node, "t", OTHER) == 1
    assert (led.phase, led.leads, led.state.leader_epoch) == (Phase.FOLLOWING, False, 1)
    with pytest.raises(NotLeader, match="t-0: broker 2 leads under leader epoch 1; refresh metadata"):
        await node.append("t", b"refused")
    assert await elect(node, "t", ME) == 2
    assert led.phase is Phase.LEADING
    assert (await node.append("t", b"b")).leader_epoch == 2
    assert [record.value for record in await node.read_all("t")] == [b"a", b"b"]
    assert led.log.hot.epoch_end_offset(0) == (0, 1)
    assert listener.told == [("lost", "t-0", 0), ("gained", "t-0", 2)]
    assert listener.seen == [False, True]


async def test_a_partition_without_a_leader_is_followed_too(node: Running) -> None:
    await node.create("t")
    assert await elect(node, "t", -1) == 1
    with pytest.raises(NotLeader, match="no broker leads under leader epoch 1"):
        await node.append("t", b"a")


async def test_a_second_change_of_leader_is_not_a_second_loss(node: Running) -> None:
    await node.create("t")
    listener = listening(node)
    await elect(node, "t", OTHER)
    await elect(node, "t", 3)
    assert listener.told == [("lost", "t-0", 0)]
    with pytest.raises(NotLeader, match="broker 3 leads under leader epoch 2"):
        await node.append("t", b"a")


async def test_a_later_epoch_of_the_same_leader_is_a_gain_without_a_loss(node: Running) -> None:
    await node.create("t")
    listener, led = listening(node), partition(node)
    await node.append("t", b"a")
    pending = led.until_committed(5)
    assert pending is not None
    await elect(node, "t", ME)
    assert listener.told == [("gained", "t-0", 1)]
    assert led.log.hot.epoch_end_offset(1) == (1, 1)
    assert not pending.done()


# --- waiting callers --------------------------------------------------------------------------------------------------


async def test_every_waiting_acknowledgement_ends_and_may_be_sent_again(node: Running) -> None:
    await node.create("t", configs=UNTIERED)
    await in_sync(node, ME, OTHER)
    appends = [Append(T0, memoryview(batch(b"a"))), Append(T0, memoryview(batch(b"b")))]
    answers = await settled(node.log.append(appends))
    futures = [answer.committed for answer in answers if not isinstance(answer, LogError)]
    await elect(node, "t", OTHER)
    for future in futures:
        assert future is not None
        with pytest.raises(NotLeader, match="broker 2 leads"):
            await future
    led = partition(node)
    await node.node.work.flusher.flush(led)
    assert led.state.high_watermark == 0, "a follower's flush does not commit its records"
    await elect(node, "t", ME)
    assert led.state.high_watermark == 0, "the follower in sync has not fetched from this leader"
    await in_sync(node, ME)
    assert led.state.high_watermark == led.log.end_offset == 2


async def test_a_waiting_fetch_ends_at_once_with_the_data_of_the_other_partitions(node: Running) -> None:
    await node.create("t")
    await node.create("u")
    await node.append("u", b"u")
    fetching = await waiting(node, FetchPartition(T0, 0, 1 << 20), FetchPartition(U0, 0, 1 << 20))
    await elect(node, "t", OTHER)
    async with asyncio.timeout(SOON_S):
        refused, data = await fetching
    assert isinstance(refused.error, NotLeader)
    assert [record.value for record in records(data)] == [b"u"]
    assert not partition(node).waiters
    assert not partition(node, U0).waiters


async def test_a_waiting_fetch_that_named_the_epoch_that_ended_is_fenced(node: Running) -> None:
    """As in Kafka, the leader epoch is checked first."""
    await node.create("t")
    fetching = await waiting(node, FetchPartition(T0, 0, 1 << 20, 0))
    await elect(node, "t", OTHER)
    async with asyncio.timeout(SOON_S):
        (answer,) = await fetching
    assert isinstance(answer.error, FencedLeaderEpoch)


async def test_a_wide_waiting_fetch_ends_at_once(node: Running) -> None:
    await node.create("t", 501)
    wanted = [FetchPartition(TopicPartition("t", index), 0, 1 << 20) for index in range(501)]
    fetching = await waiting(node, *wanted)
    await elect(node, "t", OTHER)
    async with asyncio.timeout(60):
        refused, *others = await fetching
    assert isinstance(refused.error, NotLeader)
    assert [answer.error for answer in others] == [None] * 500


async def test_callbacks_for_the_end_of_leadership_are_called_once_with_the_error(
    node: Running, caplog: pytest.LogCaptureFixture
) -> None:
    await node.create("t")
    led, ended = partition(node), list[tuple[str, LogError]]()

    def fail(_: LogError) -> None:
        raise ValueError("a defect")

    led.on_resigned(fail)
    led.on_resigned(lambda error: ended.append(("a", error)))
    led.on_resigned(lambda error: ended.append(("forgotten", error)))()
    await elect(node, "t", OTHER)
    await elect(node, "t", 3)
    assert [(name, type(error)) for name, error in ended] == [("a", NotLeader)]
    assert "partition.defect" in caplog.text
    led.on_resigned(lambda error: ended.append(("too late", error)))
    assert [(name, str(error)) for name, error in ended[1:]] == [("too late", str(led.read_error))]
    await elect(node, "t", ME)
    led.on_resigned(lambda error: ended.append(("b", error)))
    await node.core.topics.delete(["t"])
    assert [(name, type(error)) for name, error in ended[2:]] == [("b", UnknownTopicOrPartition)]


async def test_readers_reload_a_log_replaced_by_the_buckets(node: Running) -> None:
    await node.create("t", configs=UNTIERED)
    await node.append("t", b"a")
    led, ended = partition(node), list[LogError]()

    def end(error: LogError) -> None:
        ended.append(error)
        if isinstance(error, LeaderNotAvailable):
            led.on_resigned(end)

    led.on_resigned(end)
    led.recover(LeaderNotAvailable("may lack records"))
    led.log.hot.truncate_fully_and_start_at(5)
    led.begin_at(5)
    assert [type(error) for error in ended] == [LeaderNotAvailable]
    led.reconciled()
    await elect(node, "t", OTHER)
    assert [type(error) for error in ended[1:]] == [NotLeader]


# --- new requests -----------------------------------------------------------------------------------------------------


async def list_offset(node: Running, timestamp: int, epoch: int = -1) -> object:
    (answer,) = await node.log.list_offsets([OffsetQuery(T0, timestamp, epoch)])
    return answer


async def test_a_follower_refuses_as_kafka_does_the_epoch_first(node: Running) -> None:
    await node.create("t", configs=UNTIERED)
    await node.append("t", b"a")
    await elect(node, "t", OTHER)
    kinds = {-1: NotLeader, 0: FencedLeaderEpoch, 1: NotLeader, 2: UnknownLeaderEpoch}
    for epoch, kind in kinds.items():
        (fetched,) = await answered(node, FetchPartition(T0, 0, 1 << 20, epoch))
        assert type(fetched.error) is kind, epoch
        for spec in (OffsetSpec.LATEST, OffsetSpec.EARLIEST, OffsetSpec.MAX_TIMESTAMP, 0):
            assert type(await list_offset(node, spec, epoch)) is kind, (epoch, spec)
        with pytest.raises(kind):
            await node.log.epoch_end_offset(T0, 0, epoch)
    with pytest.raises(NotLeader):
        await node.append("t", b"b")
    with pytest.raises(NotLeader):
        await node.log.delete_records(T0, 1)
    with pytest.raises(NotLeader):
        node.node.broker.core.node.producers(T0)
    assert partition(node).log.end_offset == 1


async def test_a_leader_answers_the_epoch_first_too(node: Running) -> None:
    await node.create("t")
    led = partition(node)
    await elect(node, "t", ME)
    led.recover(LeaderNotAvailable("may lack records"))
    for epoch, kind in {-1: LeaderNotAvailable, 0: FencedLeaderEpoch, 1: LeaderNotAvailable}.items():
        (fetched,) = await answered(node, FetchPartition(T0, 0, 1 << 20, epoch))
        assert type(fetched.error) is kind
    led.reconciled()


async def test_a_partition_is_closed_when_the_node_is_no_longer_its_replica(node: Running, tmp_path: Path) -> None:
    await node.create("t", configs=UNTIERED)
    await node.append("t", b"a")
    listener, led = listening(node), partition(node)
    fetching = await waiting(node, FetchPartition(T0, 1, 1 << 20))
    moved = pb.ReplicaList(nodes=[OTHER])
    await metadata_log(node).propose([change(node, "t", OTHER, replicas=moved, isr=moved)])
    async with asyncio.timeout(SOON_S):
        (answer,) = await fetching
    assert isinstance(answer.error, NotLeader)
    assert listener.told == [("lost", "t-0", 0)]
    assert led.deleted
    for refused in (node.append("t", b"b"), node.log.delete_records(T0, 0)):
        with pytest.raises(NotLeader, match="this node is not a replica of t-0"):
            await refused
    await until(lambda: len(list((tmp_path / "data").glob("t-0.*-stray"))) == 1)
    await in_sync(node, ME)
    await node.node.broker.assignment.settled()
    assert listener.told[1:] == [("gained", "t-0", 2)]
    assert (await node.append("t", b"c")).base_offset == 0
    await node.core.topics.delete(["t"])
    with pytest.raises(UnknownTopicOrPartition):
        await node.append("t", b"d")


async def test_a_leader_behind_its_epoch_reports_no_end_that_may_be_too_low(node: Running) -> None:
    await node.create("t", configs=UNTIERED)
    await in_sync(node, ME, OTHER)
    await settled(node.log.append([Append(T0, memoryview(batch(b"a")))]))
    assert await list_offset(node, OffsetSpec.LATEST) == TimestampOffset(-1, 0, 1)
    await elect(node, "t", ME)
    for timestamp in (OffsetSpec.LATEST, OffsetSpec.MAX_TIMESTAMP, 0):
        assert isinstance(await list_offset(node, timestamp), OffsetNotAvailable)
    assert await list_offset(node, OffsetSpec.EARLIEST) == TimestampOffset(-1, 0, 1)
    await in_sync(node, ME)
    assert await list_offset(node, OffsetSpec.LATEST) == TimestampOffset(-1, 1, 3)


async def test_batches_still_in_threads_when_leadership_ends_are_refused(
    node: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    packing, pack = threading.Event(), recompress

    def slow(*args: Any) -> Any:
        assert packing.wait(60)
        return pack(*args)

    monkeypatch.setattr("service.broker.partition.validating.recompress", slow)
    await node.create("t", configs={**UNTIERED, "compression.type": "gzip"})
    sent = [asyncio.ensure_future(settled(node.log.append([Append(T0, memoryview(batch(b"a")))]))) for _ in range(3)]
    await until(lambda: partition(node).queued == 3)
    await elect(node, "t", OTHER)
    packing.set()
    for (answer,) in await asyncio.gather(*sent):
        assert isinstance(answer, NotLeader)
    await elect(node, "t", ME)
    assert (await node.append("t", b"b")).base_offset == 0


# --- listeners --------------------------------------------------------------------------------------------------------


async def test_all_lost_leaderships_of_an_image_precede_the_gained_ones(node: Running) -> None:
    await node.create("t")
    await node.create("u")
    await elect(node, "t", OTHER)
    listener = listening(node)
    await metadata_log(node).propose([change(node, "t", ME), change(node, "u", OTHER)])
    assert listener.told == [("lost", "u-0", 0), ("gained", "t-0", 2)]


async def test_a_listener_that_fails_delays_no_other(node: Running, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Leaderships):
        def gained(self, partition: Partition, leader_epoch: int) -> None:
            raise ValueError("a defect")

        lost = gained

    await node.create("t")
    node.node.broker.assignment.subscribe(Failing())
    listener = listening(node)
    await elect(node, "t", OTHER)
    await elect(node, "t", ME)
    assert listener.told == [("lost", "t-0", 0), ("gained", "t-0", 2)]
    assert caplog.text.count("partition.defect") == 2
    assert node.node.ground.ending.fatal is None


async def test_a_new_topic_is_gained_and_a_deleted_one_lost(node: Running) -> None:
    listener = listening(node)
    await node.create("t")
    assert listener.told == [("gained", "t-0", 0)]
    await node.core.topics.delete(["t"])
    assert listener.told[1:] == [("lost", "t-0", 0)]


async def test_a_followed_topic_that_is_deleted_is_not_lost_again(node: Running, tmp_path: Path) -> None:
    await node.create("t")
    listener = listening(node)
    await elect(node, "t", OTHER)
    await node.core.topics.delete(["t"])
    assert listener.told == [("lost", "t-0", 0)]
    with pytest.raises(UnknownTopicOrPartition):
        await node.append("t", b"a")
    await until(lambda: not list((tmp_path / "data").glob("t-0*")))


# --- the bucket -------------------------------------------------------------------------------------------------------


async def test_a_follower_commits_no_manifest_and_compares_when_it_leads_again(node: Running) -> None:
    await filled(node, 10)
    await node.seal("t")
    led, tiering = partition(node), node.node.work.tiering
    await until(lambda: tiering.has_compared(led))
    await node.append("t", b"not offloaded")
    await elect(node, "t", OTHER)
    puts, local = node.store.count("put", "t"), led.log.hot.local_start_offset
    assert not tiering.has_compared(led)
    tiering.kick(led)
    await node.node.broker.maintenance.tier()
    await node.node.broker.retention.tick()
    await node.node.broker.sweeping.tick()
    assert await node.log.seal("t", wait=True, timeout_ms=1000) == []
    assert node.store.count("put", "t") == puts
    assert led.log.hot.local_start_offset == local
    reads = node.store.count("get", "t")
    await elect(node, "t", ME)
    assert led.phase is Phase.RECOVERING
    with pytest.raises(LeaderNotAvailable):
        await node.append("t", b"too early")
    await until(lambda: led.phase is Phase.LEADING)
    assert node.store.count("get", "t") > reads
    await node.seal("t")
    assert (await node.append("t", b"again")).base_offset == 11
    assert len(await node.read_all("t")) == 12


async def test_waiters_for_the_bucket_learn_that_another_node_leads(node: Running) -> None:
    await filled(node, 5)
    node.store.down = True
    sealing = asyncio.ensure_future(node.log.seal("t", wait=True, timeout_ms=600_000))
    await asyncio.sleep(0)
    await elect(node, "t", OTHER)
    async with asyncio.timeout(SOON_S):
        with pytest.raises(NotLeader):
            await sealing


async def test_a_failed_partition_that_leads_again_is_still_failed(node: Running) -> None:
    await node.create("t", configs=UNTIERED)
    led = partition(node)
    led.fail(StorageError("the disk failed"))
    await elect(node, "t", OTHER)
    assert led.life.phase is Phase.FAILED_FOLLOWING
    with pytest.raises(NotLeader):
        await node.append("t", b"a")
    await elect(node, "t", ME)
    assert led.phase is Phase.FAILED
    with pytest.raises(StorageError, match="the disk failed"):
        await node.append("t", b"a")


# --- starting ---------------------------------------------------------------------------------------------------------


async def test_a_start_leads_again_and_reports_no_earlier_loss(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as node:
        await node.create("t")
        await elect(node, "t", OTHER)
        store = node.store
    async with running(tmp_path / "data", store) as node:
        led = partition(node)
        assert (led.leads, led.state.leader_epoch) == (True, 2)
        assert node.node.broker.assignment._led == {led: 2}


@pytest.mark.parametrize("checkpoint", [0, 2, 99])
async def test_a_start_raises_the_high_watermark_from_its_checkpoint_to_the_log_end(
    tmp_path: Path, checkpoint: int
) -> None:
    """A leader that is alone in sync has committed all its records; a leader with followers waits for them."""
    path = tmp_path / "data" / HIGH_WATERMARKS
    async with running(tmp_path / "data") as node:
        await node.create("t", configs=UNTIERED)
        await node.append("t", b"a", b"b", b"c")
        store = node.store
    assert read_offsets(str(path)) == {T0: 3}
    write_offsets(OsFiles(), str(path), {T0: checkpoint})
    async with running(tmp_path / "data", store) as node:
        led = partition(node)
        assert led.state.high_watermark == 3
        await in_sync(node, ME, OTHER)
        assert await list_offset(node, OffsetSpec.LATEST) == TimestampOffset(-1, 3, 2)
        (answer,) = await settled(node.log.append([Append(T0, memoryview(batch(b"d")))]))
        assert not isinstance(answer, LogError)
        assert answer.committed is not None
        assert (led.state.high_watermark, led.log.end_offset) == (3, 4)
        await in_sync(node, ME)
        await answer.committed
        assert led.state.high_watermark == 4
