"""The rules that relate the log cleaner's broker configs to each other. Pure.

`log.cleaner.threads` has no effect in tidelog except in these rules. Values that Kafka refuses are also refused here, so that a
config that works in tidelog works in Kafka. Source: `KafkaConfig.validateValues` and `LogCleaner.validateReconfiguration` of
Kafka 4.2, and the answers of a running broker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from service.configs.types import Value
from storage_tiers.errors import InvalidConfig

BUFFER, THREADS = "log.cleaner.dedupe.buffer.size", "log.cleaner.threads"
#: The keys that `check_cleaner` compares.
CLEANER_KEYS = frozenset((BUFFER, THREADS))
#: A thread's share of the buffer must be larger than this.
BUFFER_BYTES_BOUND = 1 << 20


def check_cleaner(value: Callable[[str], Value | None]) -> None:
    """`value` returns the new value of a key of CLEANER_KEYS. Raises InvalidConfig in Kafka's words if there is no thread, or
    the buffer is too small for the threads."""
    threads, buffer_bytes = cast(int, value(THREADS)), cast(int, value(BUFFER))
    if threads < 1:
        raise InvalidConfig("Log cleaner threads should be at least 1")
    if buffer_bytes // threads <= BUFFER_BYTES_BOUND:
        raise InvalidConfig(f"{BUFFER} must be at least 1MB per cleaner thread.")
