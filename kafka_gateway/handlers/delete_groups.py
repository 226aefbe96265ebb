"""DeleteGroups, key 42, versions 0 to 2: groups without members are removed, with their offsets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from grpc_api.contract.groups import DeleteGroup, GroupDeleted
from kafka_gateway.errors import code_of
from kafka_gateway.message_handler import Call, Delayed, Fields, all_of


def serve(request: Any, call: Call) -> Delayed:
    answers = [call.core.groups.delete_group(DeleteGroup(group), call.caller) for group in request.groups_names]
    return Delayed(all_of(answers), lambda done: {"results": _rows(request, done, call)})


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {"results": (_result(call, group, code) for group in request.groups_names)}


def _rows(request: Any, done: Sequence[GroupDeleted | BaseException], call: Call) -> Iterator[Any]:
    for group, answer in zip(request.groups_names, done, strict=True):
        error = answer if isinstance(answer, BaseException) else answer.error
        yield _result(call, group, code_of(error))


def _result(call: Call, group: str, code: int) -> Any:
    return call.make("DeletableGroupResult", group_id=group, error_code=code)
