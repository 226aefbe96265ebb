"""The servicers over a real channel; the core behind them records what they ask of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from grpc_api.contract.log import SealedPartition
from grpc_api.messages.errors import detail_in
from grpc_api.proto.errors_pb2 import Advice
from grpc_api.proto.topics_pb2 import SealRequest, SealResponse
from grpc_api.proto.topics_pb2_grpc import TopicsStub
from grpc_api.servicers.server import GrpcServer, hold_port, serve_grpc
from storage_tiers.errors import InvalidConfig, LogError, RequestTimedOut, TierUnavailable, UnknownTopicOrPartition
from tests.kafka_gateway.memory_core import MemoryCore

SERVICES = [f"tidelog.v1.{name}" for name in ("Log", "Records", "Offsets", "Topics", "Configs", "Cold", "Groups")]


class SealingCore(MemoryCore):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, bool, int]] = []
        self.error: Exception | None = None
        self.cancelled = asyncio.Event()
        self.answer_at_once = True

    async def seal(self, topic: str, *, wait: bool, timeout_ms: int) -> Sequence[SealedPartition]:
        self.asked.append((topic, wait, timeout_ms))
        if self.error is not None:
            raise self.error
        if not self.answer_at_once:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        return [SealedPartition(0, 10, 10), SealedPartition(1, 7, 5)]


@pytest.fixture
async def core() -> SealingCore:
    return SealingCore()


@pytest.fixture
async def server(core: SealingCore) -> AsyncIterator[GrpcServer]:
    running = await serve_grpc(core, "127.0.0.1", 0)
    yield running
    await running.stop(0)


@pytest.fixture
async def channel(server: GrpcServer) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as opened:
        yield opened


async def test_seal_passes_the_request_on_and_answers_for_each_partition(core: SealingCore, channel: Any) -> None:
    answer: SealResponse = await TopicsStub(channel).Seal(
        SealRequest(topic="flights", wait=True, timeout=Duration(seconds=2, nanos=500_000_000))
    )

    assert core.asked == [("flights", True, 2500)]
    assert [(p.partition, p.end, p.tiered_end) for p in answer.partitions] == [(0, 10, 10), (1, 7, 5)]


async def test_without_a_timeout_a_minute_is_waited(core: SealingCore, channel: Any) -> None:
    await TopicsStub(channel).Seal(SealRequest(topic="flights"))

    assert core.asked == [("flights", False, 60_000)]


@pytest.mark.parametrize("timeout", [Duration(seconds=-1), Duration(seconds=1 << 31)])
async def test_a_timeout_that_cannot_be_held_is_refused(core: SealingCore, channel: Any, timeout: Duration) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await TopicsStub(channel).Seal(SealRequest(topic="flights", timeout=timeout))

    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert core.asked == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnknownTopicOrPartition("no topic flights — create it first"), grpc.StatusCode.NOT_FOUND),
        (RequestTimedOut("partition 3 is not in the bucket yet"), grpc.StatusCode.DEADLINE_EXCEEDED),
        (TierUnavailable("the store does not answer"), grpc.StatusCode.UNAVAILABLE),
    ],
)
async def test_an_error_arrives_with_its_sentence_name_and_advice(
    core: SealingCore, channel: Any, error: LogError, code: grpc.StatusCode
) -> None:
    core.error = error

    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await TopicsStub(channel).Seal(SealRequest(topic="flights"))

    assert failed.value.code() is code
    assert failed.value.details() == str(error)
    detail = detail_in(failed.value.trailing_metadata())
    assert detail is not None
    assert (detail.reason, detail.message) == (type(error).__name__, str(error))
    assert Advice.Name(detail.advice) == f"ADVICE_{error.advice.name}"


async def test_a_defect_is_internal_and_shows_nothing_of_its_insides(core: SealingCore, channel: Any) -> None:
    core.error = KeyError("secret")

    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await TopicsStub(channel).Seal(SealRequest(topic="flights"))

    assert failed.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in (failed.value.details() or "")


async def test_the_callers_deadline_ends_the_wait(core: SealingCore, channel: Any) -> None:
    core.answer_at_once = False

    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await TopicsStub(channel).Seal(SealRequest(topic="flights", wait=True), timeout=0.2)

    assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await asyncio.wait_for(core.cancelled.wait(), 60)


async def test_the_health_service_reports_serving(channel: Any) -> None:
    health = health_pb2_grpc.HealthStub(channel)

    for service in ("", *SERVICES):
        answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_reflection_lists_the_services(channel: Any) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))

    answer = await call.read()

    names = {service.name for service in answer.list_services_response.service}
    assert {*SERVICES, "grpc.health.v1.Health"} <= names


async def test_a_taken_port_is_refused_with_its_address(server: GrpcServer, core: SealingCore) -> None:
    with pytest.raises(
        InvalidConfig,
        match=f"127.0.0.1:{server.port} for gRPC: Address already in use; stop the process using it, or choose",
    ):
        await serve_grpc(core, "127.0.0.1", server.port)


async def test_a_port_is_held_for_the_server_against_other_listeners(core: SealingCore) -> None:
    with hold_port("127.0.0.1", 0) as held:
        port = held.getsockname()[1]
        server = await serve_grpc(core, "127.0.0.1", port)
        try:
            with pytest.raises(
                InvalidConfig,
                match=f"127.0.0.1:{port} for gRPC: Address already in use; stop the process using it, or choose",
            ):
                hold_port("127.0.0.1", port)
        finally:
            await server.stop(0)
    hold_port("127.0.0.1", port).close()


async def test_after_stop_the_port_is_free(core: SealingCore) -> None:
    first = await serve_grpc(core, "127.0.0.1", 0)
    await first.stop(0)

    second = await serve_grpc(core, "127.0.0.1", first.port)
    await second.stop(0)

    assert second.port == first.port


async def test_connections_beyond_the_bound_get_an_error_until_another_closes(core: SealingCore) -> None:
    server = await serve_grpc(core, "127.0.0.1", 0, connections=2)
    # Otherwise the channels of one process share a connection.
    apart = (("grpc.use_local_subchannel_pool", 1),)
    channels = [grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=apart) for _ in range(3)]
    first, second, third = (TopicsStub(channel) for channel in channels)
    try:
        for stub in (first, second, first):
            await stub.Seal(SealRequest(topic="flights"))
        with pytest.raises(grpc.aio.AioRpcError, match="2 connections are served already") as refused:
            await third.Seal(SealRequest(topic="flights"))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await first.Seal(SealRequest(topic="flights"))
        await channels[0].close()
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await third.Seal(SealRequest(topic="flights"))
                    break
        await second.Seal(SealRequest(topic="flights"))
    finally:
        for channel in channels:
            await channel.close()
        await server.stop(0)
