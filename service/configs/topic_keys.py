"""Every config of a topic: all of Kafka 4.2.1's and tidelog's own.

The value of a key comes from the topic, otherwise from a broker key that is its synonym, otherwise from the default.
"""

from __future__ import annotations

from grpc_api.contract.topics import ConfigKind
from service.configs.keys import ConfigEffect, ConfigKey, ConfigScope, Registry, Synonym
from service.configs.types import Validator, Value, at_least, between, between_or, one_of, throttled_replicas

LONG_MAX = (1 << 63) - 1
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
WEEK_MS = 7 * DAY_MS

COMPRESSION_TYPES = one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
TIMESTAMP_TYPES = one_of("CreateTime", "LogAppendTime")
CLEANUP_POLICIES = one_of("compact", "delete")
RECORD_VALIDATIONS = one_of("full", "header")

NOTHING_COPIED = "a partition moves through the bucket, and its new leader copies no records"
ONE_REPLICA = "it concerns replication between brokers, and a partition has one replica here"


def _key(
    name: str,
    kind: ConfigKind,
    default: Value,
    documentation: str,
    validator: Validator | None = None,
    *synonyms: str | Synonym,
    unused: str = "",
    refused: str = "",
) -> ConfigKey:
    return ConfigKey(
        name,
        kind,
        default,
        documentation,
        ConfigScope.TOPIC,
        validator,
        tuple(s if isinstance(s, Synonym) else Synonym(s) for s in synonyms),
        effect=ConfigEffect.REFUSED if refused else ConfigEffect.ACCEPTED if unused else ConfigEffect.HONOURED,
        reason=refused or unused,
    )


_BOOLEAN, _STRING, _INT = ConfigKind.BOOLEAN, ConfigKind.STRING, ConfigKind.INT
_LONG, _DOUBLE, _LIST = ConfigKind.LONG, ConfigKind.DOUBLE, ConfigKind.LIST

_SEGMENTS = (
    _key(
        "segment.bytes",
        _INT,
        1 << 30,
        "Size in bytes at which a segment is closed and the next one starts.",
        at_least(1 << 20),
        "log.segment.bytes",
    ),
    _key(
        "segment.ms",
        _LONG,
        WEEK_MS,
        "Age in milliseconds at which a segment is closed even if it is not full.",
        at_least(1),
        "log.roll.ms",
        Synonym("log.roll.hours", HOUR_MS),
    ),
    _key(
        "segment.jitter.ms",
        _LONG,
        0,
        "Maximum random jitter in milliseconds subtracted from segment.ms, so that partitions do not roll together.",
        at_least(0),
        "log.roll.jitter.ms",
        Synonym("log.roll.jitter.hours", HOUR_MS),
    ),
    _key(
        "segment.index.bytes",
        _INT,
        10 << 20,
        "Largest size in bytes of an offset or time index; a segment whose index is full is closed.",
        at_least(4),
        "log.index.size.max.bytes",
    ),
    _key(
        "index.interval.bytes",
        _INT,
        4096,
        "Approximate bytes of records between two index entries.",
        at_least(0),
        "log.index.interval.bytes",
    ),
    _key(
        "preallocate",
        _BOOLEAN,
        False,
        "Reserve a new segment's disk space when it is created.",
        None,
        "log.preallocate",
        unused="segments take disk space as they are written",
    ),
    _key(
        "file.delete.delay.ms",
        _LONG,
        60_000,
        "Time that a deleted segment's files stay on the local disk, for readers that still use them.",
        at_least(0),
        "log.segment.delete.delay.ms",
        unused="readers keep their files open, so files are removed at once",
    ),
    _key(
        "flush.messages",
        _LONG,
        LONG_MAX,
        "Number of records after which the log is flushed to disk; 1 flushes before every acknowledgement.",
        at_least(1),
        "log.flush.interval.messages",
    ),
    _key(
        "flush.ms",
        _LONG,
        LONG_MAX,
        "Maximum time in milliseconds that records stay unflushed.",
        at_least(0),
        "log.flush.interval.ms",
        "log.flush.scheduler.interval.ms",
    ),
)

_RETENTION = (
    _key(
        "cleanup.policy",
        _LIST,
        ("delete",),
        "Policy for old segments: delete (by age and size), compact (by key), both, or neither (empty). "
        "With compact, records without a key are refused.",
        CLEANUP_POLICIES,
        "log.cleanup.policy",
    ),
    _key(
        "retention.ms",
        _LONG,
        WEEK_MS,
        "Age in milliseconds after which records are deleted from both tiers; -1: never.",
        at_least(-1),
        "log.retention.ms",
        Synonym("log.retention.minutes", MINUTE_MS),
        Synonym("log.retention.hours", HOUR_MS),
    ),
    _key(
        "retention.bytes",
        _LONG,
        -1,
        "Bytes per partition, in both tiers together, beyond which the oldest records are deleted; -1: no bound.",
        None,
        "log.retention.bytes",
    ),
    _key(
        "local.retention.ms",
        _LONG,
        -2,
        "Age in milliseconds after which tiered records leave the local disk; -2: as retention.ms.",
        at_least(-2),
        "log.local.retention.ms",
    ),
    _key(
        "local.retention.bytes",
        _LONG,
        -2,
        "Size in bytes of a partition on the local disk beyond which tiered records leave it; -2: as retention.bytes.",
        at_least(-2),
        "log.local.retention.bytes",
    ),
    _key(
        "remote.storage.enable",
        _BOOLEAN,
        False,
        "Whether closed segments of the topic are offloaded to the object store.",
    ),
    _key(
        "remote.log.copy.disable",
        _BOOLEAN,
        False,
        "Stop offloading segments to the object store. Offloaded segments stay readable; others stay on the local disk.",
    ),
    _key(
        "remote.log.delete.on.disable",
        _BOOLEAN,
        False,
        "Delete a topic's segments in the object store when remote.storage.enable is set to false.",
        refused="offloaded segments stay readable until retention or tidelog topic delete removes them",
    ),
    _key(
        "tidelog.tier.max.lag.ms",
        _LONG,
        HOUR_MS,
        "Age in milliseconds at which the active segment is closed and offloaded, even if it is neither full nor as old as "
        "segment.ms, and even if no records arrive: the maximum age of records that are lost with the local disk.",
        at_least(1),
        "tidelog.tier.max.lag.ms",
    ),
)

_RECORDS = (
    _key(
        "max.message.bytes",
        _INT,
        1048588,
        "Largest size in bytes of one record batch, as sent.",
        at_least(0),
        "message.max.bytes",
    ),
    _key(
        "message.timestamp.type",
        _STRING,
        "CreateTime",
        "Whether a record keeps its producer's timestamp or gets the time of its append.",
        TIMESTAMP_TYPES,
        "log.message.timestamp.type",
    ),
    _key(
        "message.timestamp.before.max.ms",
        _LONG,
        LONG_MAX,
        "Maximum milliseconds by which a record's timestamp may precede the broker's clock.",
        at_least(0),
        "log.message.timestamp.before.max.ms",
    ),
    _key(
        "message.timestamp.after.max.ms",
        _LONG,
        HOUR_MS,
        "Maximum milliseconds by which a record's timestamp may exceed the broker's clock.",
        at_least(0),
        "log.message.timestamp.after.max.ms",
    ),
    _key(
        "tidelog.record.validation",
        _STRING,
        "full",
        "Validation of a produced batch: full (every record, as Kafka does) or header (length, CRC and counts only).",
        RECORD_VALIDATIONS,
        "tidelog.record.validation",
    ),
    _key(
        "compression.type",
        _STRING,
        "producer",
        "Codec of stored batches; producer keeps the producer's. With any other codec the broker decompresses and "
        "recompresses each batch.",
        COMPRESSION_TYPES,
        "compression.type",
    ),
    _key(
        "compression.gzip.level",
        _INT,
        -1,
        "Level of gzip where compression.type is gzip: 1 (fast) to 9 (small), -1 for zlib's default.",
        between_or(1, 9, -1),
        "compression.gzip.level",
    ),
    _key(
        "compression.lz4.level",
        _INT,
        9,
        "Level of lz4 where compression.type is lz4: 9 is the fast compressor, any other value the slower one at that level.",
        between(1, 17),
        "compression.lz4.level",
    ),
    _key(
        "compression.zstd.level",
        _INT,
        3,
        "Level of zstd where compression.type is zstd: higher is smaller and slower.",
        between(-131072, 22),
        "compression.zstd.level",
    ),
)

_COMPACTION = (
    _key(
        "delete.retention.ms",
        _LONG,
        DAY_MS,
        "Time in milliseconds that compaction keeps a tombstone (a record without a value).",
        at_least(0),
        "log.cleaner.delete.retention.ms",
    ),
    _key(
        "min.compaction.lag.ms",
        _LONG,
        0,
        "Minimum time in milliseconds that a record stays uncompacted.",
        at_least(0),
        "log.cleaner.min.compaction.lag.ms",
    ),
    _key(
        "max.compaction.lag.ms",
        _LONG,
        LONG_MAX,
        "Maximum time in milliseconds that a record stays uncompacted.",
        at_least(1),
        "log.cleaner.max.compaction.lag.ms",
    ),
    _key(
        "min.cleanable.dirty.ratio",
        _DOUBLE,
        0.5,
        "Share of uncompacted bytes above which a log is compacted.",
        between(0, 1),
        "log.cleaner.min.cleanable.ratio",
    ),
)

_REPLICATION = (
    _key(
        "min.insync.replicas",
        _INT,
        1,
        "Minimum in-sync replicas for a write with acks=all; all replicas, if there are fewer.",
        at_least(1),
        "min.insync.replicas",
    ),
    _key(
        "unclean.leader.election.enable",
        _BOOLEAN,
        False,
        "Whether a replica that is not in sync may become leader when no other is left, losing records.",
        None,
        "unclean.leader.election.enable",
        unused=ONE_REPLICA,
    ),
    _key(
        "leader.replication.throttled.replicas",
        _LIST,
        (),
        "Partitions whose offloads leader.replication.throttled.rate limits while they move to another broker: "
        "partition:broker pairs that name the broker they leave, or * for all.",
        throttled_replicas,
    ),
    _key(
        "follower.replication.throttled.replicas",
        _LIST,
        (),
        "Replicas whose follower side is throttled: partition:broker pairs, or * for all.",
        throttled_replicas,
        unused=NOTHING_COPIED,
    ),
)

#: As in Kafka, this key lets tests make segments smaller than the minimum of segment.bytes.
_INTERNAL = (
    ConfigKey(
        "internal.segment.bytes",
        _INT,
        None,
        "Size in bytes at which a segment is closed; for tests only.",
        ConfigScope.TOPIC,
        at_least(1),
        hidden=True,
    ),
)

TOPIC_KEYS = Registry(ConfigScope.TOPIC, (*_SEGMENTS, *_RETENTION, *_RECORDS, *_COMPACTION, *_REPLICATION, *_INTERNAL))
