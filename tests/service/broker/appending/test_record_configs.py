"""Topic configs that act on what producers send: codec, timestamps, size, and the error reported for each refused record."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from grpc_api.contract.topics import AlterOp, ConfigAlteration, Resource, ResourceKind
from storage_tiers.errors import InvalidRecord, InvalidTimestamp, RecordTooLarge
from storage_tiers.records.batch import BatchHeader, check_crc, read_header
from storage_tiers.records.builder import NewRecord, build_batch
from storage_tiers.records.codecs import Codec
from storage_tiers.types import TopicPartition
from tests.service.broker.support import Running, running

CODECS = {"uncompressed": Codec.NONE, "gzip": Codec.GZIP, "snappy": Codec.SNAPPY, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}
#: The first level compresses better than the second.
LEVELS = {"gzip": ("9", "1"), "lz4": ("17", "9"), "zstd": ("22", "-100")}
TEXT = b"".join(b"%d tides of %d, " % (i * 7919 % 1009, i % 31) for i in range(4000))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path / "data") as started:
        yield started


def now_ms() -> int:
    return int(time.time() * 1000)


def sent(*records: NewRecord, codec: Codec = Codec.NONE, **fields: object) -> bytes:
    return build_batch(records, codec=codec, **fields)  # type: ignore[arg-type]


def stored(node: Running, topic: str) -> list[tuple[BatchHeader, bytes]]:
    """The batches of the topic's first segment, as stored on disk."""
    (path,) = (Path(node.node.ground.data.path) / f"{topic}-0").glob("*.log")
    data, found = path.read_bytes(), []
    while data:
        header = read_header(data)
        check_crc(data[: header.size], header)
        found.append((header, data[: header.size]))
        data = data[header.size :]
    return found


async def alter(node: Running, topic: str, **values: str) -> None:
    changes = [ConfigAlteration(name.replace("_", "."), AlterOp.SET, value) for name, value in values.items()]
    await node.core.configs.alter_configs(Resource(ResourceKind.TOPIC, topic), changes)


# --- compression.type -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", CODECS)
async def test_every_codec_is_stored_by_the_topics_config(node: Running, wanted: str) -> None:
    await node.create("t", configs={"compression.type": wanted})
    records = [
        NewRecord(b"a", TEXT, (("name", b"x"), ("none", None)), now_ms()),
        NewRecord(None, None, (), now_ms() - 5),
        NewRecord(b"", b"", (), now_ms()),
    ]
    for codec in CODECS.values():
        await node.append_batch("t", sent(*records, codec=codec))
    assert [header.codec for header, _ in stored(node, "t")] == [CODECS[wanted]] * len(CODECS)
    read = await node.read_all("t")
    assert [record.offset for record in read] == list(range(3 * len(CODECS)))
    assert [(r.key, r.value, r.headers, r.timestamp) for r in read] == [
        (r.key, r.value, tuple(r.headers), r.timestamp) for r in records * len(CODECS)
    ]


async def test_batches_stay_as_sent_if_they_have_the_codec_or_the_producer_chooses_it(node: Running) -> None:
    await node.create("t")
    batches = [sent(NewRecord(b"k", TEXT, (), now_ms()), codec=codec) for codec in CODECS.values()]
    for batch in batches:
        await node.append_batch("t", batch)
    assert [batch[21:] for _, batch in stored(node, "t")] == [batch[21:] for batch in batches]
    await alter(node, "t", compression_type="zstd", compression_zstd_level="1")
    await node.append_batch("t", batches[-1])
    assert stored(node, "t")[-1][1][21:] == batches[-1][21:]


@pytest.mark.parametrize("codec", LEVELS)
async def test_levels_are_those_of_the_topic_and_follow_a_change(node: Running, codec: str) -> None:
    await node.create("t", configs={"compression.type": codec, f"compression.{codec}.level": LEVELS[codec][0]})
    batch = sent(NewRecord(b"k", TEXT, (), now_ms()))
    await node.append_batch("t", batch)
    await alter(node, "t", **{f"compression_{codec}_level": LEVELS[codec][1]})
    await node.append_batch("t", batch)
    (small, _), (large, _) = stored(node, "t")
    assert small.size < large.size < len(batch)
    assert {record.value for record in await node.read_all("t")} == {TEXT}


async def test_an_idempotent_producers_batch_keeps_its_numbers_and_is_known_again(node: Running) -> None:
    await node.create("t", configs={"compression.type": "lz4"})
    numbers: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    batch = sent(NewRecord(b"k", TEXT, (), now_ms()), **numbers)
    first, again = await node.append_batch("t", batch), await node.append_batch("t", batch)
    assert first.base_offset == again.base_offset == 0
    ((header, _),) = stored(node, "t")
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.codec) == (7, 0, 0, Codec.LZ4)


async def test_the_size_that_counts_is_also_the_stored_one(node: Running) -> None:
    await node.create("t", configs={"compression.type": "uncompressed", "max.message.bytes": "5000"})
    batch = sent(NewRecord(b"k", b"v" * 9000, (), now_ms()), codec=Codec.GZIP)
    assert len(batch) < 5000
    with pytest.raises(RecordTooLarge, match=r"9\d\d\d bytes under compression.type, max.message.bytes is 5000"):
        await node.append_batch("t", batch)
    with pytest.raises(RecordTooLarge):
        await node.append_batch("t", sent(NewRecord(b"k", b"v" * 9000, (), now_ms())))
    assert stored(node, "t") == []
    await alter(node, "t", max_message_bytes="20000")
    await node.append_batch("t", batch)


async def test_topics_inherit_unset_configs_from_the_broker(node: Running) -> None:
    await node.create("own", configs={"compression.type": "snappy", "message.timestamp.type": "CreateTime"})
    await node.create("t")
    values = {
        "compression.type": "gzip",
        "log.message.timestamp.type": "LogAppendTime",
        "message.max.bytes": "70000",
    }
    changes = [ConfigAlteration(name, AlterOp.SET, value) for name, value in values.items()]
    await node.core.configs.alter_configs(Resource(ResourceKind.BROKER, ""), changes)
    batch = sent(NewRecord(b"k", TEXT, (), 5))
    for topic, codec, stamped in (("t", Codec.GZIP, True), ("own", Codec.SNAPPY, False)):
        answer = await node.append_batch(topic, batch)
        ((header, _),) = stored(node, topic)
        assert (header.codec, header.log_append_time, answer.log_append_time_ms > 0) == (codec, stamped, stamped)
        with pytest.raises(RecordTooLarge):
            await node.append_batch(topic, sent(NewRecord(b"k", TEXT * 2, (), 5)))
    bounds = [ConfigAlteration("log.message.timestamp.before.max.ms", AlterOp.SET, "1000")]
    await node.core.configs.alter_configs(Resource(ResourceKind.BROKER, "1"), bounds)
    with pytest.raises(InvalidTimestamp):
        await node.append_batch("own", batch)
    await node.append_batch("t", batch)


# --- timestamps -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", ["producer", "uncompressed", "zstd"])
async def test_log_append_time_replaces_every_timestamp_whatever_the_codec(node: Running, wanted: str) -> None:
    await node.create("t", configs={"message.timestamp.type": "LogAppendTime", "compression.type": wanted})
    before = now_ms()
    answer = await node.append_batch(
        "t", sent(NewRecord(b"a", b"v", (), 5), NewRecord(b"b", TEXT, (), 1 << 62), codec=Codec.GZIP)
    )
    assert before <= answer.log_append_time_ms <= now_ms()
    assert [record.timestamp for record in await node.read_all("t")] == [answer.log_append_time_ms] * 2
    await alter(node, "t", message_timestamp_type="CreateTime")
    answer = await node.append_batch("t", sent(NewRecord(b"a", b"v", (), before)))
    assert answer.log_append_time_ms == -1
    assert (await node.read_all("t"))[-1].timestamp == before


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
async def test_each_record_out_of_bounds_is_named_and_the_batch_leaves_no_trace(node: Running, codec: Codec) -> None:
    await node.create(
        "t", configs={"message.timestamp.before.max.ms": "60000", "message.timestamp.after.max.ms": "90000"}
    )
    now = now_ms()
    await node.append_batch("t", sent(NewRecord(b"a", b"v", (), now), NewRecord(b"a", b"v", (), -1)))
    await node.core.log.delete_records(TopicPartition("t", 0), 1)
    times = (now, now - 70_000, now + 80_000, now + 99_000, -1)
    with pytest.raises(InvalidTimestamp) as refused:
        await node.append_batch("t", sent(*(NewRecord(b"k", b"v", (), at) for at in times), codec=codec))
    assert str(refused.value) == "One or more records have been rejected due to invalid timestamp"
    assert [fault.batch_index for fault in refused.value.faults] == [1, 3]
    assert refused.value.faults[0].message.startswith(
        f"Timestamp {now - 70_000} of message with offset 1 is out of range. The timestamp should be within ["
    )
    assert refused.value.log_start_offset == 1
    assert len(await node.read_all("t", start=1)) == 1
    await alter(node, "t", message_timestamp_after_max_ms="999999999", message_timestamp_before_max_ms="999999999")
    await node.append_batch("t", sent(*(NewRecord(b"k", b"v", (), at) for at in times), codec=codec))


async def test_records_without_a_key_are_named_on_a_compacted_topic(node: Running) -> None:
    await node.create("t", configs={"cleanup.policy": "compact"})
    keys = (None, b"k", None, None, None)
    with pytest.raises(InvalidRecord) as refused:
        await node.append_batch("t", sent(*(NewRecord(key, b"v", (), now_ms()) for key in keys)))
    why = "Compacted topic cannot accept message without key in topic partition t-0"
    assert [(fault.batch_index, fault.message) for fault in refused.value.faults] == [(i, why) for i in (0, 2, 3, 4)]
    assert str(refused.value) == (
        "One or more records have been rejected due to 4 record errors in total, "
        "and only showing the first three errors at most: "
        f"[{', '.join(f'RecordError(batchIndex={i}, message={why!r})' for i in (0, 2, 3))}]"
    )
    with pytest.raises(InvalidTimestamp) as both:
        late = now_ms() + 10**8
        await node.append_batch("t", sent(NewRecord(None, b"v", (), late), NewRecord(b"k", b"v", (), late)))
    assert [fault.batch_index for fault in both.value.faults] == [0, 1]
    assert both.value.faults[0].message == why
    await alter(node, "t", cleanup_policy="delete")
    await node.append_batch("t", sent(NewRecord(None, b"v", (), now_ms())))


async def test_a_bounded_number_of_faulty_records_is_looked_at(node: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage_tiers.records.record_errors.MAX_EXAMINED", 10)
    await node.create("t", configs={"message.timestamp.before.max.ms": "1"})
    early = [NewRecord(b"k", b"v", (), 5)] * 20
    with pytest.raises(InvalidTimestamp) as refused:
        await node.append_batch("t", sent(*early))
    assert [fault.batch_index for fault in refused.value.faults] == list(range(10))
    good = [NewRecord(b"k", b"v", (), -1)] * 10
    with pytest.raises(InvalidTimestamp, match=r"timestamp .* is out of range") as unnamed:
        await node.append_batch("t", sent(*good, *early))
    assert unnamed.value.faults == ()
