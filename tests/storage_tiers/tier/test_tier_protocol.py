"""Frames and values cross unchanged; whatever else comes is refused and never half understood."""

from __future__ import annotations

import asyncio
import json
import struct
from dataclasses import dataclass
from typing import Any, cast

import pytest

from storage_tiers import errors
from storage_tiers.cold.manifest.cluster_file import ClusterState, Holder
from storage_tiers.cold.manifest.lineage import Seen
from storage_tiers.cold.manifest.model import Entry, Oldest, PageKind, PageRef, Section, Stamp, State, Writer
from storage_tiers.cold.manifest.topic_file import TopicState
from storage_tiers.cold.process import operations as questions
from storage_tiers.cold.process.downloads import Downloads
from storage_tiers.cold.process.manifests import TierCommits
from storage_tiers.cold.process.protocol import (
    MAX_FRAME_BYTES,
    Ask,
    Configure,
    Forget,
    Frame,
    Idle,
    Reply,
    decode,
    encode,
    read_frame,
)
from storage_tiers.cold.process.server import workers
from storage_tiers.cold.process.settings import TierSettings
from storage_tiers.cold.process.wire import ProtocolError, from_json, to_json
from storage_tiers.cold.segments.repairer import LocalEvidence
from storage_tiers.cold.segments.sweeper import Listed
from storage_tiers.cold.segments.uploader import ExtendJob
from storage_tiers.cold.stores.location import StoreLocation
from storage_tiers.errors import LogError
from storage_tiers.policy.retention import Expired, Moment, RetentionLimits
from storage_tiers.policy.segments import Now
from storage_tiers.types import AbortedTransaction, EpochEntry, OffsetRange
from tests.storage_tiers.cold.support import IDS, TOPIC_ID

WRITER = Writer(1, None, "maintainer")
JOB = ExtendJob(
    "/data/0.log",
    0,
    10,
    5,
    9,
    2,
    2,
    (EpochEntry(1, 0), EpochEntry(2, 7)),
    "/data/9.snapshot",
    (AbortedTransaction(1, 2, 3, 4),),
    1,
)
PAGE = PageRef(PageKind.LIVE, "k", 0, 9, 1, 100, 7, 1, 2, 9, 90, 3, oldest=Oldest(9, 2, 90), newest_ms=2)
TOPIC = TopicState("c", "t", TOPIC_ID, State.DELETED, 3, 7, {"retention.ms": "-1"}, (TOPIC_ID,))
COUNTERS = questions.Counters(
    {"Extend": 2}, {}, {"get": 1}, {"get TierUnavailable": 1}, {"get": 1}, {"get": 0.5}, 1, 2, 3, 4, 5
)
QUESTIONS: list[questions.Question[Any]] = [
    questions.FetchChunk("k", 1, 2, (3, 4), urgent=False),
    questions.FetchObject("k", 1, 2),
    questions.Hurry("k", 1, 2),
    questions.PageEntries(IDS, PAGE, 5, None),
    questions.PageEntries(IDS, PAGE, 5, -1),
    questions.PlanPages(IDS, (PAGE,), Expired(0, 5), Moment(RetentionLimits(1, 2), Now(3, 3), 4)),
    questions.Probe("c/"),
    questions.ReadStoreTime("c/"),
    questions.FindClusters(),
    questions.ReadCluster("c"),
    questions.OpenCluster("c", Holder(1, "d", "s"), 4),
    questions.ShownCluster("c"),
    questions.HighestIncarnation("c"),
    questions.RecreateCluster(ClusterState("c", 4, Holder(1, "d", "s")), None),
    questions.RecreateCluster(ClusterState("c", 4, Holder(1, "d", "s")), ClusterState("c", 2, Holder(1, "d", "r"))),
    questions.ShownTopic("c", "t"),
    questions.RepublishTopic(TOPIC),
    questions.PutSnapshot("c", 3, 4, "/cache/metadata.snapshot", 5, 6),
    questions.FindSnapshot("c"),
    questions.ListTopics("c", ""),
    questions.ListTopicIds("c", "t"),
    questions.ListManifests("c", "t", "AAAAAAAAAAAAAAAAAAAAAA"),
    questions.TakePartition(IDS, Writer(1, 2), -1, True),
    questions.ReadTopic("c", "t"),
    questions.PublishTopic(TOPIC),
    questions.MarkTopicDeleted(TOPIC),
    questions.LoadRoot(IDS, WRITER),
    questions.Extend(IDS, WRITER, JOB),
    questions.Claim(IDS, WRITER, 3),
    questions.RaiseLogStart(IDS, WRITER, 3),
    questions.Retire(IDS, WRITER, 3),
    questions.DeletePartition(IDS, WRITER),
    questions.Sweep(IDS, WRITER, 3),
    questions.Sweep(IDS, WRITER, 3, (Listed("k", 5),), Seen("l", 3, "c", 1, 2, 5, 9, 0, "/a/b")),
    questions.SweepDeleted(IDS, WRITER, 3, (Listed("k", 5),)),
    questions.Repair(
        IDS,
        WRITER,
        LocalEvidence(OffsetRange(3, 9), (EpochEntry(1, 0),), 2),
        7,
        True,
        Seen("l", 3, "c", 1, 2, 5, 9, 0, "/a/b"),
        (OffsetRange(3, 5), OffsetRange(7, 8)),
    ),
    questions.ListKeys("c/", "c/k"),
    questions.AbortUploads("c/", 3),
    questions.Stats(),
]


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: type(q).__name__)
def test_every_question_crosses_unchanged(question: questions.Question[Any]) -> None:
    assert round_trip(Ask(7, question)) == Ask(7, question)


def test_the_list_above_is_whole_and_every_question_has_its_worker() -> None:
    named = {type(question).__name__: type(question) for question in QUESTIONS}
    assert named == questions.operations()
    worked_on = workers(cast(Downloads, Downloads), cast(TierCommits, TierCommits))
    assert worked_on.keys() == set(named.values()) - {questions.Stats}


def round_trip(frame: Frame) -> Frame:
    data = encode(frame)
    assert struct.unpack(">I", data[:4]) == (len(data) - 4,)
    return decode(data[4:])


@pytest.mark.parametrize(
    "frame",
    [
        Configure(StoreLocation.parse("s3://bucket/a", endpoint="http://h:1", region="r"), "/c", TierSettings()),
        Idle(COUNTERS),
        Forget(3),
        Reply(1, {"path": "p", "size": 1}),
        Reply(1, None),
    ],
    ids=lambda frame: type(frame).__name__,
)
def test_other_frames_cross_unchanged(frame: Frame) -> None:
    assert round_trip(frame) == frame


def test_answers_cross_as_their_questions_say() -> None:
    entry = Entry(0, 9, "k", 0, 5, "s", (Section("index", 0, 1, 2),), 1, 2, 3, 4, 5, 6, Stamp(1, 2), None)
    found = questions.FoundEntries((entry,))
    assert questions.answer_type(questions.PageEntries) is questions.FoundEntries
    assert from_json(questions.answer_type(questions.PageEntries), json.loads(json.dumps(to_json(found)))) == found
    assert questions.answer_type(questions.Stats) is questions.Counters
    assert from_json(questions.Counters, to_json(COUNTERS)) == COUNTERS
    assert from_json(questions.FoundTopic, to_json(questions.FoundTopic(None))).state is None


def test_every_error_crosses_as_itself() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, LogError)]
    assert len(kinds) > 30
    for kind in kinds:
        reply = round_trip(Reply(1, error=kind("what is wrong and what to do")))
        assert isinstance(reply, Reply)
        assert type(reply.error) is kind and str(reply.error) == "what is wrong and what to do"


def test_an_error_of_another_version_keeps_its_advice() -> None:
    for advice, expected in (("RETRY", errors.TierUnavailable), ("PAGE", LogError)):
        body = {"frame": "error", "number": 1, "error": "FromTheFuture", "message": "m", "advice": advice}
        reply = decode(json.dumps(body).encode())
        assert isinstance(reply, Reply) and type(reply.error) is expected


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b"null",
        b'{"frame": "unheard"}',
        b'{"frame": "ask", "number": 1, "operation": "Format", "body": {}}',
        b'{"frame": "ask", "number": "1", "operation": "Stats", "body": {}}',
        b'{"frame": "ask", "number": true, "operation": "Stats", "body": {}}',
        b'{"frame": "ask", "number": 1, "operation": "Stats", "body": {"more": 1}}',
        b'{"frame": "ask", "number": 1, "operation": "Probe", "body": {}}',
        b'{"frame": "ask", "number": 1, "operation": "Probe", "body": {"key_prefix": 7}}',
        b'{"frame": "ask", "number": 1, "operation": "Hurry", "body": []}',
        b'{"frame": "configure", "body": {}}',
        b'{"frame": "reply"}',
        b"\xff\xfe",
    ],
)
def test_other_bytes_are_no_frame(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(body)


async def test_frames_are_bounded_and_the_end_is_the_end() -> None:
    def fed(data: bytes) -> asyncio.StreamReader:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        return reader

    frame = encode(Forget(1))
    reader = fed(frame + frame[:-1])
    assert await read_frame(reader) == Forget(1)
    assert await read_frame(reader) is None
    with pytest.raises(ProtocolError, match="longer"):
        await read_frame(fed(struct.pack(">I", MAX_FRAME_BYTES + 1)))
    with pytest.raises(ProtocolError, match="longer"):
        encode(Ask(1, questions.Probe("x" * MAX_FRAME_BYTES)))


def test_types_that_cannot_cross_are_refused() -> None:
    @dataclass(frozen=True)
    class Odd:
        value: int | str

    with pytest.raises(TypeError, match="cannot cross"):
        to_json({1, 2})
    with pytest.raises(TypeError, match="cannot cross"):
        from_json(Odd, {"value": 1})
