"""`tidelog.v1.Transactions` beyond the contract: requests that a message can hold but the contract cannot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest

from grpc_api.channel import open_channel
from grpc_api.contract.caller import Caller
from grpc_api.contract.transactions import ListTransactions, Markers, ProducerIdAndEpoch
from grpc_api.messages.errors import detail_in
from grpc_api.messages.transactions import list_message, list_of, markers_message
from grpc_api.proto import transactions_pb2 as pb
from grpc_api.proto.transactions_pb2_grpc import TransactionsStub
from grpc_api.servicers.server import serve_grpc
from grpc_api.servicers.transactions import CoreTransactions
from storage_tiers.errors import LogError
from storage_tiers.types import TopicPartition
from tests.kafka_gateway.memory_core import MemoryCore

CALLER = Caller("User:ANONYMOUS", "app", "/127.0.0.1")


@pytest.fixture
async def stub() -> AsyncIterator[Any]:
    core = MemoryCore()
    server = await serve_grpc(core, "127.0.0.1", 0)
    try:
        async with open_channel(f"127.0.0.1:{server.port}") as channel:
            stub: Any = TransactionsStub(channel)
            async with asyncio.timeout(60):
                while await _is_loading(stub):
                    await asyncio.sleep(0.005)
            yield stub
    finally:
        await server.stop(0)
        core.close()


async def _is_loading(stub: Any) -> bool:
    try:
        await stub.Describe(pb.DescribeTransactionRequest(transactional_id="x"))
    except grpc.aio.AioRpcError as failure:
        assert failure.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED)
        return True
    return False


async def refusal(call: Any) -> str:
    """The message of an InvalidRequest with which the whole call failed."""
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call
    detail = detail_in(failed.value.trailing_metadata())
    assert detail is not None and detail.reason == "InvalidRequest", detail
    return detail.message


@pytest.mark.parametrize(("number", "epoch"), [(-1, 0), (5, -1), (5, 1 << 15), (-1, -1)])
async def test_a_producer_that_kafka_cannot_name_is_refused(stub: Any, number: int, epoch: int) -> None:
    wrong = pb.ProducerIdentity(id=number, epoch=epoch)
    for call in (
        stub.InitProducer(pb.InitTransactionalProducerRequest(transactional_id="x", timeout_ms=1000, expected=wrong)),
        stub.AddPartitions(pb.AddPartitionsToTransactionRequest(transactional_id="x", producer=wrong)),
        stub.AddOffsets(pb.AddOffsetsToTransactionRequest(transactional_id="x", producer=wrong, group="g")),
        stub.End(pb.EndTransactionRequest(transactional_id="x", producer=wrong, commit=True)),
        stub.WriteMarkers(pb.WriteTransactionMarkersRequest(producer=wrong)),
    ):
        assert "take both from InitProducer" in await refusal(call)
    # A broker that verifies a batch passes on its client's producer unchecked, and the coordinator refuses the producer.
    if epoch < 1 << 15:
        verified = pb.AddPartitionsToTransactionRequest(transactional_id="x", producer=wrong, verify_only=True)
        assert (await stub.AddPartitions(verified)).error.kafka_error == "INVALID_PRODUCER_ID_MAPPING"
    # The advice of the error works.
    asked = pb.InitTransactionalProducerRequest(transactional_id="x", timeout_ms=1000)
    producer = (await stub.InitProducer(asked)).producer
    ended = await stub.End(pb.EndTransactionRequest(transactional_id="x", producer=producer, commit=True))
    assert ended.error.kafka_error == "INVALID_TXN_STATE"  # there is no transaction to end


async def test_a_transactional_producer_needs_a_name(stub: Any) -> None:
    said = await refusal(stub.InitProducer(pb.InitTransactionalProducerRequest(timeout_ms=1000)))
    assert "Log.InitProducerId is for an idempotent producer" in said


async def test_requests_are_bounded(stub: Any) -> None:
    producer = pb.ProducerIdentity(id=1, epoch=0)
    many = [pb.TransactionPartition(topic="t", partition=number) for number in range(10_001)]
    for call in (
        stub.AddPartitions(
            pb.AddPartitionsToTransactionRequest(transactional_id="x", producer=producer, partitions=many)
        ),
        stub.WriteMarkers(pb.WriteTransactionMarkersRequest(producer=producer, partitions=many)),
        stub.List(pb.ListTransactionsRequest(producer_ids=range(10_001))),
    ):
        assert "at most 10000" in await refusal(call)


async def test_markers_pass_with_the_epoch_of_their_coordinator() -> None:
    """By this epoch a partition recognises, and refuses, the markers of a replaced coordinator."""
    asked = Markers("", ProducerIdAndEpoch(7, 3), True, [TopicPartition("t", 1)], 2)
    written: list[tuple[Markers, int]] = []

    async def write_markers(
        markers: Markers, coordinator_epoch: int, _: Caller
    ) -> list[tuple[TopicPartition, LogError]]:
        written.append((markers, coordinator_epoch))
        return []

    core: Any = SimpleNamespace(transactions=SimpleNamespace(write_markers=write_markers))
    await CoreTransactions(core).WriteMarkers(markers_message(asked, 5, CALLER), SimpleNamespace(peer_name=""))
    assert written == [(asked, 5)]


def test_transactions_of_any_age_are_not_those_of_no_age() -> None:
    for duration_ms in (-1, 0, 5):
        asked = ListTransactions(frozenset(), frozenset(), duration_ms, None)
        assert list_of(list_message(asked, CALLER)) == asked
