"""The table of served APIs: the versions that ApiVersions advertises, the versions that are answered, and the handlers.

Advertised ranges equal Apache Kafka 4.2.1's for the same APIs (a test compares them with a recorded table). A request with
another version or key closes the connection, as in Kafka. Produce 0 to 2 are advertised but not served, because librdkafka does
not compress if they are missing (KAFKA-18659). Client telemetry is advertised only if the node collects it (`api_versions.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from grpc_api.contract.node import NodeCore
from kafka_gateway.handlers import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    add_raft_voter,
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_topic_partitions,
    describe_transactions,
    elect_leaders,
    end_txn,
    find_coordinator,
    get_telemetry_subscriptions,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    push_telemetry,
    remove_raft_voter,
    sync_group,
    txn_offset_commit,
    unregister_broker,
    update_features,
    write_txn_markers,
)
from kafka_gateway.handlers.api_versions import ApiVersionsHandler
from kafka_gateway.handlers.fetch import FetchHandler
from kafka_gateway.handlers.produce import ProduceHandler
from kafka_gateway.message_handler import MessageHandler, Refuse, Serve
from kafka_gateway.options import Options
from kafka_gateway.reply import Handler
from kafka_gateway.small_requests import NativeCodec, SmallRequests


@dataclass(frozen=True, slots=True)
class Api:
    """One row of the table. Versions `served_from` to `highest` are answered, `lowest` to `highest` advertised."""

    key: int
    name: str
    lowest: int
    highest: int
    served_from: int
    flexible_from: int
    build: Callable[[NodeCore, Options], Handler]


def _message(
    key: int,
    name: str,
    lowest: int,
    highest: int,
    flexible_from: int,
    serve: Serve,
    refuse: Refuse,
    codec: NativeCodec | None = None,
) -> Api:
    """An API whose messages have kio's schema; the schema's name is `name` in snake case. `codec` serves small requests."""
    schema = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()

    def build(core: NodeCore, options: Options) -> Handler:
        by_schema = MessageHandler(core, options, schema, flexible_from=flexible_from, serve=serve, refuse=refuse)
        return by_schema if codec is None else SmallRequests(core, options, schema, codec, by_schema)

    return Api(key, name, lowest, highest, lowest, flexible_from, build)


def _produce(core: NodeCore, options: Options) -> Handler:
    return ProduceHandler(core, options)


def _api_versions(core: NodeCore, options: Options) -> Handler:
    return ApiVersionsHandler(core, options, {api.key: (api.lowest, api.highest) for api in APIS})


#: key, name, lowest and highest advertised, first flexible version, handler
APIS: tuple[Api, ...] = (
    Api(0, "Produce", 0, 13, 3, 9, _produce),
    Api(1, "Fetch", 4, 18, 4, 12, FetchHandler),
    _message(2, "ListOffsets", 1, 11, 6, list_offsets.serve, list_offsets.refuse),
    _message(3, "Metadata", 0, 13, 9, metadata.serve, metadata.refuse),
    _message(8, "OffsetCommit", 2, 10, 8, offset_commit.serve, offset_commit.refuse, offset_commit.CODEC),
    _message(9, "OffsetFetch", 1, 10, 6, offset_fetch.serve, offset_fetch.refuse),
    _message(10, "FindCoordinator", 0, 6, 3, find_coordinator.serve, find_coordinator.refuse),
    _message(11, "JoinGroup", 0, 9, 6, join_group.serve, join_group.refuse, join_group.CODEC),
    _message(12, "Heartbeat", 0, 4, 4, heartbeat.serve, heartbeat.refuse, heartbeat.CODEC),
    _message(13, "LeaveGroup", 0, 5, 4, leave_group.serve, leave_group.refuse),
    _message(14, "SyncGroup", 0, 5, 4, sync_group.serve, sync_group.refuse, sync_group.CODEC),
    _message(15, "DescribeGroups", 0, 6, 5, describe_groups.serve, describe_groups.refuse),
    _message(16, "ListGroups", 0, 5, 3, list_groups.serve, list_groups.refuse),
    Api(18, "ApiVersions", 0, 4, 0, 3, _api_versions),
    _message(19, "CreateTopics", 2, 7, 5, create_topics.serve, create_topics.refuse),
    _message(20, "DeleteTopics", 1, 6, 4, delete_topics.serve, delete_topics.refuse),
    _message(21, "DeleteRecords", 0, 2, 2, delete_records.serve, delete_records.refuse),
    _message(22, "InitProducerId", 0, 5, 2, init_producer_id.serve, init_producer_id.refuse),
    _message(23, "OffsetForLeaderEpoch", 2, 4, 4, offset_for_leader_epoch.serve, offset_for_leader_epoch.refuse),
    _message(24, "AddPartitionsToTxn", 0, 5, 3, add_partitions_to_txn.serve, add_partitions_to_txn.refuse),
    _message(25, "AddOffsetsToTxn", 0, 4, 3, add_offsets_to_txn.serve, add_offsets_to_txn.refuse),
    _message(26, "EndTxn", 0, 5, 3, end_txn.serve, end_txn.refuse),
    _message(27, "WriteTxnMarkers", 1, 2, 1, write_txn_markers.serve, write_txn_markers.refuse),
    _message(28, "TxnOffsetCommit", 0, 5, 3, txn_offset_commit.serve, txn_offset_commit.refuse),
    _message(32, "DescribeConfigs", 1, 4, 4, describe_configs.serve, describe_configs.refuse),
    _message(33, "AlterConfigs", 0, 2, 2, alter_configs.serve, alter_configs.refuse),
    _message(34, "AlterReplicaLogDirs", 1, 2, 2, alter_replica_log_dirs.serve, alter_replica_log_dirs.refuse),
    _message(35, "DescribeLogDirs", 1, 4, 2, describe_log_dirs.serve, describe_log_dirs.refuse),
    _message(37, "CreatePartitions", 0, 3, 2, create_partitions.serve, create_partitions.refuse),
    _message(42, "DeleteGroups", 0, 2, 2, delete_groups.serve, delete_groups.refuse),
    _message(43, "ElectLeaders", 0, 2, 2, elect_leaders.serve, elect_leaders.refuse),
    _message(44, "IncrementalAlterConfigs", 0, 1, 1, incremental_alter_configs.serve, incremental_alter_configs.refuse),
    _message(
        45,
        "AlterPartitionReassignments",
        0,
        1,
        0,
        alter_partition_reassignments.serve,
        alter_partition_reassignments.refuse,
    ),
    _message(
        46,
        "ListPartitionReassignments",
        0,
        0,
        0,
        list_partition_reassignments.serve,
        list_partition_reassignments.refuse,
    ),
    _message(47, "OffsetDelete", 0, 0, 99, offset_delete.serve, offset_delete.refuse),
    _message(55, "DescribeQuorum", 0, 2, 0, describe_quorum.serve, describe_quorum.refuse),
    _message(57, "UpdateFeatures", 0, 2, 0, update_features.serve, update_features.refuse),
    _message(60, "DescribeCluster", 0, 2, 0, describe_cluster.serve, describe_cluster.refuse),
    _message(61, "DescribeProducers", 0, 0, 0, describe_producers.serve, describe_producers.refuse),
    _message(64, "UnregisterBroker", 0, 0, 0, unregister_broker.serve, unregister_broker.refuse),
    _message(65, "DescribeTransactions", 0, 0, 0, describe_transactions.serve, describe_transactions.refuse),
    _message(66, "ListTransactions", 0, 2, 0, list_transactions.serve, list_transactions.refuse),
    _message(
        71, "GetTelemetrySubscriptions", 0, 0, 0, get_telemetry_subscriptions.serve, get_telemetry_subscriptions.refuse
    ),
    _message(72, "PushTelemetry", 0, 0, 0, push_telemetry.serve, push_telemetry.refuse),
    _message(74, "ListConfigResources", 0, 1, 0, list_config_resources.serve, list_config_resources.refuse),
    _message(75, "DescribeTopicPartitions", 0, 0, 0, describe_topic_partitions.serve, describe_topic_partitions.refuse),
    _message(80, "AddRaftVoter", 0, 1, 0, add_raft_voter.serve, add_raft_voter.refuse),
    _message(81, "RemoveRaftVoter", 0, 0, 0, remove_raft_voter.serve, remove_raft_voter.refuse),
)


def by_key(apis: tuple[Api, ...] = APIS) -> dict[int, Api]:
    """Returns the APIs by key. Raises ValueError for a duplicate key."""
    table: dict[int, Api] = {}
    for api in apis:
        if api.key in table:
            raise ValueError(f"api key {api.key} is both {table[api.key].name} and {api.name}")
        table[api.key] = api
    return table
