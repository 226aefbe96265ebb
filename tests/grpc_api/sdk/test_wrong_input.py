"""Mistakes of programs: each fails its own call with a precise error, and affects no other record."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from grpc_api.sdk.client import Client
from grpc_api.sdk.values import ConsumerOptions, Message, OutOfRange, ProducerOptions, ReaderOptions, start_ms
from storage_tiers.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidRecord,
    InvalidRequest,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
)

UNTIL_END = ReaderOptions(until_end=True)

NO_RECORDS: list[tuple[dict[str, Any], str]] = [
    ({"value": "text"}, "value is of the type str"),
    ({"value": 5}, "value is of the type int"),
    ({"key": "text"}, "key is of the type str"),
    ({"headers": {"shop": b"12"}}, "pairs"),
    ({"headers": [("shop", "12")]}, "value of a header is of the type str"),
    ({"headers": [(b"shop", b"12")]}, "name of a header is of the type bytes"),
    ({"headers": [("\ud800", b"12")]}, "cannot be encoded"),
    ({"timestamp": -1}, "from 0"),
    ({"timestamp": 1 << 63}, "from 0"),
    ({"timestamp": 1.5}, "not 1.5"),
    ({"timestamp": datetime(2024, 1, 1, tzinfo=UTC)}, "ms since 1970"),
]


async def read(client: Client, **fields: Any) -> list[Message]:
    options = fields.pop("options", UNTIL_END)
    return [message async for message in client.reader("t", options=options, **fields)]


@pytest.mark.parametrize(("wrong", "reason"), NO_RECORDS, ids=[reason for _, reason in NO_RECORDS])
async def test_invalid_records_are_refused_and_their_neighbours_arrive(
    client: Client, wrong: dict[str, Any], reason: str
) -> None:
    await client.create_topic("t")
    async with client.producer(ProducerOptions(linger_s=1.0)) as producer:
        before = await producer.send("t", b"before")
        with pytest.raises(InvalidRecord, match=reason):
            await producer.send("t", **{"value": b"wrong", **wrong})
        after = await producer.send("t", b"after")
        await producer.flush()
    assert (before.result().offset, after.result().offset) == (0, 1)
    assert [message.value for message in await read(client)] == [b"before", b"after"]


async def test_later_changes_to_a_programs_buffer_are_not_sent(client: Client) -> None:
    await client.create_topic("t")
    buffer = bytearray(b"sent")
    async with client.producer(ProducerOptions(linger_s=1.0)) as producer:
        await producer.send("t", buffer, key=memoryview(b"key"))  # type: ignore[arg-type]
        buffer[:] = b"late"
    assert [(message.key, message.value) for message in await read(client)] == [(b"key", b"sent")]


async def test_a_missing_topic_is_created_as_the_error_advises(client: Client) -> None:
    async with client.producer() as producer:
        with pytest.raises(UnknownTopicOrPartition, match="create it with `create_topic`"):
            await producer.send("t", b"x")
        await client.create_topic("t")
        assert (await (await producer.send("t", b"x"))).offset == 0


async def test_wrong_topics_partitions_and_positions_are_refused(client: Client) -> None:
    await client.create_topic("t")
    async with client.producer() as producer:
        with pytest.raises(InvalidRequest, match="type bytes"):
            await producer.send(b"t", b"x")  # type: ignore[arg-type]
        with pytest.raises(InvalidPartitions, match="not '0'"):
            await producer.send("t", b"x", partition="0")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="latest"):
        await client.offsets("t", "newest")
    with pytest.raises(InvalidConfig, match="'5'"):
        await client.alter_configs("t", {"retention.ms": 5})  # type: ignore[dict-item]
    with pytest.raises(InvalidConfig, match="text"):
        await client.create_topic("u", configs={"retention.ms": 5})  # type: ignore[dict-item]
    with pytest.raises(InvalidRequest, match="a number"):
        await read(client, start={0: "1"})
    with pytest.raises(InvalidRequest, match="at least one"):
        await client.reader("t").take(0)


@pytest.mark.parametrize(
    "address", ["", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:65536", "http://127.0.0.1:9093", ":9093"]
)
async def test_an_invalid_address_is_refused_at_once(address: str) -> None:
    with pytest.raises(InvalidRequest, match="HOST:PORT"):
        async with Client.connect(address):
            raise AssertionError("there is no such node")


async def test_a_partition_named_twice_is_read_once(client: Client) -> None:
    await client.create_topic("t")
    async with client.producer() as producer:
        await producer.send("t", b"x")
    assert len(await read(client, partitions=[0, 0])) == 1


async def test_a_start_beyond_the_end_fails_or_moves_as_configured(client: Client) -> None:
    await client.create_topic("t")
    async with client.producer() as producer:
        await producer.send("t", b"x")
    assert await read(client, start={0: 1}) == []
    with pytest.raises(OffsetOutOfRange, match="past the end 1"):
        await read(client, start={0: 2})
    for policy, expected in ((OutOfRange.EARLIEST, 1), (OutOfRange.LATEST, 0)):
        options = ReaderOptions(until_end=True, out_of_range=policy)
        assert len(await read(client, start={0: 2}, options=options)) == expected


# --- missing topics ---------------------------------------------------------------------------------------------------
REQUESTS_ABOUT_A_TOPIC: Mapping[str, Callable[[Client], Awaitable[object]]] = {
    "offsets": lambda client: client.offsets("none", "latest"),
    "delete_records": lambda client: client.delete_records("none", 0, -1),
    "delete_topic": lambda client: client.delete_topic("none"),
    "add_partitions": lambda client: client.add_partitions("none", 3),
    "configs": lambda client: client.configs("none"),
    "alter_configs": lambda client: client.alter_configs("none", {"retention.ms": "1"}),
    "seal": lambda client: client.seal("none"),
    "cold_manifests": lambda client: client.cold_manifests("none"),
    "cold_segments": lambda client: anext(client.cold_segments("none", 0)),
    "reader": lambda client: anext(client.reader("none")),
}


@pytest.mark.parametrize("request_about", REQUESTS_ABOUT_A_TOPIC.values(), ids=REQUESTS_ABOUT_A_TOPIC)
async def test_the_error_of_a_missing_topic_names_it_and_the_way_to_make_it(
    client: Client, request_about: Callable[[Client], Awaitable[object]]
) -> None:
    with pytest.raises(
        UnknownTopicOrPartition, match="this cluster has no topic 'none'; create it with `create_topic`"
    ):
        await request_about(client)


async def test_a_missing_partition_of_a_topic_is_named(client: Client) -> None:
    await client.create_topic("t")
    with pytest.raises(UnknownTopicOrPartition, match="no partition t-7"):
        await client.delete_records("t", 7, -1)


# --- moments ----------------------------------------------------------------------------------------------------------
SECOND = datetime(2024, 1, 1, tzinfo=UTC)
SECOND_MS = 1_704_067_200_000


@pytest.mark.parametrize(
    ("moment", "milliseconds"),
    [
        (SECOND, SECOND_MS),
        (SECOND + timedelta(microseconds=1), SECOND_MS + 1),
        (SECOND + timedelta(milliseconds=1), SECOND_MS + 1),
        (datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC), 0),
        (datetime.min.replace(tzinfo=UTC), 0),
        (datetime.max.replace(tzinfo=UTC), 253_402_300_800_000),
    ],
)
def test_a_moment_is_the_first_millisecond_not_before_it(moment: datetime, milliseconds: int) -> None:
    assert start_ms(moment) == milliseconds


async def test_a_moment_is_a_datetime_or_its_text(client: Client) -> None:
    await client.create_topic("t")
    async with client.producer() as producer:
        for number in range(4):
            await producer.send("t", b"%d" % number, timestamp=SECOND_MS + 1000 * number)
    for text in ("2024-01-01T00:00:02Z", "2024-01-01T01:00:01.5+01:00", "2024-01-01T00:00:02"):
        assert [message.value for message in await read(client, start=text)] == [b"2", b"3"]
        assert await client.offsets("t", text) == {0: 2}
    with pytest.raises(InvalidConfig, match="no time zone"):
        await client.offsets("t", datetime(2024, 1, 1))
    with pytest.raises(InvalidRequest, match=r"'yesterday' is not a start position: .* a time as '2024-"):
        await read(client, start="yesterday")


async def test_a_time_before_all_records_is_the_beginning(client: Client) -> None:
    await client.create_topic("t")
    async with client.producer() as producer:
        await producer.send("t", b"x")
    assert len(await read(client, start=datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC))) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"start": "2024-01-31"},
        {"assignors": ["roundrobin"]},
        {"assignors": []},
        {"heartbeat_s": 50.0},
        {"heartbeat_s": 0},
        {"processing_s": 0},
        {"session_s": 3e6},
        {"auto_commit_s": -1},
        {"fetch_bytes": 0},
        {"retry_s": -1},
    ],
)
def test_wrong_options_of_a_consumer_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidConfig):
        ConsumerOptions(**options)  # type: ignore[arg-type]


WRONG_OFFSETS = [
    {"t": 1},
    {("t", "0"): 1},
    {("t", -1): 1},
    {(b"t", 0): 1},
    {("t", 0): -1},
    {("t", 0): "5"},
    {("t", 0): 1.5},
    {("t", 0): 1 << 63},
]


@pytest.mark.parametrize("offsets", WRONG_OFFSETS, ids=repr)
async def test_wrong_offsets_are_refused(client: Client, offsets: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"is not a partition|an offset is a number"):
        await client.alter_group_offsets("g", offsets)
    async with client.consumer("g", ["t"]) as consumer:
        with pytest.raises(InvalidRequest, match=r"is not a partition|an offset is a number"):
            await consumer.commit(offsets)
        with pytest.raises(InvalidRequest, match="has an offset for each partition"):
            await consumer.commit({("t", 0): None})  # type: ignore[dict-item]
    with pytest.raises(InvalidRequest, match="it must be text"):
        await client.group(b"g")  # type: ignore[arg-type]
