"""The only allowed differences between the two brokers' answers, in three tables.

`NORMALISED`: fields whose value each broker chooses freely, and the property of them that is still compared.
`ON_PURPOSE`: answers of ours that differ intentionally, with the reason that docs/compatibility.md gives users.
`UNSUPPORTED_APIS`: APIs that Kafka serves and we do not yet, in `unsupported_apis.py`.
Paths have no indexes; rows of an unordered list are named by their key in angle brackets. Patterns are fnmatch's.
A complete run must match every row: a row without a match fails it.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

from tests.differential.unsupported_apis import UNSUPPORTED_APIS


class _Marker(enum.Enum):
    ABSENT = "(absent)"
    ANY = "(anything)"

    def __repr__(self) -> str:
        return self.value


#: Stands for a field or a row that one side lacks.
ABSENT = _Marker.ABSENT
#: In a row of `ON_PURPOSE`: any value. Our actual value is recorded in `pinned.json`.
ANY = _Marker.ANY


class Kind(enum.Enum):
    IDENTITY = "equal values for the same thing and different ones for different things, throughout a session"
    WALL_CLOCK = "a time within the run, if the other broker has one"
    TEXT = "some text, if the other broker has one; null and empty differ"
    OWN_ADDRESS = "its own host or port"
    A_BROKER = "the id of one of its brokers"
    POSITIVE = "above zero, if the other broker's is"
    ANY_ORDER = "the same rows in any order"


@dataclasses.dataclass(frozen=True)
class Normalised:
    """`key`: for IDENTITY the kind of id, for ANY_ORDER the field (or `a+b`) that names a row."""

    api: str
    path: str
    kind: Kind
    key: str = ""


@dataclasses.dataclass(frozen=True)
class OnPurpose:
    """`where` is a pattern of "session: label"."""

    api: str
    path: str
    kafka: Any
    tidelog: Any
    reason: str
    where: str = "*"


NORMALISED = (
    Normalised("*", "*error_message", Kind.TEXT),
    Normalised("*", "*topic_id", Kind.IDENTITY, "topic id"),
    Normalised("*", "cluster_id", Kind.IDENTITY, "cluster id"),
    Normalised("*", "brokers.host", Kind.OWN_ADDRESS),
    Normalised("*", "brokers.port", Kind.OWN_ADDRESS),
    Normalised("*", "*producer_id", Kind.IDENTITY, "producer id"),
    Normalised("produce", "responses", Kind.ANY_ORDER, "name+topic_id"),
    Normalised("produce", "responses.*partition_responses", Kind.ANY_ORDER, "index"),
    Normalised("produce", "responses.*.log_append_time", Kind.WALL_CLOCK),
    Normalised("fetch", "session_id", Kind.IDENTITY, "fetch session"),
    Normalised("fetch", "responses.partitions.records.max_timestamp", Kind.WALL_CLOCK),
    Normalised("list_offsets", "topics", Kind.ANY_ORDER, "name"),
    Normalised("list_offsets", "topics.*partitions", Kind.ANY_ORDER, "partition_index"),
    Normalised("metadata", "topics", Kind.ANY_ORDER, "name"),
    Normalised("metadata", "topics.*partitions", Kind.ANY_ORDER, "partition_index"),
    Normalised("api_versions", "supported_features", Kind.ANY_ORDER, "name"),
    Normalised("api_versions", "finalized_features", Kind.ANY_ORDER, "name"),
    Normalised("api_versions", "finalized_features_epoch", Kind.POSITIVE),
    Normalised("api_versions", "api_keys", Kind.ANY_ORDER, "api_key"),
    Normalised("create_topics", "topics.configs", Kind.ANY_ORDER, "name"),
    Normalised("delete_records", "topics.partitions", Kind.ANY_ORDER, "partition_index"),
    Normalised("describe_configs", "results.configs", Kind.ANY_ORDER, "name"),
    Normalised("describe_configs", "results.configs.*.documentation", Kind.TEXT),
    Normalised("describe_configs", "results.configs.<*listeners>.*value", Kind.TEXT),
    Normalised("describe_configs", "results.configs.<tidelog.*.listener>.*value", Kind.TEXT),
    Normalised("describe_configs", "results.configs.<log.dirs>.*value", Kind.TEXT),
    Normalised("delete_topics", "responses", Kind.ANY_ORDER, "name+topic_id"),
    Normalised("create_partitions", "results", Kind.ANY_ORDER, "name"),
    Normalised("describe_log_dirs", "results.log_dir", Kind.IDENTITY, "log directory"),
    Normalised("describe_log_dirs", "results.topics.partitions", Kind.ANY_ORDER, "partition_index"),
    Normalised("describe_log_dirs", "results.usable_bytes", Kind.POSITIVE),
    Normalised("describe_log_dirs", "results.total_bytes", Kind.POSITIVE),
    Normalised("alter_replica_log_dirs", "results.partitions", Kind.ANY_ORDER, "partition_index"),
    Normalised("get_telemetry_subscriptions", "client_instance_id", Kind.IDENTITY, "client instance"),
    Normalised("get_telemetry_subscriptions", "subscription_id", Kind.IDENTITY, "subscription"),
    Normalised("describe_quorum", "topics.partitions.leader_epoch", Kind.POSITIVE),
    Normalised("describe_quorum", "topics.partitions.high_watermark", Kind.POSITIVE),
    Normalised("describe_quorum", "topics.partitions.current_voters.log_end_offset", Kind.POSITIVE),
    Normalised("describe_quorum", "topics.partitions.current_voters.*timestamp", Kind.WALL_CLOCK),
    Normalised("describe_quorum", "nodes.listeners.host", Kind.OWN_ADDRESS),
    Normalised("describe_quorum", "nodes.listeners.port", Kind.OWN_ADDRESS),
    Normalised("find_coordinator", "*host", Kind.OWN_ADDRESS),
    Normalised("find_coordinator", "*port", Kind.OWN_ADDRESS),
    Normalised("*", "*member_id", Kind.IDENTITY, "member"),
    Normalised("describe_transactions", "transaction_states.topics", Kind.ANY_ORDER, "topic"),
    Normalised("describe_transactions", "transaction_states.transaction_start_time", Kind.WALL_CLOCK),
    Normalised("list_transactions", "transaction_states", Kind.ANY_ORDER, "transactional_id"),
    Normalised("add_partitions_to_txn", "results_by_topic_v3_and_below", Kind.ANY_ORDER, "name"),
    Normalised("add_partitions_to_txn", "*results_by_partition", Kind.ANY_ORDER, "partition_index"),
    Normalised("fetch", "responses.partitions.records.base_timestamp", Kind.WALL_CLOCK),
    Normalised("describe_producers", "topics.partitions.active_producers.last_timestamp", Kind.WALL_CLOCK),
    Normalised("join_group", "leader", Kind.IDENTITY, "member"),
    Normalised("join_group", "members", Kind.ANY_ORDER, "metadata"),
    Normalised("delete_groups", "results", Kind.ANY_ORDER, "group_id"),
    Normalised("describe_groups", "groups", Kind.ANY_ORDER, "group_id"),
    Normalised("offset_commit", "topics.partitions", Kind.ANY_ORDER, "partition_index"),
    Normalised("list_groups", "groups", Kind.ANY_ORDER, "group_id"),
    Normalised("offset_fetch", "*topics.partitions", Kind.ANY_ORDER, "partition_index"),
    Normalised("txn_offset_commit", "topics.partitions", Kind.ANY_ORDER, "partition_index"),
    Normalised("offset_delete", "topics.partitions", Kind.ANY_ORDER, "partition_index"),
)

WORDS = "every refusal has an error message; many of Kafka's have none"
_PRECISE = "Kafka fails unexpectedly with UNKNOWN_SERVER_ERROR; tidelog names the error in the request"
_EMPTY = "a topic requested without partitions is answered without partitions; Kafka omits the topic"
_TWICE = "a topic requested twice is answered twice; Kafka merges its rows"
_LOG_START = (
    "a record or batch that the log refuses as invalid is answered with the log start offset; Kafka answers -1 if the "
    "batch is refused before it reaches the log"
)
_TIERED = (
    "the bucket keeps history, so topics are tiered and the local disk holds only their tail (README, Configuration)"
)
_OURS = "a config that only tidelog has"
_ELR = "Kafka 4.2 sets this default for eligible leader replicas (KIP-966), which one replica does not need"
_CUT = "a batch with a wrong length was damaged in transit: CORRUPT_MESSAGE makes the producer resend it"
_LIMIT = "a negative limit counts as 0, which returns at least one batch; Kafka fails unexpectedly"
_ENCODER = "tidelog uses another compression library: bytes differ, records do not"
_ISOLATION = "an isolation level that does not exist is INVALID_REQUEST for the whole answer; Kafka fails unexpectedly"
_COLLIDE = "names that collide as metrics are refused within one request, too"
_MANY = "one request creates at most 10,000 partitions, in every API; Kafka bounds only CreateTopics"
_UTF8 = "text that is not UTF-8 and a length below -1 are malformed; Kafka reads them as other text and as null"
_PATIENT = "the request is carried out at once, whatever its timeout; Kafka times out if the timeout is negative"
_FEATURES = "a feature of Kafka's controllers and clients, or one not served yet; tidelog does not use it"
_EPOCH = "the leader epoch rises at each start; Kafka's also rises at a controlled shutdown"
_QUORUM = "a single node is broker and controller, and its controller needs neither a quorum nor a listener"
_TYPO = "an unknown config is refused, so that a misspelt one is noticed; Kafka keeps it for plugins"

_ONE_REPLICA = (
    "internal topics have one replica whatever the `*.replication.factor`, as there is no replication; Kafka does not "
    "create a topic if it has fewer brokers than the factor"
)
_ADMIN_CLIENT = (
    "no client may append to internal topics. Kafka lets any client with the client id `__admin_client` do so; such records "
    "make the coordinator reload the partition"
)
_MARKERS = "a request waits for the markers of the transaction before it; Kafka's clients have to retry"
_LATE = (
    "a producer with an outdated epoch is fenced at once; Kafka first aborts the open transaction of the newer producer"
)
_WAYS = "a pattern that may be matched in many ways is refused (docs/cli.md names the subset); Kafka's engine is linear"

ON_PURPOSE: tuple[OnPurpose, ...] = (
    # --- records
    OnPurpose("produce", "responses.*.error_message", None, "<text>", WORDS),
    OnPurpose("produce", "responses.<*>", ABSENT, ANY, _EMPTY, "*: no partition"),
    OnPurpose("produce", "responses.<*>", ABSENT, ANY, _TWICE, "produce-partitions-twice: a topic twice"),
    OnPurpose(
        "produce",
        "responses.<*>.partition_responses.<1>",
        ANY,
        ABSENT,
        _TWICE,
        "produce-partitions-twice: a topic twice",
    ),
    OnPurpose("produce", "responses.*.error_code", "UNKNOWN_SERVER_ERROR", ANY, _PRECISE),
    OnPurpose("produce", "responses.*.error_code", "INVALID_RECORD", "CORRUPT_MESSAGE", _CUT, "*cut off"),
    OnPurpose("produce", "responses.*.log_start_offset", -1, 0, _LOG_START, "produce-damaged: *"),
    OnPurpose("produce", "responses.*.log_start_offset", -1, 0, _LOG_START, "produce-too-large: one of two"),
    OnPurpose(
        "produce", "responses.*.log_start_offset", -1, 0, _LOG_START, "produce-two-batches-of-a-producer: at once"
    ),
    OnPurpose(
        "produce",
        "connection",
        "no answer",
        "answered",
        "null records are refused; Kafka never answers the request",
        "produce-null-records: null",
    ),
    OnPurpose(
        "produce",
        "responses.*",
        ANY,
        ANY,
        "bytes after the last whole batch are refused; Kafka drops them and reports success",
        "produce-odd: bytes behind",
    ),
    OnPurpose(
        "produce",
        "responses.*",
        ANY,
        ANY,
        "undefined attribute bits are refused, so that they can be defined later; Kafka stores them",
        "produce-odd: unknown attributes",
    ),
    OnPurpose(
        "produce",
        "responses.*.log_append_time",
        ANY,
        None,
        "a repeated batch gets its first answer again; Kafka gives the batch's largest timestamp as the time of appending",
        "produce-sequences*",
    ),
    OnPurpose(
        "produce",
        "responses.*.log_append_time",
        ANY,
        None,
        "a repeated batch gets its first answer again; Kafka gives the batch's largest timestamp as the time of appending",
        "produce-over-a-restart: *",
    ),
    OnPurpose(
        "produce",
        "responses.*.log_append_time",
        ANY,
        None,
        "a repeated batch gets its first answer again; Kafka gives the batch's largest timestamp as the time of appending",
        "produce-transactional-batches: repeated",
    ),
    OnPurpose("list_offsets", "topics.*.leader_epoch", 2, 1, _EPOCH, "produce-over-a-restart: *"),
    OnPurpose(
        "produce",
        "responses.*.error_code",
        "INVALID_PRODUCER_EPOCH",
        "INVALID_RECORD",
        "a producer id without an epoch is a malformed batch, not a stale epoch",
        "produce-sequences: epoch of -1",
    ),
    OnPurpose(
        "fetch", "responses.partitions.records.length", ANY, ANY, _ENCODER, "produce-compression-of-the-topic: *"
    ),
    OnPurpose(
        "fetch", "responses.partitions.records.payload", ANY, ANY, _ENCODER, "produce-compression-of-the-topic: *"
    ),
    OnPurpose("fetch", "responses.partitions*", ANY, ANY, _LIMIT, "fetch-limits: -1 *"),
    OnPurpose("fetch", "error_code", "UNKNOWN_SERVER_ERROR", "INVALID_REQUEST", _ISOLATION, "fetch-isolation: *"),
    OnPurpose("fetch", "responses*", ANY, ANY, _ISOLATION, "fetch-isolation: level [-2]*"),
    OnPurpose(
        "fetch",
        "responses.partitions.aborted_transactions",
        None,
        ANY,
        "a deleted partition gets the same answer whether the request waited or not",
        "fetch-waits-that-end: the topic was deleted",
    ),
    OnPurpose(
        "produce",
        "responses.*.error_code",
        "INVALID_RECORD",
        "INVALID_TOPIC_EXCEPTION",
        _ADMIN_CLIENT,
        "*: as __admin_client",
    ),
    OnPurpose("write_txn_markers", "markers.*.error_code", "UNKNOWN_SERVER_ERROR", "INVALID_PRODUCER_EPOCH", _PRECISE),
    # --- transactions
    OnPurpose("init_producer_id", "error_code", "CONCURRENT_TRANSACTIONS", "NONE", _MARKERS, "*-without-patience: *"),
    OnPurpose(
        "init_producer_id",
        "error_code",
        "CONCURRENT_TRANSACTIONS",
        "PRODUCER_FENCED",
        _LATE,
        "*-of-a-late-producer: at once",
    ),
    OnPurpose("end_txn", "error_code", ANY, "NONE", _LATE, "*-of-a-late-producer: the newer one commits"),
    OnPurpose(
        "list_transactions",
        "error_code",
        "NONE",
        "INVALID_REGULAR_EXPRESSION",
        _WAYS,
        "list-transactions-patterns-of-many-ways: *",
    ),
    # --- groups
    OnPurpose(
        "join_group", "error_code", "UNKNOWN_SERVER_ERROR", "UNKNOWN_MEMBER_ID", _PRECISE, "*-with-an-instance: *"
    ),
    OnPurpose("join_group", "member_id", "", "<member 1>", _PRECISE, "*-with-an-instance: *"),
    # --- offsets
    OnPurpose(
        "list_offsets",
        "topics.<*>.partitions.<*>.*",
        -1,
        0,
        "topics are tiered, so the earliest record not yet offloaded has an offset",
        "list-offsets-special-timestamps: -6*",
    ),
    OnPurpose(
        "list_offsets",
        "topics.<*>",
        ABSENT,
        ANY,
        _TWICE,
        "list-offsets-wrong: twice",
    ),
    OnPurpose("list_offsets", "topics.<*>", ABSENT, ANY, _EMPTY, "list-offsets-wrong: no partition"),
    OnPurpose("list_offsets", "topics.*.error_code", "UNKNOWN_SERVER_ERROR", "INVALID_REQUEST", _PRECISE),
    OnPurpose(
        "list_offsets",
        "topics.*",
        ANY,
        ANY,
        "the record of the largest timestamp is a readable one; Kafka also names deleted ones",
        "list-offsets-after-deleting-records: -3",
    ),
    # --- topics
    OnPurpose("create_topics", "topics.configs.<remote.storage.enable>.value", "false", "true", _TIERED),
    OnPurpose("create_topics", "topics.configs.<local.retention.*>.value", "-2", ANY, _TIERED),
    OnPurpose("create_topics", "topics.configs.<tidelog.*>", ABSENT, ANY, _OURS),
    OnPurpose("create_topics", "topics.configs.<min.insync.replicas>.config_source", 3, 5, _ELR),
    OnPurpose("create_topics", "topics.*", ANY, ANY, _COLLIDE, "create-topics-names-that-collide: both at once"),
    OnPurpose("create_partitions", "results.*", ANY, ANY, _MANY, "create-topics-many-partitions: 20,000*"),
    OnPurpose(
        "delete_topics",
        "responses*",
        ANY,
        ANY,
        "one topic named by name and by id is deleted once, and both rows are answered; Kafka refuses the request",
        "delete-topics-deleted-by-id: by name and by id",
    ),
    OnPurpose("metadata", "*error_code", "UNKNOWN_SERVER_ERROR", "INVALID_REQUEST", _PRECISE),
    OnPurpose(
        "fetch",
        "responses*",
        ANY,
        ANY,
        "the old id of a recreated topic is unknown; Kafka calls it inconsistent if a session remembers the name",
        "fetch-a-topic-that-comes-and-goes: and the old one by its id",
    ),
    # --- damaged requests and names
    OnPurpose("*", "*error_code", "UNKNOWN_SERVER_ERROR", ANY, _PRECISE, "api-versions-names-that-are-none: *"),
    OnPurpose("*", "*error_message", None, "<text>", _PRECISE, "api-versions-names-that-are-none: *"),
    OnPurpose(
        "describe_topic_partitions",
        "topics.topic_authorized_operations",
        ANY,
        ANY,
        _PRECISE,
        "api-versions-names-that-are-none: *empty",
    ),
    OnPurpose("*", "connection", "answered", "closed", _UTF8, "api-versions-damaged-bytes*"),
    OnPurpose(
        "find_coordinator",
        "coordinators.error_message",
        "",
        "<text>",
        "every error has a text, including the one for a share group's key, which Kafka refuses without a text",
        "api-versions-damaged-bytes-for-coordinators: *",
    ),
    OnPurpose(
        "fetch",
        "connection",
        "answered",
        "a string that is not UTF-8",
        "Produce and Fetch treat a name as bytes; Kafka substitutes characters that are not UTF-8",
        "api-versions-damaged-bytes: *",
    ),
    OnPurpose("*", "*error_code", "REQUEST_TIMED_OUT", ANY, _PATIENT, "api-versions-damaged-bytes: *"),
    OnPurpose("*", "*error_message", None, "<text>", _PATIENT, "api-versions-damaged-bytes: *"),
    OnPurpose("list_offsets", "topics.<*>", ABSENT, ANY, _EMPTY, "api-versions-damaged-bytes: *"),
    OnPurpose(
        "fetch",
        "responses.partitions.*",
        ANY,
        ANY,
        "errors of the whole request (a caller that claims to be a replica, an isolation level) precede topic lookup",
        "api-versions-damaged-bytes: *",
    ),
    # --- coordinators
    OnPurpose(
        "find_coordinator",
        "coordinators.error_code",
        "COORDINATOR_NOT_AVAILABLE",
        "NONE",
        _ONE_REPLICA,
        "find-coordinator-with-more-replicas-than-brokers: *",
    ),
    OnPurpose(
        "find_coordinator",
        "coordinators.*",
        ANY,
        ANY,
        _ONE_REPLICA,
        "find-coordinator-with-more-replicas-than-brokers: *",
    ),
    OnPurpose(
        "join_group",
        "connection",
        "no answer",
        "answered",
        "a member with a malformed subscription joins, and its group's leader may refuse it; Kafka never answers the request",
        "join-group-*-subscriptions: *",
    ),
    # --- configs
    OnPurpose("describe_configs", "results.configs.<remote.storage.enable>.value", "false", "true", _TIERED),
    OnPurpose("describe_configs", "results.configs.<*local.retention.*>.value", "-2", ANY, _TIERED),
    OnPurpose("describe_configs", "results.configs.<*local.retention.*>.synonyms.value", "-2", ANY, _TIERED),
    OnPurpose("describe_configs", "results.configs.<remote.log.storage.system.enable>*", ANY, ANY, _TIERED),
    OnPurpose("describe_configs", "results.configs.<controller.*>*", ANY, ANY, _QUORUM),
    OnPurpose("describe_configs", "results.configs.<listener.security.protocol.map>*", ANY, ANY, _QUORUM),
    OnPurpose(
        "describe_configs",
        "results.configs.<listeners>.read_only",
        False,
        True,
        "a node's listeners are fixed at its start; Kafka adds listeners to a running broker",
    ),
    OnPurpose(
        "describe_configs",
        "results.configs.<super.users>",
        ABSENT,
        ANY,
        "tidelog knows `super.users`, which it refuses, and shows it; in Kafka it belongs to the authorizer plugin and is not "
        "shown",
    ),
    OnPurpose("describe_configs", "results.configs.<tidelog.*>", ABSENT, ANY, _OURS),
    OnPurpose("describe_configs", "results.configs.<min.insync.replicas>.*source", 3, 5, _ELR),
    OnPurpose("describe_configs", "results.configs.<min.insync.replicas>.synonyms.length", 2, 1, _ELR),
    OnPurpose(
        "describe_configs",
        "results.configs.<min.insync.replicas>.synonyms.length",
        3,
        2,
        _ELR,
        "*: __transaction_state",
    ),
    OnPurpose("describe_configs", "results.configs.<min.insync.replicas>.synonyms", ANY, ABSENT, _ELR),
    OnPurpose(
        "describe_configs", "results.configs.<min.insync.replicas>", ANY, ABSENT, _ELR, "*: the cluster's default"
    ),
    OnPurpose("describe_configs", "results.error_message", "", "<text>", WORDS),
    OnPurpose("incremental_alter_configs", "responses.error_code", "UNKNOWN_SERVER_ERROR", ANY, _PRECISE),
    OnPurpose("incremental_alter_configs", "responses.error_message", None, "<text>", WORDS),
    OnPurpose(
        "incremental_alter_configs",
        "responses.error_code",
        "NONE",
        "INVALID_CONFIG",
        _TYPO,
        "incremental-alter-configs-broker-configs: *",
    ),
    OnPurpose(
        "incremental_alter_configs",
        "responses.error_code",
        "NONE",
        "INVALID_CONFIG",
        "a pattern whose matching can take more than a few milliseconds is refused; Kafka matches it",
        "incremental-alter-configs-client-metrics: match that may take for ever",
    ),
    OnPurpose(
        "alter_configs",
        "connection",
        "no answer",
        "answered",
        "a resource that appears twice is refused; Kafka never answers the request",
        "alter-configs-a-topic-twice: twice",
    ),
    # --- the node
    OnPurpose("alter_replica_log_dirs", "results*", ANY, ANY, _EMPTY, "*: no partition"),
    OnPurpose("api_versions", "finalized_features.<*>", ANY, ABSENT, _FEATURES),
    OnPurpose("api_versions", "supported_features.<*>.max_version", ANY, 0, _FEATURES),
    OnPurpose(
        "api_versions",
        "supported_features.<metadata.version>.min_version",
        7,
        29,
        "there are no older versions of the metadata to downgrade to",
    ),
    OnPurpose(
        "describe_quorum",
        "nodes.listeners.*",
        ANY,
        ANY,
        "one listener serves clients and the controller",
    ),
)

#: The intended differences: `ON_PURPOSE`, and the APIs of `UNSUPPORTED_APIS` missing from those that we advertise.
EXPECTED = (
    *ON_PURPOSE,
    *(OnPurpose("api_versions", f"api_keys.<{api.key}>", ANY, ABSENT, api.what) for api in UNSUPPORTED_APIS),
)
