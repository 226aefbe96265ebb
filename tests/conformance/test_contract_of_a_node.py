"""The part of the core's contract that needs a whole node, for the broker's core and for the same core over a gRPC channel:
a hot disk and a memory store in this process."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import Any

import pytest

from grpc_api.contract.log import Append, Appended, Fetch, FetchPartition, OffsetQuery, OffsetSpec
from grpc_api.contract.ready import settled
from grpc_api.contract.topics import AlterOp, ConfigAlteration, Resource, ResourceKind
from storage_tiers.clock import Clock, Rng
from storage_tiers.cold.process import context
from storage_tiers.cold.process.patient_reads import PatientReads
from storage_tiers.cold.process.settings import TierSettings
from storage_tiers.errors import (
    InvalidConfig,
    InvalidRecord,
    InvalidTransactionState,
    LogError,
    OffsetOutOfRange,
    OutOfOrderSequence,
    TierUnavailable,
    UnknownTopicOrPartition,
)
from storage_tiers.records.builder import NewRecord, build_batch
from storage_tiers.records.decoder import Record
from storage_tiers.types import TimestampOffset, TopicPartition
from tests.service.broker.support import TIERED, Running, batch, filled, records, until

T0 = TopicPartition("t", 0)
#: Seconds after which `impatient_reads` gives up a read of a store that does not answer.
PATIENCE_S = 2.0


def values(found: list[Record]) -> list[bytes | None]:
    return [record.value for record in found]


# --- appending --------------------------------------------------------------------------------------------------------
async def test_a_refused_batch_names_its_records_and_where_the_log_begins(node: Running) -> None:
    await node.create("t", configs={"cleanup.policy": "compact,delete"})
    await node.append("t", b"a", b"b")
    assert await node.log.delete_records(T0, 1) == 1
    (refused,) = await settled(node.log.append([Append(T0, memoryview(build_batch([NewRecord(None, b"x")] * 2)))]))
    assert isinstance(refused, InvalidRecord)
    assert [fault.batch_index for fault in refused.faults] == [0, 1]
    assert refused.log_start_offset == 1


async def test_a_repeated_idempotent_batch_is_answered_with_its_first_offset(node: Running) -> None:
    await node.create("t")
    producer_id, epoch = await node.log.init_producer_id()
    fields: Any = {"producer_id": producer_id, "producer_epoch": epoch}
    first = await node.append("t", b"a", b"b", base_sequence=0, **fields)
    again = await node.append("t", b"a", b"b", base_sequence=0, **fields)
    assert again.base_offset == first.base_offset == 0
    assert values(await node.read("t", 0)) == [b"a", b"b"]
    with pytest.raises(OutOfOrderSequence):
        await node.append("t", b"d", base_sequence=5, **fields)


async def test_a_transactional_batch_is_refused(node: Running) -> None:
    await node.create("t")
    with pytest.raises(InvalidTransactionState):
        await node.append("t", b"a", producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)


async def test_log_append_time_is_the_brokers_clock(node: Running) -> None:
    await node.create("t", configs={"message.timestamp.type": "LogAppendTime"})
    appended = await node.append("t", b"a")
    (record,) = await node.read("t", 0)
    assert record.timestamp == appended.log_append_time_ms > 1_750_000_000_000
    assert record.timestamp_type == 1


async def test_an_append_that_must_be_flushed_is_committed_later(node: Running) -> None:
    await node.create("t", configs={"flush.messages": "1"})
    (answer,) = await settled(node.log.append([Append(T0, memoryview(batch(b"a")))]))
    assert isinstance(answer, Appended)
    if answer.committed is not None:
        await answer.committed
    assert node.node.broker.partitions.get(T0).log.hot.recovery_point == 1
    assert values(await node.read("t", 0)) == [b"a"]


# --- fetching ---------------------------------------------------------------------------------------------------------
async def test_a_fetch_that_was_answered_leaves_nothing_behind(node: Running) -> None:
    await node.create("t")
    waiting = asyncio.ensure_future(node.read("t", 0, wait_ms=20_000))
    await until(lambda: bool(node.node.broker.partitions.get(T0).waiters))
    await node.append("t", b"a")
    assert values(await waiting) == [b"a"]
    await until(lambda: not node.node.broker.partitions.get(T0).waiters)


async def test_a_cancelled_fetch_leaves_nothing_behind(node: Running) -> None:
    await node.create("t")
    waiting = node.log.fetch(Fetch([FetchPartition(T0, 0, 100)], 600_000, 1, 100))
    assert isinstance(waiting, asyncio.Future)
    await until(lambda: bool(node.node.broker.partitions.get(T0).waiters))
    waiting.cancel()
    await until(lambda: not node.node.broker.partitions.get(T0).waiters)


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


async def test_offsets_are_listed_over_both_tiers(node: Running) -> None:
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


async def test_deleted_records_are_hidden_in_both_tiers(node: Running) -> None:
    await filled(node)
    await node.seal("t")
    await node.evicted("t")
    assert await node.log.delete_records(T0, 17) == 17
    tier = node.node.broker.partitions.get(T0).log.tier
    assert tier is not None
    assert tier.log_start == 17
    with pytest.raises(OffsetOutOfRange):
        await node.read("t", 16)
    assert (await node.read("t", 17))[0].offset == 17
    with pytest.raises(OffsetOutOfRange):
        await node.log.delete_records(T0, 99)
    assert await node.log.delete_records(T0, -1) == 40


@pytest.fixture
def impatient_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that are opened later give up a read of the store after PATIENCE_S, not after 20 s."""

    def made(settings: TierSettings, clock: Clock, rng: Rng) -> PatientReads:
        return PatientReads(replace(settings, read_deadline_s=PATIENCE_S), clock, rng)

    monkeypatch.setattr(context, "PatientReads", made)


async def test_an_unreachable_store_fails_cold_reads_only(impatient_reads: None, node: Running) -> None:
    await filled(node)
    await node.seal("t")
    await node.evicted("t")
    node.store.down = True
    await node.append("t", b"hot")
    assert values(await node.read("t", 40)) == [b"hot"]
    with pytest.raises(TierUnavailable):
        await node.read("t", 0, wait_ms=60_000)
    node.store.down = False
    while True:
        with contextlib.suppress(TierUnavailable):  # a busy machine takes longer than PATIENCE_S
            assert (await node.read("t", 0))[0].offset == 0
            break


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


async def test_a_changed_config_acts_on_the_next_append(node: Running) -> None:
    await node.create("t")
    change = ConfigAlteration("message.timestamp.type", AlterOp.SET, "LogAppendTime")
    await node.core.configs.alter_configs(Resource(ResourceKind.TOPIC, "t"), [change])
    assert (await node.append("t", b"a")).log_append_time_ms > 0


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
async def test_manifests_and_segments_tile_the_offloaded_offsets(node: Running) -> None:
    await filled(node)
    (empty,) = await node.core.cold.manifests("t")
    assert not isinstance(empty, LogError)
    await node.seal("t")
    (manifest,) = await node.core.cold.manifests("t")
    assert not isinstance(manifest, LogError)
    assert (manifest.log_start, manifest.end, manifest.records) == (0, 40, 40)
    assert manifest.commit > 0
    segments = await node.core.cold.segments(T0, 0)
    assert [each.base for each in segments] == [0, *(each.end for each in segments[:-1])]
    assert (segments[-1].end, len(segments)) == (40, manifest.segments)
    assert sum(each.length for each in segments) == manifest.bytes
    assert (await node.core.cold.segments(T0, segments[1].base))[0] == segments[1]
    assert await node.core.cold.segments(T0, 40) == []
    with pytest.raises(UnknownTopicOrPartition):
        await node.core.cold.manifests("nothing")


async def test_a_manifest_that_the_bucket_lost_is_repaired(node: Running) -> None:
    await filled(node)
    await node.seal("t")
    (manifest,) = await node.core.cold.manifests("t")
    assert not isinstance(manifest, LogError)
    nothing = await node.core.cold.repair(T0, apply=True)
    assert (nothing.summary, nothing.refused, nothing.commit) == ("", "", 0)
    await node.store.delete([manifest.key])
    dry = await node.core.cold.repair(T0, apply=False)
    assert (dry.checked, dry.refused, dry.commit) == (2 * manifest.segments, "", 0)
    assert "up to offset 40" in dry.summary
    done = await node.core.cold.repair(T0, apply=True)
    assert done == dry._replace(commit=manifest.commit + 1)
    (again,) = await node.core.cold.manifests("t")
    assert again == manifest._replace(commit=done.commit, committed_at_ms=again.committed_at_ms)  # type: ignore[union-attr]
    with pytest.raises(UnknownTopicOrPartition):
        await node.core.cold.repair(TopicPartition("nothing", 0), apply=False)
