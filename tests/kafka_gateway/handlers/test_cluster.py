"""Requests about the cluster and the node: responses and messages are those of Apache Kafka 4.2.1."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from grpc_api.contract.node import ActiveProducer
from grpc_api.contract.topics import PartitionDescription, TopicDescription
from kafka_gateway.handlers import list_partition_reassignments
from storage_tiers.errors import StorageError
from storage_tiers.types import TopicId, TopicPartition
from tests.kafka_gateway.handler_client import HandlerClient
from tests.kafka_gateway.kio_frames import milliseconds
from tests.kafka_gateway.memory_core import MemoryCore
from tests.kafka_gateway.memory_node import TOTAL_BYTES, USABLE_BYTES

WAIT = milliseconds(1000)


# --- DescribeCluster --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("asked", "operations"), [(True, 8096), (False, -2147483648)])
@pytest.mark.parametrize("version", range(3))
async def test_the_cluster_is_described(handlers: HandlerClient, version: int, asked: bool, operations: int) -> None:
    answer = await handlers.ask("describe_cluster", version, include_cluster_authorized_operations=asked)
    assert (int(answer.error_code), answer.error_message) == (0, None)
    assert (answer.cluster_id, answer.controller_id) == ("memory-core-cluster-id", 1)
    assert [(b.broker_id, b.host, b.rack) for b in answer.brokers] == [(1, "127.0.0.1", None)]
    assert answer.cluster_authorized_operations == operations
    if version >= 2:
        assert answer.brokers[0].is_fenced is False


@pytest.mark.parametrize(
    ("endpoint", "code", "message"),
    [
        (2, 114, "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"),
        (3, 115, "Unsupported endpoint type 3"),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
async def test_a_request_for_controllers_is_refused_by_a_broker(
    handlers: HandlerClient, version: int, endpoint: int, code: int, message: str
) -> None:
    answer = await handlers.ask("describe_cluster", version, endpoint_type=endpoint)
    assert (int(answer.error_code), answer.error_message) == (code, message)
    assert (answer.cluster_id, answer.controller_id, answer.brokers, answer.endpoint_type) == ("", -1, (), 1)


# --- DescribeLogDirs, AlterReplicaLogDirs -----------------------------------------------------------------------------
def directory_rows(answer: Any) -> list[tuple[str, list[int]]]:
    return [(t.name, [p.partition_index for p in t.partitions]) for t in answer.results[0].topics]


@pytest.mark.parametrize("version", range(1, 5))
async def test_the_data_directory_is_described(handlers: HandlerClient, core: MemoryCore, version: int) -> None:
    core.partitions[TopicPartition("first", 1)].size = 77
    answer = await handlers.ask("describe_log_dirs", version, topics=None)
    assert (int(answer.results[0].error_code), answer.results[0].log_dir) == (0, core.directory)
    assert directory_rows(answer) == [("first", [0, 1, 2]), ("second", [0])]
    row = answer.results[0].topics[0].partitions[1]
    assert (row.partition_size, row.offset_lag, row.is_future_key) == (77, 0, False)
    if version >= 4:
        assert (answer.results[0].total_bytes, answer.results[0].usable_bytes) == (TOTAL_BYTES, USABLE_BYTES)


@pytest.mark.parametrize(
    ("topics", "rows"),
    [
        ([], []),
        ([{"topic": "none", "partitions": [0]}], []),
        ([{"topic": "first", "partitions": []}], []),
        ([{"topic": "first", "partitions": [0, 9]}, {"topic": "first", "partitions": [2]}], [("first", [0, 2])]),
    ],
)
async def test_only_the_requested_directory_is_described(handlers: HandlerClient, topics: Any, rows: Any) -> None:
    answer = await handlers.ask("describe_log_dirs", 4, topics=topics)
    assert (int(answer.error_code), directory_rows(answer)) == (0, rows)


async def test_a_failing_disk_is_described_as_offline(
    handlers: HandlerClient, core: MemoryCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = core.node
    node.disk_error = StorageError("gone")
    monkeypatch.setattr(MemoryCore, "node", node)
    answer = await handlers.ask("describe_log_dirs", 4, topics=None)
    assert (int(answer.results[0].error_code), directory_rows(answer)) == (56, [])


@pytest.mark.parametrize("version", [1, 2])
async def test_replicas_stay_in_the_only_directory(handlers: HandlerClient, core: MemoryCore, version: int) -> None:
    def directory(path: str, *topics: tuple[str, list[int]]) -> Any:
        return {"path": path, "topics": [{"name": name, "partitions": indexes} for name, indexes in topics]}

    async def ask(*dirs: Any) -> Any:
        answer = await handlers.ask("alter_replica_log_dirs", version, dirs=dirs)
        return [(t.topic_name, [(p.partition_index, int(p.error_code)) for p in t.partitions]) for t in answer.results]

    ours = directory(core.directory, ("first", [0, 9]), ("none", [0]))
    assert await ask(ours) == [("first", [(0, 0), (9, 3)]), ("none", [(0, 3)])]
    assert await ask(directory(core.directory + "/", ("first", [0]))) == [("first", [(0, 0)])]
    for path in ("/nonexistent", "relative", ""):
        assert await ask(directory(path, ("first", [0, 9]))) == [("first", [(0, 57), (9, 57)])]
    assert await ask() == []


async def test_a_replica_of_another_broker_is_not_available(
    handlers: HandlerClient, core: MemoryCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = core.node
    del node.sizes[TopicPartition("first", 0)]
    monkeypatch.setattr(MemoryCore, "node", node)
    dirs = [{"path": core.directory, "topics": [{"name": "first", "partitions": [0, 1, 9]}]}]
    answer = await handlers.ask("alter_replica_log_dirs", 2, dirs=dirs)
    rows = [(row.partition_index, int(row.error_code)) for row in answer.results[0].partitions]
    assert rows == [(0, 9), (1, 0), (9, 3)]


# --- DescribeProducers ------------------------------------------------------------------------------------------------
async def test_producers_are_described(
    handlers: HandlerClient, core: MemoryCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = core.node
    node.active[TopicPartition("first", 0)] = [ActiveProducer(4000, 2, 17, 1_700_000_000_000, -1, -1)]
    monkeypatch.setattr(MemoryCore, "node", node)
    topics = [
        {"name": "first", "partition_indexes": [0, 1, 9]},
        {"name": "none", "partition_indexes": [0]},
        {"name": "bad name", "partition_indexes": [0]},
    ]
    answer = await handlers.ask("describe_producers", 0, topics=topics)
    rows = [
        [(p.partition_index, int(p.error_code), p.error_message, len(p.active_producers)) for p in topic.partitions]
        for topic in answer.topics
    ]
    assert rows[0] == [(0, 0, None, 1), (1, 0, None, 0), (9, 3, None, 0)]
    assert rows[1] == [(0, 3, "This server does not host this topic-partition.", 0)]
    assert rows[2][0][1] == 17
    row = answer.topics[0].partitions[0].active_producers[0]
    assert (row.producer_id, row.producer_epoch, row.last_sequence) == (4000, 2, 17)
    assert (row.last_timestamp, row.coordinator_epoch, row.current_txn_start_offset) == (1_700_000_000_000, -1, -1)


# --- ElectLeaders -----------------------------------------------------------------------------------------------------
def elections(answer: Any) -> list[tuple[str, list[tuple[int, int, str]]]]:
    return [
        (t.topic, [(p.partition_id, int(p.error_code), p.error_message) for p in t.partition_result])
        for t in answer.replica_election_results
    ]


@pytest.mark.parametrize(("version", "election"), [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1)])
async def test_no_election_is_needed(handlers: HandlerClient, version: int, election: int) -> None:
    not_needed = "Leader election not needed for topic partition."
    wanted = [{"topic": "first", "partitions": [0, 0, 9]}, {"topic": "none", "partitions": [0]}]
    answer = await handlers.ask("elect_leaders", version, election_type=election, topic_partitions=wanted, timeout=WAIT)
    assert elections(answer) == [
        ("first", [(0, 84, not_needed), (0, 84, not_needed), (9, 3, "No such partition as first-9")]),
        ("none", [(0, 3, "No such topic as none")]),
    ]
    every = await handlers.ask("elect_leaders", version, election_type=election, topic_partitions=None, timeout=WAIT)
    assert sorted(elections(every)) == [("first", []), ("second", [])]


@pytest.mark.parametrize("version", [1, 2])
async def test_an_unknown_kind_of_election_is_refused(handlers: HandlerClient, version: int) -> None:
    wanted = [{"topic": "first", "partitions": [0]}]
    answer = await handlers.ask("elect_leaders", version, election_type=2, topic_partitions=wanted)
    assert (int(answer.error_code), elections(answer)) == (42, [("first", [(0, 42, "Unknown election type 2")])])
    answer = await handlers.ask("elect_leaders", version, election_type=2, topic_partitions=None)
    assert (int(answer.error_code), elections(answer)) == (42, [])


# --- AlterPartitionReassignments, ListPartitionReassignments ----------------------------------------------------------
@pytest.mark.parametrize("version", [0, 1])
async def test_reassignments_to_the_current_replicas_are_accepted(handlers: HandlerClient, version: int) -> None:
    includes = "The manual partition assignment includes"
    wanted = [
        (0, [1], 0, None),
        (1, None, 85, None),
        (2, [1, 2], 39, f"{includes} broker 2, but no such broker is registered."),
        (2, [], 39, f"{includes} an empty replica list."),
        (2, [1, 1], 39, f"{includes} the broker 1 more than once."),
        (2, [-1], 39, f"{includes} broker -1, but no such broker is registered."),
        (9, [1], 3, "Unable to find partition first:9."),
        (9, None, 3, "Unable to find partition first:9."),
    ]
    partitions = [{"partition_index": index, "replicas": replicas} for index, replicas, _, _ in wanted]
    none = {"name": "none", "partitions": [{"partition_index": 0, "replicas": [1]}]}
    answer = await handlers.ask(
        "alter_partition_reassignments",
        version,
        timeout=WAIT,
        topics=[{"name": "first", "partitions": partitions}, none],
    )
    assert (int(answer.error_code), answer.error_message) == (0, None)
    rows = [[(r.partition_index, int(r.error_code), r.error_message) for r in t.partitions] for t in answer.responses]
    assert rows == [
        [(index, code, message) for index, _, code, message in wanted],
        [(0, 3, "Unable to find a topic named none.")],
    ]


async def test_no_reassignment_is_under_way(handlers: HandlerClient) -> None:
    for topics in (None, [], [{"name": "first", "partition_indexes": [0, 9]}]):
        answer = await handlers.ask("list_partition_reassignments", 0, timeout=WAIT, topics=topics)
        assert (int(answer.error_code), answer.error_message, answer.topics) == (0, None, ())


async def test_a_reassignment_is_listed_if_its_partition_is_asked_for() -> None:
    rows = [PartitionDescription(number, 1, 0, (2, 1), (1,), adding=(2,), removing=(1,)) for number in range(2)]
    here = [TopicDescription("t", TopicId(bytes(16)), [*rows, PartitionDescription(2, 1, 0, (1,), (1,))])]

    async def each(items: Iterable[Any]) -> AsyncIterator[Any]:
        for item in items:
            yield item

    core = SimpleNamespace(topics=SimpleNamespace(describe=lambda names=None: here))
    call: Any = SimpleNamespace(core=core, each=each, make=lambda _, **values: SimpleNamespace(**values))

    async def listed(wanted: object) -> list[list[int]]:
        answer = await list_partition_reassignments.serve(SimpleNamespace(topics=wanted), call)
        return [[row.partition_index for row in topic.partitions] for topic in answer["topics"]]

    assert await listed(None) == [[0, 1]]
    assert await listed([SimpleNamespace(name="t", partition_indexes=[1, 2])]) == [[1]]
    assert await listed([SimpleNamespace(name="t", partition_indexes=[2])]) == []


# --- DescribeQuorum, UnregisterBroker ---------------------------------------------------------------------------------
def quorum_topic(name: str, *indexes: int) -> dict[str, Any]:
    return {"topic_name": name, "partitions": [{"partition_index": index} for index in indexes]}


@pytest.mark.parametrize("version", range(3))
async def test_the_quorum_is_this_node(handlers: HandlerClient, version: int) -> None:
    answer = await handlers.ask("describe_quorum", version, topics=[quorum_topic("__cluster_metadata", 0)])
    row = answer.topics[0].partitions[0]
    assert (int(answer.error_code), int(row.error_code)) == (0, 0)
    assert (row.leader_id, row.leader_epoch, row.high_watermark, row.observers) == (1, 3, 150, ())
    assert [(voter.replica_id, voter.log_end_offset) for voter in row.current_voters] == [(1, 150)]
    if version >= 1:
        voter = row.current_voters[0]
        assert voter.last_fetch_timestamp == voter.last_caught_up_timestamp == 1_700_000_000_000
    if version >= 2:
        assert (answer.error_message, row.error_message) == ("", "")
        assert [(n.node_id, n.listeners[0].host) for n in answer.nodes] == [(1, "127.0.0.1")]


@pytest.mark.parametrize(
    "topics",
    [
        [quorum_topic("__cluster_metadata", 1)],
        [quorum_topic("__cluster_metadata", 0, 0)],
        [quorum_topic("first", 0)],
        [quorum_topic("__cluster_metadata", 0), quorum_topic("first", 0)],
        [quorum_topic("__cluster_metadata")],
        [],
    ],
)
@pytest.mark.parametrize("version", range(3))
async def test_only_the_metadata_partition_alone_has_a_quorum(
    handlers: HandlerClient, version: int, topics: Any
) -> None:
    answer = await handlers.ask("describe_quorum", version, topics=topics)
    assert int(answer.error_code) == 0
    rows = [(t.topic_name, [(p.partition_index, int(p.error_code)) for p in t.partitions]) for t in answer.topics]
    assert rows == [(t["topic_name"], [(p["partition_index"], 3) for p in t["partitions"]]) for t in topics]
    assert version < 2 or answer.nodes == ()


@pytest.mark.parametrize("broker_id", [7, -1])
async def test_missing_brokers_cannot_be_unregistered(handlers: HandlerClient, broker_id: int) -> None:
    answer = await handlers.ask("unregister_broker", 0, broker_id=broker_id)
    message = f"Broker ID {broker_id} is not currently registered"
    assert (int(answer.error_code), answer.error_message) == (102, message)


async def test_the_only_broker_cannot_be_unregistered(handlers: HandlerClient) -> None:
    answer = await handlers.ask("unregister_broker", 0, broker_id=1)
    assert int(answer.error_code) == 42
    assert "stop it first" in answer.error_message


# --- UpdateFeatures and the features of ApiVersions -------------------------------------------------------------------
def feature(name: str, level: int, kind: int = 1) -> dict[str, Any]:
    return {"feature": name, "max_version_level": level, "upgrade_type": kind, "allow_downgrade": kind != 1}


@pytest.mark.parametrize("updates", [[], [feature("metadata.version", 29)], [feature("group.version", 0, 2)] * 2])
@pytest.mark.parametrize("version", range(3))
async def test_a_feature_can_be_set_to_its_current_level(handlers: HandlerClient, version: int, updates: Any) -> None:
    answer = await handlers.ask("update_features", version, timeout=WAIT, feature_updates=updates)
    assert (int(answer.error_code), answer.error_message) == (0, None)
    if version < 2:
        assert [(row.feature, int(row.error_code)) for row in answer.results] == [(u["feature"], 0) for u in updates]


@pytest.mark.parametrize(
    ("update", "problem"),
    [
        (feature("nope", 1), "Local controller 1 does not support this feature."),
        (feature("nope", 0), "Feature nope not found."),
        (feature("", 1), "Local controller 1 does not support this feature."),
        (feature("metadata.version", 99), "Local controller 1 only supports versions 29-29"),
        (feature("metadata.version", -3), "A feature version cannot be less than 0."),
        (feature("transaction.version", 3), "Local controller 1 only supports versions 0-2"),
        (
            feature("transaction.version", 1),
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe downgrade.",
        ),
        (feature("group.version", 1), "Local controller 1 only supports versions 0-0"),
    ],
)
@pytest.mark.parametrize("version", range(3))
async def test_an_unsupported_feature_level_is_refused(
    handlers: HandlerClient, version: int, update: Any, problem: str
) -> None:
    updates = [feature("metadata.version", 29), update]
    answer = await handlers.ask("update_features", version, timeout=WAIT, feature_updates=updates)
    level, name = update["max_version_level"], update["feature"]
    assert int(answer.error_code) == 95
    assert answer.error_message == (
        "The update failed for all features since the following feature had an error: "
        f"Invalid update version {level} for feature {name}. {problem}"
    )
    assert version >= 2 or answer.results == ()


async def test_an_unknown_kind_of_update_is_refused_first(handlers: HandlerClient) -> None:
    answer = await handlers.ask("update_features", 2, timeout=WAIT, feature_updates=[feature("nope", -1, 9)])
    assert answer.error_message.endswith("The controller does not support the given upgrade type.")


async def level(handlers: HandlerClient, name: str) -> int | None:
    """The feature's level in ApiVersions; None if the feature is off."""
    answer = await handlers.ask("api_versions", 4, client_software_name="a", client_software_version="1")
    return next((row.max_version_level for row in answer.finalized_features if row.name == name), None)


@pytest.mark.parametrize("version", [1, 2])
async def test_a_level_goes_down_and_up_again(handlers: HandlerClient, version: int) -> None:
    async def ask(*updates: dict[str, Any], validate_only: bool = False) -> str | None:
        answer = await handlers.ask(
            "update_features", version, timeout=WAIT, feature_updates=updates, validate_only=validate_only
        )
        assert (int(answer.error_code) == 0) == (answer.error_message is None)
        message: str | None = answer.error_message
        return message

    name = "transaction.version"
    assert await ask(feature(name, 0, 2), validate_only=True) is None
    assert await level(handlers, name) == 2, "it was only tried"
    assert await ask(feature(name, 1, 2)) is None
    assert await level(handlers, name) == 1
    refused = await ask(feature(name, 2, 2))
    assert refused is not None
    assert refused.endswith(f"Invalid update version 2 for feature {name}. Can't downgrade to a newer version.")
    assert await ask(feature(name, 0, 3)) is None
    assert await level(handlers, name) is None
    assert await ask(feature(name, 2), feature("nope", 1)) is not None
    assert await level(handlers, name) is None, "all or none"
    assert await ask(feature(name, 1), feature(name, 2)) is None
    assert await level(handlers, name) == 2


async def test_version_0_allows_a_downgrade_by_its_own_field(handlers: HandlerClient) -> None:
    update = {"feature": "transaction.version", "max_version_level": 1, "allow_downgrade": True}
    answer = await handlers.ask("update_features", 0, timeout=WAIT, feature_updates=[update])
    assert int(answer.error_code) == 0
    assert await level(handlers, "transaction.version") == 1


@pytest.mark.parametrize("version", [3, 4])
async def test_features_are_advertised(handlers: HandlerClient, version: int) -> None:
    answer = await handlers.ask("api_versions", version, client_software_name="a", client_software_version="1")
    supported = {row.name: (row.min_version, row.max_version) for row in answer.supported_features}
    assert supported["metadata.version"] == (29, 29)
    assert supported.get("transaction.version") == ((0, 2) if version >= 4 else None)
    assert len(supported) == (7 if version >= 4 else 1)
    finalized = [(row.name, row.min_version_level, row.max_version_level) for row in answer.finalized_features]
    assert finalized == [("metadata.version", 29, 29), ("transaction.version", 2, 2)]
    assert (answer.finalized_features_epoch, answer.zk_migration_ready) == (149, False)
