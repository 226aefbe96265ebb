"""Topics, configs, offsets and producer ids, in every version of each API."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import pytest

from grpc_api.contract.log import Append, OffsetQuery
from grpc_api.contract.topics import NewTopic
from storage_tiers.errors import LogError, OffsetNotAvailable
from storage_tiers.types import TopicPartition
from tests.kafka_gateway.handler_client import HandlerClient
from tests.kafka_gateway.kio_frames import milliseconds, record_batch
from tests.kafka_gateway.memory_core import MemoryCore


def append(core: MemoryCore, name: str, partition: int, timestamp: int) -> None:
    batch = record_batch(b"v", timestamp=timestamp)
    core.append([Append(TopicPartition(name, partition), memoryview(batch))])


# --- CreateTopics ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("version", range(2, 8))
async def test_topics_are_created(handlers: HandlerClient, core: MemoryCore, version: int) -> None:
    new = {"name": "new", "num_partitions": 2, "replication_factor": 1}
    config = {"configs": [{"name": "retention.ms", "value": "5"}]}
    answer = await handlers.ask("create_topics", version, topics=[{**new, **config}, {**new, "name": "first"}])
    assert [(row.name, int(row.error_code)) for row in answer.topics] == [("new", 0), ("first", 36)]
    assert core.configs_of["new"] == {"retention.ms": "5"}
    assert answer.topics[1].error_message == "topic first exists"
    if version >= 5:
        assert (answer.topics[0].num_partitions, answer.topics[0].replication_factor) == (2, 1)
        assert [(c.name, c.value, c.config_source) for c in answer.topics[0].configs][1] == ("retention.ms", "5", 1)
    if version >= 7:
        assert answer.topics[0].topic_id.bytes == core.ids["new"]


async def test_a_duplicate_name_creates_nothing(handlers: HandlerClient, core: MemoryCore) -> None:
    new = {"name": "new", "num_partitions": 1, "replication_factor": 1}
    answer = await handlers.ask("create_topics", 7, topics=[new, {**new, "name": "other"}, new])
    assert {row.name: (int(row.error_code), row.error_message) for row in answer.topics} == {
        "new": (42, "Duplicate topic name."),
        "other": (0, None),
    }
    assert "new" not in core.ids


async def test_a_partition_is_assigned_once(handlers: HandlerClient, core: MemoryCore) -> None:
    rows = [{"partition_index": place, "broker_ids": [1]} for place in range(2)]
    assigned = {"name": "assigned", "num_partitions": -1, "replication_factor": -1, "assignments": rows}
    twice = {**assigned, "name": "twice", "assignments": [*rows, rows[1]]}
    worse = {**twice, "name": "not a name"}
    answer = await handlers.ask("create_topics", 7, topics=[assigned, twice, worse])
    assert {row.name: (int(row.error_code), row.num_partitions) for row in answer.topics} == {
        "assigned": (0, 2),
        "twice": (39, -1),
        "not a name": (17, -1),
    }
    assert answer.topics[1].error_message == "Found multiple manual partition assignments for partition 1"
    assert "twice" not in core.ids


async def test_validation_creates_nothing(handlers: HandlerClient, core: MemoryCore) -> None:
    new = {"name": "new", "num_partitions": 4, "replication_factor": 1}
    answer = await handlers.ask("create_topics", 5, topics=[new], validate_only=True)
    assert (int(answer.topics[0].error_code), answer.topics[0].num_partitions) == (0, 4)
    assert "new" not in core.ids


# --- DeleteTopics ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("version", range(1, 7))
async def test_topics_are_deleted_by_name(handlers: HandlerClient, core: MemoryCore, version: int) -> None:
    names = ["first", "none"]
    values: Any = {"topics": [{"name": name} for name in names]} if version >= 6 else {"topic_names": names}
    answer = await handlers.ask("delete_topics", version, **values)
    assert [(row.name, int(row.error_code)) for row in answer.responses] == [("first", 0), ("none", 3)]
    assert list(core.ids) == ["second"]


async def test_topics_are_deleted_by_id(handlers: HandlerClient, core: MemoryCore) -> None:
    known, unknown = uuid.UUID(bytes=bytes(core.ids["first"])), uuid.UUID(int=3)
    topics = [{"name": None, "topic_id": known}, {"name": None, "topic_id": unknown}]
    answer = await handlers.ask("delete_topics", 6, topics=topics)
    assert [(r.name, r.topic_id, int(r.error_code)) for r in answer.responses] == [
        ("first", known, 0),
        (None, unknown, 100),
    ]


async def test_deletions_that_say_too_much_or_too_little_are_refused(handlers: HandlerClient, core: MemoryCore) -> None:
    known = uuid.UUID(bytes=bytes(core.ids["first"]))
    topics = [{"name": "first", "topic_id": known}, {"name": None}, {"name": "second"}, {"name": "second"}]
    answer = await handlers.ask("delete_topics", 6, topics=topics)
    assert [int(row.error_code) for row in answer.responses] == [42, 42, 42]
    assert list(core.ids) == ["first", "second"]


# --- CreatePartitions --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("version", range(4))
async def test_partitions_are_added(handlers: HandlerClient, core: MemoryCore, version: int) -> None:
    topics = [{"name": name, "count": 3, "assignments": None} for name in ("second", "first", "none")]
    answer = await handlers.ask("create_partitions", version, topics=topics)
    assert [(row.name, int(row.error_code)) for row in answer.results] == [("second", 0), ("first", 37), ("none", 3)]
    assert TopicPartition("second", 2) in core.partitions


async def test_growing_a_topic_twice_in_a_request_is_refused(handlers: HandlerClient) -> None:
    topics = [{"name": "second", "count": count, "assignments": None} for count in (2, 3)]
    answer = await handlers.ask("create_partitions", 3, topics=topics)
    assert [(row.name, int(row.error_code)) for row in answer.results] == [("second", 42)]


# --- ListOffsets -------------------------------------------------------------------------------------------------------
def offsets_of(answer: Any) -> list[tuple[int, int, int, int]]:
    return [
        (row.partition_index, int(row.error_code), row.timestamp, row.offset)
        for topic in answer.topics
        for row in topic.partitions
    ]


@pytest.mark.parametrize("version", range(1, 12))
async def test_special_timestamps_are_known_from_their_versions_on(
    handlers: HandlerClient, core: MemoryCore, version: int
) -> None:
    append(core, "first", 0, 1000)
    append(core, "first", 0, 3000)
    append(core, "first", 0, 2000)
    since = {-1: (1, -1, 3), -2: (1, -1, 0), -3: (7, 3000, 1), -4: (8, -1, 0), -5: (9, -1, -1), -6: (11, -1, -1)}
    for timestamp, (first, found, offset) in since.items():
        topics = [{"name": "first", "partitions": [{"partition_index": 0, "timestamp": timestamp}]}]
        answer = await handlers.ask("list_offsets", version, replica_id=-1, topics=topics)
        assert offsets_of(answer) == [(0, 0, found, offset) if version >= first else (0, 35, -1, -1)], timestamp


@pytest.mark.parametrize("version", range(1, 12))
async def test_offsets_are_looked_up_by_time(handlers: HandlerClient, core: MemoryCore, version: int) -> None:
    append(core, "first", 1, 1000)
    append(core, "first", 1, 2000)
    rows = [{"partition_index": 1, "timestamp": 1500}, {"partition_index": 0, "timestamp": 1500}]
    rows += [{"partition_index": 9, "timestamp": 1500}, {"partition_index": 2, "timestamp": -7}]
    answer = await handlers.ask("list_offsets", version, replica_id=-1, topics=[{"name": "first", "partitions": rows}])
    assert offsets_of(answer) == [(1, 0, 2000, 1), (0, 0, -1, -1), (9, 3, -1, -1), (2, 35, -1, -1)]
    if version >= 4:
        assert [row.leader_epoch for row in answer.topics[0].partitions] == [0, -1, -1, -1]


async def test_a_partition_requested_twice_is_refused(handlers: HandlerClient) -> None:
    rows = [{"partition_index": 0, "timestamp": -1}, {"partition_index": 0, "timestamp": -2}]
    answer = await handlers.ask("list_offsets", 6, replica_id=-1, topics=[{"name": "first", "partitions": rows}])
    assert offsets_of(answer) == [(0, 42, -1, -1)]


@pytest.mark.parametrize(("version", "code"), [(1, 5), (4, 5), (5, 78), (11, 78)])
async def test_an_offset_that_is_not_available_yet_has_an_error_that_the_version_knows(
    handlers: HandlerClient, core: MemoryCore, monkeypatch: pytest.MonkeyPatch, version: int, code: int
) -> None:
    async def behind(queries: Sequence[OffsetQuery]) -> list[LogError]:
        return [OffsetNotAvailable("retry") for _ in queries]

    monkeypatch.setattr(core, "list_offsets", behind)
    topics = [{"name": "first", "partitions": [{"partition_index": 0, "timestamp": -1}]}]
    answer = await handlers.ask("list_offsets", version, replica_id=-1, topics=topics)
    assert int(answer.topics[0].partitions[0].error_code) == code


async def test_an_unknown_isolation_level_is_refused(handlers: HandlerClient) -> None:
    topics = [{"name": "first", "partitions": [{"partition_index": 0, "timestamp": -1}]}]
    answer = await handlers.ask("list_offsets", 6, replica_id=-1, isolation_level=2, topics=topics)
    assert offsets_of(answer) == [(0, 42, -1, -1)]


async def test_a_slow_lookup_times_out(
    handlers: HandlerClient, core: MemoryCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow(queries: list[OffsetQuery]) -> None:
        await never.wait()

    import asyncio

    never = asyncio.Event()
    monkeypatch.setattr(core, "list_offsets", slow)
    topics = [{"name": "first", "partitions": [{"partition_index": 0, "timestamp": 5}]}]
    answer = await handlers.ask("list_offsets", 10, replica_id=-1, timeout=milliseconds(1), topics=topics)
    assert offsets_of(answer) == [(0, 7, -1, -1)]


# --- DeleteRecords -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("version", range(3))
async def test_records_are_deleted(handlers: HandlerClient, core: MemoryCore, version: int) -> None:
    for _ in range(4):
        append(core, "first", 0, 1000)
    rows = [{"partition_index": p, "offset": o} for p, o in ((0, 3), (1, 1), (9, 0))]
    topics = [{"name": "first", "partitions": rows}, {"name": "none", "partitions": [{"partition_index": 0}]}]
    answer = await handlers.ask("delete_records", version, topics=topics)
    found = [
        (t.name, r.partition_index, r.low_watermark, int(r.error_code)) for t in answer.topics for r in t.partitions
    ]
    assert found == [("first", 0, 3, 0), ("first", 1, -1, 1), ("first", 9, -1, 3), ("none", 0, -1, 3)]
    everything = [{"name": "first", "partitions": [{"partition_index": 0, "offset": -1}]}]
    answer = await handlers.ask("delete_records", version, topics=everything)
    assert answer.topics[0].partitions[0].low_watermark == 4


# --- InitProducerId ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("version", range(6))
async def test_producer_ids_are_given_once(handlers: HandlerClient, version: int) -> None:
    answers = [await handlers.ask("init_producer_id", version, transactional_id=None) for _ in range(2)]
    assert [(int(a.error_code), a.producer_id, a.producer_epoch) for a in answers] == [(0, 1, 0), (0, 2, 0)]


@pytest.mark.parametrize(
    "values", [{"transactional_id": ""}, {"transactional_id": None, "producer_id": 4, "producer_epoch": -1}]
)
async def test_half_a_producer_is_refused(handlers: HandlerClient, values: dict[str, Any]) -> None:
    answer = await handlers.ask("init_producer_id", 4, **values)
    assert (int(answer.error_code), answer.producer_id) == (42, -1)


# --- OffsetForLeaderEpoch ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("version", range(2, 5))
async def test_the_end_offset_of_an_epoch_is_looked_up(handlers: HandlerClient, core: MemoryCore, version: int) -> None:
    append(core, "first", 0, 1000)
    rows = [{"partition": p, "leader_epoch": e, "current_leader_epoch": -1} for p, e in ((0, 0), (0, -1), (9, 0))]
    answer = await handlers.ask("offset_for_leader_epoch", version, topics=[{"topic": "first", "partitions": rows}])
    found = [(r.partition, int(r.error_code), r.leader_epoch, r.end_offset) for r in answer.topics[0].partitions]
    assert found == [(0, 0, 0, 1), (0, 0, -1, -1), (9, 3, -1, -1)]


# --- configs -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("version", range(1, 5))
async def test_configs_are_described(handlers: HandlerClient, core: MemoryCore, version: int) -> None:
    await core.create([NewTopic("own", configs={"retention.ms": "5"})])
    resources = [
        {"resource_type": 2, "resource_name": "own", "configuration_keys": ["retention.ms", "unknown"]},
        {"resource_type": 2, "resource_name": "own", "configuration_keys": None},
        {"resource_type": 2, "resource_name": "none", "configuration_keys": None},
        {"resource_type": 99, "resource_name": "x", "configuration_keys": None},
    ]
    answer = await handlers.ask("describe_configs", version, resources=resources, include_synonyms=True)
    one, every, missing, unknown = answer.results
    assert [(c.name, c.value, c.config_source) for c in one.configs] == [("retention.ms", "5", 1)]
    assert [(s.name, s.value, s.source) for s in one.configs[0].synonyms] == [("retention.ms", "604800000", 5)]
    assert len(every.configs) == 2
    assert [int(result.error_code) for result in answer.results] == [0, 0, 3, 42]
    assert (missing.error_message, unknown.error_message) == ("topic none does not exist", "Unknown resource type 99")
    if version >= 3:
        assert (one.configs[0].config_type, one.configs[0].documentation) == (2, None)


async def test_synonyms_and_documentation_are_returned_on_request_only(handlers: HandlerClient) -> None:
    resources = [{"resource_type": 2, "resource_name": "first", "configuration_keys": ["retention.ms"]}]
    plain = await handlers.ask("describe_configs", 4, resources=resources)
    assert plain.results[0].configs[0].synonyms == ()
    full = await handlers.ask("describe_configs", 4, resources=resources, include_documentation=True)
    assert full.results[0].configs[0].documentation == "what retention.ms does"


def alteration(name: str, value: str | None, operation: int = 0) -> dict[str, Any]:
    return {"name": name, "config_operation": operation, "value": value}


@pytest.mark.parametrize("version", range(2))
async def test_configs_are_altered(handlers: HandlerClient, core: MemoryCore, version: int) -> None:
    resources = [
        {"resource_type": 2, "resource_name": "first", "configs": [alteration("retention.ms", "7")]},
        {"resource_type": 2, "resource_name": "second", "configs": [alteration("unknown", "7")]},
        {"resource_type": 2, "resource_name": "none", "configs": [alteration("retention.ms", "7")]},
    ]
    answer = await handlers.ask("incremental_alter_configs", version, resources=resources, validate_only=True)
    assert core.configs_of["first"] == {}
    answer = await handlers.ask("incremental_alter_configs", version, resources=resources)
    assert [int(row.error_code) for row in answer.responses] == [0, 40, 3]
    assert core.configs_of["first"] == {"retention.ms": "7"}
    delete = [{"resource_type": 2, "resource_name": "first", "configs": [alteration("retention.ms", None, 1)]}]
    await handlers.ask("incremental_alter_configs", version, resources=delete)
    assert core.configs_of["first"] == {}


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ([alteration("retention.ms", "1"), alteration("retention.ms", "2")], "Error due to duplicate config keys"),
        ([alteration("retention.ms", None)], "Null value not supported for : retention.ms"),
        ([alteration("retention.ms", "1", 9)], "Unknown operations type 9"),
    ],
)
async def test_senseless_alterations_are_refused(
    handlers: HandlerClient, core: MemoryCore, configs: list[dict[str, Any]], message: str
) -> None:
    resources = [{"resource_type": 2, "resource_name": "first", "configs": configs}]
    answer = await handlers.ask("incremental_alter_configs", 1, resources=resources)
    assert (int(answer.responses[0].error_code), answer.responses[0].error_message) == (42, message)


async def test_a_resource_is_altered_once_in_a_request(handlers: HandlerClient) -> None:
    resource = {"resource_type": 2, "resource_name": "first", "configs": [alteration("retention.ms", "7")]}
    answer = await handlers.ask("incremental_alter_configs", 1, resources=[resource, resource])
    assert [int(row.error_code) for row in answer.responses] == [42, 42]
