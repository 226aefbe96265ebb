"""The contract's `Transactions` over a channel.

Invariant: as in `remote_groups.py`, a call without the node's answer ends with CoordinatorNotAvailable. The node may or may not
have decided the call, and the same request may be sent again: a coordinator answers a repeated End like the first one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from grpc_api.channel import CALL_TIMEOUT_S, NodeChannel, decided
from grpc_api.contract.caller import Caller
from grpc_api.contract.transactions import (
    AddOffsets,
    AddPartitions,
    DescribedTransaction,
    EndTransaction,
    InitProducer,
    ListTransactions,
    Markers,
    PartitionsAdded,
    ProducerInitialized,
    TransactionEnded,
    TransactionsListed,
)
from grpc_api.messages.groups import caller_message
from grpc_api.messages.transactions import (
    add_offsets_message,
    add_partitions_message,
    added_of,
    described_of,
    end_message,
    ended_of,
    init_message,
    initialized_of,
    list_message,
    listed_of,
    markers_message,
    refused_of,
)
from grpc_api.proto import transactions_pb2 as pb
from grpc_api.proto.transactions_pb2_grpc import TransactionsStub
from storage_tiers.errors import LogError
from storage_tiers.types import TopicPartition


class RemoteTransactions:
    """`contract.transactions.Transactions` over a channel."""

    def __init__(self, node: NodeChannel) -> None:
        self._address = node.address
        self._stub: Any = TransactionsStub(node.channel)

    async def coordinator(self, transactional_id: str, caller: Caller) -> int:
        asked = pb.TransactionCoordinatorRequest(transactional_id=transactional_id, caller=caller_message(caller))
        return int((await self._answer(self._stub.Coordinator, asked)).node_id)

    # --- producers ----------------------------------------------------------------------------------------------------
    async def init_producer(self, request: InitProducer, caller: Caller) -> ProducerInitialized:
        return initialized_of(await self._answer(self._stub.InitProducer, init_message(request, caller)))

    def add_partitions(self, request: AddPartitions, caller: Caller) -> asyncio.Future[PartitionsAdded]:
        return asyncio.ensure_future(self._add_partitions(request, caller))

    async def _add_partitions(self, request: AddPartitions, caller: Caller) -> PartitionsAdded:
        return added_of(await self._answer(self._stub.AddPartitions, add_partitions_message(request, caller)))

    async def add_offsets(self, request: AddOffsets, caller: Caller) -> PartitionsAdded:
        return added_of(await self._answer(self._stub.AddOffsets, add_offsets_message(request, caller)))

    def end(self, request: EndTransaction, caller: Caller) -> asyncio.Future[TransactionEnded]:
        return asyncio.ensure_future(self._end(request, caller))

    async def _end(self, request: EndTransaction, caller: Caller) -> TransactionEnded:
        return ended_of(await self._answer(self._stub.End, end_message(request, caller)))

    # --- administration -----------------------------------------------------------------------------------------------
    async def write_markers(
        self, markers: Markers, coordinator_epoch: int, caller: Caller
    ) -> Sequence[tuple[TopicPartition, LogError]]:
        asked = markers_message(markers, coordinator_epoch, caller)
        return refused_of((await self._answer(self._stub.WriteMarkers, asked)).refused)

    async def list(self, request: ListTransactions, caller: Caller) -> TransactionsListed:
        return listed_of(await self._answer(self._stub.List, list_message(request, caller)))

    def describe(self, transactional_id: str, caller: Caller) -> asyncio.Future[DescribedTransaction]:
        return asyncio.ensure_future(self._describe(transactional_id, caller))

    async def _describe(self, transactional_id: str, caller: Caller) -> DescribedTransaction:
        asked = pb.DescribeTransactionRequest(transactional_id=transactional_id, caller=caller_message(caller))
        return described_of(await self._answer(self._stub.Describe, asked))

    async def _answer(self, method: Any, request: Any) -> Any:
        return await decided(method(request, timeout=CALL_TIMEOUT_S), self._address)
