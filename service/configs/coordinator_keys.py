"""The broker configs of the coordinators of groups, their offsets and transactions."""

from __future__ import annotations

from grpc_api.contract.topics import ConfigKind
from service.configs.keys import broker_key
from service.configs.types import at_least, between
from storage_tiers.records.codecs import Codec

INT_MAX = (1 << 31) - 1

_INT, _LONG = ConfigKind.INT, ConfigKind.LONG

_GROUPS = (
    broker_key(
        "group.min.session.timeout.ms",
        _INT,
        6000,
        "Smallest session timeout that a member of a classic group may request.",
    ),
    broker_key(
        "group.max.session.timeout.ms",
        _INT,
        1_800_000,
        "Largest session timeout that a member of a classic group may request.",
    ),
    broker_key(
        "group.initial.rebalance.delay.ms", _INT, 3000, "Milliseconds that a new classic group waits for more members."
    ),
    broker_key("group.max.size", _INT, INT_MAX, "Maximum members of a classic group.", at_least(1)),
    broker_key("offset.metadata.max.bytes", _INT, 4096, "Maximum bytes of metadata in a committed offset."),
    broker_key(
        "offsets.retention.minutes",
        _INT,
        10_080,
        "Minutes that committed offsets of an empty group are kept.",
        at_least(1),
    ),
    broker_key(
        "offsets.retention.check.interval.ms",
        _LONG,
        600_000,
        "Interval in milliseconds between checks for expired committed offsets.",
        at_least(1),
    ),
    broker_key(
        "offsets.commit.timeout.ms",
        _INT,
        5000,
        "Milliseconds that the answer to a commit or another change of a group waits for the change to be committed.",
        at_least(1),
    ),
    broker_key(
        "offsets.topic.compression.codec",
        _INT,
        0,
        "Codec of the batches that group coordinators write: 0 none, 1 gzip (batches up to 32 KiB), 2 snappy, 3 lz4, 4 zstd.",
        between(Codec.NONE, Codec.ZSTD),
    ),
    broker_key("offsets.topic.num.partitions", _INT, 50, "Partitions of the offsets topic.", at_least(1)),
    broker_key(
        "offsets.topic.segment.bytes",
        _INT,
        100 << 20,
        "Size in bytes at which a segment of the offsets topic is closed.",
        at_least(1),
    ),
)

_TRANSACTIONS = (
    broker_key(
        "transaction.max.timeout.ms",
        _INT,
        900_000,
        "Longest transaction timeout that a producer may request.",
        at_least(1),
    ),
    broker_key(
        "transactional.id.expiration.ms",
        _INT,
        604_800_000,
        "Milliseconds after which an unused transactional id is forgotten.",
        at_least(1),
    ),
    broker_key("transaction.state.log.num.partitions", _INT, 50, "Partitions of the transactions topic.", at_least(1)),
    broker_key(
        "transaction.state.log.min.isr",
        _INT,
        2,
        "In-sync replicas that a write to the transactions topic needs.",
        at_least(1),
    ),
    broker_key(
        "transaction.state.log.segment.bytes",
        _INT,
        100 << 20,
        "Size in bytes at which a segment of the transactions topic is closed.",
        at_least(1),
    ),
)

COORDINATOR_KEYS = (*_GROUPS, *_TRANSACTIONS)
