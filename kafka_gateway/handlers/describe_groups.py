"""DescribeGroups, key 15, versions 0 to 6: members and state of groups. v6 answers with an error for a group that does not
exist; older versions only with the state Dead."""

from __future__ import annotations

from typing import Any

from grpc_api.contract.coordinator_errors import GroupIdNotFound
from grpc_api.contract.groups import DescribedGroup, DescribeGroup
from kafka_gateway.errors import code_of, message_of
from kafka_gateway.handlers.metadata import NOT_ASKED
from kafka_gateway.message_handler import Call, Fields, ended

#: One bit per AclOperation that applies to a group.
ALL_GROUP_OPERATIONS = 3400


async def serve(request: Any, call: Call) -> Fields:
    """Describes a group once, even if the request repeats it, and makes its rows while they are written. Otherwise a request
    that names a group of thousands of members thousands of times would fill the memory."""
    operations = ALL_GROUP_OPERATIONS if getattr(request, "include_authorized_operations", False) else NOT_ASKED
    answers: dict[str, DescribedGroup | Exception] = {}
    async for name in call.each(request.groups):
        if name not in answers:
            answers[name] = await ended(call.core.groups.describe_group(DescribeGroup(name), call.caller))
    return {"groups": (_row(name, answers[name], operations, call) for name in request.groups)}


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {"groups": (_unknown(group, code, message, call) for group in request.groups)}


def _row(name: str, answer: DescribedGroup | Exception, operations: int, call: Call) -> Any:
    if isinstance(answer, Exception):
        return _unknown(name, code_of(answer), message_of(answer), call)
    return _group(answer, operations, call)


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
        authorized_operations=operations if error is None else NOT_ASKED,
    )
