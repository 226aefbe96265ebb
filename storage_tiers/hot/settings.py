"""What a partition's log is told to do: Kafka's topic configs, resolved to plain values with Kafka's defaults.

Immutable; a changed config is a new `LogSettings` given to `HotLog.reconfigure`. Nothing here is read from a file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from storage_tiers.hot.producer_state import MOST_PRODUCERS
from storage_tiers.records.recompress import Target

TimestampType = Literal["CreateTime", "LogAppendTime"]

DAY_MS = 24 * 60 * 60 * 1000
HOUR_MS = 60 * 60 * 1000
#: Kafka's "no bound" of message and millisecond counts.
UNBOUNDED = (1 << 63) - 1
#: A larger batch is not examined on the event loop, and written in pieces.
LARGE_BATCH_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """Sizes in bytes, times in milliseconds; -1 means no bound for the retention limits.

    `stored_as` is what `compression.type` and its levels ask for, None for `producer`; `validate_records`
    is `tidelog.record.validation=full`.
    `local_retention_*` are tidelog's own defaults (Kafka: -2, as much as `retention_*`).
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
    most_producers: int = MOST_PRODUCERS

    #: Up to which size a batch of which every record is sound is stored as it came, and at once: neither under another codec
    #: nor with a time of ours, and not one looked at less closely.
    kept_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        kept = self.timestamp_type == "CreateTime" and self.stored_as is None and self.validate_records
        object.__setattr__(self, "kept_bytes", min(self.max_message_bytes, LARGE_BATCH_BYTES) if kept else 0)

    @property
    def cleanup_policy(self) -> tuple[str, ...]:
        """Kafka's `cleanup.policy` as it was given: `delete`, `compact`, both, or none."""
        chosen = (("delete", self.cleanup_delete), ("compact", self.cleanup_compact))
        return tuple(name for name, on in chosen if on)
