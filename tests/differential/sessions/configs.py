"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources."""

from __future__ import annotations

from typing import Any

from tests.differential.judge import session
from tests.differential.message_trees import Tree
from tests.differential.peer import Peer

TOPIC, BROKER, LOGGER = 2, 4, 8
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
#: The broker configs that are compared.
BROKER_KEYS = [
    "log.retention.ms", "log.retention.bytes", "log.segment.bytes", "num.partitions", "message.max.bytes",
    "log.cleanup.policy", "compression.type", "auto.create.topics.enable", "min.insync.replicas", "log.roll.ms",
    "log.message.timestamp.type", "num.io.threads", "socket.request.max.bytes", "unclean.leader.election.enable",
    "ssl.keystore.password", "sasl.jaas.config", "default.replication.factor", "log.flush.interval.messages",
    "delete.topic.enable", "max.connections", "log.index.interval.bytes", "background.threads", "node.id",
]  # fmt: skip


def described(peer: Peer, version: int, label: str, kind: int, name: str, keys: Any, **values: Any) -> Tree:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    return peer.ask("describe_configs", version, label, resources=[resource], **values)


@session("describe_configs")
def topics(peer: Peer, version: int) -> None:
    plain = peer.create("plain")[0]
    special = peer.create("special", retention_ms="1234", cleanup_policy="compact,delete")[0]
    everything = {"include_synonyms": True}
    described(peer, version, "all of a plain topic", TOPIC, plain, None)
    described(peer, version, "all, with synonyms", TOPIC, plain, None, **everything)
    described(peer, version, "all of a topic with configs", TOPIC, special, None, **everything)
    described(peer, version, "some", TOPIC, special, ["retention.ms", "segment.bytes"], **everything)
    described(peer, version, "no key", TOPIC, special, [])
    described(peer, version, "unknown key", TOPIC, special, ["no.such.key", "retention.ms"])
    described(peer, version, "unknown topic", TOPIC, peer.named("nowhere"), None)
    described(peer, version, "illegal topic", TOPIC, "a/b", None)
    described(peer, version, "empty name", TOPIC, "", None)
    described(peer, version, "documentation", TOPIC, special, ["retention.ms"], include_documentation=True)
    both = [
        {"resource_type": TOPIC, "resource_name": name, "configuration_keys": ["retention.ms"]}
        for name in (special, peer.named("nowhere"), plain)
    ]
    peer.ask("describe_configs", version, "three", resources=both)
    peer.ask("describe_configs", version, "a topic twice", resources=[both[0], both[0]])
    peer.ask("describe_configs", version, "none", resources=[])


@session("describe_configs")
def brokers(peer: Peer, version: int) -> None:
    described(peer, version, "some", BROKER, "1", BROKER_KEYS)
    described(peer, version, "with synonyms", BROKER, "1", BROKER_KEYS, include_synonyms=True)
    described(peer, version, "the cluster's default", BROKER, "", BROKER_KEYS)
    described(peer, version, "every key, with synonyms", BROKER, "1", None, include_synonyms=True)
    described(peer, version, "another broker", BROKER, "7", BROKER_KEYS)
    described(peer, version, "a broker that is no number", BROKER, "one", BROKER_KEYS)
    described(peer, version, "unknown key", BROKER, "1", ["no.such.key"])


@session("describe_configs")
def other_resources(peer: Peer, version: int) -> None:
    for kind in (0, 1, 3, 5, 64, -1, 127):
        described(peer, version, f"type {kind}", kind, "x", None)


def alteration(name: str, value: str | None, operation: int = SET) -> dict[str, Any]:
    return {"name": name, "value": value, "config_operation": operation}


@session("incremental_alter_configs")
def topic_configs(peer: Peer, version: int) -> None:
    name = peer.create()[0]

    def ask(label: str, *configs: dict[str, Any], of: str = name, validate_only: bool = False) -> None:
        rows = [{"resource_type": TOPIC, "resource_name": of, "configs": list(configs)}]
        peer.ask("incremental_alter_configs", version, label, resources=rows, validate_only=validate_only)

    def look(label: str) -> None:
        keys = ["retention.ms", "cleanup.policy", "segment.bytes"]
        resource = {"resource_type": TOPIC, "resource_name": name, "configuration_keys": keys}

        peer.settle_same("describe_configs", 4, label, resources=[resource], include_synonyms=True)

    ask("set", alteration("retention.ms", "1000"))
    look("after setting")
    ask("set again", alteration("retention.ms", "2000"), alteration("segment.bytes", "2000000"))
    ask("append", alteration("cleanup.policy", "compact", APPEND))
    look("after appending")
    ask("append what is there", alteration("cleanup.policy", "compact", APPEND))
    ask("a list with spaces", alteration("cleanup.policy", " compact , delete "))
    look("after the list with spaces")
    ask("a list with an item twice", alteration("cleanup.policy", "delete,delete"))
    ask("a number with spaces", alteration("retention.ms", " 2000 "))
    look("after the number with spaces")
    ask("restored", alteration("cleanup.policy", "delete,compact"))
    ask("subtract", alteration("cleanup.policy", "delete", SUBTRACT))
    ask("subtract what is not there", alteration("cleanup.policy", "delete", SUBTRACT))
    look("after subtracting")
    ask("delete", alteration("retention.ms", None, DELETE))
    ask("delete what is not there", alteration("flush.ms", None, DELETE))
    look("after deleting")
    ask("append to a number", alteration("retention.ms", "1", APPEND))
    ask("no number", alteration("retention.ms", "soon"))
    ask("out of range", alteration("retention.ms", "-2"))
    ask("unknown key", alteration("no.such.key", "1"))
    ask("empty key", alteration("", "1"))
    ask("null", alteration("retention.ms", None))
    ask("unknown operation", alteration("retention.ms", "1", 9))
    ask("a key twice", alteration("retention.ms", "1"), alteration("retention.ms", "2"))
    ask("a right one and a wrong one", alteration("retention.ms", "5000"), alteration("segment.bytes", "-1"))
    ask("only tried", alteration("retention.ms", "7000"), validate_only=True)
    ask("only tried and wrong", alteration("retention.ms", "-7"), validate_only=True)
    ask("unknown topic", alteration("retention.ms", "1"), of=peer.named("nowhere"))
    ask("illegal topic", alteration("retention.ms", "1"), of="a/b")
    ask("nothing")
    look("in the end")
    rows = [{"resource_type": TOPIC, "resource_name": name, "configs": [alteration("retention.ms", "1")]}] * 2
    peer.ask("incremental_alter_configs", version, "a topic twice", resources=rows)
    peer.ask("incremental_alter_configs", version, "no resource", resources=[])
    for kind in (0, 1, 3, 127):
        rows = [{"resource_type": kind, "resource_name": "x", "configs": []}]
        peer.ask("incremental_alter_configs", version, f"type {kind}", resources=rows)


@session("incremental_alter_configs")
def broker_configs(peer: Peer, version: int) -> None:
    def ask(label: str, name: str, *configs: dict[str, Any], validate_only: bool = False) -> None:
        rows = [{"resource_type": BROKER, "resource_name": name, "configs": list(configs)}]
        peer.ask("incremental_alter_configs", version, label, resources=rows, validate_only=validate_only)

    def look(label: str) -> None:
        keys = ["log.retention.ms", "message.max.bytes", "num.io.threads"]
        resources = [{"resource_type": BROKER, "resource_name": name, "configuration_keys": keys} for name in ("1", "")]
        peer.settle_same("describe_configs", 4, label, resources=resources, include_synonyms=True)

    ask("of the cluster", "", alteration("log.retention.ms", "500000000"))
    ask("of the broker", "1", alteration("log.retention.ms", "400000000"))
    look("both")
    ask("read only", "1", alteration("num.partitions", "7"))
    ask("read only, of the cluster", "", alteration("zookeeper.connect", "x"))
    ask("no number", "1", alteration("message.max.bytes", "many"))
    ask("unknown key", "1", alteration("no.such.key", "1"))
    ask("another broker", "7", alteration("log.retention.ms", "1"))
    ask("a broker that is no number", "one", alteration("log.retention.ms", "1"))
    ask("only tried", "1", alteration("message.max.bytes", "2000000"), validate_only=True)
    ask("delete of the broker", "1", alteration("log.retention.ms", None, DELETE))
    ask("delete of the cluster", "", alteration("log.retention.ms", None, DELETE))
    look("as before")


@session("alter_configs")
def replaced(peer: Peer, version: int) -> None:
    """AlterConfigs, the old API, resets every config that the request does not name."""
    name = peer.create(retention_ms="1", segment_bytes="2000000")[0]

    def ask(label: str, *configs: tuple[str, str | None], of: str = name, validate_only: bool = False) -> None:
        rows = [{"name": key, "value": value} for key, value in configs]
        resources = [{"resource_type": TOPIC, "resource_name": of, "configs": rows}]
        peer.ask("alter_configs", version, label, resources=resources, validate_only=validate_only)

    def look(label: str) -> None:
        keys = ["retention.ms", "segment.bytes"]
        resource = {"resource_type": TOPIC, "resource_name": name, "configuration_keys": keys}
        peer.settle_same("describe_configs", 4, label, resources=[resource], include_synonyms=True)

    ask("one of two", ("retention.ms", "5"))
    look("the other is reset")
    ask("only tried", ("retention.ms", "6"), validate_only=True)
    ask("no number", ("retention.ms", "soon"))
    ask("unknown key", ("no.such.key", "1"))
    ask("null", ("retention.ms", None))
    ask("a key twice", ("retention.ms", "1"), ("retention.ms", "2"))
    ask("unknown topic", ("retention.ms", "1"), of=peer.named("nowhere"))
    look("as it was")
    ask("none")
    look("all is reset")
    for kind, of in ((0, "x"), (1, "x"), (127, "x"), (BROKER, "7")):
        resources = [{"resource_type": kind, "resource_name": of, "configs": []}]
        peer.ask("alter_configs", version, f"type {kind}", resources=resources)


@session("alter_configs", versions=(2,))
def a_topic_twice(peer: Peer, version: int) -> None:
    twice = [{"resource_type": TOPIC, "resource_name": peer.create()[0], "configs": []}] * 2
    peer.ask_patiently("alter_configs", version, "twice", 2.0, resources=twice)


@session("list_config_resources")
def resources_with_configs(peer: Peer, version: int) -> None:
    name = peer.create(retention_ms="1")[0]

    def own(answer: Tree) -> Tree:
        return {
            **answer,
            "config_resources": [
                row
                for row in answer["config_resources"]
                if row.get("resource_type") != TOPIC or row["resource_name"] == name
            ],
        }

    for label, kinds in (
        ("all", []),
        ("topics", [TOPIC]),
        ("brokers", [BROKER]),
        ("loggers", [LOGGER]),
        ("metrics and groups", [16, 32]),
        ("unknown", [77]),
        ("one of two unknown", [TOPIC, 77]),
    ):
        peer.ask_for("list_config_resources", version, label, own, resource_types=kinds)
