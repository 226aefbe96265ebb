"""Metadata and ApiVersions: the first requests of every client."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from kafka_gateway.handlers.api_versions import TELEMETRY_KEYS
from kafka_gateway.options import Options
from kafka_gateway.registry import by_key
from tests.kafka_gateway.handler_client import CORRELATION, HandlerClient
from tests.kafka_gateway.kio_frames import response
from tests.kafka_gateway.memory_core import MemoryCore

VERSIONS = range(14)


def rows_of(answer: Any) -> list[tuple[str | None, int, int]]:
    return [(topic.name, int(topic.error_code), len(topic.partitions)) for topic in answer.topics]


@pytest.mark.parametrize("version", VERSIONS)
async def test_topics_are_described_by_name(handlers: HandlerClient, core: MemoryCore, version: int) -> None:
    core.port = 9092
    wanted = [{"name": "second"}, {"name": "first"}, {"name": "second"}]
    answer = await handlers.ask("metadata", version, topics=wanted)
    assert rows_of(answer) == [("second", 0, 1), ("first", 0, 3)]
    assert [(b.node_id, b.host, b.port) for b in answer.brokers] == [(1, "127.0.0.1", 9092)]
    partition = answer.topics[1].partitions[2]
    assert (partition.partition_index, partition.leader_id, partition.replica_nodes) == (2, 1, (1,))
    if version >= 1:
        assert answer.controller_id == 1
    if version >= 2:
        assert answer.cluster_id == "memory-core-cluster-id"
    if version >= 10:
        assert answer.topics[1].topic_id.bytes == core.ids["first"]


@pytest.mark.parametrize("version", VERSIONS)
async def test_all_topics_are_described(handlers: HandlerClient, version: int) -> None:
    answer = await handlers.ask("metadata", version, topics=() if version == 0 else None)
    assert rows_of(answer) == [("first", 0, 3), ("second", 0, 1)]


@pytest.mark.parametrize("version", [1, 13])
async def test_an_empty_list_of_topics_describes_none(handlers: HandlerClient, version: int) -> None:
    assert rows_of(await handlers.ask("metadata", version, topics=())) == []


@pytest.mark.parametrize("version", VERSIONS)
async def test_unknown_names_are_created_unless_the_request_forbids_it(handlers: HandlerClient, version: int) -> None:
    wanted = [{"name": "first"}, {"name": "new"}, {"name": "not a name"}]
    forbidden = await handlers.ask("metadata", version, topics=wanted, allow_auto_topic_creation=False)
    assert rows_of(forbidden)[1] == ("new", 3, 0)
    allowed = await handlers.ask("metadata", version, topics=wanted, allow_auto_topic_creation=True)
    # Below version 4 a request cannot forbid creation. As in Kafka, the answer to the request that creates a topic lacks this
    # topic.
    new = ("new", 0, 1) if version < 4 else ("new", 3, 0)
    assert rows_of(allowed) == [("first", 0, 3), new, ("not a name", 17, 0)]
    retried = await handlers.ask("metadata", version, topics=wanted, allow_auto_topic_creation=False)
    assert rows_of(retried)[1] == ("new", 0, 1)


async def test_topics_that_are_not_auto_created_stay_unknown(handlers: HandlerClient, core: MemoryCore) -> None:
    core.auto_create_allowed = False
    assert rows_of(await handlers.ask("metadata", 9, topics=[{"name": "new"}])) == [("new", 3, 0)]


@pytest.mark.parametrize("version", [12, 13])
async def test_topics_are_described_by_id(handlers: HandlerClient, core: MemoryCore, version: int) -> None:
    known, unknown = uuid.UUID(bytes=bytes(core.ids["first"])), uuid.UUID(int=5)
    wanted = [{"name": None, "topic_id": unknown}, {"name": None, "topic_id": known}]
    answer = await handlers.ask("metadata", version, topics=wanted)
    assert rows_of(answer) == [(None, 100, 0), ("first", 0, 3)]
    assert answer.topics[0].topic_id == unknown
    named = await handlers.ask("metadata", version, topics=[{"name": "second"}, *wanted])
    assert rows_of(named) == rows_of(answer), "with an id, names are ignored"


@pytest.mark.parametrize(
    ("version", "topic"),
    [(10, {"name": None}), (11, {"name": "first", "topic_id": uuid.UUID(int=5)}), (12, {"name": None})],
)
async def test_a_topic_without_a_name_or_with_an_id_too_early_is_refused(
    handlers: HandlerClient, version: int, topic: dict[str, Any]
) -> None:
    answer = await handlers.ask("metadata", version, topics=[topic])
    assert [code for _, code, _ in rows_of(answer)] == [42]
    assert (answer.brokers, answer.cluster_id, answer.controller_id) == ((), None, -1)


@pytest.mark.parametrize("version", [8, 10, 13])
async def test_authorized_operations_are_returned_on_request(handlers: HandlerClient, version: int) -> None:
    wanted: dict[str, Any] = {"topics": [{"name": "first"}]}
    plain = await handlers.ask("metadata", version, **wanted)
    asked = await handlers.ask(
        "metadata",
        version,
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
        **wanted,
    )
    assert plain.topics[0].topic_authorized_operations == -2147483648
    assert asked.topics[0].topic_authorized_operations == 3576
    if version <= 10:
        assert plain.cluster_authorized_operations == -2147483648
        assert asked.cluster_authorized_operations == 8096


@pytest.mark.parametrize("version", range(5))
async def test_api_versions_returns_the_table(handlers: HandlerClient, version: int) -> None:
    values = {"client_software_name": "apache-kafka-java", "client_software_version": "4.2.1"}
    answer = await handlers.ask("api_versions", version, **values)
    assert int(answer.error_code) == 0
    assert {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys} == {
        key: (api.lowest, api.highest) for key, api in by_key().items() if key not in TELEMETRY_KEYS
    }


@pytest.mark.parametrize(
    ("name", "software"), [("", "1"), ("a", ""), ("a b", "1"), ("-a", "1"), ("a", "1."), ("é", "1")]
)
async def test_software_names_are_checked_as_kafka_does(handlers: HandlerClient, name: str, software: str) -> None:
    answer = await handlers.ask("api_versions", 3, client_software_name=name, client_software_version=software)
    assert (int(answer.error_code), answer.api_keys) == (42, ())


async def test_an_unknown_version_of_api_versions_is_answered_in_version_0(
    handlers: HandlerClient, core: MemoryCore
) -> None:
    handler: Any = by_key()[18].build(core, Options())
    framed = b"".join(handler.unsupported(CORRELATION))
    answer = response("api_versions", 0, framed[4:])
    assert int(answer.error_code) == 35
    assert [(row.api_key, row.min_version, row.max_version) for row in answer.api_keys] == [(18, 0, 4)]
