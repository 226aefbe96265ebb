"""The contract, kept by the broker: one node in this process, hot disk and a memory store behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from grpc_api.contract.log import Append, Appended, Fetch, FetchPartition, OffsetQuery, OffsetSpec
from grpc_api.contract.ready import settled
from grpc_api.contract.topics import AlterOp, ConfigAlteration, Resource, ResourceKind
from storage_tiers.errors import (
    CorruptRecord,
    FencedLeaderEpoch,
    InvalidTransactionState,
    LogError,
    OffsetOutOfRange,
    OutOfOrderSequence,
    TierUnavailable,
    TopicExists,
    UnknownLeaderEpoch,
    UnknownTopicOrPartition,
)
from storage_tiers.records.decoder import Record
from storage_tiers.types import TimestampOffset, TopicPartition
from tests.service.broker.support import TIERED, Running, batch, records, running, until

T0 = TopicPartition("t", 0)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path / "data") as started:
        yield started


def values(found: list[Record]) -> list[bytes | None]:
    return [record.value for record in found]


# --- appending --------------------------------------------------------------------------------------------------------
async def test_offsets_follow_one_another_and_records_come_back(node: Running) -> None:
    await node.create("t")
    first = await node.append("t", b"a", b"b")
    second = await node.append("t", b"c")
    assert (first.base_offset, second.base_offset) == (0, 2)
    assert values(await node.read("t", 0)) == [b"a", b"b", b"c"]
    assert values(await node.read("t", 1)) == [b"b", b"c"]


async def test_a_refused_batch_leaves_no_trace_and_does_not_end_its_neighbours(node: Running) -> None:
    await node.create("t", 2)
    broken = bytearray(batch(b"x"))
    broken[-1] ^= 1
    appends = [
        Append(T0, memoryview(broken)),
        Append(TopicPartition("t", 1), memoryview(batch(b"y"))),
        Append(TopicPartition("none", 0), memoryview(batch(b"z"))),
    ]
    bad, good, unknown = await settled(node.log.append(appends))
    assert isinstance(bad, CorruptRecord)
    assert isinstance(good, Appended)
    assert isinstance(unknown, UnknownTopicOrPartition)
    assert node.node.partitions.get(T0).log.hot.size_bytes == 0


async def test_a_repeated_idempotent_batch_is_answered_with_its_first_offset(node: Running) -> None:
    await node.create("t")
    producer_id, epoch = await node.log.init_producer_id(None)
    fields: Any = {"producer_id": producer_id, "producer_epoch": epoch}
    first = await node.append("t", b"a", b"b", base_sequence=0, **fields)
    again = await node.append("t", b"a", b"b", base_sequence=0, **fields)
    assert again.base_offset == first.base_offset == 0
    assert values(await node.read("t", 0)) == [b"a", b"b"]
    with pytest.raises(OutOfOrderSequence):
        await node.append("t", b"d", base_sequence=5, **fields)


async def test_producer_ids_are_never_given_twice(node: Running, tmp_path: Path) -> None:
    given = [await node.log.init_producer_id(None) for _ in range(5)]
    assert len(set(given)) == 5
    together = await asyncio.gather(*(node.log.init_producer_id(None) for _ in range(20)))
    assert not set(together) & set(given)


async def test_a_transactional_batch_is_refused(node: Running) -> None:
    await node.create("t")
    with pytest.raises(InvalidTransactionState):
        await node.append("t", b"a", producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)


async def test_log_append_time_stamps_the_brokers_clock(node: Running) -> None:
    await node.create("t", configs={"message.timestamp.type": "LogAppendTime"})
    appended = await node.append("t", b"a")
    (record,) = await node.read("t", 0)
    assert record.timestamp == appended.log_append_time_ms > 1_750_000_000_000
    assert record.timestamp_type == 1


async def test_an_append_that_must_be_flushed_is_visible_only_afterwards(node: Running) -> None:
    await node.create("t", configs={"flush.messages": "1"})
    (answer,) = await settled(node.log.append([Append(T0, memoryview(batch(b"a")))]))
    assert isinstance(answer, Appended)
    assert answer.committed is not None
    assert node.node.partitions.get(T0).state.high_watermark == 0
    await answer.committed
    assert node.node.partitions.get(T0).state.high_watermark == 1
    assert node.node.partitions.get(T0).log.hot.recovery_point == 1


# --- fetching ---------------------------------------------------------------------------------------------------------
async def test_a_waiting_fetch_is_answered_by_the_append(node: Running) -> None:
    await node.create("t")
    waiting = asyncio.ensure_future(node.read("t", 0, wait_ms=20_000))
    await asyncio.sleep(0)
    assert not waiting.done()
    await node.append("t", b"a")
    assert values(await waiting) == [b"a"]
    assert not node.node.partitions.get(T0).waiters


async def test_a_fetch_that_is_given_up_leaves_nothing_behind(node: Running) -> None:
    await node.create("t")
    waiting = node.log.fetch(Fetch([FetchPartition(T0, 0, 100)], 20_000, 1, 100))
    assert isinstance(waiting, asyncio.Future)
    assert node.node.partitions.get(T0).waiters
    waiting.cancel()
    await asyncio.sleep(0)
    assert not node.node.partitions.get(T0).waiters


async def test_an_empty_fetch_answers_when_its_time_is_up(node: Running) -> None:
    await node.create("t")
    (answer,) = await node.fetch(FetchPartition(T0, 0, 100), wait_ms=20)
    assert (answer.error, answer.size, answer.high_watermark) == (None, 0, 0)


async def test_max_bytes_is_shared_but_one_batch_always_comes(node: Running) -> None:
    await node.create("t", 2)
    await node.append("t", b"a" * 500)
    await node.append("t", b"b" * 500, partition=1)
    wanted = FetchPartition(T0, 0, 10), FetchPartition(TopicPartition("t", 1), 0, 1000)
    first, second = await node.fetch(*wanted, max_bytes=10)
    assert values(records(first)) == [b"a" * 500]
    assert second.size == 0


async def test_out_of_range_offsets_and_foreign_epochs_are_refused(node: Running) -> None:
    await node.create("t")
    await node.append("t", b"a")
    cases: list[tuple[FetchPartition, type[LogError]]] = [
        (FetchPartition(T0, 2, 100), OffsetOutOfRange),
        (FetchPartition(T0, 0, 100, current_leader_epoch=9), UnknownLeaderEpoch),
        (FetchPartition(TopicPartition("t", 7), 0, 100), UnknownTopicOrPartition),
    ]
    for wanted, kind in cases:
        (answer,) = await node.fetch(wanted, wait_ms=5000)
        assert isinstance(answer.error, kind)


async def test_leader_epochs_rise_at_every_start_and_fence_the_old(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as node:
        await node.create("t")
        await node.append("t", b"a")
        store, before = node.store, node.node.partitions.get(T0).state.leader_epoch
    async with running(tmp_path / "data", store) as node:
        assert node.node.partitions.get(T0).state.leader_epoch == before + 1
        (answer,) = await node.fetch(FetchPartition(T0, 0, 100, current_leader_epoch=before))
        assert isinstance(answer.error, FencedLeaderEpoch)
        assert await node.log.epoch_end_offset(T0, before + 1) == (before + 1, 1)
        await node.append("t", b"b")
        assert await node.log.epoch_end_offset(T0, before) == (before, 1)
        assert [record.value for record in await node.read("t", 0)] == [b"a", b"b"]


# --- both tiers -------------------------------------------------------------------------------------------------------
async def filled(node: Running, count: int = 40, configs: dict[str, str] | None = None) -> None:
    await node.create("t", configs={**TIERED, **(configs or {})})
    for i in range(count):
        await node.append("t", b"%03d" % i * 50)


async def test_a_reader_crosses_the_border_without_gap_or_repeat(node: Running) -> None:
    await filled(node)
    await node.seal("t")
    await node.evicted("t")
    for i in range(5):
        await node.append("t", b"hot%d" % i)
    found = await node.read_all("t")
    assert [record.offset for record in found] == list(range(45))
    assert values(found)[:40] == [b"%03d" % i * 50 for i in range(40)]


async def test_hot_partitions_do_not_wait_for_cold_ones(node: Running) -> None:
    await filled(node)
    await node.seal("t")
    await node.evicted("t")
    await node.create("hot")
    await node.append("hot", b"now")
    cold, hot = FetchPartition(T0, 0, 1 << 20), FetchPartition(TopicPartition("hot", 0), 0, 1 << 20)
    first, second = await node.fetch(cold, hot, wait_ms=20_000)
    assert (first.size, first.error) == (0, None)
    assert values(records(second)) == [b"now"]
    assert (await node.read("t", 0))[0].offset == 0


async def test_list_offsets_over_both_tiers(node: Running) -> None:
    await filled(node)
    await node.seal("t")
    await node.evicted("t")
    await node.append("t", b"tail")

    async def ask(timestamp: int) -> TimestampOffset:
        (answer,) = await node.log.list_offsets([OffsetQuery(T0, timestamp)])
        assert isinstance(answer, TimestampOffset)
        return answer

    assert (await ask(OffsetSpec.EARLIEST)).offset == 0
    assert (await ask(OffsetSpec.LATEST)).offset == 41
    assert (await ask(OffsetSpec.EARLIEST_LOCAL)).offset == 40
    assert (await ask(OffsetSpec.LATEST_TIERED)).offset == 39
    assert (await ask(OffsetSpec.EARLIEST_PENDING_UPLOAD)).offset == 40
    assert await ask(1_700_000_000_000) == TimestampOffset(1_700_000_000_000, 0, 0)
    assert (await ask(OffsetSpec.MAX_TIMESTAMP)).offset == 0
    (none,) = await node.log.list_offsets([OffsetQuery(T0, 1_700_000_000_001)])
    assert none is None


async def test_delete_records_hides_them_in_both_tiers(node: Running) -> None:
    await filled(node)
    await node.seal("t")
    await node.evicted("t")
    assert await node.log.delete_records(T0, 17) == 17
    root = node.node.partitions.get(T0).log.root
    assert root is not None
    assert root.log_start == 17
    with pytest.raises(OffsetOutOfRange):
        await node.read("t", 16)
    assert (await node.read("t", 17))[0].offset == 17
    with pytest.raises(OffsetOutOfRange):
        await node.log.delete_records(T0, 99)
    assert await node.log.delete_records(T0, -1) == 40


async def test_the_store_away_costs_cold_reads_only(node: Running) -> None:
    await filled(node)
    await node.seal("t")
    await node.evicted("t")
    node.store.down = True
    await node.append("t", b"hot")
    assert values(await node.read("t", 40)) == [b"hot"]
    with pytest.raises(TierUnavailable):
        await node.read("t", 0, wait_ms=60_000)
    node.store.down = False
    assert (await node.read("t", 0))[0].offset == 0


async def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as node:
        await filled(node)
        await node.seal("t")
        await node.evicted("t")
        await node.append("t", b"tail")
        store = node.store
    async with running(tmp_path / "data", store) as node:
        found = await node.read_all("t")
        assert [record.offset for record in found] == list(range(41))


async def test_retention_drops_from_both_tiers(tmp_path: Path) -> None:
    async with running(tmp_path / "data", broker={"log.retention.check.interval.ms": "50"}) as node:
        await filled(node, configs={"retention.bytes": "6000"})
        await node.seal("t")
        led = node.node.partitions.get(T0)
        await until(lambda: led.log.log_start_offset > 0)
        await until(lambda: led.log.root is not None and led.log.root.log_start == led.log.log_start_offset)
        first = led.log.log_start_offset
        assert [record.offset for record in await node.read_all("t", start=first)] == list(range(first, 40))


# --- topics -----------------------------------------------------------------------------------------------------------
async def test_a_topic_created_again_is_another_topic(node: Running) -> None:
    await filled(node, 10)
    await node.seal("t")
    (old,) = node.core.topics.describe(["t"])
    assert not isinstance(old, LogError)
    await node.core.topics.delete(["t"])
    (gone,) = node.core.topics.describe(["t"])
    assert isinstance(gone, UnknownTopicOrPartition)
    await node.create("t", configs=TIERED)
    (new,) = node.core.topics.describe(["t"])
    assert not isinstance(new, LogError)
    assert new.topic_id != old.topic_id
    await node.append("t", b"new")
    assert values(await node.read_all("t")) == [b"new"]


async def test_a_topic_exists_once(node: Running) -> None:
    await node.create("t")
    with pytest.raises(TopicExists):
        await node.create("t")


async def test_a_changed_config_acts_on_the_next_append(node: Running) -> None:
    await node.create("t")
    change = ConfigAlteration("message.timestamp.type", AlterOp.SET, "LogAppendTime")
    await node.core.configs.alter_configs(Resource(ResourceKind.TOPIC, "t"), [change])
    assert (await node.append("t", b"a")).log_append_time_ms > 0


async def test_added_partitions_take_records(node: Running) -> None:
    await node.create("t")
    await node.core.topics.create_partitions("t", 3, None)
    assert (await node.append("t", b"a", partition=2)).base_offset == 0
