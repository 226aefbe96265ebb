"""Records that are sent are read back, through a node in this process, with the SDK's producer and reader."""

from __future__ import annotations

import asyncio
import zlib
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from grpc_api.partitioning.partitioner import partition_of_key
from grpc_api.sdk.client import Client
from grpc_api.sdk.values import Compression, Message, OutOfRange, ProducerOptions, ReaderOptions
from storage_tiers.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidTimestamp,
    OffsetOutOfRange,
    RecordTooLarge,
    UnknownTopicOrPartition,
)
from storage_tiers.records.batch import headers
from tests.grpc_api.support import Served
from tests.service.broker.support import TIERED, until

UNTIL_END = ReaderOptions(until_end=True)


async def read_all(client: Client, topic: str, **fields: object) -> list[Message]:
    options = fields.pop("options", UNTIL_END)
    return [message async for message in client.reader(topic, options=options, **fields)]  # type: ignore[arg-type]


async def test_every_field_of_a_record_comes_back(client: Client) -> None:
    await client.create_topic("t")
    async with client.producer() as producer:
        await producer.send("t", b"value", key=b"key", headers=[("a", b"1"), ("b", None)], timestamp=1_700_000_000_123)
        await producer.send("t", None, key=b"", timestamp=1_700_000_000_124)
        sent = await (await producer.send("t", b"", timestamp=1_700_000_000_125))
    assert (sent.topic, sent.partition, sent.offset) == ("t", 0, 2)
    first, second, third = await read_all(client, "t")
    assert first == Message("t", 0, 0, 1_700_000_000_123, b"key", b"value", (("a", b"1"), ("b", None)))
    assert (second.key, second.value, third.key, third.value) == (b"", None, None, b"")
    assert first.time == datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_codecs_are_used_and_read(node: Served, client: Client, compression: Compression) -> None:
    await client.create_topic("t")
    async with client.producer(ProducerOptions(compression=compression)) as producer:
        for number in range(500):
            await producer.send("t", b"%d " % number * 20)
    assert [message.value for message in await read_all(client, "t")] == [b"%d " % n * 20 for n in range(500)]
    stored = b"".join(path.read_bytes() for path in Path(node.hot("t").directory).glob("*.log"))
    assert {header.codec.name.lower() for _, header in headers(stored)} == {compression}


async def test_keys_are_partitioned_as_in_java_and_keep_their_order(client: Client) -> None:
    await client.create_topic("t", partitions=7)
    async with client.producer() as producer:
        for number in range(700):
            await producer.send("t", b"%d" % number, key=b"key %d" % (number % 20))
    found = await read_all(client, "t")
    assert len(found) == 700
    for key in {message.key for message in found}:
        assert key is not None
        of_key = [message for message in found if message.key == key]
        assert {message.partition for message in of_key} == {partition_of_key(key, 7)}
        numbers = [int(message.value or b"") for message in of_key]
        assert numbers == sorted(numbers)


async def test_records_without_key_fill_one_batch_then_another_partition(client: Client) -> None:
    await client.create_topic("t", partitions=3)
    async with client.producer(ProducerOptions(batch_bytes=10_000, linger_s=5.0)) as producer:
        sent = [await producer.send("t", b"x" * 900) for _ in range(100)]
        await producer.flush()
    partitions = [future.result().partition for future in sent]
    assert set(partitions) == {0, 1, 2}
    changes = sum(1 for before, after in pairwise(partitions) if before != after)
    assert 5 <= changes <= 15


async def test_a_reader_waits_for_new_records(client: Client) -> None:
    await client.create_topic("t")
    reader = client.reader("t", start="latest")
    waiting = asyncio.ensure_future(anext(reader))
    await until(lambda: bool(reader.position))
    async with client.producer() as producer:
        await producer.send("t", b"now")
    message = await asyncio.wait_for(waiting, 60)
    assert message.value == b"now"
    await reader.close()


async def test_a_reader_begins_at_a_time_and_seeks(client: Client) -> None:
    await client.create_topic("t", configs={"message.timestamp.type": "CreateTime"})
    begin = datetime(2024, 1, 1, tzinfo=UTC)
    async with client.producer(ProducerOptions(batch_bytes=500)) as producer:
        for hour in range(100):
            await producer.send("t", b"%d" % hour, timestamp=int((begin + timedelta(hours=hour)).timestamp() * 1000))
    reader = client.reader("t", start=begin + timedelta(hours=42, minutes=-1), options=UNTIL_END)
    assert [(await anext(reader)).value for _ in range(2)] == [b"42", b"43"]
    assert reader.position == {0: 44}
    await reader.seek({0: 7})
    assert (await anext(reader)).offset == 7
    await reader.seek(begin + timedelta(hours=98))
    assert [message.value async for message in reader] == [b"98", b"99"]
    await reader.seek("earliest", partition=0)
    assert len(await reader.take(1000)) > 0
    assert await client.offsets("t", begin + timedelta(days=365)) == {0: None}
    assert (await client.offsets("t", "earliest"), await client.offsets("t", "latest")) == ({0: 0}, {0: 100})


async def test_both_tiers_are_one_topic(node: Served, client: Client) -> None:
    await client.create_topic("t", configs=TIERED)
    async with client.producer(ProducerOptions(batch_bytes=500)) as producer:
        for number in range(300):
            await producer.send("t", b"%d" % number * 20)
    await client.seal("t")
    async with client.producer() as producer:
        await producer.send("t", b"hot")
    hot = node.hot("t")
    await until(lambda: hot.local_start_offset == 300)
    found = await read_all(client, "t")
    assert [message.offset for message in found] == list(range(301))
    assert found[300].value == b"hot"
    (manifest,) = await client.cold_manifests("t")
    segments = [each async for each in client.cold_segments("t", 0)]
    assert (segments[0].base, segments[-1].end) == (0, 300)
    assert len(segments) == manifest.segments  # type: ignore[union-attr]


async def test_partitions_added_later_are_read_too(client: Client) -> None:
    await client.create_topic("t")
    reader = client.reader("t")
    waiting = asyncio.ensure_future(anext(reader))
    await until(lambda: bool(reader.position))
    await client.add_partitions("t", 2)
    async with client.producer() as producer:
        await producer.send("t", b"late", partition=1)
    message = await asyncio.wait_for(waiting, 60)
    assert (message.partition, message.value) == (1, b"late")
    await reader.close()


# --- what goes wrong --------------------------------------------------------------------------------------------------
async def test_wrong_topics_partitions_and_times_are_refused_with_reasons(client: Client) -> None:
    await client.create_topic("t")
    async with client.producer() as producer:
        with pytest.raises(UnknownTopicOrPartition, match="nothing"):
            await producer.send("nothing", b"x")
        with pytest.raises(InvalidPartitions, match="0 to 0"):
            await producer.send("t", b"x", partition=3)
    with pytest.raises(UnknownTopicOrPartition):
        await anext(client.reader("nothing"))
    with pytest.raises(InvalidPartitions):
        await anext(client.reader("t", partitions=[4]))
    with pytest.raises(InvalidPartitions, match="no offset"):
        await anext(client.reader("t", start={}))
    with pytest.raises(InvalidConfig, match="time zone"):
        await anext(client.reader("t", start=datetime(2024, 1, 1)))


async def test_a_position_out_of_range_fails_or_moves_as_configured(client: Client) -> None:
    await client.create_topic("t")
    async with client.producer() as producer:
        for number in range(10):
            await producer.send("t", b"%d" % number)
    assert await client.delete_records("t", 0, 5) == 5
    with pytest.raises(OffsetOutOfRange):
        await anext(client.reader("t", start={0: 1}))
    earliest = client.reader("t", start={0: 1}, options=ReaderOptions(out_of_range=OutOfRange.EARLIEST))
    assert (await anext(earliest)).offset == 5
    await earliest.close()


async def test_a_record_beyond_the_topics_bound_fails_alone(client: Client) -> None:
    await client.create_topic("t", configs={"max.message.bytes": "2000"})
    async with client.producer(ProducerOptions(batch_bytes=50_000, linger_s=1.0)) as producer:
        sent = [await producer.send("t", b"x" * size) for size in (800, 800, 5000, 800, 800, 800)]
        await producer.flush()
    with pytest.raises(RecordTooLarge, match=r"max\.message\.bytes"):
        sent[2].result()
    assert [future.result().offset for place, future in enumerate(sent) if place != 2] == [0, 1, 2, 3, 4]
    assert [len(message.value or b"") for message in await read_all(client, "t")] == [800] * 5


async def test_a_batch_that_is_refused_leaves_no_hole_in_the_sequence(client: Client) -> None:
    await client.create_topic("t", configs={"message.timestamp.before.max.ms": "1000"})
    async with client.producer(ProducerOptions(linger_s=0.0)) as producer:
        for _ in range(3):
            old = await producer.send("t", b"old", timestamp=1)
            with pytest.raises(InvalidTimestamp):
                await old
            await (await producer.send("t", b"new"))
    assert [message.value for message in await read_all(client, "t")] == [b"new"] * 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"compression": "brotli"},
        {"batch_bytes": 0},
        {"batch_bytes": 2, "buffer_bytes": 1},
        {"linger_s": -1},
        {"delivery_timeout_s": 0.001},
    ],
)
def test_impossible_options_are_refused_when_given(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidConfig):
        ProducerOptions(**wrong)  # type: ignore[arg-type]


async def test_full_batches_are_sent_while_the_program_keeps_producing(client: Client) -> None:
    """A program that awaits only `send` leaves the loop no other turn; the buffer never fills here."""
    await client.create_topic("t")
    work = bytes(1 << 20)
    options = ProducerOptions(linger_s=1.0, batch_bytes=10_000, buffer_bytes=1 << 30)
    async with client.producer(options) as producer:
        first = await producer.send("t", bytes(1000))
        for number in range(600_000):
            if first.done():
                break
            await producer.send("t", bytes(1000))
            if number % 10 == 0:  # once per batch: this work gives a slow disk time to write
                zlib.crc32(work)
        assert first.done()
        assert first.result().offset == 0


async def test_a_topic_named_by_a_subclass_of_str_is_that_topic(client: Client) -> None:
    class Name(str):
        __slots__ = ()

    await client.create_topic("t")
    async with client.producer() as producer:
        assert await (await producer.send(Name("t"), b"x")) == ("t", 0, 0)
