"""docs/compatibility.md, generated from the comparison's tables by `python -m tests.differential.generate_docs`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from kafka_gateway.fetch_sessions import PARTITIONS_A_SESSION
from kafka_gateway.hot_parse import PARTITIONS_A_REQUEST, TAGS
from kafka_gateway.match_patterns import LONGEST_MATCHED, LONGEST_OF_THREE_REPEATS
from kafka_gateway.message_reader import ROWS_A_REQUEST
from kafka_gateway.message_writer import ANSWER_BYTES, ANSWER_ROWS
from kafka_gateway.messages import GROUP_REQUEST_BYTES, MESSAGE_BYTES
from kafka_gateway.registry import APIS
from kafka_gateway.settings import GatewaySettings
from service.broker.appending.append_queues import MAX_HELD_BYTES
from service.configs.types import LONGEST_VALUE
from service.coordination.groups.classic_groups import MAX_PROTOCOLS
from service.coordination.groups.member_memory import GROUPS_BYTES, MEMBERS_BYTES
from service.coordination.groups.rebalancing import PENDING_IDS
from service.coordination.transactions.patterns import MAX_LENGTH, MAX_STEPS
from service.coordination.transactions.transaction import IDS_BYTES
from storage_tiers.records.record_errors import MAX_NAMED
from storage_tiers.turns import AT_WORK
from tests.differential.faults import FAULTS, FAULTS_OF_THREE
from tests.differential.rules import ABSENT, ANY, NORMALISED, ON_PURPOSE, Kind, Normalised, OnPurpose
from tests.differential.rules_of_three import ONLY_OF_THREE, PURPOSE_OF_THREE
from tests.differential.unsupported_apis import UNSUPPORTED_APIS
from tests.support.kafka_jars import VERSION

PATH = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"

_HEAD = f"""# Compatibility with Apache Kafka {VERSION}

tidelog gives Kafka clients the answers that Apache Kafka gives. This page explains how that is checked, and lists the
exceptions.

```sh
make differential                       # six minutes on two cores; needs Java, and Maven once
make differential ARGS="-k list_offsets"
```

This starts Apache Kafka {VERSION} (from Maven Central, one KRaft node) and a tidelog node with a store, both with their default
configs, then [three brokers of each](#three-brokers), and sends the same requests to each side: every API that tidelog serves,
in every version, both valid and invalid (unknown, malformed, out of order, stale, too large, repeated).
[kio](https://pypi.org/project/kio/) encodes requests and decodes answers. Record batches are compared record by record. The
run fails if any field of any answer differs and is not listed in a table below, or if a row of a table no longer applies.
Each of {len(FAULTS) + len(FAULTS_OF_THREE)} faults that tests seed into tidelog's answers is detected, and the number of
compared fields (`tests/differential/counts.json`, `counts_of_three.json`) may only rise.

`make docs` generates this page from `tests/differential/rules.py`.

## Served

"""

_NORMALISED = """
## Values that each broker chooses

These fields cannot be equal. The second column says what is compared instead.

"""

_PURPOSE = """
## Different on purpose

"""

_DAMAGED = """
## Damaged coordinators

`tests/differential/test_damaged_coordinators.py` damages partitions of `__consumer_offsets` and `__transaction_state` on the
disks of both stopped brokers: keys and values that are cut off, of newer versions or missing, a wrong CRC, a missing index, an
empty segment. Groups get equal answers: records with unknown types of keys are skipped, a partition with an unreadable record
is answered with NOT_COORDINATOR, and all other partitions are served. Transactional ids differ on purpose. Kafka logs the
error and serves the records that it read before the damaged one, so it forgets newer transactions. tidelog answers
NOT_COORDINATOR for all ids of such a partition, and `/readyz` names it with the reason.
"""

_THREE = """
## Three brokers

Most sessions of requests run a second time on three brokers of Kafka with one controller and three of tidelog, in the lowest
and the highest version of their API. Each request goes to the broker that a client would ask: batches and reads to the
partition's leader, groups and transactional ids to their coordinator, and all others to any of the three. Topics, and the
coordinators' topics, are on the same brokers on both sides. So the ids of leaders, coordinators and replicas must be equal, and
each port must be that of the broker that the answer names. Further sessions ask every broker the same: data, groups and
transactions of which it is not the leader or coordinator (the answers name the leader's address, KIP-951), the cluster, its
topics and coordinators, explicit assignments, elections, and reassignments. One of them moves a partition. Requests about tiers
and clients' metrics are compared with one broker alone. With three brokers these fields are compared otherwise, or differ on
purpose:

"""

_BOUNDS = """
## Bounds that Kafka does not have

A long request is read, processed and answered in slices, and other requests are served between slices. If the client
disconnects, processing stops, and the rows processed by then stay in effect. Kafka would complete the request. The batches of a
Produce are always appended. The size of one request, and the memory that all of them use, are bounded:

"""

_BEYOND = (
    (
        "rows of a request (elements of all its arrays), Produce and Fetch aside",
        f"{ROWS_A_REQUEST:,}",
        "POLICY_VIOLATION for each row before the bound; further rows are not in the answer, and nothing is done",
    ),
    ("topics, and partitions, of a Produce or Fetch", f"{PARTITIONS_A_REQUEST:,}", "the connection ends"),
    ("tagged fields of one structure of a request, and of its header", str(TAGS), "the connection ends"),
    ("characters of a config's value", f"{LONGEST_VALUE:,}", "INVALID_CONFIG"),
    (
        "bytes of a request, Produce and Fetch aside",
        f"{MESSAGE_BYTES >> 20} MiB; "
        f"of a JoinGroup, SyncGroup, OffsetCommit or TxnOffsetCommit {GROUP_REQUEST_BYTES >> 20} MiB",
        "the connection ends",
    ),
    ("bytes of an answer, Produce and Fetch aside", f"{ANSWER_BYTES >> 20} MiB", "POLICY_VIOLATION"),
    ("rows of an answer (elements of all its arrays), Produce and Fetch aside", f"{ANSWER_ROWS:,}", "POLICY_VIOLATION"),
    ("partitions of a fetch session", f"{PARTITIONS_A_SESSION:,}", "no session: each Fetch names all of them"),
    (
        "unfinished requests that are processed in slices at a time; small and large requests are counted separately",
        str(AT_WORK),
        "further ones wait in order of arrival",
    ),
    (
        "bytes of batches that threads validate: those that are large once decompressed, or have faulty records",
        f"{MAX_HELD_BYTES >> 20} MiB",
        "REQUEST_TIMED_OUT",
    ),
    ("records named for a refused batch", str(MAX_NAMED), "the batch is refused without naming more"),
    (
        "bytes of incomplete, waiting or running requests, and of large unread answers",
        f"{GatewaySettings().request_memory_bytes >> 30} GiB of all connections",
        "the largest connection of the client address that uses the most memory is closed",
    ),
    ("protocols of one member of a group", str(MAX_PROTOCOLS), "INCONSISTENT_GROUP_PROTOCOL"),
    (
        "bytes that the members, and unused member ids, of all groups of a broker keep",
        f"{MEMBERS_BYTES >> 20} MiB",
        "COORDINATOR_NOT_AVAILABLE: clients join again",
    ),
    (
        "memory on a broker of groups without a committed offset, and of group names longer than 1,000 bytes",
        f"{GROUPS_BYTES >> 20} MiB",
        "COORDINATOR_NOT_AVAILABLE for a JoinGroup or OffsetCommit that would create another such group",
    ),
    (
        "bytes that transactional ids, and the partitions of their open transactions, keep on a broker",
        f"{IDS_BYTES >> 20} MiB",
        "COORDINATOR_NOT_AVAILABLE for a new id or further partitions",
    ),
    (
        "bytes of the subscriptions of a group's members",
        "`max.message.bytes` of `__consumer_offsets`",
        "GROUP_MAX_SIZE_REACHED when one joins; Kafka refuses the assignment",
    ),
    (
        "character comparisons that matching one transactional id against a ListTransactions pattern may need",
        f"{MAX_STEPS:,}",
        "the id does not match",
    ),
    ("characters of a pattern of ListTransactions", f"{MAX_LENGTH:,}", "INVALID_REGULAR_EXPRESSION"),
    (
        "length of a client's value (such as its client id) that the pattern of a client metrics subscription is matched "
        "against",
        f"{LONGEST_MATCHED}; with a pattern of three repeats {LONGEST_OF_THREE_REPEATS}",
        "the client does not match",
    ),
    (
        "partitions of `__consumer_offsets` and `__transaction_state`",
        "as created",
        "INVALID_PARTITIONS: another number would make groups' offsets and transactional ids impossible to find",
    ),
    (
        "unused member ids of a group",
        f"{PENDING_IDS:,}",
        "the oldest is forgotten; its client rejoins",
    ),
)

_LATER = """
## Not served yet

These APIs are not advertised. Clients do without them, or report that they are missing.

"""


def page() -> str:
    return "".join(
        (
            *(_HEAD, _served()),
            *(_NORMALISED, _normalised(NORMALISED), _PURPOSE, _purposes(ON_PURPOSE)),
            _DAMAGED,
            *(_THREE, _normalised(ONLY_OF_THREE), "\n", _purposes(PURPOSE_OF_THREE)),
            *(_BOUNDS, _bounds(), _LATER, _later()),
        )
    )


def _served() -> str:
    rows = [f"| {api.key} | {api.name} | {api.served_from} to {api.highest} |" for api in APIS]
    return _table("key", "API", "versions") + "\n".join(rows) + "\n"


def _normalised(rules: Iterable[Normalised]) -> str:
    found: dict[Kind, list[str]] = {}
    for rule in rules:
        found.setdefault(rule.kind, []).append(f"{_api(rule.api)} `{_plain(rule.path)}`")
    rows = [f"| {'; '.join(fields)} | {kind.value} |" for kind, fields in found.items()]
    return _table("fields", "compared") + "\n".join(rows) + "\n"


def _purposes(table: Iterable[OnPurpose]) -> str:
    found: dict[str, list[OnPurpose]] = {}
    for row in table:
        found.setdefault(row.reason, []).append(row)
    rows = [
        f"| {', '.join(dict.fromkeys(_api(row.api) for row in rows))} | {_what(rows)} | {reason} |"
        for reason, rows in found.items()
    ]
    return _table("API", "field", "why") + "\n".join(rows) + "\n"


def _bounds() -> str:
    return _table("what", "bound", "beyond it") + "".join(f"| {' | '.join(row)} |\n" for row in _BEYOND)


def _later() -> str:
    found: dict[str, list[str]] = {}
    for api in UNSUPPORTED_APIS:
        found.setdefault(api.what, []).append(f"{api.name} ({api.key})")
    rows = [f"| {what} | {', '.join(names)} |" for what, names in found.items()]
    return _table("what", "APIs") + "\n".join(rows) + "\n"


def _what(rows: list[OnPurpose]) -> str:
    said = (f"`{_plain(row.path)}`{_change(row)}" for row in rows)
    return "; ".join(dict.fromkeys(said))


def _change(row: OnPurpose) -> str:
    if row.tidelog is ANY or row.kafka is ANY:
        return ""
    kafka, tidelog = (_value(value) for value in (row.kafka, row.tidelog))
    return f": {kafka} → {tidelog}"


def _value(value: object) -> str:
    if value is ABSENT:
        return "none"
    return {None: "null", "": "empty", "<text>": "text"}.get(value, str(value))  # type: ignore[call-overload,no-any-return]


def _plain(path: str) -> str:
    """A rule's path for people, without the patterns for rows."""
    path = re.sub(r"\.?<\*>", "", path).replace("<", "").replace(">", "")
    return re.sub(r"\.?\*\.?", ".", path).strip(".") or "everything"


def _api(name: str) -> str:
    return "every API" if name == "*" else "".join(part.capitalize() for part in name.split("_"))


def _table(*columns: str) -> str:
    return f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n"


if __name__ == "__main__":
    PATH.write_text(page())
