"""Collects the tier's counters: cold reads, the chunk cache, the tier process, object store requests.

A scrape starts no tier process and keeps none alive. It waits briefly for the answer of a running process. If no process runs
or answers, the scrape uses the last known values.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from service.observability.exposition import Exposition, labels_of
from service.observability.process import resident_bytes_of
from service.observability.stats import ASK_S
from storage_tiers.errors import LogError

if TYPE_CHECKING:
    from service.node import Node
    from storage_tiers.cold.process.client import StoreTotals, TierClient
    from storage_tiers.cold.read.fetcher import Hydrator

#: The operations that have a sample of 0 from the start, so that their first increase counts in rates.
OPERATIONS = ("get", "put", "head", "list", "delete", "abort")


async def collect_tier(node: Node, into: Exposition) -> None:
    """Puts the tier's metrics. A node without a store has only the served bytes."""
    read = node.broker.core.log.bytes_read
    into.put("tidelog_served_bytes_total", read.hot, labels_of(tier="hot"))
    into.put("tidelog_served_bytes_total", read.cold, labels_of(tier="cold"))
    if node.tier is not None:
        client = node.tier.client
        _cold_reads(node.tier.hydrator, into)
        try:
            async with asyncio.timeout(ASK_S):
                await client.refresh_counters()
        except (TimeoutError, LogError):
            pass  # use the last known values
        _questions(client, into)
        word = node.ground.settings.supervised
        if word is None or word.tier_listener is None:  # the supervisor counts a shared process
            _process(client, into)
        _store(client.stats.totals(), into)
        # Before the first probe the store counts as unreachable.
        reachable = node.ground.readiness.store == "ok" and client.trouble is None
        into.put("tidelog_store_reachable", int(reachable))
        into.put("tidelog_store_cluster_behind", int(node.tier.access.behind is not None))


def _cold_reads(hydrator: Hydrator, into: Exposition) -> None:
    cache = hydrator.cache
    into.put("tidelog_cold_chunk_reads_total", hydrator.hits, labels_of(result="hit"))
    into.put("tidelog_cold_chunk_reads_total", hydrator.misses, labels_of(result="miss"))
    into.put("tidelog_cold_chunks_fetched_total", hydrator.brought - hydrator.read_ahead, labels_of(reason="asked"))
    into.put("tidelog_cold_chunks_fetched_total", hydrator.read_ahead, labels_of(reason="read_ahead"))
    into.put("tidelog_cold_chunks_copied_total", hydrator.copied)
    into.put("tidelog_cold_chunks_evicted_total", cache.evicted)
    into.put("tidelog_cold_chunks_wasted_total", cache.wasted)
    into.put("tidelog_cold_sidecars_fetched_total", hydrator.sidecars)
    into.put("tidelog_cold_chunk_cache_bytes", cache.used_bytes)
    into.put("tidelog_cold_chunk_cache_limit_bytes", cache.limit_bytes)
    into.put("tidelog_cold_fetches_held_seconds_total", hydrator.held_s)
    into.put("tidelog_cold_fetches_in_flight", hydrator.in_flight)


def _process(client: TierClient, into: Exposition) -> None:
    stats, process_id = client.stats, client.process_id
    into.put("tidelog_tier_process_running", int(client.running))
    into.put("tidelog_tier_process_resident_bytes", 0 if process_id is None else resident_bytes_of(process_id))
    peak = stats.counters.peak_resident_bytes if stats.counters is not None else 0
    into.put("tidelog_tier_process_peak_resident_bytes", peak)
    into.put("tidelog_tier_process_starts_total", stats.starts)
    into.put("tidelog_tier_process_lost_total", stats.lost)


def _questions(client: TierClient, into: Exposition) -> None:
    stats = client.stats
    for question, times in stats.asked.items():
        into.put("tidelog_tier_questions_total", times, labels_of(question=question))
    for error, times in stats.failed.items():
        into.put("tidelog_tier_question_failures_total", times, labels_of(error=error))


def _store(totals: StoreTotals, into: Exposition) -> None:
    for operation in OPERATIONS:
        labels = labels_of(operation=operation)
        into.put("tidelog_store_requests_total", totals.calls[operation], labels)
        took = totals.seconds.get(operation, 0.0)
        into.put_summary("tidelog_store_request_seconds", totals.ended[operation], took, labels)
    for failure, times in totals.failures.items():
        operation, _, error = failure.partition(" ")
        into.put("tidelog_store_errors_total", times, labels_of(operation=operation, error=error))
    into.put("tidelog_store_downloaded_bytes_total", totals.bytes_downloaded)
    into.put("tidelog_store_uploaded_bytes_total", totals.bytes_uploaded)
    into.put("tidelog_store_retries_total", totals.retries)
