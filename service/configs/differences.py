"""The defaults that differ from Kafka's, and the reasons. The reference page of configs shows this table.

The differences apply to nodes with an object store. Without a store, every default is Kafka's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from service.configs.topic_keys import HOUR_MS
from service.configs.types import Value


class Difference(NamedTuple):
    """A key whose default is not Kafka's, and the reason."""

    key: str
    kafka: Value
    tidelog: Value
    reason: str


_LOCAL = "the bucket holds everything, so the local disk needs only the records that tailing consumers read"

DIFFERENCES = (
    Difference(
        "remote.storage.enable",
        False,
        True,
        "tidelog exists to keep history in the bucket; set false for a topic that should stay local",
    ),
    Difference("local.retention.ms", -2, HOUR_MS, _LOCAL),
    Difference("local.retention.bytes", -2, 1 << 30, _LOCAL + "; the first of the two bounds applies"),
    Difference("log.local.retention.ms", -2, HOUR_MS, _LOCAL),
    Difference("log.local.retention.bytes", -2, 1 << 30, _LOCAL + "; the first of the two bounds applies"),
)

DEFAULTS_WITH_STORE: Mapping[str, Value] = {difference.key: difference.tidelog for difference in DIFFERENCES}
