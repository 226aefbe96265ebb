"""Changing configs: incremental changes, replacements, and each refusal in Kafka's words."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from grpc_api.contract.topics import ConfigAlteration, ConfigSource, Resource, ResourceKind
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
from tests.service.configs.support import (
    APPEND,
    BROKER,
    DELETE,
    EMPTY,
    EVERY_BROKER,
    NODE,
    SET,
    SUBTRACT,
    TIERED,
    Ops,
    Z,
    altered,
    described,
)


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
    """A request of 4 MB could append to a list any number of times."""
    name = "leader.replication.throttled.replicas"
    image = altered(EMPTY, Z, (name, SET, ",".join(f"{partition}:1" for partition in range(3_000))))
    for op in (APPEND, SUBTRACT):
        with pytest.raises(InvalidConfig, match="has 100000 characters; at most 32767 are allowed"):
            NODE.alter(image, Z, [ConfigAlteration(name, op, "1:1," * 25_000)])
    with pytest.raises(InvalidConfig, match="characters; at most 32767 are allowed"):
        NODE.alter(image, Z, [ConfigAlteration(name, APPEND, ",".join(f"{n}:2" for n in range(3_000)))])
    image = altered(image, Z, (name, SUBTRACT, ",".join(f"{partition}:1" for partition in range(1, 3_000))))
    assert described(image, Z, name).value == "0:1"


@pytest.mark.parametrize("kind", [ResourceKind.BROKER, ResourceKind.BROKER_LOGGER])
def test_a_broker_id_of_thousands_of_digits_is_refused(kind: ResourceKind) -> None:
    digits = "1" * 5_000
    with pytest.raises(InvalidRequest, match="1" * 5_000):
        if kind is ResourceKind.BROKER:
            NODE.alter(EMPTY, Resource(kind, digits), [])
        else:
            Loggers(1).describe(digits)


def test_unset_and_unknown_keys_may_be_deleted() -> None:
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
        "The value for configuration cleanup.policy has 70000 characters; at most 32767 are allowed",
    ),
    (BROKER, [("message.max.bytes", SET, None)], InvalidRequest, "Null value not supported for : message.max.bytes"),
    (Resource(ResourceKind.GROUP, "g"), [("a", SET, "1")], InvalidRequest, "Unknown resource type 32"),
]


@pytest.mark.parametrize(("resource", "ops", "error", "message"), REFUSED)
def test_illegal_alterations_are_refused(resource: Resource, ops: Ops, error: type[LogError], message: str) -> None:
    with pytest.raises(error) as raised:
        NODE.alter(EMPTY, resource, [ConfigAlteration(*op) for op in ops])
    assert type(raised.value) is error
    assert str(raised.value) == message


def replaced(image: MetadataImage, resource: Resource, **values: str | None) -> MetadataImage:
    given = [ConfigAlteration(name.replace("_", "."), SET, value) for name, value in values.items()]
    return image.apply_batch(NODE.alter(image, resource, given, replace=True))


def test_all_configs_that_are_set_may_be_replaced() -> None:
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
    # Kafka accepts an unknown config silently and stores it as a secret.
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
def test_local_retention_above_the_total_retention_is_refused_on_tiered_topics(
    configs: Mapping[str, str], message: str
) -> None:
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


CLEANER_BUFFER, CLEANER_THREADS = "log.cleaner.dedupe.buffer.size", "log.cleaner.threads"
NO_THREAD = "Log cleaner threads should be at least 1"
NO_ROOM = "log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread."


@pytest.mark.parametrize("resource", [BROKER, EVERY_BROKER])
@pytest.mark.parametrize(
    ("values", "refusal"),
    [
        ({CLEANER_THREADS: "0"}, NO_THREAD),
        ({CLEANER_THREADS: "-1"}, "Invalid value -1 for configuration log.cleaner.threads: Value must be at least 0"),
        ({CLEANER_BUFFER: "0"}, NO_ROOM),
        ({CLEANER_BUFFER: "-1"}, NO_ROOM),
        ({CLEANER_BUFFER: "1048576"}, NO_ROOM),
        ({CLEANER_BUFFER: "1048577"}, None),
        ({CLEANER_THREADS: "2", CLEANER_BUFFER: "2097153"}, NO_ROOM),
        ({CLEANER_THREADS: "2", CLEANER_BUFFER: "2097154"}, None),
        ({CLEANER_THREADS: "128"}, NO_ROOM),
    ],
)
def test_the_cleaner_has_a_thread_with_more_than_1_mib(
    resource: Resource, values: Mapping[str, str], refusal: str | None
) -> None:
    """The refusals are Kafka 4.2.1's, except that Kafka refuses zero threads with "/ by zero"."""
    changes = [ConfigAlteration(name, SET, text) for name, text in values.items()]
    if refusal is None:
        assert len(NODE.alter(EMPTY, resource, changes)) == len(values)
        check_static(values)
        return
    with pytest.raises(InvalidRequest) as error:
        NODE.alter(EMPTY, resource, changes)
    assert str(error.value) == refusal
    with pytest.raises(InvalidConfig) as error_at_start:
        check_static(values)
    assert str(error_at_start.value) == refusal


def test_the_cleaners_buffer_is_compared_with_the_threads_of_every_source() -> None:
    node = Resolver(check_static({CLEANER_BUFFER: "4194304"}), node_id=1, has_store=False)
    four = [ConfigAlteration(CLEANER_THREADS, SET, "4")]
    with pytest.raises(InvalidRequest, match="1MB per cleaner thread"):
        node.alter(EMPTY, EVERY_BROKER, four)
    image = altered(EMPTY, BROKER, (CLEANER_BUFFER, SET, "8388608"))
    image = image.apply_batch(node.alter(image, EVERY_BROKER, four))
    with pytest.raises(InvalidRequest, match="1MB per cleaner thread"):
        node.alter(image, BROKER, [ConfigAlteration(CLEANER_BUFFER, DELETE, None)])
    with pytest.raises(InvalidRequest, match="1MB per cleaner thread"):
        node.alter(image, BROKER, [], replace=True)
    assert node.alter(image, BROKER, [ConfigAlteration("log.cleaner.backoff.ms", SET, "1")])
    assert node.alter(image, EVERY_BROKER, [ConfigAlteration(CLEANER_BUFFER, SET, "2097152")]), (
        "the broker's own value is used"
    )
