"""Streams over a real channel, on a node in this process: their guarantees, and their answers to wrong input."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from grpc_api.channel import open_channel
from grpc_api.contract.log import Isolation
from grpc_api.messages.errors import detail_in
from grpc_api.proto import log_pb2 as pb
from grpc_api.proto.log_pb2_grpc import LogStub
from grpc_api.servicers import fetch_stream
from grpc_api.servicers.calls import CallContext
from grpc_api.servicers.fetching import MAX_FETCH_BYTES
from grpc_api.servicers.produce_stream import MAX_UNDER_WAY
from grpc_api.servicers.tokens import encode_token
from storage_tiers.records.batch import headers
from storage_tiers.records.builder import NewRecord, build_batch
from tests.grpc_api.support import Served
from tests.service.broker.support import batch, until


@pytest.fixture
async def stub(node: Served) -> AsyncIterator[Any]:
    await node.node.create("t")
    async with open_channel(node.address) as channel:
        yield LogStub(channel)


def opening(**fields: Any) -> pb.ProduceStreamRequest:
    return pb.ProduceStreamRequest(open=pb.Open(**fields))


def produce(sequence: int, *batches: bytes, acks: Any = pb.ACKS_ALL, topic: str = "t") -> pb.ProduceStreamRequest:
    appends = [pb.Append(topic=topic, partition=0, batch=each) for each in batches]
    request = pb.ProduceRequest(appends=appends, acks=acks)
    return pb.ProduceStreamRequest(produce=pb.SequencedProduce(sequence=sequence, request=request))


async def failure_of(call: Any) -> tuple[grpc.StatusCode, str, str]:
    """Status, Kafka's error name and message of a call that fails."""
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        while await call.read() is not grpc.aio.EOF:
            pass
    detail = detail_in(failed.value.trailing_metadata())
    assert detail is not None
    assert failed.value.details() == detail.message
    return failed.value.code(), detail.kafka_error, detail.message


def log_end(node: Served) -> int:
    return node.hot("t").end_offset


# --- producing --------------------------------------------------------------------------------------------------------
async def test_requests_are_answered_in_their_order_with_their_sequence(stub: Any) -> None:
    call = stub.ProduceStream()
    await call.write(opening())
    for number in range(100):
        await call.write(produce(number, batch(b"%d" % number)))
    await call.done_writing()
    opened = await call.read()
    assert (opened.opened.producer_id, opened.opened.token) == (-1, b"")
    answers = [(await call.read()).appended for _ in range(100)]
    assert [answer.sequence for answer in answers] == list(range(100))
    assert [answer.results[0].base_offset for answer in answers] == list(range(100))
    assert all(answer.results[0].committed for answer in answers)
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK


async def test_a_resumed_stream_keeps_its_identity_and_drops_duplicates(node: Served, stub: Any) -> None:
    first = stub.ProduceStream()
    await first.write(opening(idempotent=True))
    opened = (await first.read()).opened
    fields: Any = {"producer_id": opened.producer_id, "producer_epoch": opened.producer_epoch}
    await first.write(produce(0, batch(b"a", base_sequence=0, **fields)))
    assert (await first.read()).appended.results[0].base_offset == 0
    first.cancel()

    second = stub.ProduceStream()
    await second.write(opening(idempotent=True, token=opened.token))
    again = (await second.read()).opened
    assert (again.producer_id, again.producer_epoch, again.token) == (
        opened.producer_id,
        opened.producer_epoch,
        opened.token,
    )
    await second.write(produce(0, batch(b"a", base_sequence=0, **fields), batch(b"b", base_sequence=1, **fields)))
    assert [each.base_offset for each in (await second.read()).appended.results] == [0, 1]
    second.cancel()
    assert log_end(node) == 2


async def test_the_leader_acknowledges_before_the_commit(node: Served, stub: Any) -> None:
    await node.node.create("f", configs={"flush.messages": "1"})
    call = stub.ProduceStream()
    await call.write(opening())
    await call.read()
    await call.write(produce(0, batch(b"a"), acks=pb.ACKS_LEADER, topic="f"))
    appended, committed = await call.read(), await call.read()
    assert (appended.appended.sequence, appended.appended.results[0].committed) == (0, False)
    assert (committed.committed.sequence, committed.committed.results[0].committed) == (0, True)
    call.cancel()


async def test_a_refused_batch_does_not_end_the_stream(node: Served, stub: Any) -> None:
    broken = bytearray(batch(b"x"))
    broken[-1] ^= 1
    call = stub.ProduceStream()
    await call.write(opening())
    await call.read()
    await call.write(produce(0, bytes(broken), b"", b"short", batch(b"good")))
    results = (await call.read()).appended.results
    assert [each.error.kafka_error for each in results] == ["CORRUPT_MESSAGE"] * 3 + [""]
    assert results[3].base_offset == 0
    await call.write(produce(1, batch(b"x"), topic="nothing"))
    (unknown,) = (await call.read()).appended.results
    assert (unknown.error.kafka_error, unknown.error.retriable) == ("UNKNOWN_TOPIC_OR_PARTITION", True)
    call.cancel()
    assert log_end(node) == 1


@pytest.mark.parametrize("sequence", [1, -1, 1 << 60])
async def test_a_wrong_sequence_ends_the_stream_and_appends_nothing(node: Served, stub: Any, sequence: int) -> None:
    call = stub.ProduceStream()
    await call.write(opening())
    await call.write(produce(sequence, batch(b"x")))
    code, name, sentence = await failure_of(call)
    assert (code, name) == (grpc.StatusCode.INVALID_ARGUMENT, "OUT_OF_ORDER_SEQUENCE_NUMBER")
    assert "request 0 of this stream comes next" in sentence
    assert log_end(node) == 0


async def test_requests_before_the_error_are_answered_first(node: Served, stub: Any) -> None:
    call = stub.ProduceStream()
    await call.write(opening())
    await call.read()
    for sequence in (0, 1, 5):
        await call.write(produce(sequence, batch(b"x")))
    assert [(await call.read()).appended.sequence for _ in range(2)] == [0, 1]
    assert (await failure_of(call))[1] == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    assert log_end(node) == 2


@pytest.mark.parametrize("token", [b"x", b"\1" * 15, encode_token("another cluster", 7, 0)])
async def test_a_token_that_this_cluster_never_gave_is_refused(stub: Any, token: bytes) -> None:
    call = stub.ProduceStream()
    await call.write(opening(idempotent=True, token=token))
    code, name, sentence = await failure_of(call)
    assert (code, name) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")
    assert "open a stream without a token" in sentence


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([produce(0, batch(b"x"))], "begins with `open`"),
        ([pb.ProduceStreamRequest()], "begins with `open`"),
        ([opening(), opening()], "opened once"),
        ([opening(token=b"x")], "idempotent"),
        ([opening(), produce(0, batch(b"x"), acks=7)], "acks 7"),
    ],
)
async def test_a_malformed_stream_is_refused(
    node: Served, stub: Any, messages: list[pb.ProduceStreamRequest], words: str
) -> None:
    call = stub.ProduceStream()
    for message in messages:
        await call.write(message)
    code, _, sentence = await failure_of(call)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert words in sentence
    assert log_end(node) == 0


async def test_an_idempotent_stream_accepts_only_batches_of_its_producer(node: Served, stub: Any) -> None:
    call = stub.ProduceStream()
    await call.write(opening(idempotent=True))
    opened = (await call.read()).opened
    own: Any = {"producer_id": opened.producer_id, "producer_epoch": opened.producer_epoch}
    foreign: Any = {**own, "producer_id": opened.producer_id + 1}
    good, wrong = batch(b"x", base_sequence=0, **own), batch(b"x", base_sequence=0, **foreign)
    await call.write(produce(0, batch(b"plain"), wrong, good, batch(b"y", base_sequence=9, **own)))
    names = [each.error.kafka_error for each in (await call.read()).appended.results]
    assert names == ["INVALID_REQUEST", "INVALID_REQUEST", "", "OUT_OF_ORDER_SEQUENCE_NUMBER"]
    call.cancel()
    assert log_end(node) == 1


async def test_a_stream_cancelled_in_the_middle_leaves_no_work_behind(node: Served, stub: Any) -> None:
    tasks = len(asyncio.all_tasks())
    calls = [stub.ProduceStream() for _ in range(20)]
    for call in calls:
        await call.write(opening())
        await call.write(produce(0, batch(b"x")))
        await call.read()
    for call in calls:
        call.cancel()
    await until(lambda: len(asyncio.all_tasks()) <= tasks)
    assert log_end(node) == 20


async def test_requests_beyond_the_bound_are_not_read(node: Served, stub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    appended = 0
    never: list[asyncio.Future[None]] = []
    append = node.node.log.append

    def holding(appends: Any, **fields: Any) -> Any:
        nonlocal appended
        appended += 1
        answers: Any = append(appends, **fields)
        for answer in answers:
            answer.committed = asyncio.get_running_loop().create_future()
            never.append(answer.committed)
        return answers

    monkeypatch.setattr(type(node.node.log), "append", lambda _, appends, **fields: holding(appends, **fields))
    call = stub.ProduceStream()
    await call.write(opening())
    for number in range(MAX_UNDER_WAY + 10):
        await call.write(produce(number, batch(b"x")))
    await until(lambda: appended == MAX_UNDER_WAY)
    never[0].set_result(None)
    await until(lambda: appended == MAX_UNDER_WAY + 1)
    assert (await call.read()).HasField("opened")
    assert (await call.read()).appended.sequence == 0
    call.cancel()


# --- fetching ---------------------------------------------------------------------------------------------------------
def fetch(offset: int = 0, *, max_bytes: int = 1 << 20, max_wait_ms: int = 0, **fields: Any) -> pb.FetchRequest:
    wanted = pb.FetchPartition(topic="t", partition=0, offset=offset, max_bytes=max_bytes, **fields)
    return pb.FetchRequest(partitions=[wanted], max_bytes=max_bytes, max_wait_ms=max_wait_ms, min_bytes=1)


async def test_a_stream_gives_each_whole_batch_once(node: Served, stub: Any) -> None:
    for number in range(50):
        await node.node.append("t", b"%d" % number * 100)
    call = stub.FetchStream(fetch(3, max_bytes=1000))
    found: list[int] = []
    while len(found) < 47:
        for part in (await call.read()).partitions:
            found += [header.base_offset for _, header in headers(part.records)]
            assert sum(header.size for _, header in headers(part.records)) == len(part.records)
    assert found == list(range(3, 50))
    await node.node.append("t", b"new")
    (part,) = (await call.read()).partitions
    assert next(headers(part.records))[1].base_offset == 50
    call.cancel()
    await until(lambda: not node.node.node.broker.partitions.get(("t", 0)).waiters)  # type: ignore[arg-type]


async def test_the_first_message_has_each_position_and_empty_messages_follow(stub: Any) -> None:
    call = stub.FetchStream(fetch(max_wait_ms=100))
    (part,) = (await call.read()).partitions
    assert (part.index, part.high_watermark, part.records) == (0, 0, b"")
    assert list((await call.read()).partitions) == []
    call.cancel()


async def test_nothing_is_fetched_for_a_reader_that_does_not_read(
    node: Served, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    big = build_batch([NewRecord(None, b"x" * 500_000)])
    for _ in range(60):
        await node.node.append_batch("t", big)
    fetches = 0
    original = type(node.node.log).fetch

    def counting(self: Any, wanted: Any) -> Any:
        nonlocal fetches
        fetches += 1
        return original(self, wanted)

    monkeypatch.setattr(type(node.node.log), "fetch", counting)
    call = stub.FetchStream(fetch(max_bytes=500_000))
    await call.read()
    await asyncio.sleep(0)
    seen = -1
    while seen != fetches:  # until the count stays the same
        seen = fetches
        await asyncio.sleep(0.3)
    assert fetches < 30, "HTTP/2's window must have stopped the server"
    offsets = 0
    while offsets < 59:
        offsets += sum(1 for part in (await call.read()).partitions for _ in headers(part.records))
    call.cancel()


async def test_a_stream_holds_no_file_while_its_caller_is_slow(
    node: Served, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream's answers are copies, so the disk may free the segment meanwhile."""
    parts, write = fetch_stream._Follower.parts, CallContext.write_counted
    read_from: dict[Any, int] = {}
    given_back: list[int] = []

    async def noting(self: Any, answers: list[Any]) -> Any:
        read_from.update({piece.file: piece.file.users for answer in answers for piece in answer.slices})
        return await parts(self, answers)

    async def sending(self: Any, data: bytes) -> None:
        given_back.extend(before - file.users for file, before in read_from.items())
        read_from.clear()
        await write(self, data)

    monkeypatch.setattr(fetch_stream._Follower, "parts", noting)
    monkeypatch.setattr(CallContext, "write_counted", sending)
    await node.node.append("t", b"a")
    call = stub.FetchStream(fetch())
    while not any(part.records for part in (await call.read()).partitions):
        pass
    assert given_back == [1]
    call.cancel()


async def test_hot_partitions_take_turns(node: Served, stub: Any) -> None:
    await node.node.create("two", 2)
    for partition in (0, 1):
        for _ in range(10):
            await node.node.append("two", b"x" * 900, partition=partition)
    partitions = [pb.FetchPartition(topic="two", partition=each, offset=0, max_bytes=1000) for each in (0, 1)]
    call = stub.FetchStream(pb.FetchRequest(partitions=partitions, max_bytes=1000))
    order: list[int] = []
    while len(order) < 20:
        order += [part.index for part in (await call.read()).partitions if part.records]
    call.cancel()
    assert order == [0, 1] * 10


async def test_one_partitions_error_comes_after_the_others_records(node: Served, stub: Any) -> None:
    await node.node.append("t", b"x")
    request = fetch()
    request.partitions.add(topic="t", partition=9, max_bytes=100)
    call = stub.FetchStream(request)
    (part,) = (await call.read()).partitions
    assert len(list(headers(part.records))) == 1
    code, name, sentence = await failure_of(call)
    assert (code, name) == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_TOPIC_OR_PARTITION")
    assert "t-9" in sentence


@pytest.mark.parametrize(
    ("request_", "name", "words"),
    [
        (fetch(-1), "OFFSET_OUT_OF_RANGE", "t-0"),
        (fetch(1), "OFFSET_OUT_OF_RANGE", "log end 0"),
        (fetch(max_wait_ms=-1), "INVALID_REQUEST", "max_wait_ms"),
        (fetch(max_wait_ms=5), "INVALID_REQUEST", "at least 100 ms"),
        (fetch(max_bytes=-1), "INVALID_REQUEST", "max_bytes"),
        (fetch(max_bytes=0), "INVALID_REQUEST", "max_bytes"),
        (pb.FetchRequest(max_bytes=1), "INVALID_REQUEST", "at least one partition"),
        (fetch(topic_id=b"short"), "INVALID_REQUEST", "16 bytes"),
        (fetch(topic_id=b"x" * 16), "INCONSISTENT_TOPIC_ID", "topic id"),
        (fetch(current_leader_epoch=99), "UNKNOWN_LEADER_EPOCH", "99"),
        (
            pb.FetchRequest(partitions=fetch().partitions, isolation=9),  # type: ignore[arg-type]
            "INVALID_REQUEST",
            "isolation 9",
        ),
        (
            # No caller reads past the high watermark.
            pb.FetchRequest(partitions=fetch().partitions, isolation=int(Isolation.LOG_END)),  # type: ignore[arg-type]
            "INVALID_REQUEST",
            "isolation 2 does not exist",
        ),
    ],
)
async def test_unreadable_requests_are_refused_with_the_reason(
    stub: Any, request_: pb.FetchRequest, name: str, words: str
) -> None:
    _, found, sentence = await failure_of(stub.FetchStream(request_))
    assert found == name
    assert words in sentence


async def test_no_message_exceeds_its_bound(node: Served, stub: Any) -> None:
    await node.node.append("t", b"x")
    answer = await stub.Fetch(fetch(max_bytes=(1 << 31) - 1))
    assert len(answer.partitions[0].records) < MAX_FETCH_BYTES
