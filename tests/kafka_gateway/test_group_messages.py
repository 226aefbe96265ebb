"""Native codecs of group requests against the schemas: the same request reaches the core, the same bytes leave, the same frames
are refused; compiled and as plain Python.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kafka_gateway.group_messages
from grpc_api.contract.caller import Caller
from grpc_api.contract.coordinator_errors import (
    IllegalGeneration,
    NotCoordinator,
    OffsetMetadataTooLarge,
    RebalanceInProgress,
)
from grpc_api.contract.groups import (
    Heartbeat,
    HeartbeatAnswer,
    Joined,
    JoinedMember,
    JoinGroup,
    OffsetCommit,
    OffsetsCommitted,
    PartitionOutcome,
    Synced,
    SyncGroup,
    TopicOutcome,
)
from grpc_api.contract.node import NodeCore
from kafka_gateway.group_messages import (
    ANSWER_BYTES,
    ASSIGNMENTS_AT_ONCE,
    AT_ONCE,
    MEMBERS_AT_ONCE,
    SMALL_BYTES,
    SYNC_BYTES,
)
from kafka_gateway.handlers import heartbeat, join_group, offset_commit, sync_group
from kafka_gateway.hot_parse import TAGS, Malformed
from kafka_gateway.message_handler import MessageHandler
from kafka_gateway.options import Options
from kafka_gateway.reply import DelayedReply
from kafka_gateway.small_requests import NativeCodec, SmallRequests
from storage_tiers.errors import LogError, UnknownTopicOrPartition
from storage_tiers.turns import TurnScheduler
from tests.kafka_gateway.kio_frames import milliseconds, request_frame, response
from tests.kafka_gateway.test_hot_parse import ANSWERS, PLAIN

BODY, CORRELATION = 12, 4711
#: The handler and its first flexible version.
HANDLERS: dict[str, tuple[Any, int]] = {
    "heartbeat": (heartbeat, 4),
    "offset_commit": (offset_commit, 8),
    "join_group": (join_group, 6),
    "sync_group": (sync_group, 4),
}
SERVED = {"heartbeat": range(5), "offset_commit": range(2, 11), "join_group": range(10), "sync_group": range(6)}
VERSIONS = [(api, version) for api, versions in SERVED.items() for version in versions]
ERRORS: list[LogError | None] = [
    None,
    RebalanceInProgress("rejoin"),
    IllegalGeneration("2 is not 3"),
    OffsetMetadataTooLarge("4097 bytes"),
    UnknownTopicOrPartition("t-0"),
    LogError("a kind of its own"),
]


def plain_module() -> ModuleType:
    """The source without compilation, over the plain forms of what it imports."""
    source = Path(kafka_gateway.group_messages.__file__).with_name("group_messages.py")
    spec = importlib.util.spec_from_file_location("plain_group_messages", source)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    others = {"kafka_gateway.hot_parse": PLAIN, "kafka_gateway.produce_answer": ANSWERS[PLAIN]}
    with mock.patch.dict(sys.modules, others):
        spec.loader.exec_module(module)
    return module


MODULES = {"built": kafka_gateway.group_messages, "plain": plain_module()}
LOOP = asyncio.new_event_loop()


@pytest.fixture(scope="module", autouse=True)
def _loop() -> Iterator[None]:
    yield
    LOOP.close()


class RecordingGroups:
    """Keeps each request and its caller. `how` is the state of each answer: done, pending, failed or raised."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.asked: list[tuple[Any, Caller]] = []
        self.settle: Callable[[], None] = lambda: None

    def heartbeat(self, beat: Heartbeat, caller: Caller) -> asyncio.Future[Any]:
        return self._answer(beat, caller, HeartbeatAnswer(ERRORS[beat.generation % len(ERRORS)]))

    def commit_offsets(self, commit: OffsetCommit, caller: Caller) -> asyncio.Future[Any]:
        rows = [
            TopicOutcome(
                topic.topic,
                [PartitionOutcome(each.partition, ERRORS[each.partition % len(ERRORS)]) for each in topic.partitions],
                topic.topic_id,
            )
            for topic in commit.topics
        ]
        return self._answer(commit, caller, OffsetsCommitted(rows))

    def join(self, join: JoinGroup, caller: Caller) -> asyncio.Future[Any]:
        """The answer to a leader, with one member for each protocol of the request."""
        error = ERRORS[join.session_timeout_ms % len(ERRORS)]
        members = [
            JoinedMember(each.name, join.group_instance_id if at else None, each.metadata)
            for at, each in enumerate(join.protocols)
        ]
        protocol = join.protocols[0].name if join.protocols else None
        kind = join.protocol_type if error is None else None
        skips = join.may_skip_assignment and len(join.member_id) % 2 == 0
        joined = Joined(error, join.member_id, 7, kind, protocol, join.group, members, skips)
        return self._answer(join, caller, joined)

    def sync(self, sync: SyncGroup, caller: Caller) -> asyncio.Future[Any]:
        error = ERRORS[sync.generation % len(ERRORS)]
        assignment = sync.assignments[0][1] if sync.assignments and error is None else b""
        return self._answer(sync, caller, Synced(error, sync.protocol_type, sync.protocol, assignment))

    def _answer(self, request: Any, caller: Caller, answer: Any) -> asyncio.Future[Any]:
        self.asked.append((request, caller))
        if self.how == "raised":
            raise RuntimeError("a defect")
        future: asyncio.Future[Any] = LOOP.create_future()
        if self.how == "failed":
            future.set_exception(NotCoordinator("find it again"))
        elif self.how == "done":
            future.set_result(answer)
        else:
            self.settle = lambda: future.set_result(answer)
        return future


def codec_of(api: str, form: str) -> NativeCodec:
    module: Any = MODULES[form]
    codec: NativeCodec = HANDLERS[api][0].CODEC
    return codec._replace(read=getattr(module, f"read_{api}"), write=getattr(module, f"{api}_answer"))


def outcome(api: str, version: int, frame: bytes, how: str, form: str | None) -> tuple[Any, ...]:
    """The requests that reached the groups, the answer or the reason of the refused frame, and the counted codes. `form` None:
    by schema."""
    groups = RecordingGroups(how)
    core = cast(NodeCore, SimpleNamespace(groups=groups))
    options = Options(scheduler=TurnScheduler(lambda: 0.0))  # no turn is ever over
    module, flexible_from = HANDLERS[api]
    by_schema = MessageHandler(
        core, options, api, flexible_from=flexible_from, serve=module.serve, refuse=module.refuse
    )
    handler = by_schema if form is None else SmallRequests(core, options, api, codec_of(api, form), by_schema)
    data = bytearray(frame)
    try:
        reply = handler.handle(data, memoryview(data), BODY, len(data), version, CORRELATION)
    except Malformed as error:
        return groups.asked, str(error), {}
    if isinstance(reply, DelayedReply):
        groups.settle()
        reply = reply.finish(reply.future.result())
    return groups.asked, b"".join(bytes(piece) for piece in cast(Any, reply)), dict(handler.errors)


def is_read(api: str, version: int, frame: bytes, form: str) -> bool:
    return codec_of(api, form).read(bytearray(frame), BODY, len(frame), version) is not None


words = st.text(st.characters(codec="utf-8"), max_size=40) | st.just("x" * 300)
partitions = st.fixed_dictionaries(
    {
        "partition_index": st.integers(-(2**31), 2**31 - 1),
        "committed_offset": st.integers(-(2**63), 2**63 - 1),
        "committed_leader_epoch": st.integers(-(2**31), 2**31 - 1),
        "committed_metadata": st.none() | words,
    }
)
topics = st.fixed_dictionaries(
    {"name": words, "topic_id": st.none() | st.uuids(), "partitions": st.lists(partitions, max_size=6)}
)
messages = st.fixed_dictionaries(
    {
        "group_id": words,
        "generation_id": st.integers(-(2**31), 2**31 - 1),
        "generation_id_or_member_epoch": st.integers(-(2**31), 2**31 - 1),
        "member_id": words,
        "group_instance_id": st.none() | words,
        "retention_time": st.integers(-1, 2**40).map(milliseconds),
        "topics": st.lists(topics, max_size=6),
        "protocol_type": words,
        "protocol_name": words,
        "session_timeout": st.integers(-1, 2**31 - 1).map(milliseconds),
        "rebalance_timeout": st.integers(-1, 2**31 - 1).map(milliseconds),
        "reason": st.none() | words,
        "protocols": st.lists(st.fixed_dictionaries({"name": words, "metadata": st.binary(max_size=300)}), max_size=6),
        "assignments": st.lists(
            st.fixed_dictionaries({"member_id": words, "assignment": st.binary(max_size=300)}), max_size=6
        ),
    }
)
hows = st.sampled_from(["done", "pending", "failed", "raised"])
forms = st.sampled_from(sorted(MODULES))


@settings(max_examples=400, deadline=None)
@given(of=st.sampled_from(VERSIONS), message=messages, how=hows, form=forms)
def test_any_request_is_served_as_by_its_schema(
    of: tuple[str, int], message: dict[str, Any], how: str, form: str
) -> None:
    frame = request_frame(*of, **message)
    assert is_read(*of, frame, form)
    assert outcome(*of, frame, how, form) == outcome(*of, frame, how, None)


def example(api: str, version: int) -> bytes:
    rows = [{"partition_index": number, "committed_offset": 7, "committed_metadata": "m"} for number in range(3)]
    names = [{"name": name, "topic_id": uuid.UUID(int=5), "partitions": rows} for name in ("a", "b")]
    return request_frame(
        api,
        version,
        group_id="group",
        member_id="member-1",
        group_instance_id="one",
        topics=names,
        generation_id=0,
        protocol_type="consumer",
        protocol_name="range",
        session_timeout=milliseconds(6000),
        rebalance_timeout=milliseconds(9000),
        reason="new",
        protocols=[{"name": name, "metadata": b"\0\1topics"} for name in ("range", "sticky")],
        assignments=[{"member_id": "member-1", "assignment": b"123"}],
    )


@pytest.mark.parametrize("form", MODULES)
@pytest.mark.parametrize(("api", "version"), VERSIONS)
def test_every_truncation_is_left_to_the_schema_and_refused(api: str, version: int, form: str) -> None:
    frame = example(api, version)
    for end in range(BODY, len(frame)):
        assert not is_read(api, version, frame[:end], form)
        asked, reason, _ = outcome(api, version, frame[:end], "done", form)
        assert not asked and isinstance(reason, str)


@settings(max_examples=600, deadline=None)
@given(
    of=st.sampled_from(VERSIONS),
    flips=st.lists(st.tuples(st.integers(BODY, 160), st.integers(0, 255)), min_size=1, max_size=4),
    form=forms,
)
def test_a_damaged_request_is_served_or_refused_as_by_its_schema(
    of: tuple[str, int], flips: list[tuple[int, int]], form: str
) -> None:
    frame = bytearray(example(*of))
    for at, value in flips:
        if at < len(frame):
            frame[at] = value
    assert outcome(*of, bytes(frame), "done", form) == outcome(*of, bytes(frame), "done", None)


@pytest.mark.parametrize("form", MODULES)
@pytest.mark.parametrize("version", [2, 8, 10])
def test_large_requests_are_left_to_the_schema(version: int, form: str) -> None:
    def commits(topics: int, partitions: int, metadata: str = "") -> bytes:
        rows = [{"partition_index": number, "committed_metadata": metadata} for number in range(partitions)]
        return request_frame("offset_commit", version, topics=[{"name": "t", "partitions": rows}] * topics)

    for topics, partitions, metadata, taken in [
        (1, AT_ONCE, "", True),
        (1, AT_ONCE + 1, "", False),
        (2, AT_ONCE // 2 + 1, "", False),
        (AT_ONCE, 0, "", True),
        (AT_ONCE + 1, 0, "", False),
        (1, 4, "x" * (SMALL_BYTES // 4), False),
    ]:
        assert is_read("offset_commit", version, commits(topics, partitions, metadata), form) is taken


@pytest.mark.parametrize("form", MODULES)
@pytest.mark.parametrize("version", [3, 5])
def test_the_assignments_of_thousands_are_read_at_once(version: int, form: str) -> None:
    """A leader sends the assignments of all members; the schema's reader would take several slices of the loop for them."""

    def is_taken(count: int, size: int) -> bool:
        rows = [{"member_id": f"consumer-{number:031}", "assignment": bytes(size)} for number in range(count)]
        protocol: dict[str, Any] = {"protocol_type": "consumer", "protocol_name": "range"} if version >= 5 else {}
        frame = request_frame("sync_group", version, group_id="g", member_id="m", assignments=rows, **protocol)
        return is_read("sync_group", version, frame, form)

    assert is_taken(2_000, 100)
    assert is_taken(ASSIGNMENTS_AT_ONCE, 10) and not is_taken(ASSIGNMENTS_AT_ONCE + 1, 10)
    assert is_taken(8, SYNC_BYTES // 9) and not is_taken(8, SYNC_BYTES // 8)


@pytest.mark.parametrize("form", MODULES)
@pytest.mark.parametrize(("count", "taken"), [(TAGS, True), (TAGS + 1, False)])
def test_unknown_tagged_fields_are_passed_over_up_to_their_bound(form: str, count: int, taken: bool) -> None:
    frame = request_frame("heartbeat", 4, group_id="g", member_id="m")
    assert frame[-1] == 0  # no tagged fields
    tagged = frame[:-1] + bytes((count,)) + b"\x05\x01x" * count
    assert is_read("heartbeat", 4, tagged, form) is taken
    assert outcome("heartbeat", 4, tagged, "done", form) == outcome("heartbeat", 4, tagged, "done", None)


@pytest.mark.parametrize("form", MODULES)
@pytest.mark.parametrize("how", ["done", "pending"])
@pytest.mark.parametrize("version", SERVED["join_group"])
@pytest.mark.parametrize(
    ("count", "size"),
    [(MEMBERS_AT_ONCE, 10), (MEMBERS_AT_ONCE + 1, 10), (3 * MEMBERS_AT_ONCE, 0), (4, ANSWER_BYTES // 4)],
)
def test_a_large_answer_of_a_join_is_written_in_steps_or_left_to_the_schema(
    count: int, size: int, version: int, how: str, form: str
) -> None:
    frame = request_frame("join_group", version, group_id="g", member_id="m", protocol_type="consumer")
    members = [JoinedMember(f"m{number}", "i" if number % 2 else None, b"x" * size) for number in range(count)]
    large = Joined(None, "m0", 3, "consumer", "range", "m0", members)
    with mock.patch.object(RecordingGroups, "join", lambda self, join, caller: self._answer(join, caller, large)):
        written = codec_of("join_group", form).write(large, version, CORRELATION, Counter())
        assert (written is None) is (count > MEMBERS_AT_ONCE or size > 10)
        steps = join_group.in_steps(large, version, CORRELATION, Counter())
        assert (steps is None) is (size > 10)
        assert steps is None or sum(1 for _ in steps) == -(-count // MEMBERS_AT_ONCE)
        assert outcome("join_group", version, frame, how, form) == outcome("join_group", version, frame, how, None)


@pytest.mark.parametrize("form", MODULES)
def test_a_sync_without_its_protocol_is_left_to_the_schema(form: str) -> None:
    frame = request_frame("sync_group", 5, group_id="g", member_id="m", protocol_type=None, protocol_name="range")
    assert not is_read("sync_group", 5, frame, form)
    assert outcome("sync_group", 5, frame, "done", form) == outcome("sync_group", 5, frame, "done", None)


@pytest.mark.parametrize("form", MODULES)
@pytest.mark.parametrize("how", ["done", "pending"])
def test_an_answer_that_cannot_be_written_is_an_error_to_the_client(how: str, form: str) -> None:
    frame = request_frame("sync_group", 5, group_id="g", member_id="m", protocol_type="t", protocol_name="p")
    wrong = Synced(None, "t", "p", assignment=cast(bytes, None))
    with mock.patch.object(RecordingGroups, "sync", lambda self, sync, caller: self._answer(sync, caller, wrong)):
        _, answer, codes = outcome("sync_group", 5, frame, how, form)
    assert int(response("sync_group", 5, answer[4:]).error_code) == -1
    assert codes == {-1: 1}


@pytest.mark.parametrize("form", MODULES)
def test_a_retention_that_no_duration_holds_is_left_to_the_schema(form: str) -> None:
    frame = bytearray(request_frame("offset_commit", 2, group_id="g", member_id="m", retention_time=milliseconds(-1)))
    at = len(frame) - 12
    assert frame[at : at + 8] == b"\xff" * 8
    frame[at : at + 8] = b"\x7f" + b"\xff" * 7
    assert not is_read("offset_commit", 2, bytes(frame), form)
    asked, reason, _ = outcome("offset_commit", 2, bytes(frame), "done", form)
    assert not asked and "number" in reason
