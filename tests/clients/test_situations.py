"""Real clients beyond plain reading and writing: large records, append times, topics that do not exist yet."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Mapping

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient

from storage_tiers.records.batch import headers
from tests.clients.disk import KEPT, evict, log, stored
from tests.clients.readers import READERS, readers
from tests.clients.samples import COUNT, Record, records
from tests.clients.writers import WRITERS, told, writers
from tests.support.clients import create
from tests.support.node import Node
from tests.support.talker import Refused, Talker

pytestmark = pytest.mark.filterwarnings("ignore:read_text is deprecated", "ignore:open_text is deprecated")
LARGE = 300_000

#: Settings that make a client fetch 1,000 bytes at a time.
SMALL_FETCHES: Mapping[str, Mapping[str, int]] = {
    "confluent-kafka": {"max.partition.fetch.bytes": 1000},
    "kafka-python": {"max_partition_fetch_bytes": 1000, "fetch_max_bytes": 1000},
    "aiokafka": {"max_partition_fetch_bytes": 1000, "fetch_max_bytes": 1000},
    "kcat": {"fetch.message.max.bytes": 1000},
    "Java": {"max.partition.fetch.bytes": 1000, "fetch.max.bytes": 1000},
}


@pytest.fixture(scope="module")
def large(node: Node) -> list[Record]:
    """Records in batches of their own, some far larger than the fetch limit."""
    create(node, "large", 1, {**KEPT, "internal.segment.bytes": str(1 << 20)})
    producer = Producer({"bootstrap.servers": node.kafka, "batch.num.messages": 1, "enable.idempotence": True})
    for number in range(8):
        value = bytes([number]) * (LARGE if number % 3 == 0 else 10)
        producer.produce("large", value, b"%d" % number, timestamp=1_700_000_000_000 + number)
    assert producer.flush(30) == 0
    assert len(list(headers(log(node, "large")))) == 8
    return stored(node, "large")


@pytest.fixture(scope="module")
def large_and_cold(node: Node, large: list[Record]) -> list[Record]:
    evict(node, ["large"])
    return large


@pytest.mark.parametrize("reader", READERS)
def test_a_record_larger_than_the_fetch_limit_arrives(
    node: Node, java: Talker, large: list[Record], reader: str
) -> None:
    found = readers(java)[reader](node.kafka, {"large": (0, 8)}, **SMALL_FETCHES[reader])
    assert found["large"] == large


@pytest.mark.parametrize("reader", READERS)
def test_a_record_larger_than_the_fetch_limit_arrives_from_the_bucket_too(
    node: Node, java: Talker, large_and_cold: list[Record], reader: str
) -> None:
    found = readers(java)[reader](node.kafka, {"large": (0, 8)}, **SMALL_FETCHES[reader])
    assert found["large"] == large_and_cold


# --- timestamps -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("writer", WRITERS)
def test_the_append_time_replaces_the_producers_timestamp(
    node: Node, java: Talker, javascript: Talker, writer: str
) -> None:
    topic = f"appended-{writer}"
    create(node, topic, 1, {**KEPT, "message.timestamp.type": "LogAppendTime"})
    write, sample = writers(java, javascript)[writer]
    before = int(time.time() * 1000)
    write(node.kafka, topic, "gzip", sample)
    after = int(time.time() * 1000)
    on_disk = stored(node, topic)
    assert [each[:3] for each in on_disk] == [each[:3] for each in sample]
    assert all(before <= each.timestamp <= after for each in on_disk)
    for name, read in readers(java).items():
        times = [each.timestamp for each in read(node.kafka, {topic: (0, COUNT)})[topic]]
        assert times == [each.timestamp for each in on_disk], name


def test_producers_get_the_append_time(node: Node, java: Talker) -> None:
    create(node, "stamped", 1, {**KEPT, "message.timestamp.type": "LogAppendTime"})
    configs: dict[str, object] = {}
    answers = java.ask(
        command="produce", bootstrap=node.kafka, topic="stamped", configs=configs, records=told(records())
    )
    assert {each["timestamp"] for each in answers} == {each.timestamp for each in stored(node, "stamped")}
    reports: list[tuple[int, int]] = []
    producer = Producer({"bootstrap.servers": node.kafka})
    producer.produce("stamped", b"x", timestamp=5, on_delivery=lambda _, message: reports.append(message.timestamp()))
    assert producer.flush(30) == 0
    assert reports == [(2, stored(node, "stamped")[-1].timestamp)]


# --- auto-created topics ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("writer", WRITERS)
def test_writing_to_a_topic_creates_it(node: Node, java: Talker, javascript: Talker, writer: str) -> None:
    topic = f"unasked-{writer}"
    write, sample = writers(java, javascript)[writer]
    write(node.kafka, topic, "none", sample)
    assert [each[:3] for each in stored(node, topic)] == [each[:3] for each in sample]


def test_no_topic_is_created_where_the_node_forbids_it(
    java: Talker, javascript: Talker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    settings: dict[str, str | int | bool] = {"auto.create.topics.enable": False}
    with Node(tmp_path_factory.mktemp("strict"), store="none", settings=settings) as strict:
        one = told(records()[:1])
        refused = java.ask(
            command="produce", configs={"max.block.ms": "1000"}, records=one, bootstrap=strict.kafka, topic="unasked"
        )
        assert refused == [{"error": "TimeoutException"}]
        with pytest.raises(Refused, match="does not host this topic-partition"):
            javascript.ask(command="produce", codec="none", records=one, bootstrap=strict.kafka, topic="unasked")
        errors: list[int | None] = []
        producer = Producer({"bootstrap.servers": strict.kafka, "topic.metadata.propagation.max.ms": 500})
        producer.produce("unasked", b"x", on_delivery=lambda error, _: errors.append(error.code() if error else None))
        assert producer.flush(30) == 0
        # The client's own error or the node's, depending on which it checks first.
        assert len(errors) == 1
        assert errors[0] in (KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART)
        assert AdminClient({"bootstrap.servers": strict.kafka}).list_topics(timeout=30).topics == {}


# --- unserved requests ------------------------------------------------------------------------------------------------
def test_librdkafka_misses_no_feature_that_a_producer_needs(node: Node) -> None:
    command = ["kcat", "-b", node.kafka, "-L", "-d", "feature"]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stderr
    disabled = set(re.findall(r"Disabling feature (\w+)", told))
    assert disabled.isdisjoint({"LZ4", "MsgVer2", "ZSTD", "IdempotentProducer", "OffsetTime"})
