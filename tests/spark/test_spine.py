"""The last part of the spine test, over a real S3 server: Spark reads a Kafka client's records after the node stopped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.clients import TIERED, consume, create, local_bytes, produce, seal, until
from tests.support.node import Node
from tests.support.s3_servers import S3Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.s3, pytest.mark.xdist_group("spark")]

RECORDS = 10_000
PARTITIONS = 3


def test_spark_counts_the_same_with_the_node_stopped(spark: SparkSession, versitygw: S3Server, tmp_path: Path) -> None:
    bucket = "spine"
    versitygw.create_bucket(bucket)
    store = f"s3://{bucket}/live"
    with Node(tmp_path, store=store, flags=["--s3-endpoint", versitygw.endpoint]) as node:
        create(node, "spine", PARTITIONS, TIERED)
        compressed: dict[str, Any] = {"compression.type": "zstd"}
        produce(node, "spine", RECORDS, **compressed)
        seal(node, "spine")
        until(lambda: local_bytes(node, "spine", PARTITIONS) == 0, "local segments are evicted")
        by_client = consume(node, "spine", PARTITIONS, RECORDS)
        assert node.stop() == 0
    assert len(by_client) == RECORDS
    rows = (
        spark.read.format("tidelog")
        .option("store", store)
        .option("s3.endpoint", versitygw.endpoint)
        .option("topics", "spine")
        .load()
        .select("key", "value", "partition", "offset")
        .collect()
    )
    assert len(rows) == RECORDS
    assert {bytes(r.key): (r.partition, r.offset, bytes(r.value)) for r in rows} == by_client
