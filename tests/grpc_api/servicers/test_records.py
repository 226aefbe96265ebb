"""Records one by one over a real channel: every client reads what was sent, and a refusal affects one record alone."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from grpc_api import limits
from grpc_api.channel import open_channel
from grpc_api.messages.errors import detail_in, detail_of
from grpc_api.partitioning.partitioner import partition_of_key
from grpc_api.proto import log_pb2
from grpc_api.proto import records_pb2 as pb
from grpc_api.proto.records_pb2_grpc import RecordsStub
from grpc_api.sdk.client import Client
from grpc_api.sdk.values import ProducerOptions, ReaderOptions
from grpc_api.servicers.calls import PIECE
from grpc_api.servicers.records import MESSAGE_BYTES, MESSAGE_RECORDS, _encoded, _Part
from storage_tiers.clock import SystemClock
from storage_tiers.errors import LogError
from storage_tiers.records import columns
from storage_tiers.records.batch import Codec
from storage_tiers.records.builder import ControlKind, NewRecord, build_batch, build_control_batch
from storage_tiers.records.codecs import decompress
from storage_tiers.turns import TurnScheduler
from storage_tiers.types import AbortedTransaction
from tests.grpc_api.support import Served
from tests.service.broker.support import until

UNTIL_END = ReaderOptions(until_end=True)


@pytest.fixture
async def stub(node: Served) -> AsyncIterator[Any]:
    async with open_channel(node.address) as channel:
        yield RecordsStub(channel)


async def read_all(stub: Any, **fields: Any) -> list[pb.ReadRecord]:
    request = pb.ReadRequest(topic="t", until_end=True, **fields)
    return [record async for response in stub.Read(request) for record in response.records]


def encoded(parts: list[_Part]) -> tuple[bytes, dict[int, int]]:
    message, decoded = _encoded(parts, {}, threading.Event())
    return message, {partition: position for partition, (position, _) in decoded.items()}


async def refused(call: Any) -> tuple[str, str]:
    """Kafka's error name and the message of a call that fails."""
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await (call if not hasattr(call, "read") else call.read())
    detail = detail_in(failed.value.trailing_metadata())
    assert detail is not None
    return detail.kafka_error, detail.message


def to_send(*values: bytes, **fields: Any) -> list[pb.RecordToSend]:
    return [pb.RecordToSend(value=value, **fields) for value in values]


async def test_sent_records_are_read_with_all_their_fields(client: Client, stub: Any) -> None:
    await client.create_topic("t", partitions=3)
    headers = [pb.RecordHeader(name="shop", value=b"12"), pb.RecordHeader(name="none"), pb.RecordHeader(value=b"")]
    records = [
        pb.RecordToSend(key=b"alice", value=b"book", headers=headers, timestamp_ms=1_700_000_000_000),
        pb.RecordToSend(key=b"alice", timestamp_ms=0),
        pb.RecordToSend(value=b"", partition=2),
        pb.RecordToSend(key=b"", value=b"x", partition=0),
    ]
    began_ms = SystemClock().unix_ms()
    sent = (await stub.Send(pb.SendRequest(topic="t", records=records))).records
    alices = partition_of_key(b"alice", 3)
    assert [each.partition for each in sent] == [alices, alices, 2, 0]
    assert not any(each.HasField("error") for each in sent)
    found = {(each.partition, each.offset): each for each in await read_all(stub)}
    for record, place in zip(records, sent, strict=True):
        read = found.pop((place.partition, place.offset))
        for field in ("key", "value"):
            assert read.HasField(field) == record.HasField(field)
            assert getattr(read, field) == getattr(record, field)
        assert list(read.headers) == list(record.headers)
        if record.HasField("timestamp_ms"):
            assert read.timestamp_ms == record.timestamp_ms
        else:
            assert began_ms <= read.timestamp_ms <= SystemClock().unix_ms()
    assert not found


async def test_the_python_client_reads_them_and_they_read_its_records(client: Client, stub: Any) -> None:
    await client.create_topic("t")
    await stub.Send(pb.SendRequest(topic="t", records=to_send(b"a", b"b")))
    async with client.producer(ProducerOptions(compression="zstd")) as producer:
        for number in range(20_000):
            await producer.send("t", b"%d" % number, key=b"k%d" % (number % 7), timestamp=number)
    theirs = [message.value async for message in client.reader("t", options=UNTIL_END)]
    ours = await read_all(stub)
    assert [each.offset for each in ours] == list(range(20_002))
    assert [each.value for each in ours] == theirs
    assert ours[-1].timestamp_ms == 19_999


async def test_a_refused_record_touches_no_other(client: Client, stub: Any) -> None:
    await client.create_topic("t", partitions=2)
    records = [
        pb.RecordToSend(value=b"a", partition=0),
        pb.RecordToSend(value=b"b", partition=2),
        pb.RecordToSend(value=b"c", timestamp_ms=-1),
        pb.RecordToSend(value=b"d", partition=0),
    ]
    sent = (await stub.Send(pb.SendRequest(topic="t", records=records))).records
    assert [(each.offset, each.error.kafka_error) for each in sent] == [
        (0, ""),
        (-1, "INVALID_PARTITIONS"),
        (-1, "INVALID_RECORD"),
        (1, ""),
    ]
    assert "partitions 0 to 1, not 2" in sent[1].error.message
    assert [each.value for each in await read_all(stub)] == [b"a", b"d"]


async def test_thousands_of_refused_records_are_answered_in_slices(
    client: Client, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create_topic("t")
    hurried = itertools.count()
    shared = TurnScheduler(lambda: float(next(hurried)))  # each reading of the clock ends a slice
    monkeypatch.setattr("grpc_api.servicers.calls.scheduler", lambda: shared)
    made = 0

    def counted(error: LogError) -> Any:
        nonlocal made
        made += 1
        return detail_of(error)

    monkeypatch.setattr("grpc_api.servicers.records.detail_of", counted)
    wrong = [pb.RecordToSend(value=b"a", timestamp_ms=-1)] * (20 * PIECE)
    sending = asyncio.ensure_future(stub.Send(pb.SendRequest(topic="t", records=wrong)))
    in_turns = []
    while not sending.done():
        before = made
        await asyncio.sleep(0)
        in_turns.append(made - before)
    assert {each.error.kafka_error for each in (await sending).records} == {"INVALID_RECORD"}
    assert made == len(wrong)
    assert max(in_turns) <= 2 * PIECE


async def test_records_of_a_batch_that_the_topic_refuses_fail_together(client: Client, stub: Any) -> None:
    await client.create_topic("t", partitions=2, configs={"max.message.bytes": "1000"})
    records = [*to_send(b"x" * 600, b"y" * 600, partition=0), *to_send(b"z", partition=1)]
    sent = (await stub.Send(pb.SendRequest(topic="t", records=records))).records
    assert [each.error.kafka_error for each in sent] == ["MESSAGE_TOO_LARGE", "MESSAGE_TOO_LARGE", ""]


async def test_wrong_requests_are_refused_whole(client: Client, stub: Any) -> None:
    await client.create_topic("t", partitions=2)
    assert (await refused(stub.Send(pb.SendRequest(topic="none", records=to_send(b"x")))))[0] == (
        "UNKNOWN_TOPIC_OR_PARTITION"
    )
    for wrong, sentence in (
        (pb.ReadRequest(topic="none"), "no topic 'none'"),
        (pb.ReadRequest(topic="t", partitions=[0, 2]), "partitions 0 to 1, not 2"),
        (pb.ReadRequest(topic="t", partitions=[-1]), "partitions 0 to 1"),
        (pb.ReadRequest(topic="t", from_ms=-5), "not -5"),
        (pb.ReadRequest(topic="t", isolation=2), "isolation 2 does not exist"),  # type: ignore[arg-type]
        (pb.ReadRequest(topic="t", partitions=[0], offsets=pb.StartOffsets(by_partition={1: 0})), "partition 1"),
        (pb.ReadRequest(topic="t", offsets=pb.StartOffsets(by_partition={1: 5})), "5"),
    ):
        assert sentence in (await refused(stub.Read(wrong)))[1]
    assert (await stub.Send(pb.SendRequest(topic="t"))).records == []


async def test_more_records_than_a_request_holds_are_sent_in_parts(client: Client, stub: Any) -> None:
    await client.create_topic("t", partitions=2)
    records = to_send(*[b"%d" % at for at in range(limits.MAX_SENT_RECORDS + 1)])
    assert (
        "at most 10000 records, not 10001" in (await refused(stub.Send(pb.SendRequest(topic="t", records=records))))[1]
    )
    for part in (records[:1], records[1:]):
        sent = (await stub.Send(pb.SendRequest(topic="t", records=part))).records
        assert all(each.offset >= 0 for each in sent)
    assert {each.value for each in await read_all(stub)} == {record.value for record in records}


async def test_many_partitions_are_read_in_several_calls(client: Client, stub: Any) -> None:
    await client.create_topic("t", partitions=limits.MAX_FETCH_PARTITIONS + 1)
    await stub.Send(pb.SendRequest(topic="t", records=to_send(b"x", partition=limits.MAX_FETCH_PARTITIONS)))
    assert "read them in several calls" in (await refused(stub.Read(pb.ReadRequest(topic="t"))))[1]
    assert await read_all(stub, partitions=range(limits.MAX_FETCH_PARTITIONS)) == []
    assert [each.value for each in await read_all(stub, partitions=[limits.MAX_FETCH_PARTITIONS])] == [b"x"]


async def test_a_read_begins_at_the_given_position(client: Client, stub: Any) -> None:
    await client.create_topic("t", partitions=2)
    for number in range(10):
        records = to_send(b"%d" % number, partition=number % 2, timestamp_ms=1000 + number)
        await stub.Send(pb.SendRequest(topic="t", records=records))
    from_ms = {each.value for each in await read_all(stub, from_ms=1006)}
    assert from_ms == {b"6", b"7", b"8", b"9"}
    assert await read_all(stub, from_ms=5000) == []
    assert await read_all(stub, latest=True) == []
    offsets = pb.StartOffsets(by_partition={1: 4})
    assert [each.value for each in await read_all(stub, partitions=[1], offsets=offsets)] == [b"9"]
    assert len(await read_all(stub, offsets=offsets)) == 6


async def test_a_read_without_an_end_continues_with_new_records(client: Client, stub: Any) -> None:
    await client.create_topic("t")
    call = stub.Read(pb.ReadRequest(topic="t", latest=False))
    for number in range(3):
        await stub.Send(pb.SendRequest(topic="t", records=to_send(b"%d" % number)))
        response = await asyncio.wait_for(call.read(), 60)
        assert [each.value for each in response.records] == [b"%d" % number]
    call.cancel()


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
async def test_a_batch_larger_than_a_message_comes_in_parts(
    node: Served, client: Client, stub: Any, codec: Codec
) -> None:
    await client.create_topic("t", configs={"max.message.bytes": str(8 << 20)})
    records = [NewRecord(b"%d" % at, b"v" * 100, (), at) for at in range(3 * MESSAGE_RECORDS + 5)]
    await node.node.append_batch("t", build_batch(records, codec=codec))
    call = stub.Read(pb.ReadRequest(topic="t", until_end=True))
    sizes, offsets = [], []
    async for response in call:
        sizes.append(response.ByteSize())
        offsets += [each.offset for each in response.records]
    assert offsets == list(range(len(records)))
    assert max(sizes) <= MESSAGE_BYTES + 200 * 50
    assert len(sizes) >= 4


def test_aborted_records_and_markers_are_left_out_and_passed() -> None:
    """The test decodes batches built by hand: an aborted transaction with its marker, and a record behind them."""
    producer: Any = {"producer_id": 900, "producer_epoch": 0}
    records = build_batch([NewRecord(None, b"aborted")], base_sequence=0, transactional=True, **producer)
    records += build_control_batch(ControlKind.ABORT, base_offset=1, coordinator_epoch=0, timestamp=0, **producer)
    kept = build_batch([NewRecord(None, b"kept", (), 5)], base_offset=2)
    aborted = [AbortedTransaction(900, 0, 1, 2)]
    message, positions = encoded([_Part(3, records, 0, aborted), _Part(4, records + kept, 0, aborted)])
    found = [(each.partition, each.offset, each.value) for each in pb.ReadResponse.FromString(message).records]
    assert (found, positions) == ([(4, 2, b"kept")], {3: 2, 4: 3})


def test_times_beyond_a_column_are_read_as_they_are() -> None:
    times = [5, (1 << 62), 7]
    message, positions = encoded(
        [_Part(0, build_batch([NewRecord(b"k", None, [("h", None)], t) for t in times]), 1, ())]
    )
    found = [(each.offset, each.timestamp_ms) for each in pb.ReadResponse.FromString(message).records]
    assert (found, positions) == ([(1, 1 << 62), (2, 7)], {0: 3})


async def test_too_many_reads_are_refused(client: Client, stub: Any, node: Served) -> None:
    await client.create_topic("t")
    calls = [stub.Read(pb.ReadRequest(topic="t")) for _ in range(limits.MAX_RECORD_READS)]
    await until(lambda: node.server.bounds.record_reads == limits.MAX_RECORD_READS)
    assert "read records already" in (await refused(stub.Read(pb.ReadRequest(topic="t"))))[1]
    for call in calls:
        call.cancel()
    await until(lambda: node.server.bounds.record_reads == 0)
    assert await read_all(stub) == []


async def test_acks_of_the_leader_do_not_wait_for_the_commit(node: Served, client: Client, stub: Any) -> None:
    await client.create_topic("t", configs={"flush.messages": "1"})
    request = pb.SendRequest(topic="t", records=to_send(b"x"), acks=log_pb2.ACKS_LEADER)
    assert [each.offset for each in (await stub.Send(request)).records] == [0]


def bomb(messages: int) -> bytes:
    """A small batch that inflates to this number of messages."""
    return build_batch([NewRecord(None, bytes(100), (), 0)] * (messages * MESSAGE_RECORDS), codec=Codec.ZSTD)


@pytest.fixture
def inflations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the batches inflated, in order."""
    sizes: list[int] = []

    def counted(codec: Codec, payload: Any, **fields: Any) -> memoryview:
        image = decompress(codec, payload, **fields)
        sizes.append(len(image))
        return image

    monkeypatch.setattr(columns, "decompress", counted)
    return sizes


async def test_a_batch_of_many_messages_is_inflated_once(
    node: Served, client: Client, stub: Any, inflations: list[int]
) -> None:
    await client.create_topic("t", partitions=2)
    await node.node.append_batch("t", bomb(12))
    await stub.Send(pb.SendRequest(topic="t", records=to_send(b"x", b"y", partition=1)))
    found = await read_all(stub)
    assert sorted((each.partition, each.offset) for each in found) == [
        *((0, offset) for offset in range(12 * MESSAGE_RECORDS)),
        (1, 0),
        (1, 1),
    ]
    assert len(inflations) == 1


async def test_a_small_read_is_answered_while_others_read_bombs(
    node: Served, client: Client, stub: Any, inflations: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory holds one of three inflated bombs: each read still returns all records, and the small read ends first."""
    monkeypatch.setattr(limits, "INFLATED_BYTES", 16 << 20)
    await client.create_topic("t")
    await client.create_topic("small")
    await node.node.append_batch("t", bomb(12))
    await node.node.append_batch("small", build_batch([NewRecord(None, b"x")], codec=Codec.ZSTD))
    calls = [stub.Read(pb.ReadRequest(topic="t", until_end=True)) for _ in range(3)]
    counts = [len((await call.read()).records) for call in calls]
    small = [each async for each in stub.Read(pb.ReadRequest(topic="small", until_end=True))]
    assert [[each.value for each in response.records] for response in small] == [[b"x"]]
    assert not any(call.done() for call in calls)
    for at, call in enumerate(calls):
        while (response := await call.read()) is not grpc.aio.EOF:
            counts[at] += len(response.records)
    assert counts == [12 * MESSAGE_RECORDS] * 3
    assert sum(size > 1000 for size in inflations) < 3 * 12
    await until(lambda: node.server.bounds.record_reads == 0)
