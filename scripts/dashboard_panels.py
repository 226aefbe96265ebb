"""The rows of the dashboard's panels, as a table. `grafana_dashboard.py` writes them in Grafana's format."""

from __future__ import annotations

from dataclasses import dataclass

TOPICS = "kafka_server_brokertopicmetrics_"
REQUESTS = "kafka_network_requestmetrics_"
SOCKETS = "kafka_server_socket_server_metrics_"
#: Selector for the nodes chosen at the top of the dashboard.
CHOSEN = 'instance=~"$node"'
RATE = "[$__rate_interval]"


@dataclass(frozen=True)
class Query:
    expression: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """`unit` is one of Grafana's: Bps, bytes, ms, s, percentunit, ops, reqps, short. With `stat`, the panel shows only the
    newest value."""

    title: str
    unit: str
    queries: tuple[Query, ...]
    help: str = ""
    width: int = 8
    stat: bool = False
    stacked: bool = False


def rate(name: str, by: str = "", matchers: str = "") -> str:
    """The rate per second, summed over all labels that are not in `by`."""
    inside = f"rate({name}{{{', '.join(filter(None, (CHOSEN, matchers)))}}}{RATE})"
    return f"sum by ({by}) ({inside})" if by else f"sum({inside})"


def now(name: str, by: str = "", matchers: str = "", function: str = "sum") -> str:
    inside = f"{name}{{{', '.join(filter(None, (CHOSEN, matchers)))}}}"
    return f"{function} by ({by}) ({inside})" if by else f"{function}({inside})"


def quantile(share: float, name: str, by: str) -> str:
    return f"histogram_quantile({share}, {rate(f'{name}_bucket', f'le, {by}')})"


def mean(name: str, by: str = "", matchers: str = "") -> str:
    return f"{rate(f'{name}_sum', by, matchers)} / {rate(f'{name}_count', by, matchers)}"


def _topic(name: str) -> str:
    return rate(f"{TOPICS}{name}_total", matchers='topic=""')


def _by_topic(name: str) -> Query:
    return Query(f"topk(10, {rate(f'{TOPICS}{name}_total', 'topic', _OF_A_TOPIC)})", "{{topic}}")


_OF_A_TOPIC = 'topic!=""'

TRAFFIC = (
    Panel("Bytes in", "Bps", (Query(_topic("bytesin"), "in"),), stat=True, width=4),
    Panel("Bytes out", "Bps", (Query(_topic("bytesout"), "out"),), stat=True, width=4),
    Panel("Records in", "short", (Query(_topic("messagesin"), "records/s"),), stat=True, width=4),
    Panel("Requests", "reqps", (Query(rate(f"{REQUESTS}requests_total"), "requests/s"),), stat=True, width=4),
    Panel("Connections", "short", (Query(now(f"{SOCKETS}connection_count"), "connections"),), stat=True, width=4),
    Panel(
        "Partitions", "short", (Query(now("kafka_server_replicamanager_partitioncount"), "all"),), stat=True, width=4
    ),
    Panel("Throughput", "Bps", (Query(_topic("bytesin"), "in"), Query(_topic("bytesout"), "out"))),
    Panel("In, busiest topics", "Bps", (_by_topic("bytesin"),), stacked=True),
    Panel("Out, busiest topics", "Bps", (_by_topic("bytesout"),), stacked=True),
)

_PRODUCE = 'request="Produce"'
_PARTS = ("requestqueue", "local", "remote", "responsequeue", "responsesend")

REQUEST_ROW = (
    Panel("Requests by API", "reqps", (Query(rate(f"{REQUESTS}requests_total", "request"), "{{request}}"),)),
    Panel(
        "99th percentile by API",
        "ms",
        (Query(quantile(0.99, f"{REQUESTS}totaltimems", "request"), "{{request}}"),),
        "A Fetch without new records waits as long as its client allows.",
    ),
    Panel("Median by API", "ms", (Query(quantile(0.5, f"{REQUESTS}totaltimems", "request"), "{{request}}"),)),
    Panel(
        "Errors answered",
        "reqps",
        (Query(rate(f"{REQUESTS}errors_total", "request, error"), "{{request}} {{error}}"),),
    ),
    Panel(
        "Where a Produce spends its time",
        "ms",
        tuple(Query(mean(f"{REQUESTS}{part}timems", matchers=_PRODUCE), part) for part in _PARTS),
        "Means. remote is the wait for a flush, if the topic's configs require one.",
        stacked=True,
    ),
    Panel(
        "Event loop",
        "percentunit",
        (
            Query(rate("tidelog_gateway_busy_seconds_total", "instance"), "busy {{instance}}"),
            Query(
                now("kafka_network_socketserver_networkprocessoravgidle_percent", "instance", function="min"),
                "idle {{instance}}",
            ),
        ),
    ),
)

HOT = (
    Panel("On local disk", "bytes", (Query(now("kafka_log_log_size", "topic"), "{{topic}}"),), stacked=True),
    Panel(
        "Disk used",
        "percentunit",
        (Query(now("tidelog_disk_used_ratio", "instance", function="max"), "{{instance}}"),),
        "Produce is slowed above tidelog.disk.watermark.slow, and refused above tidelog.disk.watermark.refuse.",
    ),
    Panel(
        "Slowed and refused by a full disk",
        "ops",
        (
            Query(rate("tidelog_produce_throttled_total"), "slowed"),
            Query(rate("tidelog_produce_refused_total"), "refused"),
        ),
    ),
    Panel(
        "Batches that wait for threads",
        "bytes",
        (Query(now("tidelog_append_queue_bytes", "instance"), "{{instance}}"),),
        "Threads validate or recompress them, or write them while the page cache is slow.",
    ),
    Panel("Flushes", "ops", (Query(rate("kafka_log_logflushstats_logflushrateandtimems_count"), "flushes/s"),)),
    Panel("A flush takes", "ms", (Query(mean("kafka_log_logflushstats_logflushrateandtimems"), "mean"),)),
    Panel(
        "Requests that wait",
        "short",
        (
            Query(
                now("kafka_server_delayedoperationpurgatory_purgatorysize", "delayedOperation"), "{{delayedOperation}}"
            ),
        ),
    ),
)

_CHUNKS, _HIT = "tidelog_cold_chunk_reads_total", 'result="hit"'

TIERING = (
    Panel(
        "Not in the bucket yet",
        "bytes",
        (Query(now(f"{TOPICS}remotecopylagbytes", "topic", _OF_A_TOPIC), "{{topic}}"),),
        "Only closed segments are counted.",
        stacked=True,
    ),
    Panel(
        "Segments not in the bucket yet",
        "short",
        (Query(now(f"{TOPICS}remotecopylagsegments", matchers='topic=""'), "segments"),),
    ),
    Panel(
        "Age of the oldest record not in the bucket",
        "s",
        (Query(now("tidelog_tier_offload_lag_seconds_max", "instance", function="max"), "{{instance}}"),),
        "Grows up to segment.ms or tidelog.tier.max.lag.ms on quiet topics. Above that, offloads are behind.",
    ),
    Panel(
        "Served from each tier", "Bps", (Query(rate("tidelog_served_bytes_total", "tier"), "{{tier}}"),), stacked=True
    ),
    Panel(
        "To the bucket and away from the disk",
        "Bps",
        (Query(_topic("remotecopybytes"), "offloaded"), Query(rate("tidelog_local_evicted_bytes_total"), "evicted")),
    ),
    Panel("In the bucket", "bytes", (Query(now(f"{TOPICS}remotelogsizebytes", "topic", _OF_A_TOPIC), "{{topic}}"),)),
    Panel(
        "Chunk cache hits",
        "percentunit",
        (
            Query(
                f"{rate(_CHUNKS, matchers=_HIT)} / {rate(_CHUNKS)}",
                "hits",
            ),
        ),
    ),
    Panel(
        "Chunk cache",
        "bytes",
        (
            Query(now("tidelog_cold_chunk_cache_bytes"), "used"),
            Query(now("tidelog_cold_chunk_cache_limit_bytes"), "limit"),
        ),
    ),
    Panel(
        "Offloads and cold reads that failed",
        "ops",
        (Query(_topic("remotecopyerrors"), "offloads"), Query(_topic("remotefetcherrors"), "cold reads")),
    ),
)

STORE = (
    Panel(
        "Store",
        "short",
        (
            Query(now("tidelog_store_reachable", function="min"), "reachable"),
            Query(now("tidelog_partitions_store_behind"), "partitions behind"),
        ),
        "Behind: the bucket shows less of the partitions than the node has seen.",
        stat=True,
        width=4,
    ),
    Panel("Requests", "reqps", (Query(rate("tidelog_store_requests_total", "operation"), "{{operation}}"),), width=10),
    Panel(
        "A request takes",
        "s",
        (Query(mean("tidelog_store_request_seconds", "operation"), "{{operation}}"),),
        "Means.",
        width=10,
    ),
    Panel(
        "Errors",
        "reqps",
        (
            Query(rate("tidelog_store_errors_total", "operation, error"), "{{operation}} {{error}}"),
            Query(rate("tidelog_store_retries_total"), "retries"),
        ),
    ),
    Panel(
        "Bytes",
        "Bps",
        (
            Query(rate("tidelog_store_uploaded_bytes_total"), "up"),
            Query(rate("tidelog_store_downloaded_bytes_total"), "down"),
        ),
    ),
    Panel(
        "Tier processes lost",
        "short",
        (Query(now("tidelog_tier_process_lost_total", "instance"), "{{instance}}"),),
        "Processes that exited unexpectedly since the node's start.",
    ),
)

GROUPS = (
    Panel(
        "Consumer groups",
        "short",
        (
            Query(now("kafka_coordinator_group_groupmetadatamanager_numgroupsstable"), "stable"),
            Query(now("kafka_coordinator_group_groupmetadatamanager_numgroupspreparingrebalance"), "wait for members"),
            Query(now("kafka_coordinator_group_groupmetadatamanager_numgroupscompletingrebalance"), "wait for leaders"),
            Query(now("kafka_coordinator_group_groupmetadatamanager_numgroupsempty"), "empty"),
        ),
        stacked=True,
    ),
    Panel(
        "Groups that are furthest behind",
        "short",
        (Query(f"topk(10, {now('tidelog_group_lag_records', 'group')})", "{{group}}"),),
        "Records between committed offsets and the ends of the logs.",
    ),
    Panel(
        "Groups that read from the bucket",
        "short",
        (Query(f"topk(10, {now('tidelog_group_lag_in_bucket_records', 'group')} > 0)", "{{group}}"),),
        "The part of a group's lag that is in the bucket, in records.",
    ),
    Panel(
        "Offsets committed",
        "ops",
        (
            Query(rate("kafka_server_group_coordinator_metrics_offset_commit_total"), "committed"),
            Query(rate("kafka_server_group_coordinator_metrics_offset_expiration_total"), "expired"),
        ),
    ),
    Panel(
        "Rebalances",
        "ops",
        (Query(rate("kafka_server_group_coordinator_metrics_group_completed_rebalance_total"), "completed"),),
    ),
    Panel(
        "Partitions of coordinators",
        "short",
        (
            Query(now("kafka_server_group_coordinator_metrics_num_partitions", "state"), "groups {{state}}"),
            Query(now("tidelog_coordinators_unreadable"), "unreadable"),
        ),
    ),
)

TRANSACTIONS = (
    Panel(
        "Transactions that end",
        "ops",
        (
            Query(rate("tidelog_transactions_ended_total", "outcome"), "{{outcome}}"),
            Query(rate("tidelog_transactions_timed_out_total"), "timed out"),
            Query(rate("tidelog_transactions_fenced_total"), "fenced"),
        ),
        "Transactions that timed out or were fenced are aborted.",
    ),
    Panel(
        "Oldest open transaction",
        "s",
        (Query(now("tidelog_transaction_open_seconds_max", "instance", function="max"), "{{instance}}"),),
    ),
    Panel(
        "Transactions that hold offloads back",
        "bytes",
        (
            Query(
                now("tidelog_tier_offload_held_back_bytes", "topic, partition, producer_id"),
                "{{topic}}-{{partition}} producer {{producer_id}}",
            ),
        ),
        "Closed segments that wait on local disk for the end of a transaction.",
    ),
    Panel(
        "Transactional ids",
        "short",
        (Query(now("tidelog_transactional_ids", "state"), "{{state}}"),),
        stacked=True,
    ),
    Panel(
        "Cleaner: dirty share and failures",
        "short",
        (
            Query(now("kafka_log_logcleanermanager_max_dirty_percent", "instance", function="max"), "% {{instance}}"),
            Query(now("kafka_log_logcleanermanager_uncleanable_partitions_count"), "logs that failed"),
        ),
        "The dirty share of the dirtiest log, and the number of logs whose last cleaning failed.",
    ),
    Panel(
        "Cleaner: bytes",
        "Bps",
        (
            Query(rate("tidelog_cleaner_read_bytes_total", "tier"), "read, {{tier}}"),
            Query(rate("tidelog_cleaner_written_bytes_total", "tier"), "kept, {{tier}}"),
        ),
    ),
)

PROCESS = (
    Panel(
        "Memory",
        "bytes",
        (
            Query(now("process_resident_memory_bytes", "instance"), "broker {{instance}}"),
            Query(now("tidelog_tier_process_resident_bytes", "instance"), "tier {{instance}}"),
        ),
    ),
    Panel("Processor", "percentunit", (Query(rate("process_cpu_seconds_total", "instance"), "{{instance}}"),)),
    Panel(
        "Open files",
        "short",
        (
            Query(now("process_open_fds", "instance"), "{{instance}}"),
            Query(now("process_threads", "instance"), "threads {{instance}}"),
        ),
    ),
    Panel(
        "Readiness",
        "short",
        (
            Query(now("tidelog_ready", "instance"), "ready {{instance}}"),
            Query(now("tidelog_recovering_partitions", "instance"), "recovering partitions {{instance}}"),
            Query(now("kafka_server_replicamanager_offlinereplicacount", "instance"), "offline {{instance}}"),
        ),
    ),
    Panel(
        "Connections made and closed",
        "ops",
        (
            Query(rate(f"{SOCKETS}connection_creation_total"), "made"),
            Query(rate(f"{SOCKETS}connection_close_total"), "closed"),
        ),
    ),
    Panel(
        "Up since",
        "s",
        (Query(f"time() - {now('process_start_time_seconds', 'instance', '', 'max')}", "{{instance}}"),),
    ),
)

CLUSTER = (
    Panel(
        "Brokers",
        "short",
        (
            Query(now("kafka_controller_kafkacontroller_activebrokercount", function="max"), "live"),
            Query(now("kafka_controller_kafkacontroller_fencedbrokercount", function="max"), "fenced"),
        ),
        "Registered brokers. A fenced one leads nothing: it has stopped, died, or lost its controller.",
    ),
    Panel(
        "Partitions led",
        "short",
        (Query(now("kafka_server_replicamanager_leadercount", "instance"), "{{instance}}"),),
    ),
    Panel(
        "Partitions on the move",
        "short",
        (Query(now("kafka_server_replicamanager_reassigningpartitions", "instance"), "{{instance}}"),),
        "Partitions that each broker leads and that move to another one.",
    ),
)

ROWS: dict[str, tuple[Panel, ...]] = {
    "Traffic": TRAFFIC,
    "Requests": REQUEST_ROW,
    "Hot log": HOT,
    "Tiering": TIERING,
    "Object store": STORE,
    "Groups": GROUPS,
    "Transactions and compaction": TRANSACTIONS,
    "Cluster": CLUSTER,
    "Process": PROCESS,
}
