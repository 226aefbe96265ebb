"""Configs of a broker: what a single node honours, and what users of one commonly set.

The keys that give topics their values are made from the topic's rows, so that kind, rule and default cannot differ.
"""

from __future__ import annotations

from collections.abc import Iterator

from grpc_api.contract.topics import ConfigKind
from service.configs.keys import ConfigKey, Dynamic, Effect, Registry, Scope, Synonym
from service.configs.topic_keys import DAY_MS, TOPIC_KEYS
from service.configs.types import Validator, Value, at_least, between, unlimited_or_positive

INT_MAX = (1 << 31) - 1

_BOOLEAN, _STRING, _SHORT = ConfigKind.BOOLEAN, ConfigKind.STRING, ConfigKind.SHORT
_INT, _LONG, _DOUBLE, _LIST = ConfigKind.INT, ConfigKind.LONG, ConfigKind.DOUBLE, ConfigKind.LIST

ONE_LOOP = "one event loop serves all connections and requests"
NO_GROUPS = "consumer groups are not served yet"
NO_TRANSACTIONS = "transactions are not served yet"
NO_CLEANER = "the log cleaner does not run yet"
KERNEL_BUFFERS = "the kernel sizes socket buffers by itself"
NO_SECURITY = "this version serves plaintext without authentication or authorisation, so it would protect nothing"
ONE_NODE = "this version runs as a single node, which is its own controller"

#: Broker keys that stand for a topic key in another unit, or have no value of their own: kind and default.
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
#: Kafka's update mode of the keys that topics inherit is cluster-wide, but for these.
_READ_ONLY = {
    "log.roll.hours",
    "log.roll.jitter.hours",
    "log.retention.minutes",
    "log.retention.hours",
    "log.flush.scheduler.interval.ms",
}


def _inherited() -> Iterator[ConfigKey]:
    """The broker's side of every topic key."""
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
                f"{topic_key.name} of topics that do not set it."
                + ("" if first else f" {group[0].name} goes before it."),
                validator=validator,
                # Kafka describes the last of a group alone: log.flush.scheduler.interval.ms is a key of its own there.
                synonyms=(Synonym(synonym.name),) if synonym.name == "log.flush.scheduler.interval.ms" else group,
                dynamic=Dynamic.READ_ONLY if synonym.name in _READ_ONLY else Dynamic.CLUSTER_WIDE,
                effect=topic_key.effect,
                reason=topic_key.reason,
            )


def _key(
    name: str,
    kind: ConfigKind,
    default: Value | None,
    documentation: str,
    validator: Validator | None = None,
    *,
    dynamic: Dynamic = Dynamic.READ_ONLY,
    unused: str = "",
    refused: str = "",
    given_by: str = "",
) -> ConfigKey:
    effect = Effect.REFUSED if refused else Effect.ACCEPTED if unused else Effect.HONOURED
    return ConfigKey(
        name,
        kind,
        default,
        documentation,
        validator=validator,
        synonyms=(Synonym(name),),
        dynamic=dynamic,
        effect=effect,
        reason=refused or unused,
        given_by=given_by,
    )


_NODE = (
    _key("node.id", _INT, None, "This node's number in the cluster.", at_least(0), given_by="node_id"),
    _key("broker.id", _INT, -1, "The same as node.id.", given_by="node_id"),
    _key("broker.rack", _STRING, None, "The machine, room or zone of this broker: replicas are spread over racks."),
    _key("listeners", _LIST, ("PLAINTEXT://:9092",), "Where this node listens.", given_by="listen and port"),
    _key("advertised.listeners", _LIST, None, "Where clients are told to connect.", given_by="advertise"),
    _key("log.dirs", _LIST, None, "The data directory.", given_by="data_dir"),
    _key("log.dir", _LIST, ("/tmp/kafka-logs",), "The data directory, Kafka's older name.", given_by="data_dir"),
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
        given_by="grpc_port",
    ),
)

_REQUESTS = (
    _key("auto.create.topics.enable", _BOOLEAN, True, "Create a topic when a client asks for its metadata."),
    _key("delete.topic.enable", _BOOLEAN, True, "Whether topics may be deleted."),
    _key("num.partitions", _INT, 1, "Partitions of a topic whose creator did not say.", at_least(1)),
    _key("default.replication.factor", _INT, 1, "Replicas of a topic whose creator did not say."),
    _key("socket.request.max.bytes", _INT, 100 << 20, "Largest request in bytes that is read.", at_least(1)),
    _key("fetch.max.bytes", _INT, 55 << 20, "Most bytes that one fetch is answered with.", at_least(1024)),
    _key("connections.max.idle.ms", _LONG, 600_000, "Idle connections are closed after this many milliseconds."),
    _key(
        "max.connections",
        _INT,
        INT_MAX,
        "Most connections open at a time.",
        at_least(0),
        dynamic=Dynamic.CLUSTER_WIDE,
    ),
    _key("request.timeout.ms", _INT, 30_000, "How long requests between nodes wait.", unused=ONE_NODE),
    _key(
        "num.network.threads",
        _INT,
        3,
        "Threads that serve connections.",
        at_least(1),
        dynamic=Dynamic.CLUSTER_WIDE,
        unused=ONE_LOOP,
    ),
    _key(
        "num.io.threads",
        _INT,
        8,
        "Threads that serve requests.",
        at_least(1),
        dynamic=Dynamic.CLUSTER_WIDE,
        unused=ONE_LOOP,
    ),
    _key("queued.max.requests", _INT, 500, "Requests that wait for a thread.", at_least(1), unused=ONE_LOOP),
    _key("socket.send.buffer.bytes", _INT, 102_400, "SO_SNDBUF.", unused=KERNEL_BUFFERS),
    _key("socket.receive.buffer.bytes", _INT, 102_400, "SO_RCVBUF.", unused=KERNEL_BUFFERS),
)

_LOGS = (
    _key(
        "log.retention.check.interval.ms",
        _LONG,
        300_000,
        "How often in milliseconds old segments are looked for.",
        at_least(1),
    ),
    _key(
        "producer.id.expiration.ms",
        _INT,
        DAY_MS,
        "How long in milliseconds an idle producer's sequence numbers are remembered.",
        at_least(1),
        dynamic=Dynamic.CLUSTER_WIDE,
    ),
    _key("log.cleaner.enable", _BOOLEAN, True, "Whether logs are compacted.", unused=NO_CLEANER),
    _key(
        "log.cleaner.threads",
        _INT,
        1,
        "Threads that compact.",
        at_least(0),
        dynamic=Dynamic.CLUSTER_WIDE,
        unused=NO_CLEANER,
    ),
)

_TIER = (
    _key(
        "tidelog.tier.delete.grace.ms",
        _LONG,
        DAY_MS,
        "How long in milliseconds an object that no manifest names any more stays in the store, for readers under way.",
        at_least(0),
        dynamic=Dynamic.CLUSTER_WIDE,
    ),
    _key(
        "tidelog.tier.chunk.cache.bytes",
        _LONG,
        1 << 30,
        "Local disk in bytes that holds chunks read from the object store.",
        at_least(64 << 20),
    ),
    _key(
        "tidelog.disk.watermark.slow",
        _DOUBLE,
        0.9,
        "Used share of the data directory's file system from which producers are slowed.",
        between(0, 1),
    ),
    _key(
        "tidelog.disk.watermark.refuse",
        _DOUBLE,
        0.95,
        "Used share of the data directory's file system from which produce is refused.",
        between(0, 1),
    ),
)

_LATER = (
    _key("offsets.topic.num.partitions", _INT, 50, "Partitions of the offsets topic.", at_least(1), unused=NO_GROUPS),
    _key("offsets.topic.replication.factor", _SHORT, 3, "Its replicas.", at_least(1), unused=NO_GROUPS),
    _key("offsets.retention.minutes", _INT, 10_080, "How long offsets are kept.", at_least(1), unused=NO_GROUPS),
    _key(
        "group.initial.rebalance.delay.ms",
        _INT,
        3000,
        "How long a new group waits for members.",
        unused=NO_GROUPS,
    ),
    _key(
        "transaction.state.log.num.partitions",
        _INT,
        50,
        "Partitions of the transactions topic.",
        at_least(1),
        unused=NO_TRANSACTIONS,
    ),
    _key("transaction.state.log.replication.factor", _SHORT, 3, "Its replicas.", at_least(1), unused=NO_TRANSACTIONS),
    _key("transaction.state.log.min.isr", _INT, 2, "Its min.insync.replicas.", at_least(1), unused=NO_TRANSACTIONS),
    _key("process.roles", _LIST, ("broker", "controller"), "What this process is.", refused=ONE_NODE),
    _key("controller.quorum.voters", _LIST, (), "The controllers.", refused=ONE_NODE),
    _key("controller.listener.names", _LIST, None, "The controllers' listeners.", refused=ONE_NODE),
    _key("inter.broker.listener.name", _STRING, None, "The listener between brokers.", refused=ONE_NODE),
    _key("authorizer.class.name", _STRING, "", "Who decides on access.", refused=NO_SECURITY),
    _key("super.users", _STRING, None, "Who may do anything.", refused=NO_SECURITY),
    _key("ssl.keystore.location", _STRING, None, "This node's key.", dynamic=Dynamic.PER_BROKER, refused=NO_SECURITY),
    _key(
        "ssl.keystore.password",
        ConfigKind.PASSWORD,
        None,
        "The key store's password.",
        dynamic=Dynamic.PER_BROKER,
        refused=NO_SECURITY,
    ),
    _key(
        "sasl.enabled.mechanisms",
        _LIST,
        ("GSSAPI",),
        "How clients authenticate.",
        dynamic=Dynamic.PER_BROKER,
        refused=NO_SECURITY,
    ),
)

BROKER_KEYS = Registry(Scope.BROKER, (*_inherited(), *_NODE, *_REQUESTS, *_LOGS, *_TIER, *_LATER))
