"""Advice in answers to requests, followed: the caller gets what it asked for, and nothing was lost meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from grpc_api.contract.log import FetchPartition, OffsetQuery, OffsetSpec
from service.metadata import log as metadata_log
from storage_tiers.clock import SystemRng
from storage_tiers.errors import (
    FencedLeaderEpoch,
    InconsistentTopicId,
    InvalidProducerEpoch,
    InvalidRequest,
    LogError,
    OffsetOutOfRange,
    RequestTimedOut,
)
from storage_tiers.files import OsFiles
from storage_tiers.records.checksum import crc32c
from storage_tiers.records.codecs import Codec
from storage_tiers.types import TimestampOffset, TopicPartition
from tests.advice.support import configure
from tests.service.broker.support import Running, batch, filled, running, until
from tests.service.metadata.records import new_topic

T0 = TopicPartition("t", 0)


async def offset(node: Running, spec: OffsetSpec) -> int:
    (answer,) = await node.log.list_offsets([OffsetQuery(T0, spec)])
    assert isinstance(answer, TimestampOffset), answer
    return answer.offset


@pytest.mark.parametrize("tiered", [False, True])
async def test_a_client_out_of_range_asks_for_the_first_or_last_offset(tmp_path: Path, tiered: bool) -> None:
    async with running(tmp_path) as node:
        await filled(node, 20, None if tiered else {"remote.storage.enable": "false"})
        if tiered:
            await node.seal("t")
            await node.evicted("t")
        await node.log.delete_records(T0, 7)
        with pytest.raises(OffsetOutOfRange, match=r"below the log start|read from there|where the log begins"):
            await node.read("t", 3)
        with pytest.raises(OffsetOutOfRange, match=r"ask ListOffsets where the log ends|where the log begins"):
            await node.read("t", 30)
        begins, ends = await offset(node, OffsetSpec.EARLIEST), await offset(node, OffsetSpec.LATEST)
        assert (begins, ends) == (7, 20)
        assert [record.offset for record in await node.read_all("t", start=begins)] == list(range(7, 20))
        assert await node.read("t", ends, wait_ms=0) == []


async def test_records_are_deleted_up_to_the_high_watermark(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await filled(node, 20)
        with pytest.raises(OffsetOutOfRange, match="or use -1 for it"):
            await node.log.delete_records(T0, 50)
        assert len(await node.read_all("t")) == 20
        assert await node.log.delete_records(T0, -1) == 20
        assert (await node.append("t", b"next")).base_offset == 20


async def test_without_a_transactional_id_a_producer_is_idempotent(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await node.create("t")
        producer, epoch = await node.log.init_producer_id()
        once = batch(b"once", producer_id=producer, producer_epoch=epoch, base_sequence=0)
        assert (await node.append_batch("t", once)).base_offset == 0
        assert (await node.append_batch("t", once)).base_offset == 0
        assert [record.value for record in await node.read_all("t")] == [b"once"]


async def test_the_older_of_two_instances_of_a_producer_stops(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await node.create("t")
        producer, _ = await node.log.init_producer_id()
        for epoch, value in ((0, b"older"), (1, b"newer")):
            await node.append_batch("t", batch(value, producer_id=producer, producer_epoch=epoch, base_sequence=0))
        with pytest.raises(InvalidProducerEpoch, match="stop this one"):
            await node.append_batch("t", batch(b"late", producer_id=producer, producer_epoch=0, base_sequence=1))
        again = batch(b"goes on", producer_id=producer, producer_epoch=1, base_sequence=1)
        assert (await node.append_batch("t", again)).base_offset == 2
        assert [record.value for record in await node.read_all("t")] == [b"older", b"newer", b"goes on"]


def too_large() -> bytes:
    return batch(*[b"x" * 900] * 4)


def inflating() -> bytes:
    return batch(b"\0" * (80 << 20), codec=Codec.GZIP)


def two_batches() -> bytes:
    return batch(b"a") + batch(b"b")


def of_another_format() -> bytes:
    old = bytearray(batch(b"a"))
    old[16] = 1
    return bytes(old)


def of_no_codec() -> bytes:
    odd = bytearray(batch(b"a"))
    odd[22] = 7
    odd[17:21] = crc32c(odd[21:]).to_bytes(4, "big")
    return bytes(odd)


@pytest.mark.parametrize(
    ("refused", "said", "advised"),
    [
        (too_large, "send smaller batches", [batch(b"x" * 900), batch(b"x" * 900)]),
        (two_batches, "send one batch per partition", [batch(b"a"), batch(b"b")]),
        (of_another_format, "use a client of Kafka 0.11 or later", [batch(b"a")]),
        (
            of_no_codec,
            "use none, gzip, snappy, lz4 or zstd",
            [batch(b"a", codec=codec) for codec in (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)],
        ),
    ],
)
async def test_a_refused_batch_is_accepted_when_sent_as_advised(
    tmp_path: Path, refused: Callable[[], bytes], said: str, advised: list[bytes]
) -> None:
    async with running(tmp_path) as node:
        await node.create("t", configs={"max.message.bytes": "2000"})
        await node.append("t", b"before")
        with pytest.raises(LogError, match=said):
            await node.append_batch("t", refused())
        for number, sent in enumerate(advised):
            assert (await node.append_batch("t", sent)).base_offset == 1 + number
        assert len(await node.read_all("t")) == 1 + len(advised)


async def test_a_client_with_an_old_leader_epoch_refreshes_metadata(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await filled(node, 5)
        epoch = node.node.broker.partitions.get(T0).state.leader_epoch
    async with running(tmp_path, node.store) as node:
        await until(lambda: node.node.broker.partitions.get(T0).write_error is None)
        (answer,) = await node.fetch(FetchPartition(T0, 0, 1000, epoch))
        assert isinstance(answer.error, FencedLeaderEpoch) and "refresh metadata" in str(answer.error)
        now = next(topic for topic in node.core.topics.describe(["t"]) if not isinstance(topic, LogError))
        (answer,) = await node.fetch(FetchPartition(T0, 0, 1000, now.partitions[0].leader_epoch))
        assert answer.error is None
        answer.release_all()


async def test_a_reader_of_a_recreated_topic_refreshes_metadata(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await filled(node, 5)
        old = node.node.ground.metadata.image.topic_ids["t"]
        await node.core.topics.delete(["t"])
        await node.create("t")
        await node.append("t", b"new")
        (answer,) = await node.fetch(FetchPartition(T0, 0, 1000, topic_id=old))
        assert isinstance(answer.error, InconsistentTopicId) and "refresh metadata" in str(answer.error)
        now = next(topic for topic in node.core.topics.describe(["t"]) if not isinstance(topic, LogError))
        (answer,) = await node.fetch(FetchPartition(T0, 0, 1000, topic_id=now.topic_id))
        assert answer.error is None and answer.slices
        answer.release_all()


async def test_a_change_that_is_too_large_must_be_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_log, "MAX_PROPOSAL_BYTES", 2000)
    changes = [new_topic(f"topic-{number:03}", number + 1) for number in range(40)]
    log = metadata_log.MetadataLog.open(str(tmp_path), OsFiles(), SystemRng())
    with pytest.raises(InvalidRequest, match="split it into smaller requests"):
        await log.propose([record for change in changes for record in change])
    assert not log.image.topics
    for number in range(0, 40, 5):
        await log.propose([record for change in changes[number : number + 5] for record in change])
    assert len(log.image.topics) == 40
    await log.close()


async def test_the_chunk_cache_has_its_configured_size(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await filled(node, 20)
        assert node.tier.cache.limit_bytes <= 1 << 30
    async with running(tmp_path, node.store, {"tidelog.tier.chunk.cache.bytes": str(3 << 30)}) as node:
        assert node.tier.cache.limit_bytes == 3 << 30


async def test_a_node_without_a_store_is_started_with_one(tmp_path: Path) -> None:
    """The node's records then move to the store."""
    async with running(tmp_path, store_url="none") as node:
        await filled(node, 30, {"remote.storage.enable": "false"})
        with pytest.raises(LogError, match="start it with --store"):
            await node.core.cold.repair(T0, apply=False)
        with pytest.raises(LogError, match="start it with --store"):
            await node.core.cold.manifests("t")
    async with running(tmp_path) as node:
        await until(lambda: node.node.broker.partitions.get(T0).write_error is None)
        await configure(node, "t", {"remote.storage.enable": "true", "local.retention.bytes": "1"})
        await node.seal("t")
        await node.evicted("t")
        assert [record.offset for record in await node.read_all("t")] == list(range(30))
        assert (await node.core.cold.repair(T0, apply=False)).refused == ""


async def test_requests_that_need_the_store_succeed_when_retried(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await filled(node, 20)
        node.store.down = True
        with pytest.raises(RequestTimedOut, match="the operation continues; retry"):
            await node.log.seal("t", wait=True, timeout_ms=200)
        node.store.down = False
        await node.seal("t")
        await node.evicted("t")
        assert [record.offset for record in await node.read_all("t")] == list(range(20))
