"""Collects partitions' counters: by topic, in total, and, up to a limit, one by one.

A scrape of thousands of partitions must not block the event loop, so each iteration of the loop visits only a few. Sums stay
consistent: a deleted partition's counts are included exactly once.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from service.broker.background.delayed_offloads import held_back
from service.broker.partition.counts import PartitionCounts
from service.observability.exposition import Exposition, labels_of

if TYPE_CHECKING:
    from service.broker.partition.partition import Partition
    from service.node import Node

#: Partitions visited per iteration of the event loop. They take well below a millisecond.
PARTITIONS_A_TURN = 32
#: Topics written per iteration of the event loop.
TOPICS_A_TURN = 32

#: A transaction is late if it is open for this many ms beyond the longest permitted timeout (Kafka's constant).
LATE_MS = 5 * 60 * 1000

_PREFIX = "kafka_server_brokertopicmetrics_"
#: The metrics and attributes of `Sums`. `_OF_COUNTS` has those of `PartitionCounts`.
_OF_SUMS = (
    ("messagesin_total", "records_in"),
    ("bytesin_total", "bytes_in"),
    ("bytesout_total", "bytes_out"),
    ("remotelogsizebytes", "remote_bytes"),
    ("remotelogmetadatacount", "remote_segments"),
    ("remotecopylagbytes", "lag_bytes"),
    ("remotecopylagsegments", "lag_segments"),
)
_OF_COUNTS = (
    ("bytesrejected_total", "rejected_bytes"),
    ("totalproducerequests_total", "appends"),
    ("totalfetchrequests_total", "fetches"),
    ("failedproducerequests_total", "failed_appends"),
    ("failedfetchrequests_total", "failed_fetches"),
    ("remotefetchbytes_total", "cold_bytes"),
    ("remotefetchrequests_total", "cold_reads"),
    ("remotefetcherrors_total", "cold_failures"),
    ("remotecopybytes_total", "offloaded_bytes"),
    ("remotecopyrequests_total", "offloads"),
    ("remotecopyerrors_total", "failed_offloads"),
    ("remotedeleterequests_total", "deletes"),
    ("remotedeleteerrors_total", "failed_deletes"),
)


class Sums:
    """Sums over the partitions of a topic, or over all partitions."""

    def __init__(self) -> None:
        self.records_in = self.bytes_in = self.bytes_out = 0
        self.remote_bytes = self.remote_segments = 0
        self.lag_bytes = self.lag_segments = 0
        self.counts = PartitionCounts()


@dataclass(slots=True)
class LogTotals:
    """Totals over all partitions."""

    partitions: int = 0
    serving: int = 0
    waiting: int = 0
    producers: int = 0
    failed: int = 0
    evicted_bytes: int = 0
    longest_lag_s: float = 0.0
    held_back: int = 0
    late_transactions: int = 0


async def collect_log(node: Node, into: Exposition) -> LogTotals:
    """Puts the metrics of partitions and topics. Returns the totals that other metrics need."""
    configs = node.configs.broker
    most_topics, left = configs.tidelog_metrics_topics, configs.tidelog_metrics_partitions
    partitions, past = tuple(node.broker.partitions), node.broker.partitions.past
    seen = LogTotals(partitions=len(partitions), evicted_bytes=past.evicted_bytes)
    everything = Sums()
    everything.counts.add(past.asked)
    everything.records_in = past.appended_records
    everything.bytes_in = past.appended_bytes
    everything.bytes_out = past.read_bytes
    topics: dict[str, Sums] = {}
    now_ms = node.ground.host.clock.steady_ms()
    for index, partition in enumerate(partitions):
        if index % PARTITIONS_A_TURN == 0:
            await asyncio.sleep(0)
        sums = topics.get(partition.partition.topic)
        if sums is None:
            sums = topics[partition.partition.topic] = Sums()
        _collect_partition(node, partition, sums, seen, into if index < left else None, now_ms)
    await _put_topics(topics, everything, most_topics, into)
    _put_all(node, everything, into)
    into.put("tidelog_metrics_left_out", max(0, len(topics) - most_topics), labels_of(kind="topic"))
    into.put("tidelog_metrics_left_out", max(0, len(partitions) - left), labels_of(kind="partition"))
    into.put("tidelog_local_evicted_bytes_total", seen.evicted_bytes)
    into.put("tidelog_tier_offload_lag_seconds_max", seen.longest_lag_s)
    into.put("tidelog_tier_offload_held_back_partitions", seen.held_back)
    return seen


def _collect_partition(
    node: Node, partition: Partition, sums: Sums, seen: LogTotals, into: Exposition | None, now_ms: int
) -> None:
    hot, tier = partition.log.hot, partition.log.tier
    sums.records_in += hot.appended_records
    sums.bytes_in += hot.appended_bytes
    sums.bytes_out += partition.log.read_bytes
    sums.counts.add(partition.counts)
    seen.serving += partition.read_error is None
    seen.waiting += partition.is_recovering
    seen.failed += partition.life.is_failed
    producers, most_ms = hot.end.producers, node.configs.broker.transaction_max_timeout_ms
    seen.producers += len(producers.producers)
    seen.late_transactions += producers.has_late_transaction(now_ms, most_ms + LATE_MS)
    seen.evicted_bytes += hot.evicted_bytes
    labels = ""
    if into is not None:
        labels = labels_of(topic=partition.partition.topic, partition=partition.partition.partition)
        into.put("kafka_log_log_size", hot.size_bytes, labels)
        into.put("kafka_log_log_logstartoffset", hot.log_start_offset, labels)
        into.put("kafka_log_log_logendoffset", hot.end_offset, labels)
        into.put("kafka_log_log_numlogsegments", hot.segment_count, labels)
    if tier is not None:
        sums.remote_bytes += tier.bytes
        sums.remote_segments += tier.segments
    if node.tier is None or not hot.settings.remote_storage_enable:
        return
    beyond = hot.totals_after(max(partition.log.tiered_end, hot.log_start_offset))
    age_s = max(0.0, (now_ms - beyond.since_ms) / 1000) if beyond.since_ms >= 0 else 0.0
    sums.lag_bytes += beyond.closed_size
    sums.lag_segments += beyond.closed_segments
    seen.longest_lag_s = max(seen.longest_lag_s, age_s)
    held = held_back(partition)
    seen.held_back += held is not None
    if into is not None:
        into.put("tidelog_tier_offload_lag_bytes", beyond.size, labels)
        into.put("tidelog_tier_offload_lag_segments", beyond.segments, labels)
        into.put("tidelog_tier_offload_lag_seconds", age_s, labels)
        if held is not None:
            of_producer = labels_of(**partition.partition._asdict(), producer_id=held.producer_id)
            into.put("tidelog_tier_offload_held_back_bytes", held.held_bytes, of_producer)


async def _put_topics(topics: dict[str, Sums], everything: Sums, most: int, into: Exposition) -> None:
    for index, (topic, sums) in enumerate(topics.items()):
        if index % TOPICS_A_TURN == 0:
            await asyncio.sleep(0)
        everything.counts.add(sums.counts)
        for _, attribute in _OF_SUMS:
            setattr(everything, attribute, getattr(everything, attribute) + getattr(sums, attribute))
        if index < most:
            _put_sums(sums, into, labels_of(topic=topic))


def _put_sums(sums: Sums, into: Exposition, labels: str = "") -> None:
    for name, attribute in _OF_SUMS:
        into.put(_PREFIX + name, getattr(sums, attribute), labels)
    for name, attribute in _OF_COUNTS:
        into.put(_PREFIX + name, getattr(sums.counts, attribute), labels)


def _put_all(node: Node, everything: Sums, into: Exposition) -> None:
    """Puts the samples without a topic. They include requests for unknown topics."""
    service = node.broker.core.log
    everything.counts.appends = service.appended.batches
    everything.counts.failed_appends = service.appended.failed
    everything.counts.fetches = service.bytes_read.asked
    everything.counts.failed_fetches = service.bytes_read.failed
    _put_sums(everything, into)
