from __future__ import annotations

import csv
from pathlib import Path

import pytest

from grpc_api.contract.topics import ConfigEntry, ConfigSource, Resource, ResourceKind
from service.configs.broker_keys import BROKER_KEYS
from service.configs.differences import DIFFERENCES
from service.configs.keys import ConfigKey, Dynamic, Effect, Registry, Scope
from service.configs.resolve import Resolver
from service.configs.topic_keys import TOPIC_KEYS
from service.configs.types import format_value
from service.metadata.image import MetadataImage
from storage_tiers.errors import InvalidConfig
from storage_tiers.hot.settings import LogSettings
from tests.service.metadata.records import new_topic

#: What Apache Kafka 4.2.1 answered to DescribeConfigs of a fresh topic and of a broker that was told almost nothing.
RECORDED = list(
    csv.DictReader(
        (Path(__file__).parent / "kafka_4_2_1.tsv").open(encoding="utf-8"), delimiter="\t", quoting=csv.QUOTE_NONE
    )
)
IMAGE = MetadataImage().apply_batch(new_topic("fresh", 1))
NODE = Resolver({}, node_id=1, has_store=False)
TOPIC = Resource(ResourceKind.TOPIC, "fresh")
BROKER = Resource(ResourceKind.BROKER, "1")

#: Rows that cannot be equal: the node says these of itself, or (super.users) Kafka's broker does not define the key.
NOT_COMPARED = {"node.id", "broker.id", "process.roles", "super.users"}
#: Kafka may move a listener while it runs; this node may not.
OURS_READ_ONLY = {"listeners"}


def seen(entry: ConfigEntry) -> dict[str, str]:
    defaults = [s for s in entry.synonyms if s.source is ConfigSource.DEFAULT]
    return {
        "type": entry.kind.name,
        "default": "(none)" if entry.value is None else entry.value,
        "read_only": "false" if entry.name in OURS_READ_ONLY else str(entry.read_only).lower(),
        "sensitive": str(entry.sensitive).lower(),
        "default_synonyms": " ".join(f"{s.name}={s.value}" for s in defaults),
    }


def recorded(scope: str) -> dict[str, dict[str, str]]:
    rows = {row["name"]: row for row in RECORDED if row["scope"] == scope}
    return {name: {key: row[key] for key in row if key not in ("scope", "name")} for name, row in rows.items()}


def test_a_fresh_topic_is_described_as_kafka_describes_it() -> None:
    described = {entry.name: seen(entry) for entry in NODE.describe(IMAGE, TOPIC)}
    ours = {name for name in described if name.startswith("tidelog.")}
    assert {name: described[name] for name in described if name not in ours} == recorded("topic")
    assert ours == {"tidelog.tier.max.lag.ms", "tidelog.record.validation"}


def test_the_brokers_keys_are_described_as_kafka_describes_them() -> None:
    kafka = recorded("broker")
    described = {entry.name: seen(entry) for entry in NODE.describe(IMAGE, BROKER)}
    compared = [name for name in described if name in kafka and name not in NOT_COMPARED]
    assert {name: described[name] for name in compared} == {name: kafka[name] for name in compared}
    assert len(compared) > 60
    assert {name for name in described if name not in kafka} == {
        name for name in described if name.startswith("tidelog.")
    }


@pytest.mark.parametrize("registry", [TOPIC_KEYS, BROKER_KEYS], ids=["topic", "broker"])
def test_every_row_is_sound(registry: Registry) -> None:
    for key in registry:
        assert key.scope is registry.scope, key.name
        assert key.documentation.endswith((".", ".)")), key.name
        assert (key.effect is Effect.HONOURED) == (not key.reason), key.name
        for synonym in key.synonyms:
            assert BROKER_KEYS.find(synonym.name) is not None, (key.name, synonym.name)
        default = format_value(key.default)
        if default is not None and key.name != "broker.id":
            assert key.parse(default) == key.default, key.name


def test_a_registry_names_no_key_twice() -> None:
    for registry in (TOPIC_KEYS, BROKER_KEYS):
        names = [key.name for key in registry]
        assert names == sorted(set(names))


def test_differences_tell_kafkas_default_and_ours() -> None:
    with_store = Resolver({}, node_id=1, has_store=True)
    for difference in DIFFERENCES:
        key = TOPIC_KEYS.find(difference.key) or BROKER_KEYS.get(difference.key)
        assert key.default == difference.kafka
        resource = TOPIC if key.scope is Scope.TOPIC else BROKER
        (entry,) = with_store.describe(IMAGE, resource, [difference.key])
        assert (entry.value, entry.source) == (format_value(difference.tidelog), ConfigSource.DEFAULT)
        assert difference.reason


def test_with_a_store_nothing_but_the_table_differs() -> None:
    with_store = Resolver({}, node_id=1, has_store=True)
    changed = {
        entry.name
        for resource in (TOPIC, BROKER)
        for entry, other in zip(with_store.describe(IMAGE, resource), NODE.describe(IMAGE, resource), strict=True)
        if entry.value != other.value
    }
    assert changed == {difference.key for difference in DIFFERENCES} | {"remote.log.storage.system.enable"}


def test_a_logs_defaults_are_kafkas_where_it_is_built_without_configs() -> None:
    resolved = NODE.log_settings(IMAGE, "fresh")
    built = LogSettings(local_retention_ms=resolved.local_retention_ms, local_retention_bytes=-1)
    assert resolved == built


def test_unknown_keys_name_the_nearest() -> None:
    with pytest.raises(InvalidConfig) as error:
        BROKER_KEYS.get("log.retension.ms")
    assert str(error.value).startswith("Unknown broker config name: log.retension.ms (did you mean log.retention.ms")
    with pytest.raises(InvalidConfig, match=r"^Unknown topic config name: zzz$"):
        TOPIC_KEYS.get("zzz")


def test_refused_keys_take_their_default_only() -> None:
    key = BROKER_KEYS.get("authorizer.class.name")
    assert key.parse("") == ""
    with pytest.raises(InvalidConfig, match=r"authorizer.class.name cannot be set to x.Y: .*would protect nothing"):
        key.parse("x.Y")


def test_only_topic_and_cluster_wide_keys_are_inherited() -> None:
    dynamic: dict[str, ConfigKey] = {key.name: key for key in BROKER_KEYS if key.dynamic is not Dynamic.READ_ONLY}
    assert dynamic["log.retention.ms"].dynamic is Dynamic.CLUSTER_WIDE
    assert "log.retention.hours" not in dynamic
