"""`tidelog top`: numbers from two readings, the screen from numbers, and both from a node under load."""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console

from service.cli.kafka import http_addresses
from service.cli.top.command import Nodes
from service.cli.top.numbers import (
    ApiNumbers,
    CoordinatorNumbers,
    GroupNumbers,
    NodeNumbers,
    Scrape,
    TierNumbers,
    TopicNumbers,
    node_numbers,
    quantile,
)
from service.cli.top.screen import NodeView, duration, screen
from storage_tiers.clock import SystemClock
from tests.service.cli.support import tidelog
from tests.support.node import Node
from tests.support.ports import free_port

SNAPSHOT = Path(__file__).with_name("top_screen.txt")

PAGE = """\
# TYPE process_start_time_seconds gauge
process_start_time_seconds {started}
# TYPE tidelog_node_info gauge
tidelog_node_info{{version="0.1.0",cluster_id="abc",node_id="7"}} 1
# TYPE tidelog_ready gauge
tidelog_ready 1
# TYPE kafka_server_brokertopicmetrics_bytesin_total counter
kafka_server_brokertopicmetrics_bytesin_total {bytes_in}
kafka_server_brokertopicmetrics_bytesin_total{{topic="orders"}} {bytes_in}
# TYPE kafka_network_requestmetrics_requests_total counter
kafka_network_requestmetrics_requests_total{{request="Produce"}} {requests}
# TYPE kafka_network_requestmetrics_totaltimems histogram
kafka_network_requestmetrics_totaltimems_bucket{{request="Produce",le="1"}} {quick}
kafka_network_requestmetrics_totaltimems_bucket{{request="Produce",le="10"}} {requests}
kafka_network_requestmetrics_totaltimems_bucket{{request="Produce",le="+Inf"}} {requests}
# TYPE tidelog_cold_chunk_reads_total counter
tidelog_cold_chunk_reads_total{{result="hit"}} {hits}
tidelog_cold_chunk_reads_total{{result="miss"}} 5
# TYPE tidelog_store_requests_total counter
tidelog_store_requests_total{{operation="get"}} {gets}
# TYPE kafka_coordinator_group_groupmetadatamanager_numgroups gauge
kafka_coordinator_group_groupmetadatamanager_numgroups 7
# TYPE kafka_coordinator_group_groupmetadatamanager_numgroupspreparingrebalance gauge
kafka_coordinator_group_groupmetadatamanager_numgroupspreparingrebalance 2
# TYPE kafka_coordinator_group_groupmetadatamanager_numgroupscompletingrebalance gauge
kafka_coordinator_group_groupmetadatamanager_numgroupscompletingrebalance 1
# TYPE tidelog_group_members gauge
tidelog_group_members 21
# TYPE kafka_server_group_coordinator_metrics_offset_commit_total counter
kafka_server_group_coordinator_metrics_offset_commit_total {commits}
# TYPE kafka_server_group_coordinator_metrics_group_completed_rebalance_total counter
kafka_server_group_coordinator_metrics_group_completed_rebalance_total {rebalances}
# TYPE tidelog_group_lag_records gauge
tidelog_group_lag_records{{group="near"}} 5
tidelog_group_lag_records{{group="far"}} 500
tidelog_group_lag_records{{group="there"}} 0
# TYPE tidelog_group_lag_in_bucket_records gauge
tidelog_group_lag_in_bucket_records{{group="near"}} 0
tidelog_group_lag_in_bucket_records{{group="far"}} 400
# TYPE tidelog_transactional_ids gauge
tidelog_transactional_ids{{state="Ongoing"}} 3
tidelog_transactional_ids{{state="PrepareCommit"}} 1
tidelog_transactional_ids{{state="PrepareAbort"}} 2
tidelog_transactional_ids{{state="CompleteCommit"}} 40
# TYPE tidelog_transaction_open_seconds_max gauge
tidelog_transaction_open_seconds_max 90
# TYPE tidelog_transactions_ended_total counter
tidelog_transactions_ended_total{{outcome="committed"}} {committed}
tidelog_transactions_ended_total{{outcome="aborted"}} {aborted}
# TYPE tidelog_tier_offload_held_back_bytes gauge
tidelog_tier_offload_held_back_bytes{{topic="a",partition="0",producer_id="1"}} 1000
tidelog_tier_offload_held_back_bytes{{topic="b",partition="0",producer_id="2"}} 2000
"""


def page(at: float, **numbers: float) -> Scrape:
    counters = "bytes_in", "requests", "quick", "hits", "gets", "commits", "rebalances", "committed", "aborted"
    given = {"started": 1000, **dict.fromkeys(counters, 0), **numbers}
    return Scrape.parse(PAGE.format(**given), at)


def test_rates_are_of_the_interval() -> None:
    before = page(10, bytes_in=1000, requests=100, quick=100, hits=1, gets=4)
    after = page(14, bytes_in=5000, requests=300, quick=200, hits=4, gets=12)
    numbers = node_numbers(before, after, unix_s=1060)
    assert (numbers.bytes_in_per_s, numbers.requests_per_s) == (1000, 50)
    assert (numbers.uptime_s, numbers.restarted, numbers.ready) == (60, False, True)
    assert (numbers.version, numbers.cluster_id, numbers.node_id) == ("0.1.0", "abc", "7")
    assert (numbers.tier.hit_ratio, numbers.tier.cold_gets_per_s) == (1.0, 2)
    (api,) = numbers.apis
    assert (api.api, api.per_s, api.p50_ms) == ("Produce", 50, 1.0)
    assert api.p99_ms == pytest.approx(9.82)
    (topic,) = numbers.topics
    assert (topic.topic, topic.bytes_in_per_s) == ("orders", 1000)


def test_groups_and_transactions_have_their_numbers() -> None:
    before = page(10, commits=100, rebalances=1, committed=10, aborted=1)
    after = page(14, commits=500, rebalances=9, committed=50, aborted=3)
    assert node_numbers(before, after, unix_s=1060).coordinators == CoordinatorNumbers(
        groups=7,
        rebalancing=3,
        members=21,
        commits_per_s=100,
        rebalances_per_s=2,
        transactional_ids=46,
        undecided=3,
        completing=3,
        oldest_s=90,
        committed_per_s=10,
        aborted_per_s=0.5,
        held_back_bytes=3000,
        lags=(GroupNumbers("far", 500, 400), GroupNumbers("near", 5, 0)),
    )


def test_counters_restart_with_the_node() -> None:
    before = page(10, bytes_in=9000, requests=5)
    numbers = node_numbers(before, page(12, started=2000, bytes_in=9400, requests=4), unix_s=2001)
    assert numbers.restarted
    assert (numbers.bytes_in_per_s, numbers.requests_per_s) == (4700, 2)


def test_an_api_without_requests_has_no_quantile() -> None:
    assert quantile([], 0.99) is None
    assert quantile([(1.0, 0.0), (math.inf, 0.0)], 0.99) is None
    assert quantile([(1.0, 0.0), (math.inf, 4.0)], 0.5) == 1.0, "beyond the last bound, the last bound"
    numbers = node_numbers(page(1, requests=7), page(2, requests=7), unix_s=1001)
    assert numbers.apis == () and numbers.tier.hit_ratio is None


def test_a_page_without_metrics_is_refused() -> None:
    with pytest.raises(ValueError, match="no metrics"):
        Scrape.parse("", 0)


# --- the screen -------------------------------------------------------------------------------------------------------
MIB = 1 << 20
TIER = TierNumbers(
    hot_bytes_per_s=96 * MIB,
    cold_bytes_per_s=32 * MIB,
    lag_bytes=5 * MIB,
    lag_segments=2,
    lag_s=42,
    uploaded_per_s=80 * MIB,
    downloaded_per_s=31 * MIB,
    cold_gets_per_s=8.5,
    hit_ratio=0.75,
    cache_bytes=640 * MIB,
    cache_limit_bytes=1024 * MIB,
    store={"get": 8.5, "put": 12.0},
    store_errors_per_s=0.5,
    store_retries_per_s=1.0,
    evicted_per_s=64 * MIB,
)
COORDINATORS = CoordinatorNumbers(
    groups=2_000,
    rebalancing=3,
    members=6_000,
    commits_per_s=1_234.5,
    rebalances_per_s=0.5,
    transactional_ids=12,
    undecided=2,
    completing=1,
    oldest_s=150,
    committed_per_s=480,
    aborted_per_s=1.5,
    held_back_bytes=300 * MIB,
    lags=(GroupNumbers("billing", 1_200_000, 1_000_000), GroupNumbers("mail", 12, 0), GroupNumbers("slow", 3, 0)),
)
NUMBERS = NodeNumbers(
    interval_s=2.0,
    version="0.1.0",
    cluster_id="abc",
    node_id="1",
    ready=True,
    uptime_s=7300,
    restarted=False,
    bytes_in_per_s=110 * MIB,
    bytes_out_per_s=128 * MIB,
    records_in_per_s=112_640,
    requests_per_s=23_456.7,
    errors_per_s=0.5,
    connections=200,
    live_brokers=1,
    fenced_brokers=0,
    moving_partitions=0,
    partitions=1_000,
    recovering_partitions=3,
    memory_bytes=95 * MIB,
    tier_memory_bytes=88 * MIB,
    cpu_cores=0.97,
    disk_used=0.93,
    throttled_per_s=0,
    refused_per_s=0,
    store_reachable=True,
    store_behind=False,
    tier=TIER,
    coordinators=COORDINATORS,
    apis=(ApiNumbers("Produce", 23_000, 0.21, 1.234, 0), ApiNumbers("Metadata", 0.5, None, None, 0.5)),
    topics=(
        TopicNumbers("orders", 112_640, 110 * MIB, 128 * MIB, 900 * MIB, 2_500 * MIB, 5 * MIB, 42),
        TopicNumbers("idle", 0, 0, 0, 0, 10 * MIB, 0, 0),
        TopicNumbers("idler", 0, 0, 0, 0, 0, 0, 0),
    ),
)


def rendered(seen: list[NodeView], width: int = 150) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(screen(seen, title="tidelog top", topics=2))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def test_the_screen_of_fixed_numbers_is_the_recorded_one() -> None:
    """The snapshot file is the whole screen: review it when it changes."""
    seen = [
        NodeView("10.0.0.1:9094", NUMBERS),
        NodeView("10.0.0.2:9094", None, "cannot be reached: Connection refused"),
    ]
    assert rendered(seen) == SNAPSHOT.read_text()


def test_a_narrow_screen_cuts_nothing_off() -> None:
    text = rendered([NodeView("127.0.0.1:9094", NUMBERS)], width=80)
    assert "…" not in text and max(map(len, text.splitlines())) <= 80
    for words in ("1 127.0.0.1:9094", "23,457", "1,000 (3 recovering)", "88.0 MiB", "2.44 GiB"):
        assert words in text


def test_a_node_without_groups_and_transactions_shows_no_tables_of_them() -> None:
    none = CoordinatorNumbers(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ())
    text = rendered([NodeView("127.0.0.1:9094", replace(NUMBERS, coordinators=none))])
    assert "groups" not in text and "transactions" not in text and "tiering" in text


def test_the_numbers_of_several_nodes_are_added_up() -> None:
    text = rendered([NodeView("a:1", NUMBERS), NodeView("b:2", replace(NUMBERS, node_id="2"))])
    billing = next(line for line in text.splitlines() if "billing" in line)
    assert billing.split() == ["billing", "2,400,000", "2,000,000"]
    assert "4,000" in text and "960/s" in text and "600 MiB" in text


def test_a_cluster_shows_its_brokers_and_moves() -> None:
    assert "brokers" not in rendered([NodeView("a:1", NUMBERS)])
    node = replace(NUMBERS, live_brokers=3, fenced_brokers=1, moving_partitions=2)
    text = rendered([NodeView("a:1", node), NodeView("b:2", replace(node, live_brokers=2, moving_partitions=5))])
    assert "\n3 live brokers, 1 fenced, 7 partitions on the move\n" in text


def test_the_state_of_a_node_is_on_its_line() -> None:
    for change, word in (
        ({"restarted": True}, "restarted"),
        ({"refused_per_s": 1.0}, "refuses"),
        ({"throttled_per_s": 1.0}, "slows"),
        ({"ready": False}, "not ready"),
        ({"store_reachable": False}, "away"),
        ({"store_behind": True}, "behind"),
    ):
        assert word in rendered([NodeView("h:1", replace(NUMBERS, **change))])


def test_times_read_as_people_say_them() -> None:
    assert [duration(s) for s in (None, 0, 119, 120, 7200, 172_800)] == ["-", "0 s", "119 s", "2 min", "2 h", "2 d"]


# --- nodes ------------------------------------------------------------------------------------------------------------
def test_unreachable_nodes_are_reported() -> None:
    address = f"127.0.0.1:{free_port()}"
    ran = tidelog("top", "--once", "--http", address, "--interval", "0.2")
    assert ran.code == 2
    assert f"{address}: cannot be reached: Connection refused; retrying" in ran.out
    (line,) = tidelog("top", "--once", "--json", "--http", f"http://{address}/metrics", "--interval", "0.2").json_lines
    assert (line["reached"], line["numbers"]) == (False, None) and "Connection refused" in line["trouble"]


def test_a_node_that_was_never_started_is_named() -> None:
    ran = tidelog("top", "--once", "-b", f"127.0.0.1:{free_port()}")
    assert ran.code == 2 and "cannot reach a node" in ran.err


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("top")) as started:
        yield started


def write(node: Node, topic: str, records: int) -> None:
    producer = Producer({"bootstrap.servers": node.kafka, "log_level": 2})
    for _ in range(records):
        producer.produce(topic, bytes(1000))
    assert producer.flush(30) == 0


def test_a_node_under_load(node: Node) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka, "log_level": 2})
    admin.create_topics([NewTopic("flights", 1, 1)])["flights"].result()
    (address,) = http_addresses(node.kafka)
    assert address == node.http
    nodes = Nodes([address], SystemClock())
    (first,) = nodes.look()
    assert first.numbers is None and first.trouble is None
    write(node, "flights", 500)
    (seen,) = nodes.look()
    nodes.close()
    numbers = seen.numbers
    assert numbers is not None
    assert numbers.bytes_in_per_s * numbers.interval_s >= 500_000
    assert round(numbers.records_in_per_s * numbers.interval_s) == 500
    produced = next(api for api in numbers.apis if api.api == "Produce")
    assert produced.p99_ms is not None and produced.p50_ms is not None and 0 < produced.p50_ms <= produced.p99_ms
    assert [topic.topic for topic in numbers.topics] == ["flights"] and numbers.topics[0].hot_bytes >= 500_000
    assert numbers.connections >= 1 and numbers.memory_bytes > 10 * MIB and numbers.ready


def commit(consumer: Consumer, at: TopicPartition) -> None:
    """Commits an offset. librdkafka gives up if a busy machine needs long to create the coordinator's topic."""
    deadline = time.monotonic() + 60
    while True:
        try:
            consumer.commit(offsets=[at], asynchronous=False)
            return
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NOT_COORDINATOR or time.monotonic() > deadline:
                raise


def test_groups_lag_and_transactions_of_a_node_are_seen(node: Node) -> None:
    write(node, "lagging", 30)
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "behind", "log_level": 2})
    commit(consumer, TopicPartition("lagging", 0, 10))
    consumer.close()
    producer = Producer({"bootstrap.servers": node.kafka, "transactional.id": "x", "log_level": 2})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("lagging", b"in the transaction")
    assert producer.flush(30) == 0
    nodes = Nodes([node.http], SystemClock())
    nodes.look()
    (seen,) = nodes.look()
    producer.abort_transaction(30)
    nodes.close()
    assert seen.numbers is not None
    found = seen.numbers.coordinators
    assert (found.groups, found.members, found.undecided) == (1, 0, 1)
    assert found.lags == (GroupNumbers("behind", 21, 0),)
    ran = tidelog("top", "--once", "--interval", "0.2", "-b", node.kafka)
    assert "consumer groups" in ran.out and "transactions" in ran.out and "behind" in ran.out


def test_the_command_finds_the_node(node: Node) -> None:
    ran = tidelog("top", "--once", "--interval", "0.2", "-b", node.kafka)
    assert ran.code == 0 and node.http in ran.out and "ready" in ran.out and "topics" in ran.out
    (line,) = tidelog("top", "--once", "--json", "--interval", "0.2", "-b", node.kafka).json_lines
    assert line["reached"] and line["numbers"]["node_id"] == "1" and json.dumps(line)


def test_it_survives_a_restart_also_on_another_port(node: Node) -> None:
    nodes = Nodes(http_addresses(node.kafka), SystemClock(), find=lambda: http_addresses(node.kafka))
    try:
        nodes.look()
        node.stop()
        (away,) = nodes.look()
        assert away.trouble is not None and "cannot be reached" in away.trouble
        node.http = ""  # the next start takes a free port
        node.start()
        nodes.look()
        (back,) = nodes.look()
        assert back.trouble is None and back.numbers is not None and back.address == node.http
    finally:
        nodes.close()


def test_a_listener_of_another_protocol_is_reported_as_such_and_its_answer_is_not_shown(node: Node) -> None:
    """The answer is not shown: it may hold anything, and a terminal would interpret it."""
    for address in (node.grpc, node.kafka):
        ran = tidelog("top", "--once", "--interval", "0.2", "--http", address)
        assert ran.code == 2
        assert f"{address}: does not speak HTTP" in ran.out or f"{address}: cannot be reached: Remote end" in ran.out
        assert ran.out.replace("\n", "").isprintable()
