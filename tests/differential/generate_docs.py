"""docs/compatibility.md, from the tables that the comparison uses. Writer: `python -m tests.differential.generate_docs`."""

from __future__ import annotations

import re
from pathlib import Path

from kafka_gateway.fetch_sessions import PARTITIONS_A_SESSION
from kafka_gateway.handlers.api_versions import LIBRDKAFKA_KEYS
from kafka_gateway.hot_parse import PARTITIONS_A_REQUEST, TAGS
from kafka_gateway.message_reader import ROWS_A_REQUEST
from kafka_gateway.message_writer import ANSWER_BYTES
from kafka_gateway.messages import MESSAGE_BYTES
from kafka_gateway.registry import APIS
from kafka_gateway.settings import GatewaySettings
from service.broker.api.append_queues import MAX_HELD_BYTES
from service.configs.types import LONGEST_VALUE
from storage_tiers.records.record_errors import MAX_NAMED
from storage_tiers.turns import AT_WORK
from tests.differential.rules import ABSENT, ANY, LATER, NORMALISED, ON_PURPOSE, Kind, OnPurpose
from tests.support.kafka_jars import VERSION

PATH = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"

_HEAD = f"""# Compatibility with Apache Kafka {VERSION}

Clients need not know that they talk to tidelog: what it answers is what Apache Kafka answers. This page says how that is
checked, and where it is not so.

```sh
make differential                       # three minutes on two cores; needs Java, and Maven once
make differential ARGS="-k list_offsets"
```

starts Apache Kafka {VERSION} (from Maven Central, one KRaft node) and a tidelog node with a store, both with their default
configs, and holds the same conversations with each: every API that tidelog serves, in every version, the good path and
what goes wrong (unknown, malformed, out of order, stale, too large, twice). Requests are encoded and answers decoded by
[kio](https://pypi.org/project/kio/); record batches are read down to the single record. Every field of every answer is
compared, and is equal, or stands in one of the tables below, or fails the run. A table's row that nothing meets any more
fails it as well. Twenty faults seeded into tidelog's answers are each reported, and the number of fields compared
(`tests/differential/counts.json`) may only rise.

This page is made by `make docs` from `tests/differential/rules.py`.

## Served

"""

_NORMALISED = """
## What a broker chooses by itself

These fields cannot be equal; what of them is compared is said behind.

"""

_PURPOSE = """
## Different on purpose

"""

_BOUNDS = """
## Bounds that Kafka does not have

A request that takes long is read, done and written in slices, between which everybody else is served; Produce alone is parsed
in one go. It ends when its client has left, and rows done by then stay done, while Kafka goes on; batches of a Produce are
appended all the same. What one caller can ask for, and what all of them can make a node hold, is bounded:

"""

_BEYOND = (
    (
        "rows of a request (elements of all its arrays), Produce and Fetch aside",
        f"{ROWS_A_REQUEST:,}",
        "POLICY_VIOLATION for rows before the bound, by name; the others are not in the answer, and nothing is done",
    ),
    ("topics, and partitions, of a Produce or Fetch", f"{PARTITIONS_A_REQUEST:,}", "the connection ends"),
    ("tagged fields of one structure of a request, and of its header", str(TAGS), "the connection ends"),
    ("characters of a config's value", f"{LONGEST_VALUE:,}", "INVALID_CONFIG"),
    ("bytes of a request, Produce and Fetch aside", f"{MESSAGE_BYTES >> 20} MiB", "the connection ends"),
    ("bytes of an answer, Produce and Fetch aside", f"{ANSWER_BYTES >> 20} MiB", "POLICY_VIOLATION"),
    ("partitions of a fetch session", f"{PARTITIONS_A_SESSION:,}", "no session: each Fetch names all of them"),
    ("requests in slices under way together", str(AT_WORK), "the others wait in the order in which they came"),
    (
        "bytes of batches that are validated in threads: they inflate to much, or their records are at fault",
        f"{MAX_HELD_BYTES >> 20} MiB",
        "REQUEST_TIMED_OUT",
    ),
    ("records of a refused batch that are named", str(MAX_NAMED), "the batch is refused without naming more"),
    (
        "bytes of requests that are not whole, wait or are worked on, and of large answers that are not read",
        f"{GatewaySettings().request_memory_bytes >> 30} GiB of all connections",
        "who holds most is closed",
    ),
)

_LATER = """
## Not served yet

Not advertised either, so that clients do without, or say so. One exception: librdkafka takes a broker without FindCoordinator
for one without lz4, so it alone is told of FindCoordinator, and answered that there is no coordinator
([clients.md](clients.md)).

"""


def page() -> str:
    return "".join(
        (_HEAD, _served(), _NORMALISED, _normalised(), _PURPOSE, _purposes(), _BOUNDS, _bounds(), _LATER, _later())
    )


def _served() -> str:
    rows = [
        f"| {api.key} | {api.name} | {api.served_from} to {api.highest} |"
        for api in APIS
        if api.key not in LIBRDKAFKA_KEYS
    ]
    return _table("key", "API", "versions") + "\n".join(rows) + "\n"


def _normalised() -> str:
    found: dict[Kind, list[str]] = {}
    for rule in NORMALISED:
        found.setdefault(rule.kind, []).append(f"{_api(rule.api)} `{_plain(rule.path)}`")
    rows = [f"| {'; '.join(fields)} | {kind.value} |" for kind, fields in found.items()]
    return _table("fields", "compared") + "\n".join(rows) + "\n"


def _purposes() -> str:
    found: dict[str, list[OnPurpose]] = {}
    for row in ON_PURPOSE:
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
    for api in LATER:
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
    return {None: "null", "": "empty", "<text>": "words"}.get(value, str(value))  # type: ignore[call-overload,no-any-return]


def _plain(path: str) -> str:
    """A rule's path for people: without the patterns that stand for any row."""
    path = re.sub(r"\.?<\*>", "", path).replace("<", "").replace(">", "")
    return re.sub(r"\.?\*\.?", ".", path).strip(".") or "everything"


def _api(name: str) -> str:
    return "every API" if name == "*" else "".join(part.capitalize() for part in name.split("_"))


def _table(*columns: str) -> str:
    return f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n"


if __name__ == "__main__":
    PATH.write_text(page())
