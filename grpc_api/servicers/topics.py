"""`tidelog.v1.Topics` over the core's contract: unpack, call, pack."""

from __future__ import annotations

from typing import Any

from grpc_api.contract.core import Core
from grpc_api.proto.topics_pb2 import SealedPartition, SealRequest, SealResponse
from grpc_api.proto.topics_pb2_grpc import TopicsServicer
from grpc_api.servicers.errors import answers_errors
from storage_tiers.errors import InvalidRequest

DEFAULT_SEAL_TIMEOUT_MS = 60_000
#: What the contract's timeouts, as Kafka's, can hold.
MAX_TIMEOUT_MS = (1 << 31) - 1


class CoreTopics(TopicsServicer):
    def __init__(self, core: Core) -> None:
        self._core = core

    @answers_errors
    async def Seal(self, request: SealRequest, context: Any) -> SealResponse:  # noqa: N802  (the service's name)
        sealed = await self._core.log.seal(request.topic, wait=request.wait, timeout_ms=_timeout_ms(request))
        return SealResponse(
            partitions=[
                SealedPartition(partition=part.partition, end=part.end, tiered_end=part.tiered_end) for part in sealed
            ]
        )


def _timeout_ms(request: SealRequest) -> int:
    if not request.HasField("timeout"):
        return DEFAULT_SEAL_TIMEOUT_MS
    milliseconds = request.timeout.ToMilliseconds()
    if not 0 <= milliseconds <= MAX_TIMEOUT_MS:
        raise InvalidRequest(f"a timeout lies between 0 and {MAX_TIMEOUT_MS} ms; {milliseconds} ms does not")
    return milliseconds
