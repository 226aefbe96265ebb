"""DeleteGroups, key 42, versions 0 to 2: removes groups without members, and their offsets."""

from __future__ import annotations

from typing import Any

from grpc_api.contract.groups import DeleteGroup, GroupDeleted
from kafka_gateway.errors import code_of
from kafka_gateway.message_handler import Call, Fields, ended


async def serve(request: Any, call: Call) -> Fields:
    groups = call.core.groups
    rows = [
        _row(call, name, await ended(groups.delete_group(DeleteGroup(name), call.caller)))
        async for name in call.each(request.groups_names)
    ]
    return {"results": rows}


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {"results": (_result(call, group, code) for group in request.groups_names)}


def _row(call: Call, group: str, answer: GroupDeleted | Exception) -> Any:
    return _result(call, group, code_of(answer if isinstance(answer, Exception) else answer.error))


def _result(call: Call, group: str, code: int) -> Any:
    return call.make("DeletableGroupResult", group_id=group, error_code=code)
