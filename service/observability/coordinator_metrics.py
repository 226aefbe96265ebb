"""The metrics of groups, transactions and the log cleaner: Kafka's metrics that apply here, and some that Kafka lacks."""

from __future__ import annotations

from service.observability.metric import Metric, MetricKind, of_bean, own

_COUNTER, _GAUGE = MetricKind.COUNTER, MetricKind.GAUGE


def _of_groups(bean: str, help_text: str) -> Metric:
    return of_bean(_GAUGE, "coordinator.group", "GroupMetadataManager", bean, help_text)


def _of_coordinator(
    coordinator: str, attribute: str, help_text: str, kind: MetricKind = _GAUGE, labels: tuple[str, ...] = ()
) -> Metric:
    """A metric for an attribute of a coordinator's bean."""
    kafkas = f"{coordinator}-coordinator-metrics"
    name = attribute.removesuffix("-count") + "-total" if kind is _COUNTER else attribute
    full = f"kafka_server_{kafkas}_{name}".replace("-", "_")
    return Metric(full, kind, help_text, labels, f"kafka.server:type={kafkas},name={attribute}")


COORDINATED = (
    _of_groups("NumGroups", "Consumer groups that this node coordinates."),
    _of_groups("NumGroupsEmpty", "Groups without members."),
    _of_groups("NumGroupsPreparingRebalance", "Groups that wait for their members to join again."),
    _of_groups("NumGroupsCompletingRebalance", "Groups that wait for their leader's assignment."),
    _of_groups("NumGroupsStable", "Groups whose members have their assignments."),
    _of_groups("NumGroupsDead", "Always 0: groups are removed at once."),
    _of_groups("NumOffsets", "Committed offsets of all groups."),
    _of_coordinator("group", "group-count", "Groups by protocol.", labels=("protocol",)),
    _of_coordinator(
        "group",
        "num-partitions",
        "Partitions of `__consumer_offsets` that this node coordinates: loading, active, or failed to load.",
        labels=("state",),
    ),
    _of_coordinator(
        "group",
        "partition-load-time-max",
        "The longest of the partitions' last loads, in ms.",
    ),
    _of_coordinator("group", "partition-load-time-avg", "Mean duration in ms of the last loads of partitions."),
    _of_coordinator("group", "offset-commit-count", "Offsets committed, including those in transactions.", _COUNTER),
    _of_coordinator("group", "offset-deletion-count", "Offsets deleted by request.", _COUNTER),
    _of_coordinator("group", "offset-expiration-count", "Offsets deleted after their retention.", _COUNTER),
    _of_coordinator("group", "group-completed-rebalance-count", "Rebalances that ended with an assignment.", _COUNTER),
    own(_GAUGE, "group_members", "Members of all groups."),
    own(
        _GAUGE,
        "group_lag_records",
        "Records between a group's committed offsets and the ends of the logs.",
        ("group",),
    ),
    own(_GAUGE, "group_lag_in_bucket_records", "Records of a group's lag that are in the bucket.", ("group",)),
    _of_coordinator(
        "transaction",
        "partition-load-time-max",
        "The longest of the partitions' last loads, in ms.",
    ),
    _of_coordinator("transaction", "partition-load-time-avg", "Mean duration in ms of the last loads of partitions."),
    own(_GAUGE, "transactional_ids", "Transactional ids by the state of their transaction.", ("state",)),
    own(_GAUGE, "transaction_open_seconds_max", "Age of the oldest open transaction, 0 without one."),
    own(_COUNTER, "transactions_ended_total", "Transactions committed and aborted.", ("outcome",)),
    own(_COUNTER, "transactions_timed_out_total", "Transactions aborted because they took longer than their timeout."),
    own(
        _COUNTER,
        "transactions_fenced_total",
        "Transactions aborted because another producer started with their transactional id.",
    ),
    own(
        _GAUGE,
        "coordinators_unreadable",
        "Partitions of coordinators that cannot be loaded. Clients of their groups and transactions wait.",
    ),
)


def _of_cleaner(bean: str, help_text: str, manager: str = "") -> Metric:
    return of_bean(_GAUGE, "log", "LogCleaner" + manager, bean, help_text)


CLEANING = (
    _of_cleaner(
        "max-dirty-percent", "The largest dirty share of a compacted log at the last check, 0 to 100.", "Manager"
    ),
    _of_cleaner("time-since-last-run-ms", "Milliseconds since the cleaner last checked all logs.", "Manager"),
    _of_cleaner("uncleanable-partitions-count", "Logs whose last cleaning failed. It is retried.", "Manager"),
    _of_cleaner("uncleanable-bytes", "Bytes of local segments of logs whose last cleaning failed.", "Manager"),
    _of_cleaner(
        "max-compaction-delay-secs", "Seconds by which the oldest dirty record exceeds its log's max.compaction.lag.ms."
    ),
    _of_cleaner("max-clean-time-secs", "Duration of the last pass in seconds."),
    _of_cleaner("cleaner-recopy-percent", "Bytes written by the last pass, as a share of the bytes read, 0 to 100."),
    _of_cleaner(
        "max-buffer-utilization-percent",
        "Share of log.cleaner.dedupe.buffer.size used by the keys of the last pass, 0 to 100.",
    ),
    Metric(
        "kafka_utils_throttler_cleaner_io_total",
        _COUNTER,
        "Bytes that the cleaner has read and written.",
        mbean="kafka.utils:type=Throttler,name=cleaner-io",
    ),
    own(_COUNTER, "cleaner_passes_total", "Passes over one log, by tier.", ("tier",)),
    own(_COUNTER, "cleaner_read_bytes_total", "Bytes of batches that passes have read.", ("tier",)),
    own(_COUNTER, "cleaner_written_bytes_total", "Bytes of batches that passes have kept.", ("tier",)),
)
