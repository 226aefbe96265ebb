"""`tidelog.v1.Groups` beyond the contract: the caller's address, bounds, and requests that a message can hold but the contract
cannot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import Any

import grpc
import grpc.aio
import pytest

from grpc_api import limits
from grpc_api.channel import open_channel
from grpc_api.contract.caller import Caller
from grpc_api.contract.groups import LeaveGroup, Left, LowerOffsets
from grpc_api.messages.errors import detail_in
from grpc_api.proto import groups_pb2 as pb
from grpc_api.proto.groups_pb2_grpc import GroupsStub
from grpc_api.servicers.server import GrpcServer, serve_grpc
from tests.kafka_gateway.memory_core import MemoryCore
from tests.service.broker.support import until

PROTOCOLS = [pb.MemberProtocol(name="range", metadata=b"\0\1")]


@pytest.fixture
async def core() -> AsyncIterator[MemoryCore]:
    core = MemoryCore()
    yield core
    core.close()


@pytest.fixture
async def server(core: MemoryCore) -> AsyncIterator[GrpcServer]:
    running = await serve_grpc(core, "127.0.0.1", 0)
    yield running
    await running.stop(0)


@pytest.fixture
async def stub(server: GrpcServer) -> AsyncIterator[Any]:
    async with open_channel(f"127.0.0.1:{server.port}") as channel:
        stub: Any = GroupsStub(channel)
        async with asyncio.timeout(60):
            while await _is_loading(stub):
                await asyncio.sleep(0.005)
        yield stub


async def _is_loading(stub: Any) -> bool:
    try:
        await stub.FetchOffsets(pb.FetchOffsetsRequest(group="g", all=True))
    except grpc.aio.AioRpcError as failure:
        assert failure.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED)
        return True
    return False


def joining(**fields: Any) -> pb.JoinGroupRequest:
    return pb.JoinGroupRequest(
        group="g",
        protocol_type="consumer",
        protocols=PROTOCOLS,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=300_000,
        **fields,
    )


async def reason(call: Any) -> str:
    """The reason for which the whole call failed."""
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call
    detail = detail_in(failed.value.trailing_metadata())
    assert detail is not None
    return detail.reason


async def test_a_members_host_is_its_connections_unless_it_names_another(stub: Any) -> None:
    joined = await stub.Join(joining(caller=pb.GroupCaller(client_id="app")))
    described = await stub.Describe(pb.DescribeGroupRequest(group="g"))
    assert joined.generation == 1
    assert [(each.client_id, each.client_host) for each in described.members] == [("app", "/127.0.0.1")]


async def test_calls_that_wait_for_members_are_bounded(server: GrpcServer, stub: Any) -> None:
    one = await stub.Join(joining())
    part = pb.MemberAssignment(member_id=one.member_id, assignment=b"\0")
    await stub.Sync(pb.SyncGroupRequest(group="g", generation=1, member_id=one.member_id, assignments=[part]))
    waiting = [stub.Join(joining()) for _ in range(limits.MAX_JOINS)]
    await until(lambda: server.bounds.joins == limits.MAX_JOINS)
    assert await reason(stub.Join(joining())) == "Busy"
    # Members of the group continue: a full bound delays no heartbeat.
    beat = await stub.Heartbeat(pb.HeartbeatRequest(group="g", generation=1, member_id=one.member_id))
    assert beat.error.kafka_error == "REBALANCE_IN_PROGRESS"
    for each in waiting:
        each.cancel()
    await until(lambda: server.bounds.joins == 0 and server.bounds.calls == 0)
    assert server.bounds.requests.held_bytes == server.bounds.answers.held_bytes == 0
    assert (await stub.Join(joining(member_id=one.member_id, reason="again"))).leader


async def test_calls_that_lower_offsets_are_bounded(
    core: MemoryCore, server: GrpcServer, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each such call holds the ends of its request for as long as it visits groups."""
    end = asyncio.Event()

    async def lower_offsets(request: LowerOffsets, caller: Caller) -> Collection[int]:
        await end.wait()
        return request.coordinators

    monkeypatch.setattr(core.groups, "lower_offsets", lower_offsets)
    waiting = [stub.LowerOffsets(pb.LowerOffsetsRequest(coordinators=[3])) for _ in range(limits.MAX_LOWERINGS)]
    await until(lambda: server.bounds.lowerings == limits.MAX_LOWERINGS)
    assert await reason(stub.LowerOffsets(pb.LowerOffsetsRequest())) == "Busy"
    waiting.pop().cancel()
    await until(lambda: server.bounds.lowerings == limits.MAX_LOWERINGS - 1)
    end.set()
    assert [list((await each).lowered) for each in waiting] == [[3]] * len(waiting)
    assert server.bounds.lowerings == 0


async def test_ends_that_no_log_has_and_too_many_coordinators_are_refused(stub: Any) -> None:
    below = pb.LostTopicEnds(topic="t", partitions=[pb.LostEnd(offset=-1)])
    for request in (pb.LowerOffsetsRequest(topics=[below]), pb.LowerOffsetsRequest(coordinators=range(10_001))):
        assert await reason(stub.LowerOffsets(request)) == "InvalidRequest"


async def test_requests_that_the_contract_cannot_hold_are_refused(stub: Any) -> None:
    topic = pb.TopicPartitions(topic="t", partitions=[0])
    assert await reason(stub.FetchOffsets(pb.FetchOffsetsRequest(group="g", all=True, topics=[topic]))) == (
        "InvalidRequest"
    )
    assert (await stub.FetchOffsets(pb.FetchOffsetsRequest(group="g", topics=[topic]))).topics[0].topic == "t"
    short = pb.TopicPartitions(topic_id=b"short", partitions=[0])
    assert await reason(stub.FetchOffsets(pb.FetchOffsetsRequest(group="g", topics=[short]))) == "InvalidRequest"
    many = pb.TopicPartitions(topic="t", partitions=range(10_001))
    assert await reason(stub.DeleteOffsets(pb.DeleteOffsetsRequest(group="g", topics=[many]))) == "InvalidRequest"
    assert await reason(stub.Heartbeat(pb.HeartbeatRequest(member_id="m"))) == "InvalidGroupId"


async def test_a_topic_without_partitions_takes_no_answer_from_the_others(stub: Any) -> None:
    await stub.Join(joining())
    for partitions in ([], [0]):
        topics = [pb.TopicPartitions(topic="t"), pb.TopicPartitions(topic="u", partitions=partitions)]
        deleted = await stub.DeleteOffsets(pb.DeleteOffsetsRequest(group="g", topics=topics))
        assert not deleted.HasField("error")


async def test_members_that_leave_in_one_call_leave_in_one_decision(
    core: MemoryCore, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"m{number}" for number in range(1000)]
    decided: list[LeaveGroup] = []
    leave = core.groups.leave

    def decide(asked: LeaveGroup, caller: Caller) -> asyncio.Future[Left]:
        decided.append(asked)
        return leave(asked, caller)

    monkeypatch.setattr(core.groups, "leave", decide)
    members = [pb.LeavingMember(member_id=name) for name in names]
    left = await stub.Leave(pb.LeaveGroupRequest(group="g", members=members))
    assert [each.member_id for each in left.members] == names
    assert [[each.member_id for each in asked.members] for asked in decided] == [names]
