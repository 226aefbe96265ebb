"""`tidelog.v1.Configs` over the core's contract."""

from __future__ import annotations

from typing import Any

from grpc_api.contract.core import Core
from grpc_api.messages.log import check_count
from grpc_api.messages.topics import alteration_of, entry_message, resource_of
from grpc_api.proto import configs_pb2 as pb
from grpc_api.proto.configs_pb2_grpc import ConfigsServicer


class CoreConfigs(ConfigsServicer):
    """Describes and alters configs of topics, brokers and other resources. A LogError ends the call with its status and
    detail."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def Describe(  # noqa: N802
        self, request: pb.DescribeConfigsRequest, context: Any
    ) -> pb.DescribeConfigsResponse:
        check_count(len(request.names.names), of="configs")
        names = list(request.names.names) if request.HasField("names") else None
        entries = await self._core.configs.describe_configs(resource_of(request.resource), names)
        return pb.DescribeConfigsResponse(entries=map(entry_message, entries))

    async def Alter(self, request: pb.AlterConfigsRequest, context: Any) -> pb.AlterConfigsResponse:  # noqa: N802
        check_count(len(request.alterations), of="configs")
        await self._core.configs.alter_configs(
            resource_of(request.resource),
            [alteration_of(each) for each in request.alterations],
            validate_only=request.validate_only,
            replace=request.replace,
        )
        return pb.AlterConfigsResponse()
