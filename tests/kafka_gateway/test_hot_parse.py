"""The hand-written Produce and Fetch parsers match kio, compiled and as plain Python, and never read past the frame."""

from __future__ import annotations

import importlib.util
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kafka_gateway.hot_parse
import kafka_gateway.produce_answer
from grpc_api.contract.log import Append, Appended, FetchPartition
from kafka_gateway.handlers.produce import encoding
from storage_tiers.errors import InvalidRecord, UnknownTopicId, UnsupportedCompression
from storage_tiers.steps import run_steps
from storage_tiers.types import TopicId, TopicPartition
from tests.kafka_gateway.kio_frames import milliseconds, record_batch, request_frame, response

BODY = 12
KNOWN_ID = uuid.UUID(int=77)
BATCH, OTHER = record_batch(b"one", b"two"), record_batch(b"three")


def topic_name(topic_id: TopicId) -> str | None:
    return "known" if topic_id == KNOWN_ID.bytes else None


def plain_module(name: str) -> ModuleType:
    source = Path(kafka_gateway.hot_parse.__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"plain_{name}", source)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


PLAIN = plain_module("hot_parse")
ANSWERS = {kafka_gateway.hot_parse: kafka_gateway.produce_answer, PLAIN: plain_module("produce_answer")}


@pytest.fixture(params=[kafka_gateway.hot_parse, PLAIN], ids=["built", "plain"])
def module(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield request.param


def parse_produce(module: Any, frame: bytes, version: int, *, step: int = 1) -> Any:
    """Parses in steps and, if the request is small enough, also at once; asserts that both results are equal."""
    data = bytearray(frame)
    whole = outcome_of(lambda: module.HotParser(topic_name).produce(data, memoryview(data), BODY, len(data), version))
    stepped = outcome_of(lambda: read_in_steps(module, data, version, step))
    if isinstance(stepped, module.Malformed):
        assert whole is None or str(whole) == str(stepped)
        raise stepped
    assert whole is None or fields_of(whole) == fields_of(stepped)
    return stepped


def outcome_of(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception as error:  # noqa: BLE001 - compared with another one
        return error


def read_in_steps(module: Any, data: bytearray, version: int, step: int) -> Any:
    reading = module.HotParser(topic_name).reading(data, memoryview(data), BODY, len(data), version)
    while not reading.step(step):
        pass
    return reading.request


def fields_of(request: Any) -> tuple[Any, ...]:
    appends = [(append.partition, bytes(append.batch)) for append in request.appends]
    refused = {place: str(error) for place, error in request.refused.items()}
    head = request.transactional_id, request.acks, request.timeout_ms
    return head, request.topics, request.indexes, appends, refused


def parse_fetch(module: Any, frame: bytes, version: int) -> Any:
    data = bytearray(frame)
    return module.HotParser(topic_name).fetch(data, BODY, len(data), version)


def produce_topic(version: int, name: str, topic_id: uuid.UUID, rows: list[tuple[int, bytes | None]]) -> dict[str, Any]:
    partitions = [{"index": index, "records": records} for index, records in rows]
    return {"name": name, "topic_id": topic_id, "partition_data": partitions}


@pytest.mark.parametrize("version", range(3, 14))
def test_produce_of_every_version_is_read_as_kio_wrote_it(module: Any, version: int) -> None:
    frame = request_frame(
        "produce",
        version,
        transactional_id="transaction",
        acks=-1,
        timeout=milliseconds(1234),
        topic_data=[
            produce_topic(version, "known", KNOWN_ID, [(0, BATCH), (300, OTHER)]),
            produce_topic(version, "x" * 200, KNOWN_ID, [(2**31 - 1, OTHER)]),
        ],
    )
    request = parse_produce(module, frame, version)
    names = ["known", "known"] if version >= 13 else ["known", "x" * 200]
    assert (request.transactional_id, request.acks, request.timeout_ms) == ("transaction", -1, 1234)
    assert request.indexes == [0, 300, 2**31 - 1]
    keys = [KNOWN_ID.bytes] * 2 if version >= 13 else [name.encode() for name in names]
    assert request.topics == [(keys[0], 2), (keys[1], 1)]
    assert [(append.partition, bytes(append.batch)) for append in request.appends] == [
        (TopicPartition(names[0], 0), BATCH),
        (TopicPartition(names[0], 300), OTHER),
        (TopicPartition(names[1], 2**31 - 1), OTHER),
    ]
    assert all(type(append) is Append for append in request.appends)
    assert request.refused == {}


@pytest.mark.parametrize("version", [3, 9, 13])
def test_refused_batches_are_answered_in_request_order(module: Any, version: int) -> None:
    rows = [(0, None), (1, BATCH), (2, b""), (1, OTHER)]
    frame = request_frame("produce", version, topic_data=[produce_topic(version, "known", KNOWN_ID, rows)])
    request = parse_produce(module, frame, version)
    assert [append.partition.partition for append in request.appends] == [1]
    assert {place: type(error) for place, error in request.refused.items()} == {
        0: InvalidRecord,
        2: InvalidRecord,
        3: InvalidRecord,
    }
    assert "more than once" in str(request.refused[3])


@pytest.mark.parametrize("first", [[], [(7, None)], [(7, BATCH)]])
def test_a_second_batch_of_a_partition_is_refused_at_any_position(module: Any, first: Any) -> None:
    rows = [*first, (0, BATCH), (0, OTHER), (0, BATCH), (1, BATCH)]
    frame = request_frame("produce", 9, topic_data=[produce_topic(9, "known", KNOWN_ID, rows)])
    request = parse_produce(module, frame, 9)
    assert [place for place, error in request.refused.items() if "more than once" in str(error)] == [
        len(first) + 1,
        len(first) + 2,
    ]
    assert [append.partition.partition for append in request.appends][-2:] == [0, 1]


def test_an_unknown_topic_id_is_refused_and_later_topics_are_read(module: Any) -> None:
    topics = [
        produce_topic(13, "", uuid.UUID(int=5), [(0, BATCH), (1, None)]),
        produce_topic(13, "", KNOWN_ID, [(4, OTHER)]),
    ]
    request = parse_produce(module, request_frame("produce", 13, topic_data=topics), 13)
    assert {place: type(error) for place, error in request.refused.items()} == {0: UnknownTopicId, 1: UnknownTopicId}
    assert [append.partition for append in request.appends] == [TopicPartition("known", 4)]


@pytest.mark.parametrize(("version", "refused"), [(3, True), (6, True), (7, False), (13, False)])
def test_zstd_needs_produce_7(module: Any, version: int, refused: bool) -> None:
    topics = [produce_topic(version, "known", KNOWN_ID, [(0, record_batch(b"v", attributes=4))])]
    request = parse_produce(module, request_frame("produce", version, topic_data=topics), version)
    assert bool(request.refused) == refused
    if refused:
        assert isinstance(request.refused[0], UnsupportedCompression)


@pytest.mark.parametrize("version", range(4, 19))
def test_fetch_of_every_version_is_read_as_kio_wrote_it(module: Any, version: int) -> None:
    row = {
        "partition": 3,
        "current_leader_epoch": 8,
        "fetch_offset": 2**40 + 5,
        "last_fetched_epoch": 7,
        "log_start_offset": 11,
        "partition_max_bytes": 1 << 20,
        "high_watermark": 99,
    }
    frame = request_frame(
        "fetch",
        version,
        replica_id=-1,
        max_wait=milliseconds(500),
        min_bytes=2,
        max_bytes=50 << 20,
        isolation_level=1,
        session_id=17,
        session_epoch=4,
        topics=[{"topic": "known", "topic_id": KNOWN_ID, "partitions": [row, {**row, "partition": 4}]}],
        forgotten_topics_data=[{"topic": "gone", "topic_id": KNOWN_ID, "partitions": [1, 2]}],
        rack_id="rack",
        cluster_id="cluster",
    )
    request = parse_fetch(module, frame, version)
    key = KNOWN_ID.bytes if version >= 13 else b"known"
    session = (17, 4) if version >= 7 else (0, -1)
    assert (request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation) == (500, 2, 50 << 20, 1)
    assert (request.session_id, request.session_epoch, request.replica_id) == (*session, -1)
    assert request.topics == [(key, 2)]
    assert request.indexes == [3, 4]
    expected = FetchPartition(
        TopicPartition("known", 3),
        2**40 + 5,
        1 << 20,
        8 if version >= 9 else -1,
        7 if version >= 12 else -1,
        TopicId(KNOWN_ID.bytes) if version >= 13 else None,
    )
    assert request.partitions[0] == expected
    assert type(request.partitions[0]) is FetchPartition


@pytest.mark.parametrize("version", [4, 14, 15, 18])
def test_a_replica_id_in_a_request_is_noticed(module: Any, version: int) -> None:
    frame = request_frame("fetch", version, replica_id=5, replica_state={"replica_id": 5, "replica_epoch": 2})
    assert parse_fetch(module, frame, version).replica_id == 5


FETCH_FRAMES = {
    version: request_frame(
        "fetch",
        version,
        topics=[{"topic": "known", "topic_id": KNOWN_ID, "partitions": [{"partition": 1, "fetch_offset": 5}]}],
        forgotten_topics_data=[{"topic": "gone", "topic_id": KNOWN_ID, "partitions": [1, 2]}],
        rack_id="rack",
    )
    for version in (4, 11, 12, 18)
}


def test_a_topic_of_an_unknown_id_has_no_name_in_a_fetch(module: Any) -> None:
    topics = [
        {"topic_id": uuid.UUID(int=5), "partitions": [{"partition": 9}]},
        {"topic_id": KNOWN_ID, "partitions": [{"partition": 1}]},
    ]
    request = parse_fetch(module, request_frame("fetch", 13, topics=topics), 13)
    assert [wanted.partition for wanted in request.partitions] == [TopicPartition("", 9), TopicPartition("known", 1)]
    assert request.partitions[0].topic_id == TopicId(uuid.UUID(int=5).bytes)


@pytest.mark.parametrize("version", FETCH_FRAMES)
def test_forgotten_partitions_are_read(module: Any, version: int) -> None:
    key = KNOWN_ID.bytes if version >= 13 else b"gone"
    forgotten = parse_fetch(module, FETCH_FRAMES[version], version).forgotten
    assert forgotten == ([(key, 1), (key, 2)] if version >= 7 else [])


def test_a_request_names_and_forgets_a_bounded_number_of_partitions(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bound in ("PARTITIONS_A_REQUEST", "AT_ONCE"):
        monkeypatch.setattr(module, bound, 4)
    monkeypatch.setattr(module, "FORGOTTEN_A_REQUEST", 4)
    named = [{"topic": "known", "partitions": [{"partition": 1}] * 2}] * 2
    gone = [{"topic": "gone", "partitions": [1] * 2}] * 2
    assert len(parse_fetch(module, request_frame("fetch", 7, topics=named), 7).partitions) == 4
    assert len(parse_fetch(module, request_frame("fetch", 7, forgotten_topics_data=gone), 7).forgotten) == 4
    too_many: list[dict[str, Any]] = [
        {"topics": [*named, {"partitions": [{}]}]},
        {"forgotten_topics_data": [*gone, {"partitions": [1]}]},
        {"topics": [{}] * 5},
        {"forgotten_topics_data": [{}] * 5},
    ]
    for more in too_many:
        with pytest.raises(module.Malformed, match="names more than 4"):
            parse_fetch(module, request_frame("fetch", 7, **more), 7)
    topics = [produce_topic(9, "known", KNOWN_ID, [(place, None) for place in range(2)])] * 2
    assert len(parse_produce(module, request_frame("produce", 9, topic_data=topics), 9).indexes) == 4
    for worse in (
        [*topics, produce_topic(9, "known", KNOWN_ID, [(1, None)])],
        [produce_topic(9, "y", KNOWN_ID, [])] * 5,
    ):
        with pytest.raises(module.Malformed, match="names more than 4"):
            parse_produce(module, request_frame("produce", 9, topic_data=worse), 9)


@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_a_produce_of_many_rows_is_read_in_steps_only(module: Any, step: int) -> None:
    most = module.AT_ONCE
    one = produce_topic(9, "known", KNOWN_ID, [(0, BATCH)])
    many: list[tuple[int, bytes | None]] = [(place, OTHER) for place in range(most)]
    for topics, is_small in (
        ([produce_topic(9, "known", KNOWN_ID, many)], True),
        ([one, produce_topic(9, "other", KNOWN_ID, many)], False),
        ([produce_topic(9, f"none-{n}", KNOWN_ID, []) for n in range(most)], True),
        ([produce_topic(9, f"none-{n}", KNOWN_ID, []) for n in range(most + 1)], False),
    ):
        frame = bytearray(request_frame("produce", 9, topic_data=topics))
        request = module.HotParser(topic_name).produce(frame, memoryview(frame), BODY, len(frame), 9)
        assert (request is not None) == is_small
        read = parse_produce(module, bytes(frame), 9, step=step)
        assert read.topics == [(topic["name"].encode(), len(topic["partition_data"])) for topic in topics]
        assert read.indexes == [row["index"] for topic in topics for row in topic["partition_data"]]
        assert len(read.appends) == len(read.indexes) and not read.refused


#: A hundred tagged fields, the most that one structure may have, and one more; each has the number 100 and no bytes.
MOST_TAGS, TOO_MANY_TAGS = (bytes([count]) + b"\x64\0" * count for count in (100, 101))


@pytest.mark.parametrize("place", ["header", "end"])
@pytest.mark.parametrize(("schema", "version"), [("produce", 9), ("fetch", 12)])
def test_a_structure_has_a_bounded_number_of_tagged_fields(module: Any, schema: str, version: int, place: str) -> None:
    """Without a bound, 50 million tagged fields fit in a frame."""
    frame, parse = request_frame(schema, version), {"produce": parse_produce, "fetch": parse_fetch}[schema]
    # Split after the client id "test", or before the last byte.
    before, behind = (
        (frame[:BODY] + frame[BODY : BODY + 6], frame[BODY + 7 :]) if place == "header" else (frame[:-1], b"")
    )
    assert frame == before + b"\0" + behind
    parse(module, before + MOST_TAGS + behind, version)
    with pytest.raises(module.Malformed, match="101 tagged fields in one structure"):
        parse(module, before + TOO_MANY_TAGS + behind, version)


PRODUCE_FRAMES = {
    version: request_frame(
        "produce", version, topic_data=[produce_topic(version, "known", KNOWN_ID, [(0, BATCH), (1, OTHER)])]
    )
    for version in (3, 9, 13)
}


@pytest.mark.parametrize("version", PRODUCE_FRAMES)
def test_every_truncation_of_a_produce_is_malformed(module: Any, version: int) -> None:
    frame = PRODUCE_FRAMES[version]
    for end in range(BODY, len(frame)):
        # Bytes behind the frame in the buffer must not be read.
        data = bytearray(frame)
        with pytest.raises(module.Malformed):
            module.HotParser(topic_name).produce(data, memoryview(data), BODY, end, version)
        with pytest.raises(module.Malformed):
            module.HotParser(topic_name).reading(data, memoryview(data), BODY, end, version).step(10)


@pytest.mark.parametrize("version", FETCH_FRAMES)
def test_every_truncation_of_a_fetch_is_malformed(module: Any, version: int) -> None:
    frame = FETCH_FRAMES[version]
    for end in range(BODY, len(frame)):
        data = bytearray(frame)
        with pytest.raises(module.Malformed):
            module.HotParser(topic_name).fetch(data, BODY, end, version)


damage = st.lists(st.tuples(st.integers(BODY, 400), st.integers(0, 255)), min_size=1, max_size=4)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(version=st.sampled_from([3, 9, 13]), flips=damage)
def test_damaged_produces_are_parsed_alike_or_malformed(version: int, flips: list[tuple[int, int]]) -> None:
    data = damaged(PRODUCE_FRAMES[version], flips)
    assert outcome(kafka_gateway.hot_parse, "produce", data, version) == outcome(PLAIN, "produce", data, version)


@settings(max_examples=300)
@given(version=st.sampled_from([4, 11, 12, 18]), flips=damage)
def test_damaged_fetches_are_parsed_alike_or_malformed(version: int, flips: list[tuple[int, int]]) -> None:
    data = damaged(FETCH_FRAMES[version], flips)
    assert outcome(kafka_gateway.hot_parse, "fetch", data, version) == outcome(PLAIN, "fetch", data, version)


def damaged(frame: bytes, flips: list[tuple[int, int]]) -> bytes:
    data = bytearray(frame)
    for place, value in flips:
        if place < len(data):
            data[place] = value
    return bytes(data)


def outcome(module: Any, kind: str, frame: bytes, version: int) -> Any:
    try:
        request = (parse_produce if kind == "produce" else parse_fetch)(module, frame, version)
    except module.Malformed as error:
        return str(error)
    rows = [(row.partition, bytes(row.batch)) for row in request.appends] if kind == "produce" else request.partitions
    rest = request.refused.items() if kind == "produce" else enumerate(request.forgotten)
    return request.topics, request.indexes, rows, {place: str(each) for place, each in rest}


@pytest.mark.parametrize("version", range(3, 14))
def test_the_fast_answer_is_the_general_one_and_kio_reads_it(module: Any, version: int) -> None:
    topics = [
        produce_topic(version, "known", KNOWN_ID, [(place, BATCH) for place in range(130)]),
        produce_topic(version, "y" * 130, KNOWN_ID, [(2000, OTHER)]),
    ]
    request = parse_produce(module, request_frame("produce", version, topic_data=topics), version)
    results = [Appended(2**40 + place, 3, -1 if place else 1_700_000_000_123, 2**33) for place in range(131)]
    framed = ANSWERS[module].produce_answer(request, results, version, 2**31 - 1, False)
    assert framed == run_steps(encoding(request, results, version, 2**31 - 1, {}))
    assert int.from_bytes(framed[:4], "big") == len(framed) - 4
    read = response("produce", version, framed[4:])
    rows = [row for topic in read.responses for row in topic.partition_responses]
    assert [row.index for row in rows] == [*range(130), 2000]
    assert [row.base_offset for row in rows] == [2**40 + place for place in range(131)]
    assert rows[0].log_append_time.timestamp() == 1_700_000_000.123
    assert rows[1].log_append_time is None
    if version >= 5:
        assert rows[0].log_start_offset == 2**33


def test_the_fast_answer_is_not_used_after_any_failure(module: Any) -> None:
    topics = [produce_topic(9, "known", KNOWN_ID, [(0, BATCH), (1, None)])]
    request = parse_produce(module, request_frame("produce", 9, topic_data=topics), 9)
    assert ANSWERS[module].produce_answer(request, [Appended(0, 0, -1, 0)], 9, 1, False) is None
    topics = [produce_topic(9, "known", KNOWN_ID, [(0, BATCH)])]
    request = parse_produce(module, request_frame("produce", 9, topic_data=topics), 9)
    assert ANSWERS[module].produce_answer(request, [InvalidRecord("no")], 9, 1, False) is None


def test_names_are_remembered_and_the_memory_is_bounded(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    names = module.PartitionNames()
    assert names.find(b"a", 0) is names.find(b"a", 0)
    assert names.find(b"\xff\xfe", 0) == TopicPartition("\ufffd\ufffd", 0)
    first = names.find(b"a", 0)
    for index in range(module.REMEMBERED_PARTITIONS):
        names.find(b"b", index)
    assert names.find(b"a", 0) is not first
    assert names.count <= module.REMEMBERED_PARTITIONS
    late, later = names.find(b"c", 0), names.find(b"d", 0)
    for index in range(module.REMEMBERED_PARTITIONS - 2):
        names.find(b"e", index)
    assert names.find(b"c", 0) is late, "only as many as necessary are dropped, the oldest first"
    assert names.find(b"d", 0) is later
