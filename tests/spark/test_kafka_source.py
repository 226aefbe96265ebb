"""Spark's own source and sink for Kafka (`spark-sql-kafka-0-10`): batches, and streams that continue from checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.clients.disk import KEPT, evict
from tests.support.node import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

BORN_MS = 1_700_000_000_000
PATIENCE_S = 120


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("kafka-source"), settings={"transaction.state.log.num.partitions": 1}) as started:
        yield started


def create(node: Node, *topics: str, partitions: int = 2, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    new = [NewTopic(topic, partitions, 1, config={**KEPT, **configs}) for topic in topics]
    for created in admin.create_topics(new).values():
        created.result(30)


def produce(node: Node, topic: str, numbers: range, **configs: Any) -> None:
    """Produces records with the keys `k<number>`, one second apart: even numbers to partition 0, odd ones to partition 1."""
    producer = Producer({"bootstrap.servers": node.kafka, **configs})
    for number in numbers:
        producer.produce(
            topic,
            f"v{number}",
            f"k{number}",
            partition=number % 2,
            timestamp=BORN_MS + number * 1000,
            headers={"n": str(number).encode()},
        )
    assert producer.flush(60) == 0


def source(spark: SparkSession, node: Node, topics: str, **more: str) -> DataFrame:
    options = {"kafka.bootstrap.servers": node.kafka, "subscribe": topics, "startingOffsets": "earliest", **more}
    return spark.read.format("kafka").options(**options).load()


def values(df: DataFrame) -> list[str]:
    return sorted(row.value for row in df.selectExpr("cast(value as string) as value").collect())


def numbered(*numbers: range) -> list[str]:
    return sorted(f"v{each}" for some in numbers for each in some)


def copied(spark: SparkSession, node: Node, what: str, into: str, checkpoint: Path) -> int:
    """Copies all records of one topic with one stream, at most twenty in each batch; returns the number of records read."""
    stream = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", node.kafka)
        .option("subscribe", what)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "20")
        .load()
        .selectExpr("key", "value")
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", node.kafka)
        .option("topic", into)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert stream.awaitTermination(PATIENCE_S)
        return sum(int(each["numInputRows"]) for each in stream.recentProgress)
    finally:
        stream.stop()


def test_a_batch_reads_all_fields_from_disk_and_from_the_bucket(spark: SparkSession, node: Node) -> None:
    create(node, "fields")
    produce(node, "fields", range(10))
    local = source(spark, node, "fields", includeHeaders="true").orderBy("timestamp").collect()
    evict(node, ["fields"])
    produce(node, "fields", range(10, 14))
    both = source(spark, node, "fields", includeHeaders="true").orderBy("timestamp").collect()
    assert both[:10] == local
    assert [
        (row.key, row.value, row.topic, row.partition, row.offset, row.timestamp.timestamp() * 1000, row.headers)
        for row in both
    ] == [
        (
            b"k%d" % number,
            b"v%d" % number,
            "fields",
            number % 2,
            number // 2,
            BORN_MS + number * 1000,
            [("n", b"%d" % number)],
        )
        for number in range(14)
    ]


def test_a_batch_reads_ranges_of_offsets_and_of_times(spark: SparkSession, node: Node) -> None:
    create(node, "ranges")
    produce(node, "ranges", range(20))
    evict(node, ["ranges"])
    produce(node, "ranges", range(20, 40))
    by_offset = source(
        spark,
        node,
        "ranges",
        startingOffsets='{"ranges":{"0":3,"1":15}}',
        endingOffsets='{"ranges":{"0":12,"1":-1}}',
    )
    assert values(by_offset) == numbered(range(6, 24, 2), range(31, 40, 2))
    by_time = source(
        spark, node, "ranges", startingTimestamp=str(BORN_MS + 7_000), endingTimestamp=str(BORN_MS + 30_000)
    )
    assert values(by_time) == numbered(range(7, 30))


def test_a_batch_writes_keys_values_headers_and_partitions(spark: SparkSession, node: Node) -> None:
    create(node, "written")
    rows = [(f"k{each}", f"v{each}", "written", each % 2, [("n", bytearray(b"%d" % each))]) for each in range(6)]
    schema = "key string, value string, topic string, partition int, headers array<struct<key:string,value:binary>>"
    spark.createDataFrame(rows, schema).write.format("kafka").option("kafka.bootstrap.servers", node.kafka).option(
        "includeHeaders", "true"
    ).save()
    found = source(spark, node, "written", includeHeaders="true").orderBy("value").collect()
    assert [(row.key, row.value, row.partition, row.headers) for row in found] == [
        (b"k%d" % each, b"v%d" % each, each % 2, [("n", b"%d" % each)]) for each in range(6)
    ]


def test_an_aborted_transaction_is_read_only_on_request(spark: SparkSession, node: Node) -> None:
    create(node, "transactional")
    producer = Producer({"bootstrap.servers": node.kafka, "transactional.id": "spark"})
    producer.init_transactions(PATIENCE_S)
    for number in range(4):
        producer.begin_transaction()
        producer.produce("transactional", f"v{number}", partition=0)
        producer.flush(60)
        (producer.commit_transaction if number % 2 else producer.abort_transaction)(PATIENCE_S)
    evict(node, ["transactional"])
    committed = source(spark, node, "transactional", **{"kafka.isolation.level": "read_committed"})
    assert values(committed) == ["v1", "v3"]
    uncommitted = source(spark, node, "transactional", **{"kafka.isolation.level": "read_uncommitted"})
    assert values(uncommitted) == numbered(range(4))


def test_a_stream_resumes_at_its_checkpoint_after_a_crash_of_the_node(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    create(node, "from", "into")
    produce(node, "from", range(100))
    assert copied(spark, node, "from", "into", tmp_path / "checkpoint") == 100
    evict(node, ["from"])
    produce(node, "from", range(100, 130))
    node.kill()
    node.start()
    assert copied(spark, node, "from", "into", tmp_path / "checkpoint") == 30
    assert copied(spark, node, "from", "into", tmp_path / "checkpoint") == 0
    assert values(source(spark, node, "into")) == numbered(range(130))
