"""Kafka's broker configs that have no effect in tidelog. They are described, checked, and either accepted or refused.

`unsupported_configs.tsv` has a row per key; the row of a key that becomes honoured moves into code. Kind, default, update mode
and rule are those of Kafka 4.2.1. The reason says why the key has no effect. An accepted value is stored and shown, so that an
existing `server.properties` works unchanged. A key is refused, except for its default value, if a user would rely on behaviour
that this node does not have.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from grpc_api.contract.topics import ConfigKind
from service.configs.keys import ConfigEffect, ConfigKey, Dynamic, Synonym
from service.configs.types import Validator, any_case, between, non_empty, one_of, parse

TABLE = Path(__file__).with_name("unsupported_configs.tsv")
#: The cell of a key without a default or a rule.
NOTHING = "-"

REASONS = {
    "cleaner-pieces": "the log cleaner chooses the size of its reads and writes, up to 1 MiB",
    "cleaner-process": "one process cleans one log at a time; log.cleaner.io.max.bytes.per.second bounds it",
    "coordinators": "a coordinator writes the decisions of one turn of the event loop as one batch",
    "coordinators-load": "a coordinator reads its log in pieces of 256 KiB, small enough for one turn of the event loop",
    "deadlines": "there is no periodic search: each transaction and unused id has a deadline, at which the coordinator acts",
    "groups": "only groups of the classic protocol are served",
    "java": "this node is not a Java program and loads no classes",
    "kernel": "the kernel sizes socket buffers",
    "kernel-backlog": "the kernel's limit applies, up to 1024",
    "metrics": "metrics are served over HTTP, from counters",
    "one-directory": "a node has one data directory",
    "one-loop": "one event loop serves all connections and requests",
    "one-node": "brokers reach their controller by tidelog's own protocol, and a partition has one replica",
    "one-replica": "there is no replication: internal topics have one replica, whatever the factor",
    "own-metadata": "the metadata log is one file in tidelog's own format, rewritten as a snapshot as it grows",
    "own-plugin": (
        "the object store is chosen by the node's own setting `store`, and the manifests in it replace Kafka's "
        "remote log metadata"
    ),
    "own-tier": "one tier process does all object store work, within its own bounds",
    "quotas": "quotas are not served yet",
    "security": "this version serves plaintext without authentication or authorisation, so this config would protect nothing",
    "transactions": (
        "the broker sends the request once, and the coordinator answers when the producer's previous transaction is complete"
    ),
    "two-phase": "two-phase commit (KIP-939) is not served yet",
    "verified": "every transactional batch is verified, because a late one could begin a transaction that never ends",
    "unthrottled": "reads from the object store are not throttled",
    "windowless": "there is no window: the next offload waits as long as the earlier ones take at the permitted rate",
}


def unsupported_keys() -> Iterator[ConfigKey]:
    """All rows. Raises ValueError for a row that cannot be read."""
    with TABLE.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE, strict=True):
            yield _key(row)


def _key(row: dict[str, str]) -> ConfigKey:
    name, kind = row["name"], ConfigKind[row["type"].upper()]
    return ConfigKey(
        name,
        kind,
        None if row["default"] == NOTHING else parse(name, kind, row["default"]),
        row["documentation"],
        validator=_rule(kind, row["rule"]),
        synonyms=(Synonym(name),),
        dynamic=Dynamic(row["dynamic"]),
        effect=ConfigEffect(row["effect"]),
        reason=REASONS[row["reason"]],
    )


def _rule(kind: ConfigKind, text: str) -> Validator | None:
    """Parses `low..high` (either may be omitted), `one of: a, b`, `one of, any case: A, B`, `non-empty`, or `-` for no rule."""
    if text == NOTHING:
        return None
    if text == "non-empty":
        return non_empty
    for prefix, rule in (("one of: ", one_of), ("one of, any case: ", any_case)):
        if text.startswith(prefix):
            return rule(*text.removeprefix(prefix).split(", "))
    low, _, high = text.partition("..")
    number = float if kind is ConfigKind.DOUBLE else int
    return between(number(low) if low else None, number(high) if high else None)
