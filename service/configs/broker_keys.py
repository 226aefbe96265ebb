"""Every config of a broker: all of Kafka 4.2.1's and tidelog's own.

Honoured keys and a few accepted ones are declared here, all others in `unsupported_configs.tsv`. Keys that topics inherit are
derived from the topic keys, so that kind, rule and default differ only where `_UNITS` says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from grpc_api.contract.topics import ConfigKind
from grpc_api.limits import MAX_CONNECTIONS
from service.configs.coordinator_keys import COORDINATOR_KEYS, INT_MAX
from service.configs.keys import ConfigEffect, ConfigKey, ConfigScope, Dynamic, Registry, Synonym
from service.configs.keys import broker_key as _key
from service.configs.listeners import DEFAULT_PROTOCOLS
from service.configs.topic_keys import DAY_MS, MINUTE_MS, NOTHING_COPIED, TOPIC_KEYS
from service.configs.types import (
    Validator,
    Value,
    at_least,
    between,
    connection_overrides,
    one_of,
    unlimited_or_positive,
)
from service.configs.unsupported_configs import unsupported_keys
from storage_tiers.hot.producer_state import MAX_PRODUCERS

_BOOLEAN, _STRING = ConfigKind.BOOLEAN, ConfigKind.STRING
_INT, _LONG, _DOUBLE, _LIST = ConfigKind.INT, ConfigKind.LONG, ConfigKind.DOUBLE, ConfigKind.LIST
_LONG_MAX = (1 << 63) - 1

#: Broker keys whose unit differs from that of their topic key, or that have no default of their own, with kind, default and
#: rule.
_UNITS: dict[str, tuple[ConfigKind, Value | None, Validator | None]] = {
    "log.roll.ms": (_LONG, None, at_least(1)),
    "log.roll.hours": (_INT, 168, at_least(1)),
    "log.roll.jitter.ms": (_LONG, None, at_least(0)),
    "log.roll.jitter.hours": (_INT, 0, at_least(0)),
    "log.retention.ms": (_LONG, None, unlimited_or_positive),
    "log.retention.minutes": (_INT, None, unlimited_or_positive),
    "log.retention.hours": (_INT, 168, unlimited_or_positive),
    "log.flush.interval.ms": (_LONG, None, at_least(0)),
}
#: In Kafka the keys that topics inherit have the update mode cluster-wide, except these.
_READ_ONLY = {
    "log.roll.hours",
    "log.roll.jitter.hours",
    "log.retention.minutes",
    "log.retention.hours",
    "log.flush.scheduler.interval.ms",
}


def _inherited() -> Iterator[ConfigKey]:
    """The broker keys that topic keys inherit."""
    for topic_key in TOPIC_KEYS:
        group = tuple(Synonym(synonym.name) for synonym in topic_key.synonyms)
        for position, synonym in enumerate(topic_key.synonyms):
            own = (topic_key.kind, topic_key.default, topic_key.validator)
            kind, default, validator = _UNITS.get(synonym.name, own)
            first = position == 0
            yield ConfigKey(
                synonym.name,
                kind,
                default,
                f"{topic_key.name} for topics that do not set it."
                + ("" if first else f" {group[0].name} takes precedence."),
                validator=validator,
                # Kafka describes log.flush.scheduler.interval.ms as a key of its own, without the other key of its group.
                synonyms=(Synonym(synonym.name),) if synonym.name == "log.flush.scheduler.interval.ms" else group,
                dynamic=Dynamic.READ_ONLY if synonym.name in _READ_ONLY else Dynamic.CLUSTER_WIDE,
                effect=topic_key.effect,
                reason=topic_key.reason,
            )


_NODE = (
    _key("node.id", _INT, None, "The id of this node in the cluster.", at_least(0), given_by="node_id"),
    _key("broker.id", _INT, -1, "Same as node.id.", given_by="node_id"),
    _key(
        "process.roles",
        _LIST,
        None,
        "The roles of this node: broker, and controller if it has the cluster's controller.",
        one_of("broker", "controller"),
        given_by="roles",
    ),
    _key("broker.rack", _STRING, None, "Rack, machine or zone of this broker; replicas are spread over racks."),
    _key(
        "listeners",
        _LIST,
        ("PLAINTEXT://:9092",),
        "Addresses that serve Kafka's protocol: NAME://HOST:PORT, separated by commas.",
        given_by="listeners",
    ),
    _key(
        "advertised.listeners",
        _LIST,
        None,
        "Addresses that each listener's clients connect to; unset: the listener's own address.",
        given_by="advertised_listeners",
    ),
    _key(
        "listener.security.protocol.map",
        _STRING,
        DEFAULT_PROTOCOLS,
        "Security protocol of each listener name; only PLAINTEXT is supported.",
        given_by="listener_security_protocol_map",
    ),
    _key("log.dirs", _LIST, None, "The data directory.", given_by="data_dir"),
    _key("log.dir", _LIST, ("/tmp/kafka-logs",), "The data directory (Kafka's older name).", given_by="data_dir"),
    _key(
        "remote.log.storage.system.enable",
        _BOOLEAN,
        False,
        "Whether this node has an object store.",
        given_by="store",
    ),
    _key(
        "tidelog.grpc.listener",
        _STRING,
        None,
        "HOST:PORT of this node's gRPC interface.",
        given_by="grpc_listener",
    ),
    _key(
        "tidelog.http.listener",
        _STRING,
        None,
        "HOST:PORT of this node's metrics, health and readiness.",
        given_by="http_listener",
    ),
)

_REQUESTS = (
    _key("auto.create.topics.enable", _BOOLEAN, True, "Create a topic when a client requests its metadata."),
    _key("delete.topic.enable", _BOOLEAN, True, "Whether topics may be deleted."),
    _key("num.partitions", _INT, 1, "Partitions of a topic created without a partition count.", at_least(1)),
    _key("default.replication.factor", _INT, 1, "Replicas of a topic created without a replication factor."),
    _key("socket.request.max.bytes", _INT, 100 << 20, "Largest request in bytes that the broker accepts.", at_least(1)),
    _key("fetch.max.bytes", _INT, 55 << 20, "Maximum bytes in one fetch response.", at_least(1024)),
    _key("connections.max.idle.ms", _LONG, 600_000, "Idle connections are closed after this many milliseconds."),
    _key(
        "max.connections",
        _INT,
        INT_MAX,
        "Maximum open connections.",
        at_least(0),
        dynamic=Dynamic.CLUSTER_WIDE,
    ),
    _key(
        "tidelog.grpc.max.connections",
        _INT,
        MAX_CONNECTIONS,
        "Maximum gRPC connections served at a time; calls on a further one fail with RESOURCE_EXHAUSTED.",
        at_least(1),
    ),
    _key(
        "metric.reporters",
        _LIST,
        ("org.apache.kafka.common.metrics.JmxReporter",),
        "Classes that report metrics. HTTP serves metrics regardless. With tidelog.ClientTelemetryLog, clients push "
        "their metrics, which are written to the log.",
        dynamic=Dynamic.CLUSTER_WIDE,
    ),
    _key("telemetry.max.bytes", _INT, 1 << 20, "Maximum bytes of one push of client metrics.", at_least(1)),
    _key(
        "max.incremental.fetch.session.cache.slots",
        _INT,
        1000,
        "Maximum incremental fetch sessions that are kept.",
        at_least(0),
    ),
    _key(
        "max.request.partition.size.limit",
        _INT,
        2000,
        "Maximum partitions in one DescribeTopicPartitions response.",
        at_least(1),
    ),
    _key(
        "max.connections.per.ip",
        _INT,
        INT_MAX,
        "Maximum open connections from one address; a further one is closed at once.",
        at_least(0),
        dynamic=Dynamic.CLUSTER_WIDE,
    ),
    _key(
        "max.connections.per.ip.overrides",
        _STRING,
        "",
        "Overrides of max.connections.per.ip for single addresses: address:count, separated by commas (no host names).",
        connection_overrides,
        dynamic=Dynamic.CLUSTER_WIDE,
    ),
    _key(
        "max.connection.creation.rate",
        _INT,
        INT_MAX,
        "Maximum connections accepted per second; further ones wait.",
        at_least(0),
        dynamic=Dynamic.CLUSTER_WIDE,
    ),
)

_LOGS = (
    _key(
        "log.retention.check.interval.ms",
        _LONG,
        300_000,
        "Interval in milliseconds between searches for old segments.",
        at_least(1),
    ),
    _key(
        "producer.id.expiration.ms",
        _INT,
        DAY_MS,
        "Time in milliseconds that an idle producer's sequence numbers are kept.",
        at_least(1),
        dynamic=Dynamic.CLUSTER_WIDE,
    ),
    _key(
        "tidelog.partition.max.producer.ids",
        _INT,
        MAX_PRODUCERS,
        "Idempotent producers that one partition remembers. Beyond that it forgets the least recent writer, and a batch "
        "that this producer retries is stored twice.",
        between(1, 1_000_000),
        dynamic=Dynamic.CLUSTER_WIDE,
    ),
    _key(
        "log.flush.offset.checkpoint.interval.ms",
        _INT,
        MINUTE_MS,
        "Interval in milliseconds at which recovery points are saved.",
        at_least(0),
    ),
    _key(
        "log.flush.start.offset.checkpoint.interval.ms",
        _INT,
        MINUTE_MS,
        "Interval in milliseconds at which log start offsets are saved; DeleteRecords also saves them at once.",
        at_least(0),
    ),
)

_CLEANER = (
    _key(
        "log.cleaner.enable",
        _BOOLEAN,
        True,
        "Whether logs are compacted.",
    ),
    _key(
        "log.cleaner.backoff.ms",
        _LONG,
        15_000,
        "Milliseconds that the cleaner sleeps when no log needs cleaning.",
        at_least(0),
        dynamic=Dynamic.CLUSTER_WIDE,
    ),
    _key(
        "log.cleaner.dedupe.buffer.size",
        _LONG,
        128 << 20,
        "Maximum bytes of memory for the keys of one cleaning. More than 2 GiB counts as 2 GiB.",
        dynamic=Dynamic.CLUSTER_WIDE,
    ),
    _key(
        "log.cleaner.io.buffer.load.factor",
        _DOUBLE,
        0.9,
        "Maximum fill of the cleaner's map of keys, as a fraction. A value below 0.01 counts as 0.01, above 1 as 1.",
        dynamic=Dynamic.CLUSTER_WIDE,
    ),
    _key(
        "log.cleaner.io.max.bytes.per.second",
        _DOUBLE,
        1.7976931348623157e308,
        "Maximum bytes per second that the cleaner reads and writes. 0 stops it; a negative value means no bound. A new "
        "value restarts the cleaning in progress.",
        dynamic=Dynamic.CLUSTER_WIDE,
    ),
)

_THROTTLES = (
    replace(
        _key(
            "leader.replication.throttled.rate",
            _LONG,
            _LONG_MAX,
            "Maximum bytes per second that this broker offloads for partitions that move to another broker and that "
            "leader.replication.throttled.replicas of their topic names. 0 stops these moves. The last 4 MiB are not delayed.",
            at_least(0),
            dynamic=Dynamic.CLUSTER_WIDE,
        ),
        only_when_set=True,
    ),
    replace(
        _key(
            "follower.replication.throttled.rate",
            _LONG,
            _LONG_MAX,
            "Maximum bytes per second that this broker copies from leaders.",
            at_least(0),
            dynamic=Dynamic.CLUSTER_WIDE,
        ),
        only_when_set=True,
        effect=ConfigEffect.ACCEPTED,
        reason=NOTHING_COPIED,
    ),
    replace(
        _key(
            "replica.alter.log.dirs.io.max.bytes.per.second",
            _LONG,
            _LONG_MAX,
            "Maximum bytes per second that are moved between data directories.",
            at_least(0),
            dynamic=Dynamic.CLUSTER_WIDE,
        ),
        only_when_set=True,
        effect=ConfigEffect.ACCEPTED,
        reason="a node has one data directory",
    ),
)

_TIER = (
    _key(
        "remote.log.manager.copy.max.bytes.per.second",
        _LONG,
        _LONG_MAX,
        "Maximum bytes per second that this broker offloads. The upload of a segment is not slowed; the next upload waits.",
        at_least(1),
        dynamic=Dynamic.CLUSTER_WIDE,
    ),
    _key(
        "tidelog.tier.delete.grace.ms",
        _LONG,
        DAY_MS,
        "Time in milliseconds that an unreferenced object stays in the store, for running readers.",
        at_least(0),
        dynamic=Dynamic.CLUSTER_WIDE,
    ),
    _key(
        "tidelog.metadata.snapshot.interval.ms",
        _LONG,
        MINUTE_MS,
        "Minimum interval in milliseconds between snapshots of changed metadata in the object store: the maximum age of "
        "broker configs and other metadata that a take-over finds.",
        at_least(100),
        dynamic=Dynamic.CLUSTER_WIDE,
    ),
    _key(
        "tidelog.store.claim.wait.ms",
        _LONG,
        30_000,
        "Time in milliseconds that a node with a copied, restored or moved data directory waits for the object store "
        "before `tidelog.store.unclaimed` applies. A node whose data directory did not move leads at once.",
        at_least(0),
    ),
    _key(
        "tidelog.store.unclaimed",
        _STRING,
        "refuse",
        "Behaviour of a node with a copied, restored or moved data directory when the object store does not answer within "
        "`tidelog.store.claim.wait.ms`. refuse: reads are served, produce fails retriably, /readyz is 503, and the node "
        "retries the store. serve: the node accepts records, at offsets that a newer copy may have assigned already.",
        one_of("refuse", "serve"),
    ),
    _key(
        "tidelog.clock.step.tolerance.ms",
        _LONG,
        MINUTE_MS,
        "Deviation in milliseconds of the wall clock from the expected time that counts as a clock step; records then expire "
        "by the expected time.",
        at_least(1000),
    ),
    _key(
        "tidelog.clock.step.settle.ms",
        _LONG,
        DAY_MS,
        "Time in milliseconds after a clock step until records expire by the new wall clock.",
        at_least(0),
    ),
    _key(
        "tidelog.tier.chunk.cache.bytes",
        _LONG,
        1 << 30,
        "Bytes of local disk for chunks read from the object store.",
        at_least(64 << 20),
    ),
    _key(
        "tidelog.tier.read.most.waiting.percent",
        _INT,
        15,
        "Percentage of time that the node may wait for a processor while clients produce. Above it, cold data is fetched "
        "more slowly, down to 32 MiB per second. 100: never slowed.",
        between(0, 100),
        dynamic=Dynamic.CLUSTER_WIDE,
    ),
    _key(
        "tidelog.disk.watermark.slow",
        _DOUBLE,
        0.9,
        "Used share of the data directory's file system above which producers are throttled.",
        between(0, 1),
    ),
    _key(
        "tidelog.disk.watermark.refuse",
        _DOUBLE,
        0.95,
        "Used share of the data directory's file system above which produce is refused.",
        between(0, 1),
    ),
)

_METRICS = (
    _key(
        "tidelog.metrics.topics",
        _INT,
        1000,
        "Topics that /metrics lists one by one; the others are only in the sums.",
        at_least(0),
        dynamic=Dynamic.CLUSTER_WIDE,
    ),
    _key(
        "tidelog.metrics.partitions",
        _INT,
        2000,
        "Partitions that /metrics lists one by one.",
        at_least(0),
        dynamic=Dynamic.CLUSTER_WIDE,
    ),
    _key(
        "tidelog.metrics.groups",
        _INT,
        500,
        "Consumer groups whose lag /metrics lists one by one.",
        at_least(0),
        dynamic=Dynamic.CLUSTER_WIDE,
    ),
)

BROKER_KEYS = Registry(
    ConfigScope.BROKER,
    (
        *_inherited(),
        *_NODE,
        *_REQUESTS,
        *_LOGS,
        *_CLEANER,
        *COORDINATOR_KEYS,
        *_THROTTLES,
        *_TIER,
        *_METRICS,
        *unsupported_keys(),
    ),
)
