"""`tidelog.v1.Log` over the core's contract: unpack, call, pack. Records pass as bytes; nothing here decodes one."""

from __future__ import annotations

from typing import Any

from grpc_api.contract.core import Core
from grpc_api.contract.log import Appended
from grpc_api.contract.ready import settled
from grpc_api.messages.log import appends_of, fetch_of, result_message
from grpc_api.proto import log_pb2 as pb
from grpc_api.proto.log_pb2_grpc import LogServicer
from grpc_api.servicers.errors import answers_errors, ends_with_errors
from grpc_api.servicers.fetch_stream import follow
from grpc_api.servicers.fetching import AnswerRoom, bounded, fetched, whole_message
from grpc_api.servicers.produce_stream import ProduceSession, committed


class CoreLog(LogServicer):
    def __init__(self, core: Core) -> None:
        self._core = core
        self._room = AnswerRoom()

    @answers_errors
    async def Produce(self, request: pb.ProduceRequest, context: Any) -> pb.ProduceResponse:  # noqa: N802
        appends = appends_of(request)
        transactional_id = request.transactional_id if request.HasField("transactional_id") else None
        results = await settled(self._core.log.append(appends, transactional_id=transactional_id))
        if request.acks == pb.ACKS_ALL:
            results = [await committed(each) for each in results]
        all_done = request.acks == pb.ACKS_ALL
        return pb.ProduceResponse(
            results=[
                result_message(each, committed=all_done or (isinstance(each, Appended) and each.committed is None))
                for each in results
            ]
        )

    @ends_with_errors
    async def ProduceStream(self, request_iterator: Any, context: Any) -> None:  # noqa: N802
        await ProduceSession(self._core, context.write).run(request_iterator)

    @answers_errors
    async def Fetch(self, request: pb.FetchRequest, context: Any) -> pb.FetchResponse:  # noqa: N802
        async with fetched(self._core.log, bounded(fetch_of(request)), self._room) as answers:
            return pb.FetchResponse(partitions=[await whole_message(index, each) for index, each in enumerate(answers)])

    @ends_with_errors
    async def FetchStream(self, request: pb.FetchRequest, context: Any) -> None:  # noqa: N802
        await follow(self._core.log, bounded(fetch_of(request)), self._room, context.write)

    @answers_errors
    async def InitProducerId(  # noqa: N802
        self, request: pb.InitProducerIdRequest, context: Any
    ) -> pb.InitProducerIdResponse:
        producer_id, epoch = await self._core.log.init_producer_id(
            request.transactional_id if request.HasField("transactional_id") else None,
            producer_id=request.producer_id if request.HasField("producer_id") else -1,
            producer_epoch=request.producer_epoch if request.HasField("producer_epoch") else -1,
            timeout_ms=request.timeout_ms,
        )
        return pb.InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch)
