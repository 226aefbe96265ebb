"""The form of samples, the format that a scraper gets, and scrapes that do not block the event loop."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Awaitable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.lifecycle.readiness import Readiness
from service.observability.collect_gateway import WINDOW_S, IdleWindow
from service.observability.collect_log import PARTITIONS_A_TURN
from service.observability.exposition import (
    LABEL_CHARS,
    OPEN_METRICS,
    TEXT,
    Exposition,
    labels_of,
    number,
    prefers_open_metrics,
)
from service.observability.process import resident_bytes_of
from service.serve.http import serve_http
from tests.service.observability.world import observed

PROMETHEUS = "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"


def text(into: Exposition) -> str:
    return b"".join(into.families()).decode()


@pytest.mark.parametrize("value", ['a"b', "a\\b", "a\nb", "a\\nb", "ä", 'a"} 1\nevil 2'])
def test_label_values_are_read_as_they_were(value: str) -> None:
    into = Exposition()
    into.put("tidelog_node_info", 1, labels_of(version=value, cluster_id="c", node_id=1))
    (family,) = text_string_to_metric_families(text(into))
    (sample,) = family.samples
    assert sample.labels == {"version": value, "cluster_id": "c", "node_id": "1"}


@pytest.mark.parametrize(
    ("value", "written"), [(3, "3"), (0.5, "0.5"), (math.inf, "+Inf"), (-math.inf, "-Inf"), (math.nan, "NaN")]
)
def test_numbers_have_the_form_that_prometheus_reads(value: float, written: str) -> None:
    assert number(value) == written


def test_buckets_are_cumulative() -> None:
    into = Exposition()
    into.put_histogram("kafka_network_requestmetrics_totaltimems", (1.0, 2.0), (3, 0, 4), 12.5, request="Produce")
    assert [line.rpartition(" ")[2] for line in text(into).splitlines()[2:]] == ["3", "3", "7", "7", "12.5"]


def test_nothing_is_served_that_is_not_in_the_table() -> None:
    with pytest.raises(KeyError):
        Exposition().put("tidelog_unheard_of", 1)


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        (PROMETHEUS, True),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text;q=0.2, text/plain;q=0.4", False),
        ("application/openmetrics-text;q=nonsense", False),
    ],
)
def test_openmetrics_is_served_if_accept_prefers_it(accept: str, wanted: bool) -> None:
    assert prefers_open_metrics(accept) is wanted


async def test_the_server_names_its_format_and_waits_for_the_node() -> None:
    import aiohttp

    started: list[bool] = []

    async def body(open_metrics: bool) -> bytes:
        return b"# EOF\n" if open_metrics else b""

    def scrape(open_metrics: bool) -> Awaitable[bytes] | None:
        return body(open_metrics) if started else None

    async def stats() -> dict[str, object]:
        return {}

    http = await serve_http(Readiness(), stats, scrape, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{http.port}/metrics"
    try:
        async with aiohttp.ClientSession() as session:
            async with session.get(url) as early:
                assert early.status == 503
            started.append(True)
            for accept, kind, content in (("*/*", TEXT, b""), (PROMETHEUS, OPEN_METRICS, b"# EOF\n")):
                async with session.get(url, headers={"Accept": accept}) as answer:
                    assert answer.status == 200
                    assert answer.headers["Content-Type"] == kind
                    assert await answer.read() == content
    finally:
        await http.stop()


async def test_others_have_their_turn_while_many_partitions_are_looked_at(tmp_path: Path) -> None:
    partitions = 4 * PARTITIONS_A_TURN
    async with observed(tmp_path / "data", {}) as world:
        await world.create("t", partitions)
        scraping = asyncio.create_task(world.scraper.scrape(open_metrics=False))
        turns = 0
        while not scraping.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns >= partitions / PARTITIONS_A_TURN
        assert (await scraping).count(b"\nkafka_log_log_size{") == partitions


async def test_a_partition_removed_during_a_scrape_counts_once(tmp_path: Path) -> None:
    async with observed(tmp_path / "data", {}) as world:
        await world.create("t", 2 * PARTITIONS_A_TURN)
        await world.node.append("t", b"a", partition=2 * PARTITIONS_A_TURN - 1)
        scraping = asyncio.create_task(world.scraper.scrape(open_metrics=False))
        await asyncio.sleep(0)
        await world.node.core.topics.delete(["t"])
        assert b"\nkafka_server_brokertopicmetrics_messagesin_total 1\n" in await scraping
        assert (await world.scrape())["kafka_server_brokertopicmetrics_messagesin_total"] == 1


def test_idle_shares_look_back_over_the_window() -> None:
    window = IdleWindow(0.0)
    assert window.idle(0.0, 0.0, 0.0) == (1.0, 1.0)
    assert window.idle(10.0, 5.0, 2.0) == pytest.approx((0.5, 0.8))
    # A scraper that asks a moment later sees the same window.
    assert window.idle(10.1, 5.0, 2.0)[0] == pytest.approx(1 - 5 / 10.1)
    assert window.idle(10.0 + WINDOW_S, 5.0, 2.0) == pytest.approx((1.0, 1.0))


def test_a_process_that_is_gone_has_no_memory() -> None:
    assert resident_bytes_of(os.getpid()) > 1 << 20
    assert resident_bytes_of(1 << 30) == 0


def test_a_long_label_is_cut_and_stays_apart_from_others() -> None:
    whole, long = "g" * LABEL_CHARS, "g" * 32_000
    assert labels_of(group=whole) == f'{{group="{whole}"}}'
    cut = labels_of(group=long)
    assert len(cut) == len(labels_of(group=whole))
    assert cut.startswith('{group="ggg')
    assert len({cut, labels_of(group=long + "h"), labels_of(group=whole)}) == 3
