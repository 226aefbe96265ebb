"""`tidelog.v1.Transactions` over the core's contract: unpack, call, pack. Long answers are packed in pieces."""

from __future__ import annotations

from typing import Any

from grpc_api.contract.caller import Caller
from grpc_api.contract.core import Core
from grpc_api.contract.transactions import PartitionsAdded
from grpc_api.messages.groups import caller_of, maybe_detail
from grpc_api.messages.transactions import (
    add_offsets_of,
    add_partitions_of,
    described_message,
    end_of,
    ended_message,
    init_of,
    initialized_message,
    list_of,
    listed_message,
    markers_of,
    partition_messages,
    refused_message,
)
from grpc_api.proto import groups_pb2
from grpc_api.proto import transactions_pb2 as pb
from grpc_api.proto.transactions_pb2_grpc import TransactionsServicer
from grpc_api.servicers.calls import in_pieces
from grpc_api.servicers.connections import host_of


class CoreTransactions(TransactionsServicer):
    """Transactions, for producers and administrators. A LogError ends the call with its status and detail."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def Coordinator(  # noqa: N802
        self, request: pb.TransactionCoordinatorRequest, context: Any
    ) -> groups_pb2.CoordinatorResponse:
        found = await self._core.transactions.coordinator(request.transactional_id, _caller(request, context))
        return groups_pb2.CoordinatorResponse(node_id=found)

    # --- producers ----------------------------------------------------------------------------------------------------
    async def InitProducer(  # noqa: N802
        self, request: pb.InitTransactionalProducerRequest, context: Any
    ) -> pb.InitTransactionalProducerResponse:
        asked = init_of(request)
        return initialized_message(await self._core.transactions.init_producer(asked, _caller(request, context)))

    async def AddPartitions(  # noqa: N802
        self, request: pb.AddPartitionsToTransactionRequest, context: Any
    ) -> pb.AddedToTransactionResponse:
        asked = add_partitions_of(request)
        return await _added(await self._core.transactions.add_partitions(asked, _caller(request, context)))

    async def AddOffsets(  # noqa: N802
        self, request: pb.AddOffsetsToTransactionRequest, context: Any
    ) -> pb.AddedToTransactionResponse:
        asked = add_offsets_of(request)
        return await _added(await self._core.transactions.add_offsets(asked, _caller(request, context)))

    async def End(self, request: pb.EndTransactionRequest, context: Any) -> pb.EndTransactionResponse:  # noqa: N802
        return ended_message(await self._core.transactions.end(end_of(request), _caller(request, context)))

    # --- administration -----------------------------------------------------------------------------------------------
    async def WriteMarkers(  # noqa: N802
        self, request: pb.WriteTransactionMarkersRequest, context: Any
    ) -> pb.WriteTransactionMarkersResponse:
        caller = _caller(request, context)
        refused = await self._core.transactions.write_markers(markers_of(request), request.coordinator_epoch, caller)
        answer = pb.WriteTransactionMarkersResponse()
        async for rows in in_pieces(refused):
            answer.refused.extend(map(refused_message, rows))
        return answer

    async def List(  # noqa: N802
        self, request: pb.ListTransactionsRequest, context: Any
    ) -> pb.ListTransactionsResponse:
        listed = await self._core.transactions.list(list_of(request), _caller(request, context))
        answer = pb.ListTransactionsResponse(error=maybe_detail(listed.error))
        async for rows in in_pieces(listed.transactions):
            answer.transactions.extend(map(listed_message, rows))
        return answer

    async def Describe(  # noqa: N802
        self, request: pb.DescribeTransactionRequest, context: Any
    ) -> pb.DescribeTransactionResponse:
        found = await self._core.transactions.describe(request.transactional_id, _caller(request, context))
        answer = described_message(found)
        async for partitions in in_pieces(found.partitions):
            answer.partitions.extend(partition_messages(partitions))
        return answer


def _caller(request: Any, context: Any) -> Caller:
    return caller_of(request.caller, host_of(context.peer_name))


async def _added(done: PartitionsAdded) -> pb.AddedToTransactionResponse:
    answer = pb.AddedToTransactionResponse(error=maybe_detail(done.error))
    async for rows in in_pieces(done.errors):
        answer.refused.extend(map(refused_message, rows))
    return answer
