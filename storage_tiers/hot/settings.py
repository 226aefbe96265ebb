"""The settings of a partition's log: Kafka's topic configs, resolved to plain values with Kafka's defaults.

Immutable: a config change passes a new `LogSettings` to `HotLog.reconfigure`. Nothing here is read from a file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from storage_tiers.hot.producer_state import MAX_PRODUCERS
from storage_tiers.records.recompress import Target

TimestampType = Literal["CreateTime", "LogAppendTime"]

DAY_MS = 24 * 60 * 60 * 1000
HOUR_MS = 60 * 60 * 1000
#: Kafka's value for "no bound" in counts of messages and of milliseconds.
UNBOUNDED = (1 << 63) - 1
#: A larger batch is validated off the event loop and written in pieces.
LARGE_BATCH_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """Sizes in bytes, times in milliseconds; -1 means no bound for the retention limits.

    `stored_as` is the codec and level of `compression.type`, None for `producer`; `validate_records` is
    `tidelog.record.validation=full`; `local_retention_*` have tidelog's own defaults (Kafka: -2, the same as `retention_*`).
    `min_insync_replicas` is here as in Kafka's LogConfig: the partition uses it, the log does not.
    """

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * DAY_MS
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    retention_ms: int = 7 * DAY_MS
    retention_bytes: int = -1
    local_retention_ms: int = HOUR_MS
    local_retention_bytes: int = 1 << 30
    max_message_bytes: int = 1048588
    timestamp_type: TimestampType = "CreateTime"
    timestamp_before_max_ms: int = UNBOUNDED
    timestamp_after_max_ms: int = HOUR_MS
    flush_messages: int = UNBOUNDED
    flush_ms: int = UNBOUNDED
    cleanup_compact: bool = False
    cleanup_delete: bool = True
    remote_storage_enable: bool = False
    remote_copy_disable: bool = False
    stored_as: Target | None = None
    validate_records: bool = True
    producer_id_expiration_ms: int = DAY_MS
    max_producers: int = MAX_PRODUCERS
    min_insync_replicas: int = 1

    #: Largest size in bytes of a batch that takes the fast path: all records validated, then stored unchanged, without another
    #: codec or append time.
    kept_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        kept = self.timestamp_type == "CreateTime" and self.stored_as is None and self.validate_records
        object.__setattr__(self, "kept_bytes", min(self.max_message_bytes, LARGE_BATCH_BYTES) if kept else 0)

    @property
    def cleanup_policy(self) -> tuple[str, ...]:
        """Kafka's `cleanup.policy` as configured: `delete`, `compact`, both, or none."""
        chosen = (("delete", self.cleanup_delete), ("compact", self.cleanup_compact))
        return tuple(name for name, on in chosen if on)
