"""Wrong calls over a real channel: each gets a precise status with details, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from grpc_api.channel import open_channel
from grpc_api.contract.log import Isolation
from grpc_api.limits import MAX_REQUEST_BYTES
from grpc_api.messages.errors import detail_in
from grpc_api.messages.log import MAX_PARTITIONS
from grpc_api.proto import cold_pb2, configs_pb2, groups_pb2, log_pb2, offsets_pb2, topics_pb2, transactions_pb2
from grpc_api.proto.cold_pb2_grpc import ColdStub
from grpc_api.proto.configs_pb2_grpc import ConfigsStub
from grpc_api.proto.groups_pb2_grpc import GroupsStub
from grpc_api.proto.log_pb2_grpc import LogStub
from grpc_api.proto.offsets_pb2_grpc import OffsetsStub
from grpc_api.proto.topics_pb2_grpc import TopicsStub
from grpc_api.proto.transactions_pb2_grpc import TransactionsStub
from grpc_api.servicers.parsing import MAX_FIELDS
from tests.grpc_api.support import Served
from tests.service.broker.support import batch, until

CODES = grpc.StatusCode
#: One row more than a request may have.
BEYOND = MAX_PARTITIONS + 1


@pytest.fixture
async def channel(node: Served) -> AsyncIterator[Any]:
    await node.node.create("t")
    async with open_channel(node.address) as opened:
        yield opened


def many(count: int) -> list[log_pb2.Append]:
    return [log_pb2.Append(topic="t", partition=0)] * count


WRONG: list[tuple[str, Any, Any, grpc.StatusCode, str]] = [
    (
        "Topics.Describe",
        TopicsStub,
        topics_pb2.DescribeTopicsRequest(topic_ids=[b"x"]),
        CODES.INVALID_ARGUMENT,
        "16 bytes",
    ),
    (
        "Topics.Describe",
        TopicsStub,
        topics_pb2.DescribeTopicsRequest(all=True, names=["t"]),
        CODES.INVALID_ARGUMENT,
        "not for both",
    ),
    (
        "Topics.CreatePartitions",
        TopicsStub,
        topics_pb2.CreatePartitionsRequest(topic="t", count=-5),
        CODES.INVALID_ARGUMENT,
        "",
    ),
    (
        "Topics.CreatePartitions",
        TopicsStub,
        topics_pb2.CreatePartitionsRequest(topic="nothing", count=5),
        CODES.NOT_FOUND,
        "",
    ),
    (
        "Topics.Create",
        TopicsStub,
        topics_pb2.CreateTopicsRequest(
            topics=[topics_pb2.NewTopic(name="u", configs=[topics_pb2.NewTopicConfig(name="a")] * 2)]
        ),
        CODES.INVALID_ARGUMENT,
        "twice",
    ),
    *(
        (method, stub, request, CODES.INVALID_ARGUMENT, "split it into smaller requests")
        for method, stub, request in (
            (
                "Topics.Create",
                TopicsStub,
                topics_pb2.CreateTopicsRequest(
                    topics=[topics_pb2.NewTopic(configs=[topics_pb2.NewTopicConfig()] * BEYOND)]
                ),
            ),
            (
                "Topics.Create",
                TopicsStub,
                topics_pb2.CreateTopicsRequest(
                    topics=[topics_pb2.NewTopic(assignments=[topics_pb2.ReplicaAssignment()] * BEYOND)]
                ),
            ),
            (
                "Topics.CreatePartitions",
                TopicsStub,
                topics_pb2.CreatePartitionsRequest(assignments=[topics_pb2.ReplicaAssignment()] * BEYOND),
            ),
            (
                "Topics.CreatePartitions",
                TopicsStub,
                topics_pb2.CreatePartitionsRequest(assignments=[topics_pb2.ReplicaAssignment(node_ids=[1] * BEYOND)]),
            ),
            (
                "Configs.Describe",
                ConfigsStub,
                configs_pb2.DescribeConfigsRequest(names=configs_pb2.ConfigNames(names=["a"] * BEYOND)),
            ),
            (
                "Configs.Alter",
                ConfigsStub,
                configs_pb2.AlterConfigsRequest(alterations=[configs_pb2.ConfigAlteration()] * BEYOND),
            ),
            ("Groups.List", GroupsStub, groups_pb2.ListGroupsRequest(states=["a"] * BEYOND)),
            ("Groups.List", GroupsStub, groups_pb2.ListGroupsRequest(types=["a"] * BEYOND)),
            (
                "Groups.CommitOffsets",
                GroupsStub,
                groups_pb2.CommitOffsetsRequest(group="g", topics=[groups_pb2.TopicCommit()] * BEYOND),
            ),
            (
                "Groups.CommitOffsetsInTransaction",
                GroupsStub,
                groups_pb2.TxnCommitOffsetsRequest(group="g", topics=[groups_pb2.TopicCommit()] * BEYOND),
            ),
            (
                "Groups.FetchOffsets",
                GroupsStub,
                groups_pb2.FetchOffsetsRequest(group="g", topics=[groups_pb2.TopicPartitions()] * BEYOND),
            ),
            (
                "Groups.DeleteOffsets",
                GroupsStub,
                groups_pb2.DeleteOffsetsRequest(group="g", topics=[groups_pb2.TopicPartitions()] * BEYOND),
            ),
            (
                "Transactions.List",
                TransactionsStub,
                transactions_pb2.ListTransactionsRequest(states=["a"] * BEYOND),
            ),
        )
    ),
    (
        "Configs.Describe",
        ConfigsStub,
        configs_pb2.DescribeConfigsRequest(resource=configs_pb2.Resource(kind=77)),
        CODES.INVALID_ARGUMENT,
        "kind 77",
    ),
    (
        "Configs.Alter",
        ConfigsStub,
        configs_pb2.AlterConfigsRequest(
            resource=configs_pb2.Resource(kind=2, name="t"),
            alterations=[configs_pb2.ConfigAlteration(name="retention.ms", operation=9, value="1")],
        ),
        CODES.INVALID_ARGUMENT,
        "operation 9",
    ),
    (
        "Configs.Alter",
        ConfigsStub,
        configs_pb2.AlterConfigsRequest(
            resource=configs_pb2.Resource(kind=2, name="t"),
            alterations=[configs_pb2.ConfigAlteration(name="retention.ms", value="soon")],
        ),
        CODES.INVALID_ARGUMENT,
        "retention.ms",
    ),
    (
        "Offsets.List",
        OffsetsStub,
        offsets_pb2.ListOffsetsRequest(
            queries=[
                offsets_pb2.OffsetQuery(topic="t", isolation=4)  # type: ignore[arg-type]
            ]
        ),
        CODES.INVALID_ARGUMENT,
        "isolation 4",
    ),
    (
        "Offsets.List",
        OffsetsStub,
        offsets_pb2.ListOffsetsRequest(
            queries=[
                offsets_pb2.OffsetQuery(topic="t", isolation=int(Isolation.LOG_END))  # type: ignore[arg-type]
            ]
        ),
        CODES.INVALID_ARGUMENT,
        "isolation 2",
    ),
    (
        "Offsets.DeleteRecords",
        OffsetsStub,
        offsets_pb2.DeleteRecordsRequest(topic="t", before_offset=99),
        CODES.OUT_OF_RANGE,
        "99",
    ),
    (
        "Offsets.ForLeaderEpoch",
        OffsetsStub,
        offsets_pb2.EpochEndRequest(topic="t", partition=5),
        CODES.NOT_FOUND,
        "t-5",
    ),
    ("Cold.Manifests", ColdStub, cold_pb2.ManifestsRequest(topic="nothing"), CODES.NOT_FOUND, "nothing"),
    (
        "Log.Produce",
        LogStub,
        log_pb2.ProduceRequest(appends=many(MAX_PARTITIONS + 1)),
        CODES.INVALID_ARGUMENT,
        f"at most {MAX_PARTITIONS}",
    ),
    ("Log.Fetch", LogStub, log_pb2.FetchRequest(max_wait_ms=-1), CODES.INVALID_ARGUMENT, "max_wait_ms"),
]


@pytest.mark.parametrize(("method", "stub", "request_", "code", "words"), WRONG)
async def test_a_wrong_call_ends_with_status_and_detail(
    node: Served, channel: Any, method: str, stub: Any, request_: Any, code: grpc.StatusCode, words: str
) -> None:
    before = node.node.node.ground.metadata.image

    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await getattr(stub(channel), method.partition(".")[2])(request_)

    detail = detail_in(refused.value.trailing_metadata())
    assert refused.value.code() is code
    assert detail is not None
    assert words in detail.message
    assert detail.kafka_error
    after = node.node.node.ground.metadata.image
    # The node's own workers may write meanwhile: the start that the bucket confirmed, and the topic files that it showed.
    assert (after.topics, after.deleting, after.configs) == (before.topics, before.deleting, before.configs)
    assert node.hot("t").end_offset == 0


async def test_a_message_beyond_the_bound_is_refused_with_both_sizes(node: Served, channel: Any) -> None:
    huge = log_pb2.ProduceRequest(appends=[log_pb2.Append(topic="t", partition=0, batch=bytes(MAX_REQUEST_BYTES + 1))])
    async with grpc.aio.insecure_channel(node.address, options=[("grpc.max_send_message_length", -1)]) as unbounded:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await LogStub(unbounded).Produce(huge)
    assert refused.value.code() is CODES.RESOURCE_EXHAUSTED
    assert str(MAX_REQUEST_BYTES) in (refused.value.details() or "")
    answer = await LogStub(channel).Produce(
        log_pb2.ProduceRequest(appends=[log_pb2.Append(topic="t", partition=0, batch=batch(b"x"))])
    )
    assert answer.results[0].base_offset == 0


async def test_bytes_that_are_not_a_message_are_refused(node: Served, channel: Any) -> None:
    for method in ("Log/Produce", "Topics/Create", "Cold/Manifests"):
        call = channel.unary_unary(f"/tidelog.v1.{method}", request_serializer=None, response_deserializer=None)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(b"\xff\xff\xff\xff\x07 no message at all")
        detail = detail_in(refused.value.trailing_metadata())
        assert refused.value.code() is CODES.INVALID_ARGUMENT
        assert detail is not None
        assert "cannot be parsed" in detail.message
    stream = channel.stream_stream("/tidelog.v1.Log/ProduceStream")()
    await stream.write(b"\xff\xff\xff\xff\x07")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stream.read()
    assert refused.value.code() is CODES.INVALID_ARGUMENT
    assert node.hot("t").end_offset == 0


async def test_an_error_about_a_long_name_arrives_with_its_detail(channel: Any) -> None:
    request = offsets_pb2.DeleteRecordsRequest(topic="n" * 1_000_000, partition=0, before_offset=0)
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await OffsetsStub(channel).DeleteRecords(request)
    detail = detail_in(failure.value.trailing_metadata())
    assert failure.value.code() is CODES.NOT_FOUND
    assert detail is not None and detail.kafka_error == "UNKNOWN_TOPIC_OR_PARTITION"


async def test_an_unknown_method_is_unimplemented(channel: Any) -> None:
    call = channel.unary_unary("/tidelog.v1.Log/Erase", request_serializer=None, response_deserializer=None)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call(b"")
    assert refused.value.code() is CODES.UNIMPLEMENTED


def waiting(node: Served) -> int:
    from storage_tiers.types import TopicPartition

    return len(node.node.node.broker.partitions.get(TopicPartition("t", 0)).waiters)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_deadline_ends_the_read_on_the_node_too(node: Served, channel: Any, stream: bool) -> None:
    wanted = log_pb2.FetchPartition(topic="t", partition=0, max_bytes=1000)
    request = log_pb2.FetchRequest(partitions=[wanted], max_wait_ms=600_000, min_bytes=1, max_bytes=1000)
    log = LogStub(channel)
    call: Any = log.FetchStream(request, timeout=2) if stream else log.Fetch(request, timeout=2)
    outcome = asyncio.ensure_future(_drain(call) if stream else _answer(call))
    await until(lambda: waiting(node) == 1 or outcome.done())  # a busy machine may see the deadline first
    with pytest.raises(grpc.aio.AioRpcError) as late:
        await outcome
    assert late.value.code() is CODES.DEADLINE_EXCEEDED
    await until(lambda: waiting(node) == 0)


async def _drain(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def _answer(call: Any) -> None:
    await call


async def test_a_negative_deadline_does_nothing(node: Served, channel: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as late:
        await TopicsStub(channel).Create(create_late(), timeout=-1.0)
    assert late.value.code() is CODES.DEADLINE_EXCEEDED
    assert await topic_names(channel) == ["t"]


async def test_a_call_past_its_deadline_before_its_turn_does_nothing(node: Served, channel: Any) -> None:
    ended: list[grpc.StatusCode] = []

    def call_from_a_thread() -> None:
        with grpc.insecure_channel(node.address) as blocking:
            grpc.channel_ready_future(blocking).result(60)
            connected.set()
            held.wait(60)
            try:
                TopicsStub(blocking).Create(create_late(), timeout=0.05)
            except grpc.RpcError as error:
                ended.append(error.code())

    connected, held = threading.Event(), threading.Event()
    caller = threading.Thread(target=call_from_a_thread)
    caller.start()
    await until(connected.is_set)
    held.set()
    caller.join(60)  # blocks the node's event loop, on purpose, until the caller has given up
    assert ended == [CODES.DEADLINE_EXCEEDED]
    assert await topic_names(channel) == ["t"]


def create_late() -> topics_pb2.CreateTopicsRequest:
    return topics_pb2.CreateTopicsRequest(topics=[topics_pb2.NewTopic(name="late")])


async def topic_names(channel: Any) -> list[str]:
    found = await TopicsStub(channel).Describe(topics_pb2.DescribeTopicsRequest(all=True))
    return [each.topic.name for each in found.topics]


async def test_watchers_that_leave_are_forgotten(channel: Any, node: Served) -> None:
    tasks = len(asyncio.all_tasks())
    calls = [TopicsStub(channel).Watch(topics_pb2.WatchRequest()) for _ in range(10)]
    for call in calls:
        update = await call.read()
        assert [topic.name for topic in update.topics] == ["t"]
    await node.node.create("u")
    for call in calls:
        update = await call.read()
        while not update.topics:  # another change of the metadata may come before it
            update = await call.read()
        assert ([topic.name for topic in update.topics], update.complete) == (["u"], False)
        call.cancel()
    await until(lambda: len(asyncio.all_tasks()) <= tasks)


async def test_a_deleted_topic_is_a_change_like_any_other(channel: Any, node: Served) -> None:
    call = TopicsStub(channel).Watch(topics_pb2.WatchRequest())
    (topic,) = (await call.read()).topics
    await node.node.core.topics.delete(["t"])
    update = await call.read()
    while not update.deleted_topic_ids:
        update = await call.read()
    assert list(update.deleted_topic_ids) == [topic.topic_id]
    call.cancel()


def field(number: int, data: bytes) -> bytes:
    """A field of bytes on the wire."""
    size, length = len(data), b""
    while size > 0x7F:
        length += bytes([size & 0x7F | 0x80])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + data


EMPTY = field(1, b"") * (MAX_FIELDS + 1)


@pytest.mark.parametrize(
    ("method", "data"),
    [
        ("Topics/Create", EMPTY),
        ("Groups/CommitOffsets", field(5, field(2, b"") * (MAX_FIELDS + 1))),
        ("Records/Send", field(2, field(3, b"") * (MAX_FIELDS + 1))),
        ("Transactions/List", field(2, b"\1" * (4 * MAX_FIELDS + 4))),
    ],
)
async def test_a_request_of_too_many_fields_is_refused_before_it_is_parsed(
    channel: Any, method: str, data: bytes
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await channel.unary_unary(f"/tidelog.v1.{method}")(data)
    assert refused.value.code() is CODES.INVALID_ARGUMENT
    assert f"{MAX_FIELDS} fields" in str(refused.value.details())
