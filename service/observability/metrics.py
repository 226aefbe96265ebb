"""Every metric that `/metrics` serves, in one table: name, kind, labels, meaning, and Kafka's MBean if it has one.

The names of Kafka's MBeans follow the Prometheus JMX exporter's rules for Kafka, so that dashboards and alerts made for Kafka
work. tidelog's own names begin with `tidelog_`. The part about metrics in `docs/operations.md` is generated from this table,
and only metrics in this table are served. There are two differences from the exporter: TotalTimeMs is a histogram, not
quantiles of a sample, and the other times have only a sum and a count.
"""

from __future__ import annotations

from service.observability.coordinator_metrics import CLEANING, COORDINATED
from service.observability.metric import Metric, MetricKind, of_bean, own

_COUNTER, _GAUGE, _HISTOGRAM, _SUMMARY = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM, MetricKind.SUMMARY
_PARTITION = ("topic", "partition")


def _of_topics(bean: str, help_text: str, kind: MetricKind = _COUNTER) -> Metric:
    """A metric of BrokerTopicMetrics, per topic and in total."""
    mbean = f"kafka.server:type=BrokerTopicMetrics,name={bean}"
    name = "kafka_server_brokertopicmetrics_" + bean.lower().removesuffix("persec")
    return Metric(name + ("_total" if kind is _COUNTER else ""), kind, help_text, ("topic",), mbean, sum_too=True)


def _of_all_topics(bean: str, help_text: str) -> Metric:
    """A metric of BrokerTopicMetrics that Kafka has only in total."""
    mbean = f"kafka.server:type=BrokerTopicMetrics,name={bean}"
    return Metric(
        f"kafka_server_brokertopicmetrics_{bean.lower().removesuffix('persec')}_total",
        _COUNTER,
        help_text,
        mbean=mbean,
    )


_TOPICS = (
    _of_topics("MessagesInPerSec", "Records appended, counted as offsets."),
    _of_topics("BytesInPerSec", "Bytes of record batches appended."),
    _of_topics("BytesOutPerSec", "Bytes of record batches returned by fetches, from both tiers."),
    _of_topics("BytesRejectedPerSec", "Bytes of batches refused because they were too large."),
    _of_topics("TotalProduceRequestsPerSec", "Batches that producers sent, one for each partition of a request."),
    _of_topics("TotalFetchRequestsPerSec", "Partitions requested by fetches, one for each partition of a request."),
    _of_topics(
        "FailedProduceRequestsPerSec",
        "Batches refused. The sample without a topic includes batches for unknown topics.",
    ),
    _of_topics("FailedFetchRequestsPerSec", "Partitions of fetches answered with an error."),
    _of_all_topics("InvalidMagicNumberRecordsPerSec", "Batches refused for an unsupported message format."),
    _of_all_topics("InvalidMessageCrcRecordsPerSec", "Batches refused for a wrong checksum or framing."),
    _of_all_topics("InvalidOffsetOrSequenceRecordsPerSec", "Batches refused with INVALID_RECORD for another reason."),
    _of_all_topics(
        "NoKeyCompactedTopicRecordsPerSec", "Batches refused for records without a key on a compacted topic."
    ),
)

_REMOTE = (
    _of_topics("RemoteFetchBytesPerSec", "Bytes returned by fetches from the bucket."),
    _of_topics("RemoteFetchRequestsPerSec", "Partitions of fetches answered from the bucket."),
    _of_topics("RemoteFetchErrorsPerSec", "Partitions of fetches for which reading from the bucket failed."),
    _of_topics("RemoteCopyBytesPerSec", "Bytes of segments offloaded since this start."),
    _of_topics("RemoteCopyRequestsPerSec", "Offloads of segments started."),
    _of_topics("RemoteCopyErrorsPerSec", "Offloads of segments that failed. They are retried."),
    _of_topics("RemoteDeleteRequestsPerSec", "Objects deleted from the bucket."),
    _of_topics("RemoteDeleteErrorsPerSec", "Sweeps of a partition's objects that failed. They are retried."),
    _of_topics("RemoteCopyLagBytes", "Bytes of closed segments that are not in the bucket yet.", _GAUGE),
    _of_topics("RemoteCopyLagSegments", "Closed segments that are not in the bucket yet.", _GAUGE),
    _of_topics("RemoteLogSizeBytes", "Bytes of record batches in the bucket.", _GAUGE),
    _of_topics("RemoteLogMetadataCount", "Segments in the bucket that manifests name.", _GAUGE),
)

_REPLICAS = (
    of_bean(_GAUGE, "server", "ReplicaManager", "PartitionCount", "Partitions on this node."),
    of_bean(_GAUGE, "server", "ReplicaManager", "LeaderCount", "Partitions that this node leads and serves."),
    of_bean(_GAUGE, "server", "ReplicaManager", "OfflineReplicaCount", "Partitions that could not be opened."),
    of_bean(
        _GAUGE,
        "server",
        "ReplicaManager",
        "UnderReplicatedPartitions",
        "Partitions with fewer in-sync replicas than replicas.",
    ),
    of_bean(
        _GAUGE,
        "server",
        "ReplicaManager",
        "ReassigningPartitions",
        "Partitions that this broker leads and that move to another one.",
    ),
    of_bean(
        _GAUGE,
        "server",
        "ReplicaManager",
        "UnderMinIsrPartitionCount",
        "Partitions with fewer in-sync replicas than min.insync.replicas.",
    ),
    of_bean(
        _GAUGE,
        "server",
        "ReplicaManager",
        "AtMinIsrPartitionCount",
        "Partitions with exactly min.insync.replicas in-sync replicas.",
    ),
    of_bean(
        _GAUGE, "server", "ReplicaManager", "ProducerIdCount", "Idempotent producers remembered, in all partitions."
    ),
    of_bean(
        _GAUGE,
        "server",
        "ReplicaManager",
        "PartitionsWithLateTransactionsCount",
        "Partitions whose oldest open transaction has been open 5 minutes longer than transaction.max.timeout.ms: "
        "no coordinator ends it.",
    ),
    of_bean(
        _GAUGE,
        "server",
        "DelayedOperationPurgatory",
        "PurgatorySize",
        "Delayed requests: Produce until its flush, Fetch until new records or the bucket's response.",
        ("delayedOperation",),
    ),
    of_bean(_GAUGE, "server", "FetchSessionCache", "NumIncrementalFetchSessions", "Fetch sessions (KIP-227)."),
    of_bean(
        _GAUGE,
        "server",
        "FetchSessionCache",
        "NumIncrementalFetchPartitionsCached",
        "Partitions in all fetch sessions.",
    ),
    of_bean(
        _COUNTER,
        "server",
        "FetchSessionCache",
        "IncrementalFetchSessionEvictionsPerSec",
        "Fetch sessions evicted to make room for others.",
        name="kafka_server_fetchsessioncache_incrementalfetchsessionevictions_total",
    ),
    of_bean(
        _GAUGE,
        "server",
        "KafkaServer",
        "BrokerState",
        "3 while the node serves, 2 while it recovers, 6 while it stops.",
    ),
)

_IDLE = "requests and responses, over the last 30 s of scrapes (at the first scrape: since the start)."
_SOCKETS = (
    of_bean(
        _GAUGE,
        "network",
        "SocketServer",
        "NetworkProcessorAvgIdlePercent",
        f"Share of time, 0 to 1, that the event loop was free of {_IDLE}",
        name="kafka_network_socketserver_networkprocessoravgidle_percent",
    ),
    of_bean(
        _GAUGE,
        "server",
        "KafkaRequestHandlerPool",
        "RequestHandlerAvgIdlePercent",
        "Share of time, 0 to 1, that no request was being handled. Unlike the metric above, it counts receiving and sending as "
        "idle.",
        name="kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
    ),
    *(
        Metric(
            f"kafka_server_socket_server_metrics_{name}",
            kind,
            help_text,
            mbean=f"kafka.server:type=socket-server-metrics,name={name.replace('_', '-')}",
        )
        for name, kind, help_text in (
            ("connection_count", _GAUGE, "Connections of Kafka clients."),
            ("connection_creation_total", _COUNTER, "Connections accepted."),
            ("connection_close_total", _COUNTER, "Connections closed, by either side."),
            ("incoming_byte_total", _COUNTER, "Bytes received from Kafka clients."),
            ("outgoing_byte_total", _COUNTER, "Bytes sent to Kafka clients."),
        )
    ),
)


def _time(bean: str, help_text: str, kind: MetricKind = _SUMMARY) -> Metric:
    return of_bean(kind, "network", "RequestMetrics", bean, help_text, ("request",))


_REQUESTS = (
    of_bean(
        _COUNTER,
        "network",
        "RequestMetrics",
        "RequestsPerSec",
        "Requests by API.",
        ("request",),
        name="kafka_network_requestmetrics_requests_total",
    ),
    of_bean(
        _COUNTER,
        "network",
        "RequestMetrics",
        "ErrorsPerSec",
        "Error codes in responses, by API and Kafka's error name. NONE is not counted.",
        ("request", "error"),
        name="kafka_network_requestmetrics_errors_total",
    ),
    _time("RequestBytes", "Bytes of requests, by their frames' sizes."),
    _time("TotalTimeMs", "Milliseconds from when a request could start until its response was built.", _HISTOGRAM),
    _time(
        "RequestQueueTimeMs", "Milliseconds that requests waited for earlier ones in the same iteration of the loop."
    ),
    _time("LocalTimeMs", "Milliseconds in the handler."),
    _time("RemoteTimeMs", "Milliseconds that requests waited for a flush, new records or the bucket."),
    _time(
        "ResponseQueueTimeMs",
        "Milliseconds that responses waited for the end of their iteration of the loop, one count per write.",
    ),
    _time("ResponseSendTimeMs", "Milliseconds of writing responses to the socket, one count per write."),
)


def _of_log(bean: str, help_text: str) -> Metric:
    return of_bean(_GAUGE, "log", "Log", bean, help_text, _PARTITION)


_LOGS = (
    _of_log("Size", "Bytes of a partition's local segments."),
    _of_log("LogStartOffset", "First readable offset, in either tier."),
    _of_log("LogEndOffset", "Offset of the next record."),
    _of_log("NumLogSegments", "Local segments."),
    of_bean(
        _SUMMARY,
        "log",
        "LogFlushStats",
        "LogFlushRateAndTimeMs",
        "Milliseconds of fsyncs, including the wait for a thread.",
    ),
    of_bean(
        _GAUGE,
        "log",
        "LogManager",
        "OfflineLogDirectoryCount",
        "1 while the disk refuses writes to the data directory.",
    ),
)


def _of_controller(bean: str, help_text: str) -> Metric:
    return of_bean(_GAUGE, "controller", "KafkaController", bean, help_text)


_CONTROLLER = (
    _of_controller("ActiveControllerCount", "1 on the broker that has the controller, 0 on the others."),
    _of_controller("ActiveBrokerCount", "Brokers that are registered and not fenced."),
    _of_controller("FencedBrokerCount", "Brokers that are registered and fenced."),
    _of_controller("GlobalTopicCount", "Topics."),
    _of_controller("GlobalPartitionCount", "Partitions of all topics."),
    _of_controller(
        "OfflinePartitionsCount",
        "Partitions without a serving leader: their broker is away, or they are unopened or recovering.",
    ),
    _of_controller("PreferredReplicaImbalanceCount", "Partitions not led by their first replica."),
    _of_controller("MetadataErrorCount", "Metadata changes that could not be written to disk."),
    _of_controller("LastAppliedRecordOffset", "Index of the last applied entry of the metadata log."),
    _of_controller("LastCommittedRecordOffset", "Index of the last durable entry of the metadata log."),
)

_TIER = (
    own(_GAUGE, "tier_offload_lag_bytes", "Bytes not in the bucket yet, including open segments.", _PARTITION),
    own(_GAUGE, "tier_offload_lag_seconds", "Age of the oldest segment not in the bucket yet.", _PARTITION),
    own(
        _GAUGE,
        "tier_offload_lag_segments",
        "Segments not in the bucket yet, including open ones with records.",
        _PARTITION,
    ),
    own(
        _GAUGE,
        "tier_offload_lag_seconds_max",
        "The largest lag of all partitions, including those not listed one by one.",
    ),
    own(
        _GAUGE,
        "tier_offload_held_back_bytes",
        "Bytes of closed segments that wait for the end of an open transaction, by its producer. Absent if no segment waits.",
        (*_PARTITION, "producer_id"),
    ),
    own(
        _GAUGE,
        "tier_offload_held_back_partitions",
        "Partitions with closed segments that wait for the end of an open transaction, including those not listed one by one.",
    ),
    own(_COUNTER, "served_bytes_total", "Bytes of record batches returned by fetches, by tier.", ("tier",)),
    own(
        _COUNTER,
        "local_evicted_bytes_total",
        "Bytes of local segments deleted because the bucket has them, or because they expired.",
    ),
    own(_COUNTER, "cold_chunk_reads_total", "Cold reads, by whether the cache had their chunks.", ("result",)),
    own(
        _COUNTER,
        "cold_chunks_fetched_total",
        "Chunks brought to the cache: on demand, or by read-ahead.",
        ("reason",),
    ),
    own(
        _COUNTER,
        "cold_chunks_copied_total",
        "Those of them that were copied from the cache of another broker of the machine, not fetched from the bucket.",
    ),
    own(_COUNTER, "cold_chunks_evicted_total", "Chunks evicted from the cache."),
    own(_COUNTER, "cold_chunks_wasted_total", "Chunks read ahead that were evicted unread."),
    own(_COUNTER, "cold_sidecars_fetched_total", "Index parts of sidecars fetched from the bucket."),
    own(_GAUGE, "cold_chunk_cache_bytes", "Bytes of disk that the chunk cache uses."),
    own(_GAUGE, "cold_chunk_cache_limit_bytes", "Bytes of disk that the chunk cache may use."),
    own(
        _COUNTER,
        "cold_fetches_held_seconds_total",
        "Seconds by which chunk fetches were delayed in favour of producers.",
    ),
    own(_GAUGE, "cold_fetches_in_flight", "Chunks and sidecars being fetched from the bucket."),
    own(
        _COUNTER,
        "store_requests_total",
        "Requests to the object store, including each part of a multipart upload.",
        ("operation",),
    ),
    own(_COUNTER, "store_errors_total", "Calls to the object store that failed.", ("operation", "error")),
    own(_SUMMARY, "store_request_seconds", "Seconds of calls to the object store, successful or not.", ("operation",)),
    own(_COUNTER, "store_downloaded_bytes_total", "Bytes read from the object store."),
    own(_COUNTER, "store_uploaded_bytes_total", "Bytes written to the object store."),
    own(_COUNTER, "store_retries_total", "Retried reads of the object store."),
    own(
        _GAUGE,
        "store_cluster_behind",
        "1 while `cluster.json` in the store is missing or older than this node has written. The node then writes "
        "nothing to the store.",
    ),
    own(_GAUGE, "store_reachable", "1 while the object store answers, else 0."),
    own(_GAUGE, "tier_process_running", "1 while the tier process runs. It exits after a minute without work."),
    own(_GAUGE, "tier_process_resident_bytes", "Memory of the tier process; 0 while none runs."),
    own(_GAUGE, "tier_process_peak_resident_bytes", "Peak memory of the current or last tier process."),
    own(_COUNTER, "tier_process_starts_total", "Tier processes started."),
    own(_COUNTER, "tier_process_lost_total", "Tier processes that exited unexpectedly."),
    own(_COUNTER, "tier_questions_total", "Operations requested from the tier process.", ("question",)),
    own(_COUNTER, "tier_question_failures_total", "Operations of the tier process that failed, by error.", ("error",)),
)

_NODE = (
    own(_GAUGE, "node_info", "Always 1. The labels are the node's identity.", ("version", "cluster_id", "node_id")),
    own(_GAUGE, "ready", "1 while /readyz answers 200."),
    own(_GAUGE, "broker_up", "With several brokers, 1 for each broker that answers its supervisor.", ("broker",)),
    own(
        _COUNTER,
        "broker_restarts_total",
        "With several brokers, restarts of a broker's process.",
        ("broker",),
    ),
    own(
        _GAUGE,
        "partitions_store_behind",
        "Partitions for which the store shows less than this node has seen. Nothing of them is offloaded, evicted or deleted.",
    ),
    own(
        _GAUGE,
        "recovering_partitions",
        "Partitions that accept no records before the object store has answered: they are recovering or comparing.",
    ),
    own(
        _GAUGE,
        "clock_step_seconds",
        "Seconds by which the wall clock is ahead of the expected time after it was set. 0 while the clock is trusted.",
    ),
    own(
        _COUNTER,
        "descriptor_shortages_total",
        "Number of times that a log's file could not be opened at once because no file descriptor was left.",
    ),
    own(_GAUGE, "disk_used_ratio", "Used share of the data directory's file system, 0 to 1."),
    own(_COUNTER, "produce_throttled_total", "Produce requests delayed because the disk is filling."),
    own(_COUNTER, "produce_refused_total", "Batches refused because the disk is full."),
    own(_GAUGE, "append_queue_bytes", "Bytes of batches that wait for a thread to validate, repack or write them."),
    own(_COUNTER, "append_written_by_threads_total", "Batches written by threads because the page cache was slow."),
    own(
        _GAUGE,
        "append_seconds_per_gigabyte",
        "Recent processor time per GB of the event loop's own appends of batches of at least 16 KiB. Above 1.6, threads write.",
    ),
    own(_COUNTER, "gateway_busy_seconds_total", "Seconds that the event loop spent on Kafka requests and responses."),
    own(
        _COUNTER,
        "gateway_failures_total",
        "Requests that failed outside their handler and closed their connection: bugs.",
    ),
    own(
        _SUMMARY,
        "scrape_seconds",
        "Duration of earlier scrapes in seconds, including other work of the event loop during them.",
    ),
    own(_GAUGE, "metrics_left_out", "Topics, partitions and groups beyond those listed one by one.", ("kind",)),
    Metric("process_cpu_seconds_total", _COUNTER, "Processor time of the broker process, in seconds."),
    Metric("process_resident_memory_bytes", _GAUGE, "Memory of the broker process."),
    Metric("process_virtual_memory_bytes", _GAUGE, "Address space of the broker process."),
    Metric("process_threads", _GAUGE, "Threads of the broker process."),
    Metric("process_open_fds", _GAUGE, "Open files of the broker process."),
    Metric("process_max_fds", _GAUGE, "Files that the broker process may open."),
    Metric("process_start_time_seconds", _GAUGE, "Start of the broker process, in seconds since 1970."),
)

#: The headings of the reference page, and their metrics.
GROUPS: tuple[tuple[str, tuple[Metric, ...]], ...] = (
    ("Topics", _TOPICS),
    ("Topics in the bucket (KIP-405)", _REMOTE),
    ("Replicas and delayed requests", _REPLICAS),
    ("Sockets and the event loop", _SOCKETS),
    ("Requests", _REQUESTS),
    ("Logs", _LOGS),
    ("Groups and transactions", COORDINATED),
    ("The log cleaner", CLEANING),
    ("Controller", _CONTROLLER),
    ("The tier and the object store", _TIER),
    ("The node", _NODE),
)
METRICS: dict[str, Metric] = {metric.name: metric for _, group in GROUPS for metric in group}
