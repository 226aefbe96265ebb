"""The tables of `rules.py` for sessions with three brokers: their additional rows, and the sessions that stay with one broker.

The coordinators' topics, and the topics that sessions create, are on the same brokers in both clusters (`routed_peer.py`). So
the ids of leaders, coordinators and replicas must be equal, and a port must be that of the broker that the answer names.
"""

from __future__ import annotations

from tests.differential.rules import ABSENT, ANY, EXPECTED, NORMALISED, WORDS, Kind, Normalised, OnPurpose

#: Sessions that run with one broker alone, by name, and the reason.
OF_ONE_BROKER = {
    "describe-quorum-quorum": "`quorum-at-each` asks three brokers",
    "create-topics-refused": "its factor of 2 is above the number of brokers; `factors` asks three brokers",
    "alter-partition-reassignments-reassignments": "it assumes a second broker to be unknown; `refused-at-each` does not",
    "api-versions-fields-of-tomorrow": "it lists the groups of all sessions, whose members expire meanwhile",
    "api-versions-bytes-behind": "it lists the groups of all sessions, whose members expire meanwhile",
    "describe-configs-brokers": "Kafka's three have a config that delays their retention; `brokers-configs-at-each` asks three",
    "metadata-made-by-asking": "each cluster places the topic as it likes; `placed-by-itself` compares how",
}

_ONE_REPLICA = "a partition has one replica, as there is no replication"

ONLY_OF_THREE = (
    Normalised("*", "controller_id", Kind.A_BROKER),
    Normalised("*", "brokers", Kind.ANY_ORDER, "node_id"),
    Normalised("*", "brokers.<*>.host", Kind.OWN_ADDRESS),
    Normalised("*", "brokers.<*>.port", Kind.OWN_ADDRESS),
    Normalised("*", "node_endpoints.host", Kind.OWN_ADDRESS),
    Normalised("*", "node_endpoints.port", Kind.OWN_ADDRESS),
    Normalised("write_txn_markers", "markers.topics.partitions", Kind.ANY_ORDER, "partition_index"),
)

PURPOSE_OF_THREE = (
    OnPurpose("create_topics", "topics.error_code", "NONE", "INVALID_REPLICATION_FACTOR", _ONE_REPLICA, "*-factors: *"),
    OnPurpose("create_topics", "topics.error_message", None, "<text>", _ONE_REPLICA, "*-factors: *"),
    OnPurpose(
        "alter_partition_reassignments",
        "responses.partitions.error_code",
        "NONE",
        "INVALID_REPLICATION_FACTOR",
        _ONE_REPLICA,
        "*-factors-of-reassignments: *",
    ),
    OnPurpose(
        "alter_partition_reassignments",
        "responses.partitions.error_message",
        None,
        "<text>",
        _ONE_REPLICA,
        "*-factors-of-reassignments: *",
    ),
    OnPurpose("describe_groups", "groups.<*>.error_message", None, "<text>", WORDS),
    OnPurpose("describe_producers", "topics.partitions.error_message", None, "<text>", WORDS),
    OnPurpose(
        "write_txn_markers",
        "markers.topics.partitions.<*>.error_code",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "NOT_LEADER_OR_FOLLOWER",
        "a partition that another broker leads is not unknown; clients retry after both errors",
    ),
    OnPurpose(
        "describe_quorum",
        "topics.partitions.observers*",
        ANY,
        ABSENT,
        "brokers follow the controller's metadata without reporting how far they are, so the quorum has no observers",
    ),
    OnPurpose(
        "describe_quorum",
        "topics.partitions.observers.length",
        2,
        0,
        "brokers follow the controller's metadata without reporting how far they are, so the quorum has no observers",
    ),
    OnPurpose(
        "describe_quorum",
        "nodes.listeners.name",
        "CONTROLLER",
        "PLAINTEXT",
        "one listener serves clients and the controller",
    ),
    OnPurpose(
        "describe_quorum",
        "nodes.listeners.port",
        ANY,
        "<broker 1's>",
        "one listener serves clients and the controller",
    ),
)

NORMALISED_OF_THREE = (*ONLY_OF_THREE, *NORMALISED)
EXPECTED_OF_THREE = (*PURPOSE_OF_THREE, *EXPECTED)
