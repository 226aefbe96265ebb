"""Frames and values cross unchanged; any other input is refused as a whole."""

from __future__ import annotations

import asyncio
import json
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from storage_tiers import errors
from storage_tiers.cold.manifest import model, transitions
from storage_tiers.cold.manifest.cluster_file import ClusterState, Holder
from storage_tiers.cold.manifest.lineage import SeenManifest
from storage_tiers.cold.manifest.model import (
    ManifestWriter,
    Oldest,
    PageKind,
    PageRef,
    RemoteSegment,
    Section,
    Stamp,
    State,
)
from storage_tiers.cold.manifest.topic_file import TopicState
from storage_tiers.cold.process import cluster_operations as cluster_questions
from storage_tiers.cold.process import operations as questions
from storage_tiers.cold.process import protocol
from storage_tiers.cold.process.protocol import (
    MAX_FRAME_BYTES,
    MAX_QUESTION_BYTES,
    Ask,
    Configure,
    Forget,
    Frame,
    Idle,
    Reply,
    Unknown,
    decode,
    encode,
    read_frame,
)
from storage_tiers.cold.process.question import Deadline, Question
from storage_tiers.cold.process.settings import TierSettings
from storage_tiers.cold.process.table import TABLE, row_of
from storage_tiers.cold.process.value_json import ProtocolError, from_json, to_json
from storage_tiers.cold.segments.offloader import ExtendJob
from storage_tiers.cold.segments.repairer import LocalEvidence, RepairReport
from storage_tiers.cold.segments.sweeper import Listed
from storage_tiers.cold.stores.location import StoreLocation
from storage_tiers.errors import LogError, TierUnavailable
from storage_tiers.policy.retention import Expired, Moment, RetentionLimits
from storage_tiers.policy.segments import Now
from storage_tiers.records.checksum import crc32c
from storage_tiers.types import AbortedTransaction, EpochEntry, OffsetRange
from tests.storage_tiers.cold.support import IDS, TOPIC_ID
from tests.storage_tiers.tier.support import broker

ROOT = Path(__file__).parents[3]
BROKER_CODE = [
    *(ROOT / "service").rglob("*.py"),
    *(ROOT / "storage_tiers/cold/read").glob("*.py"),
    ROOT / "storage_tiers/cold/process/client.py",
]
WRITER = ManifestWriter(1, None, "maintainer")
SEGMENT = RemoteSegment(0, 9, "k", 0, 5, "s", (Section("index", 0, 1, 2),), 1, 2, 3, 4, 5, 6, Stamp(1, 2), None)
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
COUNTERS = questions.TierCounters(
    {"Extend": 2}, {}, {"get": 1}, {"get TierUnavailable": 1}, {"get": 1}, {"get": 0.5}, 1, 2, 3, 4, 5
)
QUESTIONS: list[Question[Any]] = [
    questions.FetchChunk("k", 1, 2, (3, 4), urgent=False),
    questions.FetchObject("k", 1, 2),
    questions.RaisePriority("k", 1, 2),
    questions.PageSegments(IDS, PAGE, 5, None),
    questions.PageSegments(IDS, PAGE, 5, -1),
    questions.PlanPages(IDS, (PAGE,), Expired(0, 5), Moment(RetentionLimits(1, 2), Now(3, 3), 4)),
    cluster_questions.Probe("c/"),
    cluster_questions.ReadStoreTime("c/"),
    cluster_questions.FindClusters(),
    cluster_questions.ReadCluster("c"),
    cluster_questions.OpenCluster("c", Holder(1, "d", "s"), 4),
    cluster_questions.ShownCluster("c"),
    cluster_questions.HighestIncarnation("c"),
    cluster_questions.RecreateCluster(ClusterState("c", 4, Holder(1, "d", "s")), None),
    cluster_questions.RecreateCluster(
        ClusterState("c", 4, Holder(1, "d", "s")), ClusterState("c", 2, Holder(1, "d", "r"))
    ),
    cluster_questions.ShownTopic("c", "t"),
    cluster_questions.RepublishTopic(TOPIC),
    cluster_questions.PutSnapshot("c", 3, 4, 2, "/cache/metadata.snapshot", 5, 6),
    cluster_questions.FindSnapshot("c"),
    cluster_questions.ListTopics("c", ""),
    cluster_questions.ListTopicIds("c", "t"),
    cluster_questions.ListManifests("c", "t", "AAAAAAAAAAAAAAAAAAAAAA"),
    questions.TakePartition(IDS, ManifestWriter(1, 2), -1, True),
    cluster_questions.ReadTopic("c", "t"),
    cluster_questions.PublishTopic(TOPIC),
    cluster_questions.MarkTopicDeleted(TOPIC),
    questions.LoadManifest(IDS, WRITER),
    questions.Extend(IDS, WRITER, JOB),
    questions.ReplaceSegments(IDS, WRITER, JOB, (SEGMENT,), None),
    questions.Claim(IDS, WRITER, 3),
    questions.RaiseLogStart(IDS, WRITER, 3),
    questions.Expire(IDS, WRITER, 3),
    questions.DeletePartition(IDS, WRITER),
    questions.Sweep(IDS, WRITER, 3),
    questions.Sweep(IDS, WRITER, 3, (Listed("k", 5),), SeenManifest("l", 3, "c", 1, 2, 5, 9, 0, "/a/b")),
    questions.SweepDeleted(IDS, WRITER, 3, (Listed("k", 5),)),
    questions.Repair(
        IDS,
        WRITER,
        LocalEvidence(OffsetRange(3, 9), (EpochEntry(1, 0),), 2),
        7,
        True,
        SeenManifest("l", 3, "c", 1, 2, 5, 9, 0, "/a/b"),
        (OffsetRange(3, 5), OffsetRange(7, 8)),
    ),
    questions.ListKeys("c/", "c/k"),
    questions.AbortUploads("c/", 3),
    questions.Stats(),
]


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: type(q).__name__)
def test_every_question_crosses_unchanged(question: Question[Any]) -> None:
    assert round_trip(Ask(7, question)) == Ask(7, question)


def test_every_operation_has_its_row_and_is_in_the_list_above() -> None:
    defined = {name: kind for name, kind in (vars(questions) | vars(cluster_questions)).items() if _is_question(kind)}
    assert {name: row.question for name, row in TABLE.items()} == defined
    assert {type(question) for question in QUESTIONS} == set(defined.values())


def _is_question(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Question) and kind is not Question


async def test_every_row_is_answered_by_the_process(tmp_path: Path) -> None:
    """The answer is a result, or a LogError that reports no defect; a result of another type would end the process."""
    snapshot = tmp_path / "metadata.snapshot"
    snapshot.write_bytes(b"bytes")
    put = cluster_questions.PutSnapshot("c", 3, 4, 2, str(snapshot), 5, crc32c(b"bytes"))
    async with broker(tmp_path) as b:
        for question in QUESTIONS:
            try:
                await b.client.ask(put if isinstance(question, cluster_questions.PutSnapshot) else question)
            except LogError as error:
                assert "in the tier process" not in str(error), error
        counters = await b.client.refresh_counters()
        assert counters is not None and counters.operations.keys() == TABLE.keys() - {"Stats"}
        assert (b.client.stats.starts, b.client.stats.lost) == (1, 0)


async def test_a_question_without_a_row_gets_an_error_and_the_process_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker may be older or newer than the process that it starts, as after an upgrade of a running node's files."""
    async with broker(tmp_path) as b:
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(protocol, "TABLE", {"Stats": TABLE["Stats"]})
            with pytest.raises(TierUnavailable, match=r"knows no question 'ReadCluster'.*restart the node"):
                await b.client.ask(cluster_questions.ReadCluster("c"))
        assert await b.client.ask(cluster_questions.ReadCluster("c")) is None
        assert (b.client.stats.starts, b.client.stats.lost) == (1, 0)


def test_every_row_names_the_work_that_a_deadline_may_cut_off() -> None:
    for question in QUESTIONS:
        row = row_of(question)
        named = row.what.format(q=question)
        assert bool(named) == (row.deadline not in (Deadline.NONE, Deadline.STEPS)), row.question


@pytest.mark.parametrize("name", TABLE)
def test_the_broker_uses_every_operation(name: str) -> None:
    """The request's constructor is called in code that is neither a test nor the definition of the request."""
    asks = re.compile(rf"\b{name}\(")
    asked = [path for path in BROKER_CODE if asks.search(path.read_text())]
    assert asked, f"no code requests {name}: delete the question and its row"


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
        Unknown(4, "Format"),
        Reply(1, {"path": "p", "size": 1}),
        Reply(1, None),
    ],
    ids=lambda frame: type(frame).__name__,
)
def test_other_frames_cross_unchanged(frame: Frame) -> None:
    assert round_trip(frame) == frame


def test_answers_cross_as_their_questions_say() -> None:
    manifest = transitions.claim_epoch(
        transitions.first_manifest(IDS), 5, model.Author(WRITER, "c" * 32, 7, lambda: "0" * 32)
    )
    for name, answer in (
        ("PageSegments", (SEGMENT,)),
        ("Stats", COUNTERS),
        ("ReadTopic", None),
        ("ReadTopic", TOPIC),
        ("Probe", None),
        ("ReadStoreTime", 5),
        ("ListTopics", ("a", "b")),
        ("LoadManifest", None),
        ("LoadManifest", manifest),
        ("Repair", questions.Repaired(RepairReport(), manifest)),
    ):
        assert from_json(TABLE[name].answer, json.loads(json.dumps(to_json(answer)))) == answer


def test_an_answer_of_another_shape_is_refused() -> None:
    for name, answer in (
        ("Probe", 1),
        ("ReadStoreTime", None),
        ("LoadManifest", "{}"),
        ("Expire", None),
        ("ListTopics", "a"),
    ):
        with pytest.raises(ProtocolError):
            from_json(TABLE[name].answer, answer)


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
        b'{"frame": "ask", "number": 1, "operation": 7, "body": {}}',
        b'{"frame": "ask", "number": 1, "body": {}}',
        b'{"frame": "ask", "number": "1", "operation": "Stats", "body": {}}',
        b'{"frame": "ask", "number": true, "operation": "Stats", "body": {}}',
        b'{"frame": "ask", "number": 1, "operation": "Stats", "body": {"more": 1}}',
        b'{"frame": "ask", "number": 1, "operation": "Probe", "body": {}}',
        b'{"frame": "ask", "number": 1, "operation": "Probe", "body": {"key_prefix": 7}}',
        b'{"frame": "ask", "number": 1, "operation": "RaisePriority", "body": []}',
        b'{"frame": "configure", "body": {}}',
        b'{"frame": "reply"}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_other_bytes_are_not_a_frame(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(body)


async def test_frames_are_bounded_and_a_cut_frame_is_the_end() -> None:
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
        encode(Ask(1, cluster_questions.Probe("x" * MAX_QUESTION_BYTES)))
    longer = Reply(1, "x" * MAX_QUESTION_BYTES)
    assert await read_frame(fed(encode(longer))) == longer, "an answer may be longer than a question"
    with pytest.raises(ProtocolError, match="longer"):
        await read_frame(fed(encode(longer)), MAX_QUESTION_BYTES)


async def test_an_operation_too_long_for_a_frame_fails_alone(tmp_path: Path) -> None:
    async with broker(tmp_path) as b:
        with pytest.raises(
            errors.InvalidRequest, match=r"Probe cannot be asked of the tier process: a frame of \d+ bytes"
        ):
            await b.client.ask(cluster_questions.Probe("x" * MAX_QUESTION_BYTES))
        await b.client.ask(questions.Stats())
        assert (b.client.stats.starts, b.client.stats.lost) == (1, 0)


def test_types_that_cannot_cross_are_refused() -> None:
    @dataclass(frozen=True)
    class Odd:
        value: int | str

    with pytest.raises(TypeError, match="cannot cross"):
        to_json({1, 2})
    with pytest.raises(TypeError, match="cannot cross"):
        from_json(Odd, {"value": 1})
