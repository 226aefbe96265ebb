"""Where tidelog's defaults differ from Kafka's, and why. The reference page of configs is made from this table.

All of them hold on a node with an object store only; without one every default is Kafka's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from service.configs.topic_keys import HOUR_MS
from service.configs.types import Value


class Difference(NamedTuple):
    key: str
    kafka: Value
    tidelog: Value
    reason: str


_LOCAL = "the bucket holds everything, so the local disk needs only what consumers at the tail read"

DIFFERENCES = (
    Difference(
        "remote.storage.enable",
        False,
        True,
        "keeping history in the bucket is what tidelog is for; say false for a topic that should not",
    ),
    Difference("local.retention.ms", -2, HOUR_MS, _LOCAL),
    Difference("local.retention.bytes", -2, 1 << 30, _LOCAL + "; whichever of the two is reached first"),
    Difference("log.local.retention.ms", -2, HOUR_MS, _LOCAL),
    Difference("log.local.retention.bytes", -2, 1 << 30, _LOCAL + "; whichever of the two is reached first"),
)

DEFAULTS_WITH_STORE: Mapping[str, Value] = {difference.key: difference.tidelog for difference in DIFFERENCES}
