"""The numbers of `tidelog top`, from two readings of a node's /metrics. Pure: text and times in, numbers out.

If a counter fell, the node has restarted, and the counter's change is counted from 0. Quantiles cover the interval alone. They
are estimated from the histogram's buckets, as in Prometheus's `histogram_quantile`. A missing metric counts as 0, or as None
where 0 would mislead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

Labels = frozenset[tuple[str, str]]

TOPICS = "kafka_server_brokertopicmetrics_"
REQUESTS = "kafka_network_requestmetrics_"
SOCKETS = "kafka_server_socket_server_metrics_"
CONTROLLER = "kafka_controller_kafkacontroller_"
GROUPS = "kafka_coordinator_group_groupmetadatamanager_"
COORDINATOR = "kafka_server_group_coordinator_metrics_"


@dataclass(frozen=True, slots=True)
class Scrape:
    """All samples of one scrape, by metric. `at` is the monotonic time in seconds."""

    at: float
    samples: Mapping[str, Mapping[Labels, float]]

    @classmethod
    def parse(cls, text: str, at: float) -> Scrape:
        """Raises ValueError if the text is not a page of metrics."""
        from prometheus_client.parser import text_string_to_metric_families

        samples: dict[str, dict[Labels, float]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                samples.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
        if not samples:
            raise ValueError("it contains no metrics")
        return cls(at, samples)

    def values(self, name: str, **labels: str) -> Iterator[tuple[Mapping[str, str], float]]:
        """The samples with at least these labels."""
        wanted = labels.items()
        for key, value in self.samples.get(name, {}).items():
            if wanted <= key:
                yield dict(key), value

    def one(self, name: str, **labels: str) -> float | None:
        """The sample with exactly these labels."""
        return self.samples.get(name, {}).get(frozenset(labels.items()))

    def gauge(self, name: str, **labels: str) -> float:
        return self.one(name, **labels) or 0.0

    def total(self, name: str) -> float:
        return sum(self.samples.get(name, {}).values())


@dataclass(frozen=True, slots=True)
class ApiNumbers:
    """Quantiles are in ms, and None if there were no requests in the interval."""

    api: str
    per_s: float
    p50_ms: float | None
    p99_ms: float | None
    errors_per_s: float


@dataclass(frozen=True, slots=True)
class TopicNumbers:
    """Rates per second over the interval, and bytes in each tier now. `lag_bytes` is the size of closed segments that are not
    offloaded yet, and `lag_s` is the age of the oldest of them."""

    topic: str
    records_in_per_s: float
    bytes_in_per_s: float
    bytes_out_per_s: float
    hot_bytes: float
    cold_bytes: float
    lag_bytes: float
    lag_s: float


@dataclass(frozen=True, slots=True)
class TierNumbers:
    """`hit_ratio` is None if no chunk was read in the interval. `store` has requests per second, by operation."""

    hot_bytes_per_s: float
    cold_bytes_per_s: float
    lag_bytes: float
    lag_segments: float
    lag_s: float
    uploaded_per_s: float
    downloaded_per_s: float
    cold_gets_per_s: float
    hit_ratio: float | None
    cache_bytes: float
    cache_limit_bytes: float
    store: Mapping[str, float]
    store_errors_per_s: float
    store_retries_per_s: float
    evicted_per_s: float


@dataclass(frozen=True, slots=True)
class GroupNumbers:
    """The number of records between a group's committed offsets and the ends of the logs, and the part of them that is in the
    bucket."""

    group: str
    lag: float
    in_bucket: float


@dataclass(frozen=True, slots=True)
class CoordinatorNumbers:
    """Groups and transactions. `undecided` counts ids with an open transaction; `completing` counts ids that wait for their
    markers. `lags` are the lags of groups that are behind."""

    groups: float
    rebalancing: float
    members: float
    commits_per_s: float
    rebalances_per_s: float
    transactional_ids: float
    undecided: float
    completing: float
    oldest_s: float
    committed_per_s: float
    aborted_per_s: float
    held_back_bytes: float
    lags: tuple[GroupNumbers, ...]


@dataclass(frozen=True, slots=True)
class NodeNumbers:
    """Rates are averages over the `interval_s` between the readings."""

    interval_s: float
    version: str
    cluster_id: str
    node_id: str
    ready: bool
    uptime_s: float | None
    restarted: bool
    bytes_in_per_s: float
    bytes_out_per_s: float
    records_in_per_s: float
    requests_per_s: float
    errors_per_s: float
    connections: float
    #: The numbers of the cluster's registered brokers that are not fenced and of those that are, as far as this node knows.
    live_brokers: float
    fenced_brokers: float
    moving_partitions: float
    partitions: float
    recovering_partitions: float
    memory_bytes: float
    tier_memory_bytes: float
    cpu_cores: float
    disk_used: float
    throttled_per_s: float
    refused_per_s: float
    store_reachable: bool | None
    store_behind: bool
    tier: TierNumbers
    coordinators: CoordinatorNumbers
    apis: tuple[ApiNumbers, ...]
    topics: tuple[TopicNumbers, ...]


#: The metrics of a store that is behind: for the cluster and for partitions.
_BEHIND = ("tidelog_store_cluster_behind", "tidelog_partitions_store_behind")


_REBALANCING = ("numgroupspreparingrebalance", "numgroupscompletingrebalance")


class _Change:
    """The change between two readings of one node."""

    def __init__(self, before: Scrape, after: Scrape) -> None:
        self.before = before
        self.after = after
        self.seconds = max(after.at - before.at, 1e-9)
        started = "process_start_time_seconds"
        self.restarted = before.one(started) != after.one(started)

    def rate(self, name: str, **labels: str) -> float:
        """Rate per second of the sample with exactly these labels."""
        return self._rise(name, frozenset(labels.items())) / self.seconds

    def rates(self, name: str, label: str) -> dict[str, float]:
        """Rates per second, summed by the values of `label`."""
        found: dict[str, float] = {}
        for key in self.after.samples.get(name, {}):
            value = dict(key).get(label)
            if value is not None:
                found[value] = found.get(value, 0.0) + self._rise(name, key) / self.seconds
        return found

    def quantile(self, name: str, share: float, **labels: str) -> float | None:
        """A quantile of a histogram's increase in the interval."""
        buckets = []
        for key in self.after.samples.get(f"{name}_bucket", {}):
            bound = dict(key).get("le")
            if bound is not None and labels.items() <= key:
                buckets.append((float(bound), self._rise(f"{name}_bucket", key)))
        return quantile(sorted(buckets), share)

    def _rise(self, name: str, key: Labels) -> float:
        now = self.after.samples.get(name, {}).get(key, 0.0)
        then = 0.0 if self.restarted else self.before.samples.get(name, {}).get(key, 0.0)
        return now - then if now >= then else now


def quantile(buckets: list[tuple[float, float]], share: float) -> float | None:
    """The quantile of cumulative (upper bound, count) pairs, which are in order. Interpolates linearly within a bucket. Returns
    the last finite bound for a quantile above it, None if all counts are 0."""
    total = buckets[-1][1] if buckets else 0.0
    if not total:
        return None
    rank, low, below = share * total, 0.0, 0.0
    for bound, count in buckets:
        if count >= rank:
            if math.isinf(bound):
                return low
            return low + (bound - low) * ((rank - below) / (count - below) if count > below else 1.0)
        low, below = bound, count
    return low


def node_numbers(before: Scrape, after: Scrape, *, unix_s: float) -> NodeNumbers:
    """`unix_s` is the wall-clock time of `after`."""
    change = _Change(before, after)
    info: Mapping[str, str] = next((labels for labels, _ in after.values("tidelog_node_info")), {})
    started = after.one("process_start_time_seconds")
    reachable = after.one("tidelog_store_reachable")
    return NodeNumbers(
        interval_s=change.seconds,
        version=info.get("version", "?"),
        cluster_id=info.get("cluster_id", "?"),
        node_id=info.get("node_id", "?"),
        ready=bool(after.gauge("tidelog_ready")),
        uptime_s=None if started is None else max(0.0, unix_s - started),
        restarted=change.restarted,
        bytes_in_per_s=change.rate(f"{TOPICS}bytesin_total"),
        bytes_out_per_s=change.rate(f"{TOPICS}bytesout_total"),
        records_in_per_s=change.rate(f"{TOPICS}messagesin_total"),
        requests_per_s=sum(change.rates(f"{REQUESTS}requests_total", "request").values()),
        errors_per_s=sum(change.rates(f"{REQUESTS}errors_total", "request").values()),
        connections=after.gauge(f"{SOCKETS}connection_count"),
        live_brokers=after.gauge(f"{CONTROLLER}activebrokercount"),
        fenced_brokers=after.gauge(f"{CONTROLLER}fencedbrokercount"),
        moving_partitions=after.gauge("kafka_server_replicamanager_reassigningpartitions"),
        partitions=after.gauge("kafka_server_replicamanager_partitioncount"),
        recovering_partitions=after.gauge("tidelog_recovering_partitions"),
        memory_bytes=after.gauge("process_resident_memory_bytes"),
        tier_memory_bytes=after.gauge("tidelog_tier_process_resident_bytes"),
        cpu_cores=change.rate("process_cpu_seconds_total"),
        disk_used=after.gauge("tidelog_disk_used_ratio"),
        throttled_per_s=change.rate("tidelog_produce_throttled_total"),
        refused_per_s=change.rate("tidelog_produce_refused_total"),
        store_reachable=None if reachable is None else bool(reachable),
        store_behind=any(after.gauge(name) for name in _BEHIND),
        tier=_tier(change),
        coordinators=_coordinators(change),
        apis=tuple(_apis(change)),
        topics=tuple(_topics(change)),
    )


def _tier(change: _Change) -> TierNumbers:
    after = change.after
    served = change.rates("tidelog_served_bytes_total", "tier")
    reads = change.rates("tidelog_cold_chunk_reads_total", "result")
    looked = sum(reads.values())
    store = change.rates("tidelog_store_requests_total", "operation")
    return TierNumbers(
        hot_bytes_per_s=served.get("hot", 0.0),
        cold_bytes_per_s=served.get("cold", 0.0),
        lag_bytes=after.gauge(f"{TOPICS}remotecopylagbytes"),
        lag_segments=after.gauge(f"{TOPICS}remotecopylagsegments"),
        lag_s=after.gauge("tidelog_tier_offload_lag_seconds_max"),
        uploaded_per_s=change.rate("tidelog_store_uploaded_bytes_total"),
        downloaded_per_s=change.rate("tidelog_store_downloaded_bytes_total"),
        cold_gets_per_s=store.get("get", 0.0),
        hit_ratio=reads.get("hit", 0.0) / looked if looked else None,
        cache_bytes=after.gauge("tidelog_cold_chunk_cache_bytes"),
        cache_limit_bytes=after.gauge("tidelog_cold_chunk_cache_limit_bytes"),
        store=dict(sorted(store.items())),
        store_errors_per_s=sum(change.rates("tidelog_store_errors_total", "operation").values()),
        store_retries_per_s=change.rate("tidelog_store_retries_total"),
        evicted_per_s=change.rate("tidelog_local_evicted_bytes_total"),
    )


def _coordinators(change: _Change) -> CoordinatorNumbers:
    after = change.after
    states = {labels["state"]: value for labels, value in after.values("tidelog_transactional_ids")}
    ended = change.rates("tidelog_transactions_ended_total", "outcome")
    return CoordinatorNumbers(
        groups=after.gauge(f"{GROUPS}numgroups"),
        rebalancing=sum(after.gauge(GROUPS + name) for name in _REBALANCING),
        members=after.gauge("tidelog_group_members"),
        commits_per_s=change.rate(f"{COORDINATOR}offset_commit_total"),
        rebalances_per_s=change.rate(f"{COORDINATOR}group_completed_rebalance_total"),
        transactional_ids=sum(states.values()),
        undecided=states.get("Ongoing", 0.0),
        completing=states.get("PrepareCommit", 0.0) + states.get("PrepareAbort", 0.0),
        oldest_s=after.gauge("tidelog_transaction_open_seconds_max"),
        committed_per_s=ended.get("committed", 0.0),
        aborted_per_s=ended.get("aborted", 0.0),
        held_back_bytes=after.total("tidelog_tier_offload_held_back_bytes"),
        lags=tuple(_lags(after)),
    )


def _lags(after: Scrape) -> Iterator[GroupNumbers]:
    """The groups that are behind, sorted by lag, largest first."""
    found = [
        GroupNumbers(labels["group"], lag, after.gauge("tidelog_group_lag_in_bucket_records", group=labels["group"]))
        for labels, lag in after.values("tidelog_group_lag_records")
        if lag
    ]
    yield from sorted(found, key=lambda row: (-row.lag, row.group))


def _apis(change: _Change) -> Iterator[ApiNumbers]:
    """APIs with requests in the interval, the busiest first."""
    errors = change.rates(f"{REQUESTS}errors_total", "request")
    rates = change.rates(f"{REQUESTS}requests_total", "request")
    for api, per_s in sorted(rates.items(), key=lambda item: (-item[1], item[0])):
        if per_s:
            p50, p99 = (change.quantile(f"{REQUESTS}totaltimems", share, request=api) for share in (0.5, 0.99))
            yield ApiNumbers(api, per_s, p50, p99, errors.get(api, 0.0))


def _topics(change: _Change) -> Iterator[TopicNumbers]:
    """All topics, sorted by bytes in and out, then by size."""
    after = change.after
    bytes_in = change.rates(f"{TOPICS}bytesin_total", "topic")
    bytes_out = change.rates(f"{TOPICS}bytesout_total", "topic")
    records = change.rates(f"{TOPICS}messagesin_total", "topic")
    hot = _by_topic(after.values("kafka_log_log_size"))
    lag_s: dict[str, float] = {}
    for labels, value in after.values("tidelog_tier_offload_lag_seconds"):
        topic = labels.get("topic", "")
        lag_s[topic] = max(value, lag_s.get(topic, 0.0))
    cold = _by_topic(after.values(f"{TOPICS}remotelogsizebytes"))
    lag = _by_topic(after.values(f"{TOPICS}remotecopylagbytes"))
    rows = [
        TopicNumbers(
            topic,
            records.get(topic, 0.0),
            bytes_in.get(topic, 0.0),
            bytes_out.get(topic, 0.0),
            hot.get(topic, 0.0),
            cold.get(topic, 0.0),
            lag.get(topic, 0.0),
            lag_s.get(topic, 0.0),
        )
        for topic in {*bytes_in, *hot, *cold}
    ]
    yield from sorted(
        rows, key=lambda row: (-row.bytes_in_per_s - row.bytes_out_per_s, -row.hot_bytes - row.cold_bytes, row.topic)
    )


def _by_topic(values: Iterable[tuple[Mapping[str, str], float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for labels, value in values:
        if "topic" in labels:
            found[labels["topic"]] = found.get(labels["topic"], 0.0) + value
    return found
