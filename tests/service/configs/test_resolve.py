"""Precedence, description and change of configs; wording as Apache Kafka 4.2.1 answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from grpc_api.contract.topics import AlterOp, ConfigAlteration, ConfigEntry, ConfigSource, Resource, ResourceKind
from service.configs.loggers import Loggers
from service.configs.resolve import Resolver, check_static
from service.metadata.image import MetadataImage
from storage_tiers.errors import (
    InvalidConfig,
    InvalidRequest,
    InvalidTopic,
    LogError,
    UnknownTopicOrPartition,
)
from tests.service.metadata.records import new_topic

EMPTY = MetadataImage().apply_batch([*new_topic("z", 1), *new_topic("__consumer_offsets", 2)])
NODE = Resolver({}, node_id=1, has_store=False)
TIERED = Resolver({}, node_id=1, has_store=True)
Z = Resource(ResourceKind.TOPIC, "z")
BROKER = Resource(ResourceKind.BROKER, "1")
EVERY_BROKER = Resource(ResourceKind.BROKER, "")
SET, DELETE, APPEND, SUBTRACT = AlterOp.SET, AlterOp.DELETE, AlterOp.APPEND, AlterOp.SUBTRACT
Ops = Sequence[tuple[str, AlterOp, str | None]]


def altered(image: MetadataImage, resource: Resource, *ops: tuple[str, AlterOp, str | None]) -> MetadataImage:
    return image.apply_batch(NODE.alter(image, resource, [ConfigAlteration(*op) for op in ops]))


def described(image: MetadataImage, resource: Resource, name: str, node: Resolver = NODE) -> ConfigEntry:
    (entry,) = node.describe(image, resource, [name])
    return entry


def listed(entry: ConfigEntry) -> list[tuple[str, str | None, int]]:
    return [(s.name, s.value, int(s.source)) for s in entry.synonyms]


# --- precedence -------------------------------------------------------------------------------------------------------


def test_topic_before_broker_before_every_broker_before_static_before_default() -> None:
    node = Resolver(check_static({"log.segment.bytes": "4000000"}), node_id=1, has_store=False)
    image = EMPTY
    assert node.topic(image, "z").segment_bytes == 4_000_000
    image = altered(image, EVERY_BROKER, ("log.segment.bytes", SET, "2000000"))
    assert node.topic(image, "z").segment_bytes == 2_000_000
    image = altered(image, BROKER, ("log.segment.bytes", SET, "3000000"))
    assert node.topic(image, "z").segment_bytes == 3_000_000
    image = altered(image, Z, ("segment.bytes", SET, " 5000000 "))
    assert node.topic(image, "z").segment_bytes == 5_000_000
    entry = described(image, Z, "segment.bytes", node)
    assert (entry.value, entry.source) == ("5000000", ConfigSource.DYNAMIC_TOPIC)
    assert listed(entry) == [
        ("segment.bytes", "5000000", 1),
        ("log.segment.bytes", "3000000", 2),
        ("log.segment.bytes", "2000000", 3),
        ("log.segment.bytes", "4000000", 4),
        ("log.segment.bytes", "1073741824", 5),
    ]


@pytest.mark.parametrize(
    ("static", "retention_ms"),
    [
        ({}, 604_800_000),
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3", "log.retention.ms": "4"}, 4),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.ms": "-1"}, -1),
    ],
)
def test_units_of_retention(static: Mapping[str, str], retention_ms: int) -> None:
    node = Resolver(check_static(static), node_id=1, has_store=False)
    assert node.log_settings(EMPTY, "z").retention_ms == retention_ms


def test_a_dynamic_value_of_a_later_synonyms_unit_does_not_hide_an_earlier_source() -> None:
    node = Resolver(check_static({"log.retention.hours": "1"}), node_id=1, has_store=False)
    image = altered(EMPTY, EVERY_BROKER, ("log.retention.ms", SET, "987654321"))
    assert node.topic(image, "z").retention_ms == 987654321
    assert listed(described(image, Z, "retention.ms", node)) == [
        ("log.retention.ms", "987654321", 3),
        ("log.retention.hours", "1", 4),
        ("log.retention.hours", "168", 5),
    ]


def test_kafkas_lists_of_synonyms_with_units() -> None:
    assert listed(described(EMPTY, Z, "retention.ms")) == []
    image = altered(EMPTY, BROKER, ("log.retention.ms", SET, "123456789"))
    expected = [("log.retention.ms", "123456789", 2), ("log.retention.hours", "168", 5)]
    assert listed(described(image, Z, "retention.ms")) == expected
    assert listed(described(image, BROKER, "log.retention.ms")) == expected
    assert listed(described(image, BROKER, "log.retention.hours")) == [("log.retention.hours", "168", 5)]
    assert listed(described(image, BROKER, "log.retention.minutes")) == []
    assert described(image, BROKER, "log.retention.minutes").value is None


def test_the_default_of_all_brokers_shows_only_what_was_set() -> None:
    assert not NODE.describe(EMPTY, EVERY_BROKER)
    image = altered(EMPTY, EVERY_BROKER, ("log.segment.bytes", SET, "2000000"))
    (entry,) = NODE.describe(image, EVERY_BROKER)
    assert (entry.name, entry.value, entry.source) == ("log.segment.bytes", "2000000", 3)
    assert listed(entry) == [("log.segment.bytes", "2000000", 3)]


def test_a_node_describes_what_it_was_started_with() -> None:
    node = Resolver({"tidelog.grpc.listener": "127.0.0.1:5000"}, node_id=7, has_store=True)
    broker = Resource(ResourceKind.BROKER, "7")
    assert described(EMPTY, broker, "tidelog.grpc.listener", node).value == "127.0.0.1:5000"
    assert described(EMPTY, broker, "node.id", node).value == "7"
    assert described(EMPTY, broker, "remote.log.storage.system.enable", node).value == "true"
    assert all(described(EMPTY, broker, name, node).read_only for name in ("tidelog.grpc.listener", "node.id"))


def test_an_accepted_key_says_why_it_has_no_effect() -> None:
    documentation = described(EMPTY, BROKER, "num.io.threads").documentation
    assert (
        documentation == "Threads that serve requests. (Accepted: one event loop serves all connections and requests.)"
    )


# --- log settings -----------------------------------------------------------------------------------------------------


def test_with_a_store_topics_are_tiered_and_keep_an_hour_locally() -> None:
    settings = TIERED.log_settings(EMPTY, "z")
    assert settings.remote_storage_enable
    assert (settings.local_retention_ms, settings.local_retention_bytes) == (3_600_000, 1 << 30)
    assert (settings.retention_ms, settings.retention_bytes) == (604_800_000, -1)
    assert not NODE.log_settings(EMPTY, "z").remote_storage_enable


@pytest.mark.parametrize(
    ("local", "whole", "expected"),
    [("-2", "5000", 5000), ("-2", "-1", -1), ("-1", "-1", -1), ("1000", "-1", 1000), ("1000", "5000", 1000)],
)
def test_local_retention_in_plain_values(local: str, whole: str, expected: int) -> None:
    configs = {"local.retention.ms": local, "retention.ms": whole}
    image = EMPTY.apply_batch(
        TIERED.alter(EMPTY, Z, [ConfigAlteration(name, SET, value) for name, value in configs.items()])
    )
    assert TIERED.log_settings(image, "z").local_retention_ms == expected


def test_a_short_retention_shortens_the_default_local_one() -> None:
    image = altered(EMPTY, Z, ("retention.ms", SET, "1000"), ("retention.bytes", SET, "2000"))
    settings = TIERED.log_settings(image, "z")
    assert (settings.local_retention_ms, settings.local_retention_bytes) == (1000, 2000)


def test_settings_follow_every_kind_of_change() -> None:
    image = altered(
        EMPTY,
        Z,
        ("cleanup.policy", SET, "compact"),
        ("flush.messages", SET, "1"),
        ("message.timestamp.type", SET, "LogAppendTime"),
        ("internal.segment.bytes", SET, "1000"),
    )
    settings = NODE.log_settings(image, "z")
    assert settings.cleanup_policy == ("compact",)
    assert (settings.flush_messages, settings.timestamp_type) == (1, "LogAppendTime")
    assert settings.segment_bytes == 1000
    assert described(image, Z, "internal.segment.bytes").value == "1000"
    image = altered(image, EVERY_BROKER, ("producer.id.expiration.ms", SET, "5"), ("log.roll.ms", SET, "77"))
    assert NODE.log_settings(image, "z").producer_id_expiration_ms == 5
    assert NODE.log_settings(image, "z").segment_ms == 77
    assert NODE.log_settings(EMPTY, "z").segment_ms == 604_800_000


def test_topics_without_configs_share_their_settings_and_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.configs.resolve.MAX_CACHED_SETTINGS", 5)
    node = Resolver({}, node_id=1, has_store=False)
    assert node.log_settings(EMPTY, "z") is node.log_settings(EMPTY, "other")
    for value in range(1, 20):
        image = altered(EMPTY, Z, ("segment.ms", SET, str(value)))
        assert node.log_settings(image, "z").segment_ms == value
    assert len(node._cached) <= 5


def test_internal_topics_reach_the_bucket_sooner_unless_told_otherwise() -> None:
    assert TIERED.topic(EMPTY, "z").tidelog_tier_max_lag_ms == 3_600_000
    assert TIERED.topic(EMPTY, "__consumer_offsets").tidelog_tier_max_lag_ms == 600_000
    image = altered(EMPTY, EVERY_BROKER, ("tidelog.tier.max.lag.ms", SET, "5"))
    assert TIERED.topic(image, "__consumer_offsets").tidelog_tier_max_lag_ms == 5


# --- incremental changes ----------------------------------------------------------------------------------------------


def test_lists_are_appended_to_and_subtracted_from() -> None:
    def policy(image: MetadataImage) -> str | None:
        return described(image, Z, "cleanup.policy").value

    image = altered(EMPTY, Z, ("cleanup.policy", APPEND, "compact"))
    assert policy(image) == "delete,compact"
    assert NODE.alter(image, Z, [ConfigAlteration("cleanup.policy", APPEND, "compact")]) == ()
    image = altered(image, Z, ("cleanup.policy", SUBTRACT, "delete"))
    assert policy(image) == "compact"
    assert NODE.alter(image, Z, [ConfigAlteration("cleanup.policy", SUBTRACT, "delete")]) == ()
    image = altered(image, Z, ("cleanup.policy", SUBTRACT, "compact"))
    assert policy(image) == ""
    image = altered(image, Z, ("cleanup.policy", APPEND, "compact,delete"))
    assert policy(image) == "compact,delete"
    image = altered(image, Z, ("cleanup.policy", DELETE, None))
    assert described(image, Z, "cleanup.policy").source is ConfigSource.DEFAULT
    image = altered(EMPTY, EVERY_BROKER, ("log.cleanup.policy", APPEND, "compact"))
    assert policy(image) == "delete,compact"


def test_a_list_grows_no_longer_than_a_value_may_be() -> None:
    """A request of four megabytes may append to a list as often as somebody likes."""
    name = "leader.replication.throttled.replicas"
    image = altered(EMPTY, Z, (name, SET, ",".join(f"{partition}:1" for partition in range(3_000))))
    for op in (APPEND, SUBTRACT):
        with pytest.raises(InvalidConfig, match="has 100000 characters; it may have 32767"):
            NODE.alter(image, Z, [ConfigAlteration(name, op, "1:1," * 25_000)])
    with pytest.raises(InvalidConfig, match="characters; it may have 32767"):
        NODE.alter(image, Z, [ConfigAlteration(name, APPEND, ",".join(f"{n}:2" for n in range(3_000)))])
    image = altered(image, Z, (name, SUBTRACT, ",".join(f"{partition}:1" for partition in range(1, 3_000))))
    assert described(image, Z, name).value == "0:1"


@pytest.mark.parametrize("kind", [ResourceKind.BROKER, ResourceKind.BROKER_LOGGER])
def test_a_broker_of_thousands_of_digits_is_another_one(kind: ResourceKind) -> None:
    digits = "1" * 5_000
    with pytest.raises(InvalidRequest, match="1" * 5_000):
        if kind is ResourceKind.BROKER:
            NODE.alter(EMPTY, Resource(kind, digits), [])
        else:
            Loggers(1).describe(digits)


def test_what_is_unset_or_unknown_may_be_deleted() -> None:
    assert NODE.alter(EMPTY, Z, [ConfigAlteration("retention.ms", DELETE, "5")]) == ()
    assert NODE.alter(EMPTY, Z, [ConfigAlteration("nope", DELETE, None)]) == ()


REFUSED: list[tuple[Resource, Ops, type[LogError], str]] = [
    (Resource(ResourceKind.TOPIC, "none"), [], UnknownTopicOrPartition, "The topic 'none' does not exist."),
    (Resource(ResourceKind.TOPIC, ""), [], InvalidRequest, "Default topic resources are not allowed."),
    (
        Resource(ResourceKind.TOPIC, "a b"),
        [],
        InvalidTopic,
        "Topic name is invalid: 'a b' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'",
    ),
    (Z, [("nope", SET, "1")], InvalidConfig, "Unknown topic config name: nope"),
    (Z, [("retention.ms", SET, "5"), ("nope", SET, "6")], InvalidConfig, "Unknown topic config name: nope"),
    (Z, [("retention.ms", SET, None)], InvalidRequest, "Null value not supported for : retention.ms"),
    (
        Z,
        [("retention.ms", APPEND, "5")],
        InvalidConfig,
        "Can't APPEND to key retention.ms because its type is not LIST.",
    ),
    (
        Z,
        [("retention.ms", SUBTRACT, "5")],
        InvalidConfig,
        "Can't SUBTRACT to key retention.ms because its type is not LIST.",
    ),
    (Z, [("cleanup.policy", APPEND, None)], InvalidRequest, "Null value not supported for : cleanup.policy"),
    (Z, [("cleanup.policy", APPEND, "")], InvalidConfig, "Configuration 'cleanup.policy' values must not be empty."),
    (
        Z,
        [("cleanup.policy", APPEND, "foo")],
        InvalidConfig,
        "Invalid value foo for configuration cleanup.policy: String must be one of: compact, delete",
    ),
    (
        Z,
        [("retention.ms", SET, "5"), ("retention.ms", SET, "6")],
        InvalidRequest,
        "Error due to duplicate config keys",
    ),
    (
        Z,
        [("min.compaction.lag.ms", SET, "100"), ("max.compaction.lag.ms", SET, "10")],
        InvalidConfig,
        "conflict topic config setting min.compaction.lag.ms (100) > max.compaction.lag.ms (10)",
    ),
    (
        Z,
        [("remote.storage.enable", SET, "true")],
        InvalidConfig,
        "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage.",
    ),
    (
        Z,
        [("segment.bytes", SET, "1")],
        InvalidConfig,
        "Invalid value 1 for configuration segment.bytes: Value must be at least 1048576",
    ),
    (
        Z,
        [("min.cleanable.dirty.ratio", SET, "2")],
        InvalidConfig,
        "Invalid value 2.0 for configuration min.cleanable.dirty.ratio: Value must be no more than 1",
    ),
    (
        Z,
        [("compression.gzip.level", SET, "0")],
        InvalidConfig,
        "Invalid value 0 for configuration compression.gzip.level: Value must be between 1 and 9 or equal to -1",
    ),
    (
        Z,
        [("compression.type", SET, "brotli")],
        InvalidConfig,
        "Invalid value brotli for configuration compression.type: String must be one of: uncompressed, zstd, lz4, "
        "snappy, gzip, producer",
    ),
    (
        Z,
        [("leader.replication.throttled.replicas", SET, "0:1,x")],
        InvalidConfig,
        "Invalid value [0:1, x] for configuration leader.replication.throttled.replicas: "
        "leader.replication.throttled.replicas must be the literal '*' or a list of replicas in the following format: "
        "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
    ),
    (
        Resource(ResourceKind.BROKER, "2"),
        [("log.retention.ms", SET, "1")],
        InvalidRequest,
        "Unexpected broker id, expected 1 or empty string, but received 2",
    ),
    (
        Resource(ResourceKind.BROKER, "x"),
        [("log.retention.ms", SET, "1")],
        InvalidRequest,
        "Node id must be an integer, but it is: x",
    ),
    (
        BROKER,
        [("log.retention.hours", SET, "1"), ("num.partitions", SET, "1")],
        InvalidRequest,
        "Cannot update these configs dynamically: Set(log.retention.hours, num.partitions)",
    ),
    (
        EVERY_BROKER,
        [("ssl.keystore.location", SET, "/x")],
        InvalidRequest,
        "Cannot update these configs at default cluster level, broker id must be specified: Set(ssl.keystore.location)",
    ),
    (
        BROKER,
        [("log.retention.ms", SET, "x")],
        InvalidRequest,
        "Invalid value x for configuration log.retention.ms: Not a number of type LONG",
    ),
    (
        Z,
        [("retention.ms", SET, "9" * 5_000)],
        InvalidConfig,
        f"Invalid value {'9' * 5_000} for configuration retention.ms: Not a number of type LONG",
    ),
    (
        Z,
        [("cleanup.policy", SET, "delete," * 10_000)],
        InvalidConfig,
        "The value for configuration cleanup.policy has 70000 characters; it may have 32767",
    ),
    (BROKER, [("message.max.bytes", SET, None)], InvalidRequest, "Null value not supported for : message.max.bytes"),
    (Resource(ResourceKind.GROUP, "g"), [("a", SET, "1")], InvalidRequest, "Unknown resource type 32"),
]


@pytest.mark.parametrize(("resource", "ops", "error", "message"), REFUSED)
def test_refusals(resource: Resource, ops: Ops, error: type[LogError], message: str) -> None:
    with pytest.raises(error) as raised:
        NODE.alter(EMPTY, resource, [ConfigAlteration(*op) for op in ops])
    assert type(raised.value) is error
    assert str(raised.value) == message


def replaced(image: MetadataImage, resource: Resource, **values: str | None) -> MetadataImage:
    given = [ConfigAlteration(name.replace("_", "."), SET, value) for name, value in values.items()]
    return image.apply_batch(NODE.alter(image, resource, given, replace=True))


def test_all_that_is_set_may_be_replaced() -> None:
    image = replaced(EMPTY, Z, retention_ms="5", segment_ms="6")
    image = replaced(image, Z, segment_ms="6", cleanup_policy="compact")
    assert image.topic_config("z") == {"segment.ms": "6", "cleanup.policy": "compact"}
    assert replaced(image, Z).topic_config("z") == {}
    image = replaced(image, EVERY_BROKER, log_retention_ms="7", message_max_bytes="8000")
    image = replaced(image, EVERY_BROKER, message_max_bytes="9000")
    assert image.broker_config(None) == {"message.max.bytes": "9000"}
    assert replaced(image, EVERY_BROKER).broker_config(None) == {}
    given = [ConfigAlteration("segment.ms", SET, "6"), ConfigAlteration("cleanup.policy", SET, "compact")]
    assert NODE.alter(image, Z, given, replace=True) == ()


@pytest.mark.parametrize(
    ("resource", "values", "error", "message"),
    [
        (Z, {"retention_ms": None}, InvalidRequest, "Null value not supported for : retention.ms"),
        (Z, {"nope": "1"}, InvalidConfig, "Unknown topic config name: nope"),
        (
            Z,
            {"retention_ms": "x"},
            InvalidConfig,
            "Invalid value x for configuration retention.ms: Not a number of type LONG",
        ),
        (
            BROKER,
            {"log_retention_hours": "5"},
            InvalidRequest,
            "Cannot update these configs dynamically: Set(log.retention.hours)",
        ),
        (Resource(ResourceKind.BROKER, "2"), {}, InvalidRequest, "Unexpected broker id, expected 1, but received 2"),
        (Resource(ResourceKind.TOPIC, "none"), {}, UnknownTopicOrPartition, "The topic 'none' does not exist."),
    ],
)
def test_replacing_is_refused_in_kafkas_words(
    resource: Resource, values: Mapping[str, str | None], error: type[LogError], message: str
) -> None:
    with pytest.raises(error) as raised:
        replaced(EMPTY, resource, **values)
    assert str(raised.value) == message


def test_an_unknown_broker_config_is_refused_with_the_nearest_name() -> None:
    # Kafka stores it silently, as if it were a secret.
    with pytest.raises(
        InvalidConfig, match=r"Unknown broker config name: retention.ms \(did you mean log.retention.ms"
    ):
        NODE.alter(EMPTY, EVERY_BROKER, [ConfigAlteration("retention.ms", SET, "4")])


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        (
            {"local.retention.ms": "2000", "retention.ms": "1000"},
            "Invalid value 2000 for configuration local.retention.ms: "
            "Value must not be more than retention.ms property value: 1000",
        ),
        (
            {"local.retention.bytes": "-1", "retention.bytes": "1000"},
            "Invalid value -1 for configuration local.retention.bytes: "
            "Value must not be -1 as retention.bytes value is set as 1000.",
        ),
    ],
)
def test_local_retention_above_the_whole_is_refused_on_tiered_topics(configs: Mapping[str, str], message: str) -> None:
    with pytest.raises(InvalidConfig) as error:
        TIERED.check_new_topic(EMPTY, configs)
    assert str(error.value) == message
    assert NODE.check_new_topic(EMPTY, configs) == configs
    assert TIERED.check_new_topic(EMPTY, {**configs, "remote.storage.enable": "false"})


def test_a_compacted_topic_may_be_tiered() -> None:
    assert TIERED.check_new_topic(EMPTY, {"cleanup.policy": "compact", "remote.storage.enable": "true"})


def test_all_configs_that_are_null_are_named() -> None:
    with pytest.raises(InvalidConfig, match=r"^Null value not supported for topic configs: a,retention.ms$"):
        NODE.check_new_topic(EMPTY, {"retention.ms": None, "a": None, "segment.ms": "1"})


@pytest.mark.parametrize(
    ("resource", "error", "message"),
    [
        (Resource(ResourceKind.TOPIC, "none"), UnknownTopicOrPartition, "The topic 'none' does not exist."),
        (Resource(ResourceKind.BROKER, "x"), InvalidRequest, "Broker id must be an integer, but it is: x"),
        (
            Resource(ResourceKind.BROKER, "2"),
            InvalidRequest,
            "Unexpected broker id, expected 1 or empty string, but received 2",
        ),
    ],
)
def test_describing_what_is_not_there(resource: Resource, error: type[LogError], message: str) -> None:
    with pytest.raises(error) as raised:
        NODE.describe(EMPTY, resource)
    assert str(raised.value) == message


def test_unknown_names_are_left_out_of_a_description() -> None:
    assert [entry.name for entry in NODE.describe(EMPTY, Z, ["segment.ms", "nope"])] == ["segment.ms"]


def test_a_new_topic_is_described_with_its_configs() -> None:
    entries = {entry.name: entry for entry in NODE.describe_new_topic(EMPTY, {"segment.ms": "5"})}
    assert (entries["segment.ms"].value, entries["segment.ms"].source) == ("5", ConfigSource.DYNAMIC_TOPIC)
    assert entries["segment.bytes"].source is ConfigSource.DEFAULT


# --- starting ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"log.retentio.ms": "5"}, "Unknown broker config name: log.retentio.ms (did you mean log.retention.ms"),
        ({"retention.ms": "5"}, "Unknown broker config name: retention.ms (did you mean log.retention.ms"),
        ({"num.partitions": "0"}, "Invalid value 0 for configuration num.partitions: Value must be at least 1"),
        ({"num.partitions": "many"}, "Invalid value many for configuration num.partitions: Not a number of type INT"),
        ({"node.id": "5"}, "node.id is not set directly: it follows from the node's own setting node_id"),
        ({"log.dirs": "/x"}, "log.dirs is not set directly: it follows from the node's own setting data_dir"),
        (
            {"super.users": "User:me"},
            "Configuration super.users cannot be set to User:me: this version serves plaintext",
        ),
        ({"tidelog.disk.watermark.slow": "0.99"}, "tidelog.disk.watermark.slow (0.99) must be above 0 and not above"),
    ],
)
def test_static_values_are_checked_before_anything_starts(values: Mapping[str, str], message: str) -> None:
    with pytest.raises(InvalidConfig) as error:
        check_static(values)
    assert str(error.value).startswith(message)


def test_typed_look_ups() -> None:
    node = Resolver(
        check_static({"num.partitions": "3", "auto.create.topics.enable": "FALSE"}), node_id=1, has_store=True
    )
    assert node.broker(EMPTY).num_partitions == 3
    assert node.broker(EMPTY).auto_create_topics_enable is False
    assert node.broker(EMPTY).tidelog_disk_watermark_refuse == 0.95
    assert node.broker(EMPTY).broker_rack is None
    assert node.broker(EMPTY).log_local_retention_ms == 3_600_000
