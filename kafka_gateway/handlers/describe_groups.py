"""DescribeGroups, key 15, versions 0 to 6: members and state of groups. v6 has an error for a group that does not exist (below
it is only Dead)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from grpc_api.contract.groups import DescribedGroup, DescribeGroup
from kafka_gateway.errors import code_of, message_of
from kafka_gateway.handlers.metadata import NOT_ASKED
from kafka_gateway.message_handler import Call, Delayed, Fields, all_of
from storage_tiers.errors import GroupIdNotFound

#: One bit per AclOperation that applies to a group.
ALL_GROUP_OPERATIONS = 3400


def serve(request: Any, call: Call) -> Delayed:
    answers = [call.core.groups.describe_group(DescribeGroup(group)) for group in request.groups]
    return Delayed(all_of(answers), lambda done: {"groups": _rows(request, done, call)})


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {"groups": (_unknown(group, code, message, call) for group in request.groups)}


def _rows(request: Any, done: Sequence[DescribedGroup | BaseException], call: Call) -> Iterator[Any]:
    operations = ALL_GROUP_OPERATIONS if getattr(request, "include_authorized_operations", False) else NOT_ASKED
    for group, answer in zip(request.groups, done, strict=True):
        if isinstance(answer, BaseException):
            yield _unknown(group, code_of(answer), message_of(answer), call)
        else:
            yield _group(answer, operations, call)


def _unknown(group: str, code: int, message: str, call: Call) -> Any:
    return call.make(
        "DescribedGroup",
        error_code=code,
        error_message=message,
        group_id=group,
        group_state="",
        protocol_type="",
        protocol_data="",
        members=(),
        authorized_operations=NOT_ASKED,
    )


def _group(group: DescribedGroup, operations: int, call: Call) -> Any:
    error = group.error
    if isinstance(error, GroupIdNotFound) and call.messages.version < 6:
        error = None
    return call.make(
        "DescribedGroup",
        error_code=code_of(error),
        error_message=None if error is None else message_of(error),
        group_id=group.group,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol,
        members=(
            call.make(
                "DescribedGroupMember",
                member_id=each.member_id,
                group_instance_id=each.group_instance_id,
                client_id=each.client_id,
                client_host=each.client_host,
                member_metadata=each.metadata,
                member_assignment=each.assignment,
            )
            for each in group.members
        ),
        authorized_operations=operations,
    )
