"""The registry has all of Kafka 4.2.1's configs, with Kafka's types, defaults and rules."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from grpc_api.contract.topics import ConfigEntry, ConfigSource, Resource, ResourceKind
from service.configs.broker_keys import BROKER_KEYS
from service.configs.describing import ConfigDescriptions
from service.configs.differences import DIFFERENCES
from service.configs.keys import ConfigEffect, ConfigKey, ConfigScope, Dynamic, Registry
from service.configs.resolve import Resolver
from service.configs.topic_keys import TOPIC_KEYS
from service.configs.types import format_value
from service.metadata.image import MetadataImage
from storage_tiers.errors import InvalidConfig
from storage_tiers.hot.settings import LogSettings
from tests.service.metadata.records import new_topic

#: The answer of Apache Kafka 4.2.1 to DescribeConfigs, for a fresh topic and for a broker with almost no settings.
RECORDED = list(
    csv.DictReader(
        (Path(__file__).parent / "kafka_4_2_1.tsv").open(encoding="utf-8"), delimiter="\t", quoting=csv.QUOTE_NONE
    )
)
IMAGE = MetadataImage().apply_batch(new_topic("fresh", 1))
NODE = Resolver({}, node_id=1, has_store=False)
TOPIC = Resource(ResourceKind.TOPIC, "fresh")
BROKER = Resource(ResourceKind.BROKER, "1")

#: Rows that cannot match: the value is the node's own, or (super.users) Kafka's broker does not define the key.
NOT_COMPARED = {"node.id", "broker.id", "process.roles", "super.users"}
#: Kafka can change its listeners while it runs; this node cannot.
OURS_READ_ONLY = {"listeners", "listener.security.protocol.map"}


SEEN = ("type", "default", "read_only", "sensitive", "default_synonyms")


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
    return {name: {key: row[key] for key in SEEN} for name, row in rows.items()}


def test_a_fresh_topic_is_described_as_kafka_describes_it() -> None:
    described = {entry.name: seen(entry) for entry in ConfigDescriptions(NODE).describe(IMAGE, TOPIC)}
    ours = {name for name in described if name.startswith("tidelog.")}
    assert {name: described[name] for name in described if name not in ours} == recorded("topic")
    assert ours == {"tidelog.tier.max.lag.ms", "tidelog.record.validation"}


def test_the_brokers_keys_are_described_as_kafka_describes_them() -> None:
    kafka = recorded("broker")
    described = {entry.name: seen(entry) for entry in ConfigDescriptions(NODE).describe(IMAGE, BROKER)}
    compared = [name for name in kafka if name not in NOT_COMPARED]
    assert {name: described[name] for name in compared} == {name: kafka[name] for name in compared}
    assert {name for name in described if name not in kafka} == {
        name for name in described if name.startswith("tidelog.")
    }


@pytest.mark.parametrize("row", [row for row in RECORDED if row["rule"] != "-"], ids=lambda row: row["name"])
def test_every_rule_has_kafkas_bounds(row: dict[str, str]) -> None:
    key = (TOPIC_KEYS if row["scope"] == "topic" else BROKER_KEYS).get(row["name"])
    good, bad = bounds(row["rule"])
    for text in good:
        try:
            key.parse(text)
        except InvalidConfig as error:
            assert key.effect is ConfigEffect.REFUSED, error
            assert key.reason in str(error)
    for text in bad:
        with pytest.raises(InvalidConfig, match=r"Invalid value .* for configuration"):
            key.parse(text)
    assert good or bad


def bounds(rule: str) -> tuple[list[str], list[str]]:
    """Values at the edges of a rule (in Kafka's own text), which the rule allows, and values just beyond, which it
    refuses."""
    if rule == "non-empty string":
        return ["x"], [""]
    if rule in ("non-null string", "non-empty list"):
        return ["x"], []  # no text stands for null, and an empty list is a default
    if rule.startswith("[partitionId]"):
        return ["0:1,1:2", "*"], ["0", "0:x"]
    ends = re.fullmatch(r"\[(-?\d+),\.\.\.,?(-?\d*)\](?: or (-?\d+))?", rule)
    if ends is None:
        names = rule.removeprefix("(case insensitive) ").strip("[]").split(", ")
        return names, ["nonsense"]
    low, high, other = ends.groups()
    good = [text for text in (low, high, other) if text]
    return good, [str(int(low) - 1)] + ([str(int(high) + 1)] if high else [])


def test_every_update_mode_is_kafkas() -> None:
    rows = {row["name"]: row["dynamic"] for row in RECORDED if row["scope"] == "broker"}
    ours = {key.name: key.dynamic.value for key in BROKER_KEYS if key.name in rows and key.name not in OURS_READ_ONLY}
    assert ours == {name: mode for name, mode in rows.items() if name in ours}
    assert len(ours) > 310


@pytest.mark.parametrize("registry", [TOPIC_KEYS, BROKER_KEYS], ids=["topic", "broker"])
def test_every_row_is_sound(registry: Registry) -> None:
    for key in registry:
        assert key.scope is registry.scope, key.name
        assert key.documentation.endswith((".", ".)")), key.name
        assert (key.effect is ConfigEffect.HONOURED) == (not key.reason), key.name
        for synonym in key.synonyms:
            assert BROKER_KEYS.find(synonym.name) is not None, (key.name, synonym.name)
        default = format_value(key.default)
        if default is not None and key.name != "broker.id":
            assert key.parse(default) == key.default, key.name


def test_a_registry_names_no_key_twice() -> None:
    for registry in (TOPIC_KEYS, BROKER_KEYS):
        names = [key.name for key in registry]
        assert names == sorted(set(names))


def test_each_difference_has_kafkas_default_and_ours() -> None:
    with_store = Resolver({}, node_id=1, has_store=True)
    for difference in DIFFERENCES:
        key = TOPIC_KEYS.find(difference.key) or BROKER_KEYS.get(difference.key)
        assert key.default == difference.kafka
        resource = TOPIC if key.scope is ConfigScope.TOPIC else BROKER
        (entry,) = ConfigDescriptions(with_store).describe(IMAGE, resource, [difference.key])
        assert (entry.value, entry.source) == (format_value(difference.tidelog), ConfigSource.DEFAULT)
        assert difference.reason


def test_with_a_store_nothing_but_the_table_differs() -> None:
    with_store = Resolver({}, node_id=1, has_store=True)
    changed = {
        entry.name
        for resource in (TOPIC, BROKER)
        for entry, other in zip(
            ConfigDescriptions(with_store).describe(IMAGE, resource),
            ConfigDescriptions(NODE).describe(IMAGE, resource),
            strict=True,
        )
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


@pytest.mark.parametrize(
    ("registry", "name", "instead"),
    [
        (BROKER_KEYS, "zookeeper.connect", "there is no ZooKeeper"),
        (BROKER_KEYS, "advertised.host.name", "write listeners and advertised.listeners"),
        (TOPIC_KEYS, "message.timestamp.difference.max.ms", "write message.timestamp.before.max.ms and"),
    ],
)
def test_keys_of_earlier_kafkas_name_their_replacement(registry: Registry, name: str, instead: str) -> None:
    with pytest.raises(InvalidConfig, match=f"Unknown {registry.scope.value} config name: {name} .*{instead}"):
        registry.get(name)


def test_refusals_show_no_secret() -> None:
    secrets = [key for key in BROKER_KEYS if key.sensitive]
    assert len(secrets) == 10
    for key in secrets:
        with pytest.raises(InvalidConfig) as error:
            key.parse("hunter2")
        assert "hunter2" not in str(error.value)
        assert "[hidden]" in str(error.value)


def test_refused_keys_take_their_default_only() -> None:
    key = BROKER_KEYS.get("authorizer.class.name")
    assert key.parse("") == ""
    with pytest.raises(InvalidConfig, match=r"authorizer.class.name cannot be set to x.Y: .*would protect nothing"):
        key.parse("x.Y")


def test_only_topic_and_cluster_wide_keys_are_inherited() -> None:
    dynamic: dict[str, ConfigKey] = {key.name: key for key in BROKER_KEYS if key.dynamic is not Dynamic.READ_ONLY}
    assert dynamic["log.retention.ms"].dynamic is Dynamic.CLUSTER_WIDE
    assert "log.retention.hours" not in dynamic
