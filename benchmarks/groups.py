"""Measures consumer groups over raw sockets: offset commits, heartbeats, and the time from joining until a group is stable.

Each member has its own connection and prebuilt requests, so that the client costs little. Both brokers have
`group.initial.rebalance.delay.ms` set to 0. Members use JoinGroup v5, SyncGroup v3, Heartbeat v3 and OffsetCommit v7. A group
is stable when all members have assignments of the same generation. Until then, members that have an assignment send a heartbeat
every BEAT_S, because a client learns of a rebalance from the answer to a heartbeat. Every answer's error code is checked.
"""

from __future__ import annotations

import datetime as dt
import select
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from kio.schema.find_coordinator.v2 import request as find_request
from kio.schema.find_coordinator.v2 import response as find_response
from kio.schema.heartbeat.v3 import request as beat_request
from kio.schema.heartbeat.v3 import response as beat_response
from kio.schema.join_group.v5 import request as join_request
from kio.schema.join_group.v5 import response as join_response
from kio.schema.leave_group.v3 import request as leave_request
from kio.schema.leave_group.v3 import response as leave_response
from kio.schema.offset_commit.v7 import request as commit_request
from kio.schema.offset_commit.v7 import response as commit_response
from kio.schema.sync_group.v3 import request as sync_request
from kio.schema.sync_group.v3 import response as sync_response
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i8, i32, i32Timedelta, i64

from benchmarks import load
from benchmarks.load import Connection, LoadFailed

CONNECTIONS = 50
MEMBERS = (3, 100, 500)
#: Seconds between two heartbeats of a member, which sends them while it has an assignment and its group is not stable.
BEAT_S = 0.02
#: Seconds within which a coordinator must become ready, or a group stable.
PATIENCE_S = 60.0
#: Brokers' settings for this part.
SETTINGS: dict[str, str | int | bool] = {"group.initial.rebalance.delay.ms": 0}

_LOADING, _UNAVAILABLE, _ELSEWHERE = 14, 15, 16
_ILLEGAL_GENERATION, _UNKNOWN_MEMBER, _REBALANCE, _ID_REQUIRED = 22, 25, 27, 79
#: Error codes of a coordinator that is not ready. 0 is one of them, because Kafka accepts any heartbeat while it loads.
NOT_READY = frozenset({0, _LOADING, _UNAVAILABLE, _ELSEWHERE})
_REJOIN = frozenset({_ILLEGAL_GENERATION, _REBALANCE})

_SESSION = i32Timedelta.parse(dt.timedelta(seconds=30))
#: A consumer's subscription to one topic, and an assignment of no partitions.
_SUBSCRIPTION = struct.pack(">hih", 0, 1, 1) + b"t" + struct.pack(">i", -1)
_ASSIGNMENT = struct.pack(">hii", 0, 0, -1)


def one_round(address: str, tag: str, seconds: float, only: str) -> Iterator[tuple[str, str, float | None]]:
    """Yields (row, unit, value) for one broker."""
    rows = [("offset commits, one connection, one after another", 1, True)]
    rows.append((f"offset commits, {CONNECTIONS} connections of {CONNECTIONS} groups", CONNECTIONS, True))
    rows.append((f"heartbeats, {CONNECTIONS} connections", CONNECTIONS, False))
    for place, (name, connections, is_commit) in enumerate(rows):
        if only in name:
            yield name, "requests/s", _requests(address, f"{tag}-{place}", connections, seconds, is_commit=is_commit)
    for members in MEMBERS:
        name = f"join to stable, {members} members"
        if only in name:
            yield name, "s", join_to_stable(address, f"join-{tag}-{members}", members)


def wait_for_coordinator(c: Connection, group: str) -> None:
    """Returns once the group's coordinator is loaded; the first request may create the groups' topic."""
    find = find_request.FindCoordinatorRequest(key=group, key_type=i8(0))
    beat = _beat(group, i32(1), "nobody")
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if not int(c.call(find, find_response.FindCoordinatorResponse).error_code):
            code = int(c.call(beat, beat_response.HeartbeatResponse).error_code)
            if code == _UNKNOWN_MEMBER:
                return
            if code not in NOT_READY:
                raise LoadFailed(f"a heartbeat of an unknown member of {group}: error {code}")
        time.sleep(0.05)
    raise LoadFailed(f"{group} has no coordinator after {PATIENCE_S:g} s")


# --- requests a second ------------------------------------------------------------------------------------------------
def _requests(address: str, tag: str, connections: int, seconds: float, *, is_commit: bool) -> float:
    """Closed loop: each connection is the only member of a group of its own, with one request in flight."""
    with load.topic_for(address, f"groups-{tag}") as topic:
        members = [Member(address, f"group-{tag}-{n}") for n in range(connections)]
        for member in members:
            wait_for_coordinator(member.connection, member.group)
        until_stable(members, each_alone=True)
        requests = [load.frame(_commit(each, topic) if is_commit else each.beat()) for each in members]
        reply = commit_response.OffsetCommitResponse if is_commit else beat_response.HeartbeatResponse
        count, elapsed = closed_loop(members, requests, reply, seconds)
        for member in members:
            leave(member.connection, member.group, [member])
            member.connection.close()
    return count / elapsed


def closed_loop(members: Sequence[Member], requests: Sequence[bytes], reply: Any, seconds: float) -> tuple[int, float]:
    """Keeps one request of each member in flight for `seconds`; returns (number of answers, elapsed seconds). Each member's
    first answer is checked for errors before the time starts. Later answers are checked only if they differ from the last
    member's first answer."""
    poll, of_socket = select.epoll(), dict[int, tuple[Connection, bytes]]()
    good = b""
    for member, request in zip(members, requests, strict=True):
        member.connection.send(request)
        good = member.connection.receive()
        _check(good, reply)
        of_socket[member.connection.socket.fileno()] = member.connection, request
        poll.register(member.connection.socket.fileno(), select.EPOLLIN)
    began = time.perf_counter()
    for connection, request in of_socket.values():
        connection.send(request)
    answers, under_way = 0, len(of_socket)
    while under_way:
        for fd, _ in poll.poll():
            connection, request = of_socket[fd]
            answer = connection.receive()
            if answer != good:
                _check(answer, reply)
            answers += 1
            if time.perf_counter() < began + seconds:
                connection.send(request)
            else:
                under_way -= 1
    poll.close()
    return answers, time.perf_counter() - began


def _check(answer: bytes, reply: Any) -> None:
    read = load.parsed(answer, reply)
    rows = [read] if hasattr(read, "error_code") else [each for topic in read.topics for each in topic.partitions]
    codes = [int(each.error_code) for each in rows]
    if not codes or any(codes):
        raise LoadFailed(f"{reply.__name__}: errors {codes}")


# --- joining ----------------------------------------------------------------------------------------------------------
def join_to_stable(address: str, group: str, count: int) -> float:
    """Returns the seconds from the first JoinGroup until all members have assignments of the same generation."""
    members = [Member(address, group) for _ in range(count)]
    wait_for_coordinator(members[0].connection, group)
    began = time.perf_counter()
    until_stable(members)
    elapsed = time.perf_counter() - began
    leave(members[0].connection, group, members)
    for member in members:
        member.connection.close()
    return elapsed


def until_stable(
    members: Sequence[Member], *, each_alone: bool = False, beat_s: float = BEAT_S, joining: int | None = None
) -> None:
    """Drives all members until the group is stable. With `each_alone`, each member has a group of its own. With `joining`, only
    the last `joining` members join at once. The others have an assignment, and learn of the rebalance from a heartbeat."""
    poll, of_socket = select.epoll(), {each.connection.socket.fileno(): each for each in members}
    for fd in of_socket:
        poll.register(fd, select.EPOLLIN)
    known = members[: len(members) - joining] if joining is not None else ()
    stale = {each.assigned for each in known}
    for member in members[len(known) :]:
        member.join()
    deadline, next_beat = time.monotonic() + PATIENCE_S, time.monotonic() + (0 if known else beat_s)
    while True:
        for fd, _ in poll.poll(max(0.0, next_beat - time.monotonic())):
            of_socket[fd].take_answer()
        generations = {each.assigned for each in members}
        if None not in generations and (each_alone or len(generations) == 1) and generations != stale:
            break
        now = time.monotonic()
        if now > deadline:
            raise LoadFailed(f"{members[0].group} is not stable after {PATIENCE_S:g} s")
        if now >= next_beat:
            next_beat = now + beat_s
            for member in members:
                if not member.asked and member.assigned is not None:
                    member.send("beat", member.beat())
    for member in members:  # heartbeats that are not answered yet
        while member.asked:
            member.take_answer()
    poll.close()


@dataclass(slots=True)
class Member:
    """A member of a group. `assigned` is the generation of its assignment. `asked` is the kind of its request in flight, or
    empty."""

    address: str
    group: str
    connection: Connection = field(init=False)
    member_id: str = ""
    generation: int = -1
    assigned: int | None = None
    asked: str = ""

    def __post_init__(self) -> None:
        self.connection = Connection(self.address)

    def send(self, what: str, message: Any) -> None:
        self.asked = what
        self.connection.send(load.frame(message))

    def beat(self) -> Any:
        return _beat(self.group, i32(self.generation), self.member_id)

    def join(self) -> None:
        self.assigned = None
        protocol = join_request.JoinGroupRequestProtocol(name="range", metadata=_SUBSCRIPTION)
        request = join_request.JoinGroupRequest(
            group_id=GroupId.parse(self.group),
            session_timeout=_SESSION,
            rebalance_timeout=_SESSION,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=(protocol,),
        )
        self.send("join", request)

    def take_answer(self) -> None:
        """Reads one answer, and sends the request that a client sends next, if any."""
        asked, self.asked = self.asked, ""
        body = self.connection.receive()
        if asked == "join":
            self._joined(load.parsed(body, join_response.JoinGroupResponse))
            return
        reply = sync_response.SyncGroupResponse if asked == "sync" else beat_response.HeartbeatResponse
        code = int(load.parsed(body, reply).error_code)
        if code in _REJOIN:
            self.join()
        elif code:
            raise LoadFailed(f"{self.group}: {asked}: error {code}")
        elif asked == "sync":
            self.assigned = self.generation

    def _joined(self, answer: Any) -> None:
        code = int(answer.error_code)
        if code == _ID_REQUIRED:
            self.member_id = answer.member_id
        if code in (_ID_REQUIRED, _REBALANCE):
            self.join()
            return
        if code:
            raise LoadFailed(f"{self.group}: join: error {code}")
        self.member_id, self.generation = answer.member_id, int(answer.generation_id)
        assignments = tuple(
            sync_request.SyncGroupRequestAssignment(member_id=each.member_id, assignment=_ASSIGNMENT)
            for each in answer.members
        )
        request = sync_request.SyncGroupRequest(
            group_id=GroupId.parse(self.group),
            generation_id=i32(self.generation),
            member_id=self.member_id,
            assignments=assignments,
        )
        self.send("sync", request)


def _beat(group: str, generation: i32, member_id: str) -> Any:
    return beat_request.HeartbeatRequest(group_id=GroupId.parse(group), generation_id=generation, member_id=member_id)


def _commit(member: Member, topic: str) -> Any:
    partition = commit_request.OffsetCommitRequestPartition(
        partition_index=i32(0), committed_offset=i64(7), committed_metadata=""
    )
    return commit_request.OffsetCommitRequest(
        group_id=GroupId.parse(member.group),
        generation_id_or_member_epoch=i32(member.generation),
        member_id=member.member_id,
        topics=(commit_request.OffsetCommitRequestTopic(name=TopicName(topic), partitions=(partition,)),),
    )


def leave(c: Connection, group: str, members: Sequence[Member]) -> None:
    """Makes all members leave with one request, so that no session expires during a later row."""
    gone = tuple(leave_request.MemberIdentity(member_id=each.member_id) for each in members)
    request = leave_request.LeaveGroupRequest(group_id=GroupId.parse(group), members=gone)
    code = int(c.call(request, leave_response.LeaveGroupResponse).error_code)
    if code:
        raise LoadFailed(f"{group}: leave: error {code}")
