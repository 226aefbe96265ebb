"""`tidelog.v1.Log` over the core's contract: unpack, call, pack. Records pass as bytes; nothing here decodes one."""

from __future__ import annotations

from typing import Any

from grpc_api.contract.core import Core
from grpc_api.contract.log import Appended
from grpc_api.messages.log import fetch_of, result_message
from grpc_api.proto import log_pb2 as pb
from grpc_api.proto.log_pb2_grpc import LogServicer
from grpc_api.servicers.calls import in_pieces, writes_its_answer
from grpc_api.servicers.fetch_stream import follow
from grpc_api.servicers.fetching import bounded, encoded, fetched, part_and_records, release, size_of
from grpc_api.servicers.produce_stream import ProduceSession, append_in_pieces, committed


class CoreLog(LogServicer):
    """Produces and fetches. A partition's LogError is its part of the answer; that of a whole request ends the call."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def Produce(self, request: pb.ProduceRequest, context: Any) -> pb.ProduceResponse:  # noqa: N802
        results = await append_in_pieces(self._core, request)
        all_done = request.acks == pb.ACKS_ALL
        del request  # appended records need not be held until they are committed
        context.forget_request()
        if all_done:
            results = [await committed(each) for each in results]
        answer = pb.ProduceResponse()
        async for some in in_pieces(results):
            answer.results.extend(
                result_message(each, committed=all_done or (isinstance(each, Appended) and each.committed is None))
                for each in some
            )
        return answer

    async def ProduceStream(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]  # noqa: N802
        await ProduceSession(self._core, context.write).run(request_iterator)

    @writes_its_answer
    async def Fetch(self, request: pb.FetchRequest, context: Any) -> None:  # type: ignore[override]  # noqa: N802
        fetch = bounded(fetch_of(request))
        del request
        context.forget_request()
        with context.bounds.following(len(fetch.partitions)):
            async with fetched(self._core.log, fetch, context) as answers:
                async with context.bounds.turn(size_of(answers), len(answers)):
                    data = encoded([await part_and_records(index, each) for index, each in enumerate(answers)])
                release(answers)  # the caller may read slowly
                await context.write_counted(data)

    async def FetchStream(self, request: pb.FetchRequest, context: Any) -> None:  # type: ignore[override]  # noqa: N802
        fetch = bounded(fetch_of(request))
        del request
        context.forget_request()
        with context.bounds.following(len(fetch.partitions)):
            await follow(self._core.log, fetch, context)

    async def InitProducerId(  # noqa: N802
        self, request: pb.InitProducerIdRequest, context: Any
    ) -> pb.InitProducerIdResponse:
        producer_id, epoch = await self._core.log.init_producer_id()
        return pb.InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch)
