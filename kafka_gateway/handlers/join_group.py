"""JoinGroup, key 11, versions 0 to 9: a member joins, and gets its answer when all members have joined.

v1 has a separate rebalance timeout. v4 makes new members join again with their assigned id (KIP-394). v5 has static members
(KIP-345), v8 a reason (KIP-800). v9 lets a leader skip the assignment (KIP-814).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Coroutine, Generator, Sequence
from typing import Any

from grpc_api.contract.groups import NO_GENERATION, UNKNOWN_MEMBER, Joined, JoinGroup, MemberProtocol
from grpc_api.contract.request_parts import AT_ONCE
from kafka_gateway.answer_primitives import array_size
from kafka_gateway.errors import ErrorCode, code_of
from kafka_gateway.group_messages import (
    ANSWER_BYTES,
    MEMBERS_AT_ONCE,
    join_group_answer,
    join_group_rows,
    read_join_group,
)
from kafka_gateway.message_handler import Call, Delayed, Fields
from kafka_gateway.messages import milliseconds
from kafka_gateway.small_requests import NativeCodec

#: Most members of an answer that is written in steps of MEMBERS_AT_ONCE; the schema-driven writer writes larger answers.
MEMBERS_IN_STEPS = 10_000


def serve(request: Any, call: Call) -> Delayed | Coroutine[Any, Any, Fields]:
    if len(request.protocols) > AT_ONCE:
        return _long(request, call)
    future = call.core.groups.join(_join(request, [_protocol(each) for each in request.protocols], call), call.caller)
    return Delayed(future, lambda joined: _fields(joined, call), request._replace(protocols=()))


async def _long(request: Any, call: Call) -> Fields:
    """Serves a request with more than AT_ONCE protocols. Coordinators refuse so many, so the answer waits for no other
    member."""
    protocols = [_protocol(each) async for each in call.each(request.protocols)]
    return _fields(await call.waiting(call.core.groups.join(_join(request, protocols, call), call.caller)), call)


def _protocol(row: Any) -> MemberProtocol:
    return MemberProtocol(row.name, row.metadata)


def _join(request: Any, protocols: Sequence[MemberProtocol], call: Call) -> JoinGroup:
    version = call.messages.version
    session_ms = milliseconds(request.session_timeout)
    return JoinGroup(
        request.group_id,
        request.member_id,
        getattr(request, "group_instance_id", None),
        request.protocol_type,
        protocols,
        session_ms,
        milliseconds(request.rebalance_timeout) if version >= 1 else session_ms,
        version >= 4,
        version >= 9,
        getattr(request, "reason", None),
    )


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return _answer(call, code, Joined(None, _named(request.member_id, code)))


def _named(member_id: str, code: int) -> str:
    """Returns the member id for a refusal that did not come from a group. As in Kafka, only INVALID_GROUP_ID repeats the
    request's id."""
    return member_id if code == ErrorCode.INVALID_GROUP_ID else UNKNOWN_MEMBER


def _fields(joined: Joined, call: Call) -> Fields:
    return _answer(call, code_of(joined.error), joined)


def _answer(call: Call, code: int, joined: Joined) -> Fields:
    # Below v7 the protocol is not nullable; Kafka writes "".
    protocol = joined.protocol if joined.protocol is not None or call.messages.version >= 7 else ""
    return {
        "error_code": code,
        "generation_id": joined.generation if code == 0 else NO_GENERATION,
        "protocol_type": joined.protocol_type,
        "protocol_name": protocol,
        "leader": joined.leader if code == 0 else UNKNOWN_MEMBER,
        "skip_assignment": joined.skip_assignment,
        "member_id": joined.member_id,
        "members": tuple(
            call.make(
                "JoinGroupResponseMember",
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.metadata,
            )
            for member in joined.members
        ),
    }


def in_steps(
    joined: Joined, version: int, correlation: int, codes: Counter[int]
) -> Generator[None, None, Sequence[bytes]] | None:
    """Writes the answer to the leader of a large group, five times as fast as the schema-driven writer. Returns None if the
    answer is too large."""
    members = joined.members
    if (
        len(members) > MEMBERS_IN_STEPS
        or sum([len(each.member_id) + len(each.metadata) for each in members]) > ANSWER_BYTES
    ):
        return None
    return _in_steps(joined, version, correlation, codes)


def _in_steps(
    joined: Joined, version: int, correlation: int, codes: Counter[int]
) -> Generator[None, None, Sequence[bytes]]:
    members, pieces = joined.members, list[bytes]()
    for at in range(0, len(members), MEMBERS_AT_ONCE):
        pieces.append(join_group_rows(members[at : at + MEMBERS_AT_ONCE], version))
        yield
    # An answer without members ends with their count and, in flexible versions, with its tagged fields.
    bare = join_group_answer(joined._replace(members=()), version, correlation, codes)
    assert bare is not None
    flexible = version >= 6
    head = bare[4 : -2 if flexible else -4] + array_size(len(members), flexible)
    pieces.append(b"\0" if flexible else b"")
    size = len(head) + sum(map(len, pieces))
    return size.to_bytes(4, "big") + head, *pieces


CODEC = NativeCodec(
    read_join_group,
    lambda core, join, caller: core.groups.join(join, caller),
    lambda join, error: Joined(error, _named(join.member_id, code_of(error))),
    join_group_answer,
    _fields,
    in_steps,
)
