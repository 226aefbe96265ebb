"""One scrape of a node: collects and writes all of `metrics.METRICS`.

Between scrapes, only the samples of the idle shares (`IdleWindow`) and the count and duration of earlier scrapes are kept. All
other numbers are plain counters of the node's parts, so a metric that is not scraped has no extra cost. Concurrent scrapes run
one after another.
"""

from __future__ import annotations

import asyncio
import time
from importlib.metadata import version
from typing import TYPE_CHECKING

from service.observability.collect_coordinators import collect_cleaner, collect_coordinators
from service.observability.collect_gateway import GatewayMetrics
from service.observability.collect_log import LogTotals, collect_log
from service.observability.collect_tier import collect_tier
from service.observability.exposition import Exposition, labels_of
from service.observability.process import collect_process

if TYPE_CHECKING:
    from kafka_gateway.server import GatewayServer
    from service.node import Node

#: Kafka's BrokerState.
_RECOVERY, _RUNNING, _SHUTTING_DOWN = 2, 3, 6
#: After a metric whose text has more bytes than this, the event loop runs other work.
LARGE_PART = 16 << 10


class Scraper:
    """Scrapes one node. Created after the gateway has started to serve."""

    def __init__(self, node: Node, gateway: GatewayServer) -> None:
        self.node = node
        self._gateway = GatewayMetrics(gateway)
        self._scraping = asyncio.Lock()
        self._scrapes = 0
        self._scraping_s = 0.0
        self._info = labels_of(
            version=version("tidelog"), cluster_id=node.cluster_id, node_id=node.ground.settings.node_id
        )

    async def scrape(self, *, open_metrics: bool) -> bytes:
        """The body of a response."""
        async with self._scraping:
            began = time.perf_counter()  # noqa: TID251 - the shell
            into = Exposition()
            into.put_summary("tidelog_scrape_seconds", self._scrapes, self._scraping_s)
            seen = await collect_log(self.node, into)
            await collect_tier(self.node, into)
            await collect_coordinators(self.node, into)
            collect_cleaner(self.node, into)
            self._gateway.collect(into)
            self._replicas(into, seen)
            self._refusals(into)
            self._controller(into, seen)
            self._of_node(into, seen)
            collect_process(into)
            parts = []
            for part in into.families(open_metrics=open_metrics):
                parts.append(part)
                if len(part) > LARGE_PART:
                    await asyncio.sleep(0)
            self._scrapes += 1
            self._scraping_s += time.perf_counter() - began  # noqa: TID251 - the shell
            return b"".join(parts)

    def _replicas(self, into: Exposition, seen: LogTotals) -> None:
        manager = "kafka_server_replicamanager_"
        into.put(manager + "partitioncount", seen.partitions)
        into.put(manager + "leadercount", seen.serving)
        into.put(manager + "offlinereplicacount", self.node.broker.assignment.unopened + seen.failed)
        # The only replica of a partition is in sync.
        into.put(manager + "underreplicatedpartitions", 0)
        topics, node_id = self.node.ground.metadata.image.topics.values(), self.node.ground.settings.node_id
        moving = sum(bool(p.adding) and p.leader == node_id for topic in topics for p in topic.partitions)
        into.put(manager + "reassigningpartitions", moving)
        into.put(manager + "underminisrpartitioncount", 0)
        into.put(manager + "atminisrpartitioncount", seen.serving)
        into.put(manager + "produceridcount", seen.producers)
        into.put(manager + "partitionswithlatetransactionscount", seen.late_transactions)
        flusher = self.node.work.flusher
        into.put_summary("kafka_log_logflushstats_logflushrateandtimems", flusher.flushes, flusher.flushing_s * 1000)
        into.put("kafka_log_logmanager_offlinelogdirectorycount", int(seen.failed > 0))

    def _refusals(self, into: Exposition) -> None:
        topics, refused = "kafka_server_brokertopicmetrics_", self.node.broker.core.log.appended.refused
        into.put(topics + "invalidmagicnumberrecords_total", refused.format)
        into.put(topics + "invalidmessagecrcrecords_total", refused.checksum)
        into.put(topics + "invalidoffsetorsequencerecords_total", refused.other)
        into.put(topics + "nokeycompactedtopicrecords_total", refused.key)

    def _controller(self, into: Exposition, seen: LogTotals) -> None:
        image, controller = self.node.ground.metadata.image, "kafka_controller_kafkacontroller_"
        placed = sum(len(topic.partitions) for topic in image.topics.values())
        nobody_or_here = (-1, self.node.ground.settings.node_id)
        here = sum(p.leader in nobody_or_here for topic in image.topics.values() for p in topic.partitions)
        fenced = sum(broker.fenced for broker in image.brokers.values())
        into.put(controller + "activecontrollercount", int(self.node.ground.own_log is not None))
        into.put(controller + "activebrokercount", len(image.brokers) - fenced)
        into.put(controller + "fencedbrokercount", fenced)
        into.put(controller + "globaltopiccount", len(image.topics))
        into.put(controller + "globalpartitioncount", placed)
        into.put(controller + "offlinepartitionscount", max(0, here - seen.serving))
        moved = sum(p.leader != p.replicas[0] for topic in image.topics.values() for p in topic.partitions)
        into.put(controller + "preferredreplicaimbalancecount", moved)
        into.put(controller + "metadataerrorcount", self.node.ground.metadata.refused)
        into.put(controller + "lastappliedrecordoffset", self.node.ground.metadata.last_index)
        into.put(controller + "lastcommittedrecordoffset", self.node.ground.metadata.last_index)

    def _of_node(self, into: Exposition, seen: LogTotals) -> None:
        readiness, disk = self.node.ground.readiness, self.node.work.disk
        state = _SHUTTING_DOWN if readiness.stopping else _RUNNING if readiness.recovered else _RECOVERY
        into.put("kafka_server_kafkaserver_brokerstate", state)
        into.put("tidelog_node_info", 1, self._info)
        into.put("tidelog_ready", int(readiness.ready))
        into.put("tidelog_recovering_partitions", seen.waiting)
        into.put("tidelog_descriptor_shortages_total", self.node.ground.host.descriptors.shortages)
        into.put("tidelog_partitions_store_behind", len(self.node.work.tiering.lineage))
        into.put("tidelog_disk_used_ratio", disk.used)
        into.put("tidelog_clock_step_seconds", self.node.work.expiry.step_ms / 1000)
        into.put("tidelog_produce_throttled_total", disk.throttled)
        into.put("tidelog_produce_refused_total", disk.refused)
        queues = self.node.broker.append_queues
        into.put("tidelog_append_queue_bytes", queues.held_bytes)
        into.put("tidelog_append_written_by_threads_total", queues.written_by_threads)
        into.put("tidelog_append_seconds_per_gigabyte", queues.cost.s_per_gb)
