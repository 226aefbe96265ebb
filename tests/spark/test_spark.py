"""Through Spark itself: the format is found, rows arrive, errors say what they must."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


def test_reads_all(spark, bucket, tmp_path):
    from tests.spark.buckets import numbered

    bucket.publish("a", 2)
    bucket.extend("a", numbered(0, 100))
    bucket.extend("a", numbered(100, 50))
    df = spark.read.format("tidelog").option("store", str(tmp_path / "store")).option("topics", "a").load()
    df.printSchema()
    rows = df.orderBy("offset").collect()
    assert [r.offset for r in rows] == list(range(150))
    print(rows[:2])
    df.explain("formatted")
