"""One suite for whoever keeps the core's contract: the broker's core itself, and the same core over a gRPC channel.

Behind both stands a whole node in this process: hot disk and a memory store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from grpc_api.contract.log import Append, Appended, Fetch, FetchPartition, OffsetQuery, OffsetSpec
from grpc_api.contract.ready import settled
from grpc_api.contract.topics import AlterOp, ConfigAlteration, NewTopic, Resource, ResourceKind
from grpc_api.remote import RemoteCore
from grpc_api.servicers.server import serve_grpc
from storage_tiers.clock import SystemClock, SystemRng
from storage_tiers.errors import (
    CorruptRecord,
    InvalidConfig,
    InvalidRecord,
    InvalidTopic,
    InvalidTransactionState,
    LogError,
    OffsetOutOfRange,
    OutOfOrderSequence,
    TierUnavailable,
    TopicExists,
    UnknownLeaderEpoch,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from storage_tiers.records.builder import NewRecord, build_batch
from storage_tiers.records.decoder import Record
from storage_tiers.types import TimestampOffset, TopicId, TopicPartition
from tests.service.broker.support import TIERED, Running, batch, filled, records, running, until

T0 = TopicPartition("t", 0)


@pytest.fixture(params=["in one process", "over a channel"])
async def node(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path / "data") as started:
        if request.param == "in one process":
            yield started
            return
        server = await serve_grpc(started.core, "127.0.0.1", 0)
        try:
            async with RemoteCore.connect(f"127.0.0.1:{server.port}", clock=SystemClock(), rng=SystemRng()) as core:
                started.core, started.log = core, core.log
                yield started
        finally:
            await server.stop(0)


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


async def test_a_refused_batch_names_its_records_and_where_the_log_begins(node: Running) -> None:
    await node.create("t", configs={"cleanup.policy": "compact,delete"})
    await node.append("t", b"a", b"b")
    assert await node.log.delete_records(T0, 1) == 1
    (refused,) = await settled(node.log.append([Append(T0, memoryview(build_batch([NewRecord(None, b"x")] * 2)))]))
    assert isinstance(refused, InvalidRecord)
    assert [fault.place for fault in refused.faults] == [0, 1]
    assert refused.log_start_offset == 1


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


async def test_many_appends_under_way_keep_their_order(node: Running) -> None:
    await node.create("t")
    under_way = [node.log.append([Append(T0, memoryview(batch(b"%03d" % i)))]) for i in range(200)]
    answers = [(await settled(ready))[0] for ready in under_way]
    assert [answer.base_offset for answer in answers if isinstance(answer, Appended)] == list(range(200))
    assert values(await node.read_all("t")) == [b"%03d" % i for i in range(200)]


async def test_an_append_that_must_be_flushed_is_committed_later(node: Running) -> None:
    await node.create("t", configs={"flush.messages": "1"})
    (answer,) = await settled(node.log.append([Append(T0, memoryview(batch(b"a")))]))
    assert isinstance(answer, Appended)
    if answer.committed is not None:
        await answer.committed
    assert node.node.partitions.get(T0).log.hot.recovery_point == 1
    assert values(await node.read("t", 0)) == [b"a"]


# --- fetching ---------------------------------------------------------------------------------------------------------
async def test_a_waiting_fetch_is_answered_by_the_append(node: Running) -> None:
    await node.create("t")
    waiting = asyncio.ensure_future(node.read("t", 0, wait_ms=20_000))
    await asyncio.sleep(0)
    assert not waiting.done()
    await node.append("t", b"a")
    assert values(await waiting) == [b"a"]
    await until(lambda: not node.node.partitions.get(T0).waiters)


async def test_a_fetch_that_is_given_up_leaves_nothing_behind(node: Running) -> None:
    await node.create("t")
    waiting = node.log.fetch(Fetch([FetchPartition(T0, 0, 100)], 20_000, 1, 100))
    assert isinstance(waiting, asyncio.Future)
    await until(lambda: bool(node.node.partitions.get(T0).waiters))
    waiting.cancel()
    await until(lambda: not node.node.partitions.get(T0).waiters)


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


# --- both tiers -------------------------------------------------------------------------------------------------------
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


async def test_topics_and_partitions_are_described_as_they_are_now(node: Running) -> None:
    await node.create("t", 2)
    (found,) = node.core.topics.describe(["t"])
    assert not isinstance(found, LogError)
    assert (found.name, [part.partition for part in found.partitions]) == ("t", [0, 1])
    assert node.log.topic_name(found.topic_id) == "t"
    (by_id, nobody) = node.core.topics.describe([], [found.topic_id, TopicId(b"x" * 16)])
    assert by_id == found
    assert isinstance(nobody, UnknownTopicId)
    await node.core.topics.create_partitions("t", 5, None)
    (grown,) = node.core.topics.describe(["t"])
    assert not isinstance(grown, LogError)
    assert len(grown.partitions) == 5
    await node.core.topics.delete([], [found.topic_id])
    assert node.core.topics.describe() == []
    assert node.log.topic_name(found.topic_id) is None


async def test_illegal_and_unknown_names_are_told_apart(node: Running) -> None:
    unknown, illegal, empty = node.core.topics.describe(["nothing", "a/b", ""])
    assert isinstance(unknown, UnknownTopicOrPartition)
    assert isinstance(illegal, InvalidTopic)
    assert isinstance(empty, InvalidTopic)


async def test_the_cluster_names_its_brokers(node: Running) -> None:
    cluster = node.core.topics.cluster()
    assert cluster.cluster_id == node.node.cluster_id
    assert [(broker.node_id, broker.host) for broker in cluster.brokers] == [(cluster.controller_id, "127.0.0.1")]


async def test_topics_are_made_with_configs_and_validated_without_being_made(node: Running) -> None:
    (made,) = await node.core.topics.create([NewTopic("t", 3, 1, {"retention.ms": "1000"})], validate_only=True)
    assert not isinstance(made, LogError)
    assert made.partitions == 3
    assert {entry.name: entry.value for entry in made.configs}["retention.ms"] == "1000"
    assert node.core.topics.describe() == []
    (refused,) = await node.core.topics.create([NewTopic("t", 1, 1, {"retention.ms": "soon"})])
    assert isinstance(refused, InvalidConfig)
    await node.core.topics.auto_create(["auto"])
    (auto,) = node.core.topics.describe(["auto"])
    assert not isinstance(auto, LogError)


async def test_subscribers_hear_of_changes_until_they_leave(node: Running) -> None:
    heard = 0

    def listen() -> None:
        nonlocal heard
        heard += 1

    leave = node.core.topics.subscribe(listen)
    await node.create("t")
    assert heard > 0
    leave()
    before = heard
    await node.create("u")
    assert heard == before


async def test_configs_are_described_with_their_sources_and_refused_as_a_whole(node: Running) -> None:
    await node.create("t", configs={"retention.ms": "1000"})
    resource = Resource(ResourceKind.TOPIC, "t")
    (entry,) = await node.core.configs.describe_configs(resource, ["retention.ms"])
    assert (entry.value, entry.source.name, entry.kind.name) == ("1000", "DYNAMIC_TOPIC", "LONG")
    assert entry.synonyms[0].name == "retention.ms"
    changes = [
        ConfigAlteration("retention.ms", AlterOp.SET, "2000"),
        ConfigAlteration("segment.bytes", AlterOp.SET, "none"),
    ]
    with pytest.raises(InvalidConfig):
        await node.core.configs.alter_configs(resource, changes)
    (entry,) = await node.core.configs.describe_configs(resource, ["retention.ms"])
    assert entry.value == "1000"
    await node.core.configs.alter_configs(
        resource, [ConfigAlteration("segment.bytes", AlterOp.SET, "2000000")], replace=True
    )
    retention, segment = await node.core.configs.describe_configs(resource, ["retention.ms", "segment.bytes"])
    assert (retention.source.name, segment.value) == ("DEFAULT", "2000000")
    assert len(await node.core.configs.describe_configs(resource)) > 20
    with pytest.raises(UnknownTopicOrPartition):
        await node.core.configs.describe_configs(Resource(ResourceKind.TOPIC, "nothing"))


# --- the bucket -------------------------------------------------------------------------------------------------------
async def test_manifests_and_ranges_tile_what_is_in_the_bucket(node: Running) -> None:
    await filled(node)
    (empty,) = await node.core.cold.manifests("t")
    assert not isinstance(empty, LogError)
    await node.seal("t")
    (manifest,) = await node.core.cold.manifests("t")
    assert not isinstance(manifest, LogError)
    assert (manifest.log_start, manifest.end, manifest.records) == (0, 40, 40)
    assert manifest.commit > 0
    ranges = await node.core.cold.ranges(T0, 0)
    assert [each.base for each in ranges] == [0, *(each.end for each in ranges[:-1])]
    assert (ranges[-1].end, len(ranges)) == (40, manifest.ranges)
    assert sum(each.length for each in ranges) == manifest.bytes
    assert (await node.core.cold.ranges(T0, ranges[1].base))[0] == ranges[1]
    assert await node.core.cold.ranges(T0, 40) == []
    with pytest.raises(UnknownTopicOrPartition):
        await node.core.cold.manifests("nothing")
