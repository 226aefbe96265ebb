"""Precedence, description and change of configs; the error texts are those of Apache Kafka 4.2.1."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from grpc_api.contract.topics import ConfigAlteration, ConfigSource, Resource, ResourceKind
from service.configs.describing import ConfigDescriptions
from service.configs.resolve import Resolver, check_static
from storage_tiers.errors import (
    InvalidConfig,
    InvalidRequest,
    LogError,
    UnknownTopicOrPartition,
)
from tests.service.configs.support import (
    BROKER,
    EMPTY,
    EVERY_BROKER,
    NODE,
    SET,
    TIERED,
    Z,
    altered,
    described,
    listed,
)

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
def test_retention_is_set_in_any_of_its_units(static: Mapping[str, str], retention_ms: int) -> None:
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


def test_the_default_of_all_brokers_shows_only_set_keys() -> None:
    assert not ConfigDescriptions(NODE).describe(EMPTY, EVERY_BROKER)
    image = altered(EMPTY, EVERY_BROKER, ("log.segment.bytes", SET, "2000000"))
    (entry,) = ConfigDescriptions(NODE).describe(image, EVERY_BROKER)
    assert (entry.name, entry.value, entry.source) == ("log.segment.bytes", "2000000", 3)
    assert listed(entry) == [("log.segment.bytes", "2000000", 3)]


def test_a_node_describes_its_startup_configs() -> None:
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
def test_local_retention_that_refers_to_the_total_retention_has_its_value(
    local: str, whole: str, expected: int
) -> None:
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


def test_internal_topics_reach_the_bucket_sooner_by_default() -> None:
    assert TIERED.topic(EMPTY, "z").tidelog_tier_max_lag_ms == 3_600_000
    assert TIERED.topic(EMPTY, "__consumer_offsets").tidelog_tier_max_lag_ms == 600_000
    image = altered(EMPTY, EVERY_BROKER, ("tidelog.tier.max.lag.ms", SET, "5"))
    assert TIERED.topic(image, "__consumer_offsets").tidelog_tier_max_lag_ms == 5


# --- describing ---------------------------------------------------------------------------------------------------------


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
def test_missing_resources_cannot_be_described(resource: Resource, error: type[LogError], message: str) -> None:
    with pytest.raises(error) as raised:
        ConfigDescriptions(NODE).describe(EMPTY, resource)
    assert str(raised.value) == message


def test_unknown_names_are_left_out_of_a_description() -> None:
    assert [entry.name for entry in ConfigDescriptions(NODE).describe(EMPTY, Z, ["segment.ms", "nope"])] == [
        "segment.ms"
    ]


def test_a_new_topic_is_described_with_its_configs() -> None:
    entries = {entry.name: entry for entry in ConfigDescriptions(NODE).describe_new_topic(EMPTY, {"segment.ms": "5"})}
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
        ({"node.id": "5"}, "node.id is not set directly: the node's own setting node_id determines it"),
        ({"log.dirs": "/x"}, "log.dirs is not set directly: the node's own setting data_dir determines it"),
        (
            {"super.users": "User:me"},
            "Configuration super.users cannot be set to User:me: this version serves plaintext",
        ),
        ({"tidelog.disk.watermark.slow": "0.99"}, "tidelog.disk.watermark.slow (0.99) must be above 0 and not above"),
        (
            {"group.coordinator.rebalance.protocols": "consumer, share"},
            "Disabling the 'classic' protocol is not supported.",
        ),
        (
            {"offsets.topic.compression.codec": "5"},
            "Invalid value 5 for configuration offsets.topic.compression.codec: Value must be no more than 4",
        ),
    ],
)
def test_static_values_are_checked_before_anything_starts(values: Mapping[str, str], message: str) -> None:
    with pytest.raises(InvalidConfig) as error:
        check_static(values)
    assert str(error.value).startswith(message)


def test_typed_attributes_have_the_values_of_configs() -> None:
    node = Resolver(
        check_static({"num.partitions": "3", "auto.create.topics.enable": "FALSE"}), node_id=1, has_store=True
    )
    assert node.broker(EMPTY).num_partitions == 3
    assert node.broker(EMPTY).auto_create_topics_enable is False
    assert node.broker(EMPTY).tidelog_disk_watermark_refuse == 0.95
    assert node.broker(EMPTY).broker_rack is None
    assert node.broker(EMPTY).log_local_retention_ms == 3_600_000


def test_the_active_segment_of_a_compacted_topic_is_closed_by_max_compaction_lag() -> None:
    """A record is compacted only once its segment is closed."""
    lag = ("max.compaction.lag.ms", SET, "1000")
    kept, compacted = (
        altered(EMPTY, Z, ("cleanup.policy", SET, policy), lag) for policy in ("delete", "compact,delete")
    )
    assert NODE.log_settings(kept, "z").segment_ms == 604_800_000
    assert NODE.log_settings(compacted, "z").segment_ms == 1000
    shorter = altered(compacted, Z, ("segment.ms", SET, "500"))
    assert NODE.log_settings(shorter, "z").segment_ms == 500
