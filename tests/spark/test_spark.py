"""Reads through Spark itself, with its default configuration: rows arrive as columns, and errors show the user one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyspark_tidelog import explain
from storage_tiers.cold.stores.location import StoreLocation
from storage_tiers.cold.stores.open import open_blocking_store
from storage_tiers.records.batch import Codec
from storage_tiers.records.builder import NewRecord, build_batch
from tests.spark.buckets import START_MS, Bucket, numbered, options
from tests.support import s3_servers
from tests.support.s3_proxy import S3Proxy, answer
from tests.support.s3_servers import S3Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


@pytest.fixture
def store(tmp_path: Path, bucket: Bucket) -> Path:
    bucket.publish("a", 2)
    bucket.publish("empty", 3)
    return tmp_path / "store"


def load(
    spark: SparkSession, store: Path | str, topics: str = "a", schema: str | None = None, **more: str
) -> DataFrame:
    reader = spark.read.format("tidelog").options(**options(store, topics, **more))
    return (reader if schema is None else reader.schema(schema)).load()


def failure(df: DataFrame) -> str:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as failed:
        df.collect()
    return str(failed.value)


def planning_refused(df: DataFrame) -> str:
    """The sentence of a refusal, asserted to be all that Spark shows: its own prefix, and no stack trace."""
    shown = failure(df).strip()
    assert "Traceback" not in shown
    assert "\tat " not in shown
    first, *others = shown.splitlines()
    assert first.startswith("[PYTHON_DATA_SOURCE_ERROR] Failed to generate Python data source read partitions: ")
    assert others in ([], [" SQLSTATE: 38000"])
    return first


def task_failed(df: DataFrame) -> str:
    """The sentence of a task's error: the second of two lines, after Spark's own."""
    shown = failure(df).strip()
    assert "Traceback" not in shown
    assert "\tat " not in shown
    first, sentence = shown.splitlines()
    assert first == "An exception was thrown from the Python worker:"
    return sentence


def test_rows_arrive_as_sparks_kafka_source_gives_them(spark: SparkSession, bucket: Bucket, store: Path) -> None:
    bucket.extend("a", numbered(0, 1000, codec=Codec.ZSTD))
    bucket.extend("a", numbered(1000, 500))
    bucket.extend("a", numbered(0, 300, codec=Codec.SNAPPY), partition=1)
    df = load(spark, store)
    assert df.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    assert df.count() == 1800
    counted = df.groupBy("topic", "partition").agg({"offset": "sum", "timestampType": "max"}).orderBy("partition")
    assert [tuple(row) for row in counted.collect()] == [("a", 0, sum(range(1500)), 0), ("a", 1, sum(range(300)), 0)]
    row = df.where("partition = 0 and offset = 1234").collect()[0]  # Spark filters: nothing is pushed down by default
    assert (row.key, row.value) == (b"key 1234", b"value 1234")
    assert row.timestamp == datetime.fromtimestamp(START_MS / 1000 + 1234)
    assert df.limit(3).count() == 3
    assert "BatchScan tidelog" in df._jdf.queryExecution().executedPlan().toString()


def test_headers_and_nulls_are_returned(spark: SparkSession, bucket: Bucket, store: Path) -> None:
    records = [NewRecord(None, None), NewRecord(b"k", b"v", (("one", b"1"), ("none", None)), START_MS)]
    bucket.extend("a", build_batch(records, leader_epoch=1))
    first, second = load(spark, store, includeHeaders="true").orderBy("offset").collect()
    assert (first.key, first.value, first.headers) == (None, None, None)
    assert [tuple(header) for header in second.headers] == [("one", b"1"), ("none", None)]


def test_a_schema_prunes_columns(spark: SparkSession, bucket: Bucket, store: Path) -> None:
    bucket.extend("a", numbered(0, 10))
    df = load(spark, store, schema="offset bigint, key binary")
    assert [tuple(row) for row in df.orderBy("offset").collect()] == [(n, f"key {n}".encode()) for n in range(10)]
    assert load(spark, store, schema="headers array<struct<key:string,value:binary>>").count() == 10
    assert "there is no column 'payload'; columns are key binary, value binary" in failure(
        load(spark, store, schema="payload binary")
    )


def test_ranges_by_offset_and_time_are_read_in_small_splits(spark: SparkSession, bucket: Bucket, store: Path) -> None:
    bucket.extend("a", numbered(0, 3000, per_batch=20, value_bytes=200))
    by_offset = load(
        spark,
        store,
        startingOffsets='{"a": {"0": 123, "1": -2}}',
        endingOffsets='{"a": {"0": 2345, "1": -1}}',
        maxBytesPerPartition="64k",
    )
    assert by_offset.rdd.getNumPartitions() > 5
    assert sorted(row.offset for row in by_offset.select("offset").collect()) == list(range(123, 2345))
    moment = str(START_MS + 2_000_000)
    assert load(spark, store, startingTimestamp=moment).agg({"offset": "min"}).collect()[0][0] == 2000
    assert load(spark, store, endingTimestamp=moment).count() == 2000


def test_an_empty_topic_gives_no_rows(spark: SparkSession, store: Path) -> None:
    assert load(spark, store, "empty").count() == 0
    assert load(spark, store, "a,empty").collect() == []


def test_sql_reads_the_format_too(spark: SparkSession, bucket: Bucket, store: Path) -> None:
    bucket.extend("a", numbered(0, 42))
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW t USING tidelog OPTIONS (store '{store}', topics 'a')")
    assert spark.sql("SELECT count(*), max(offset) FROM t").collect()[0] == (42, 41)


def test_refusals_come_with_load(spark: SparkSession, store: Path) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as refused:
        load(spark, store, startingOffset="earliest")
    assert (
        str(refused.value)
        .splitlines()[0]
        .startswith(
            "[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: pyspark_tidelog.options.OptionError: "
            "there is no option 'startingoffset', did you mean 'startingOffsets'?"
        )
    )
    with pytest.raises(PySparkException, match="load\\(\\) takes no path"):
        spark.read.format("tidelog").option("topics", "a").load(str(store))


def test_missing_things_are_one_sentence(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    assert "there is no topic 'b' in cluster" in planning_refused(load(spark, store, "b"))
    assert "there is no directory" in planning_refused(load(spark, tmp_path / "absent"))
    assert "snapshotCommit 7 is the commit of one manifest" in planning_refused(load(spark, store, snapshotCommit="7"))


@contextmanager
def filter_pushdown(spark: SparkSession, enabled: bool) -> Iterator[None]:
    spark.conf.set(PUSHDOWN_CONF, str(enabled).lower())
    try:
        yield
    finally:
        spark.conf.unset(PUSHDOWN_CONF)


PUSHDOWN_CONF = "spark.sql.python.filterPushdown.enabled"


@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize("option", [False, True])
def test_filters_prune_only_with_the_option_and_the_conf(
    spark: SparkSession,
    bucket: Bucket,
    store: Path,
    capsys: pytest.CaptureFixture[str],
    enabled: bool,
    option: bool,
) -> None:
    for base in range(0, 300, 100):
        bucket.extend("a", numbered(base, 100))
    bucket.extend("a", numbered(0, 100), partition=1)
    with filter_pushdown(spark, enabled):
        df = load(spark, store, pushdown=str(option).lower(), maxBytesPerPartition="3k")
        asked = df.where("partition = 0 and offset >= 150 and offset < 250 and key <> cast('key 160' as binary)")
        if option and not enabled:
            shown = failure(asked)
            assert f"filter pushdown is disabled because configuration '{PUSHDOWN_CONF}' is false" in shown
            assert "Set it to true" in shown
            return
        found = asked.select("offset").collect()
        assert sorted(row.offset for row in found) == [at for at in range(150, 250) if at != 160]
        assert asked.rdd.getNumPartitions() == (2 if option else 4)
        explain(asked)
        shown = capsys.readouterr().out
        assert ("pruned by partition = 0, offset >= 150, offset < 250\n" in shown) == option
        assert ("a-0 " in shown, "a-1 " in shown) == (True, not option)
        late = df.where(f"timestamp > timestamp_millis({START_MS + 250_000})")
        assert late.count() == 49
        assert late.rdd.getNumPartitions() == (1 if option else 4)


def test_a_pruned_plan_is_for_one_query(spark: SparkSession, bucket: Bucket, store: Path) -> None:
    """Spark 4.2.0 reuses a pruned plan for the next query of the same load() that pushes no filter."""
    bucket.extend("a", numbered(0, 100))
    bucket.extend("a", numbered(100, 100))
    with filter_pushdown(spark, True):
        df = load(spark, store, pushdown="true")
        assert df.count() == 200
        assert df.where("offset < 100").orderBy("offset").count() == 100
        assert df.where("offset >= 90").count() == 110
        assert "this plan was pruned by offset >= 90 for another query" in task_failed(df)
        assert load(spark, store, pushdown="true").count() == 200


def test_a_topic_is_read_as_of_a_commit_while_its_objects_exist(
    spark: SparkSession, bucket: Bucket, store: Path
) -> None:
    bucket.extend("a", numbered(0, 100))
    bucket.extend("a", numbered(100, 100))
    asked = '{"a": {"0": 1, "1": 0}}'
    assert load(spark, store, snapshotCommit=asked).count() == 100
    bucket.expire("a", 100)
    assert load(spark, store, snapshotCommit=asked).count() == 100
    bucket.sweep("a")
    assert "snapshotCommit 1 cannot be read: a-0: segments removed up to commit 3 have been swept" in planning_refused(
        load(spark, store, snapshotCommit=asked)
    )


def test_segments_swept_since_the_plan_are_an_error_and_never_fewer_rows(
    spark: SparkSession, bucket: Bucket, store: Path
) -> None:
    from pyspark.errors import PySparkException

    bucket.extend("a", numbered(0, 50))
    bucket.extend("a", numbered(50, 50))
    df = load(spark, store)
    assert len(df.collect()) == 100  # Spark plans once for this DataFrame
    bucket.expire("a", 50)
    bucket.sweep("a")
    assert "offsets [0, 50) of a-0 are gone: retention has removed them since commit 2" in task_failed(df)
    with pytest.raises(PySparkException) as failed:
        df.write.format("noop").mode("overwrite").save()
    assert "offsets [0, 50) of a-0 are gone" in str(failed.value).splitlines()[1]
    assert load(spark, store).count() == 50


def test_changed_bytes_are_an_error(spark: SparkSession, bucket: Bucket, store: Path) -> None:
    (segment,) = bucket.extend("a", numbered(0, 50)).segments
    data = bytearray(bucket.store.get(segment.key).data)
    data[100] ^= 1
    bucket.store.put(segment.key, bytes(data))
    assert "its bytes were changed in the bucket" in task_failed(load(spark, store))


def test_explain_shows_what_is_read_and_as_of_when(
    spark: SparkSession, bucket: Bucket, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket.extend("a", numbered(0, 100))
    bucket.extend("a", numbered(0, 30), partition=1)
    asked = load(spark, store).where("offset < 80").groupBy("partition").count()
    explain(asked, "formatted")  # this call makes the plan, so later commits are not in it
    shown = capsys.readouterr().out
    assert "BatchScan tidelog" in shown
    assert "AdaptiveSparkPlan" in shown
    _, _, ours = shown.partition("== tidelog ==\n")
    first, second = ours.splitlines()
    assert first.startswith("a-0 (topic id ")
    assert first.endswith(
        "offsets [0, 100) as of manifest commit 1 at 2023-11-14T22:13:21.000+00:00, which ends at 100; 1 split, 2790 bytes"
    )
    assert "offsets [0, 30) as of manifest commit 1 at 2023-11-14T22:13:22.000+00:00" in second
    bucket.extend("a", numbered(100, 100))
    explain(asked)
    assert capsys.readouterr().out.endswith(f"== tidelog ==\n{first}\n{second}\n")
    assert sorted(tuple(row) for row in asked.collect()) == [(0, 80), (1, 30)]
    explain(load(spark, store, "empty"))
    assert capsys.readouterr().out.endswith("== tidelog ==\nno topic is read\n")
    with pytest.raises(TypeError, match="Spark Connect does not show plans to its clients"):
        explain(object())  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def s3_server(request: pytest.FixtureRequest) -> S3Server:
    """versitygw if it can be built, else moto."""
    missing = s3_servers.versitygw_missing()
    server = request.getfixturevalue("versitygw" if missing is None else "moto")
    assert isinstance(server, S3Server)
    return server


@pytest.fixture
def s3_bucket(s3_server: S3Server, tmp_path: Path) -> Iterator[Bucket]:
    location = StoreLocation.parse(f"s3://{s3_servers.BUCKET}/{tmp_path.name}", endpoint=s3_server.endpoint)
    store = open_blocking_store(location)
    made = Bucket(store, tmp_path)
    made.create_cluster()
    made.publish("a", 1)
    yield made
    store.close()


@pytest.mark.s3
def test_denied_access_is_one_sentence(
    spark: SparkSession, s3_server: S3Server, s3_bucket: Bucket, tmp_path: Path
) -> None:
    s3_bucket.extend("a", numbered(0, 10))
    with S3Proxy(s3_server.endpoint) as proxy:

        def denied() -> DataFrame:
            store = f"s3://{s3_servers.BUCKET}/{tmp_path.name}"
            return load(spark, store, s3__endpoint=proxy.endpoint, s3__region=s3_servers.REGION)

        proxy.always(answer(403, "AccessDenied"), path="/segments/")
        assert "allow s3:ListBucket" in task_failed(denied())
        proxy.always(answer(403, "AccessDenied"))
        assert "allow s3:ListBucket" in planning_refused(denied())


@pytest.mark.s3
def test_s3_is_read_by_endpoint_and_the_standard_chain(
    spark: SparkSession, s3_server: S3Server, s3_bucket: Bucket, tmp_path: Path
) -> None:
    s3_bucket.extend("a", numbered(0, 2000, value_bytes=3000))  # 6 MiB
    s3_bucket.extend("a", numbered(2000, 100))
    df = load(
        spark,
        f"s3://{s3_servers.BUCKET}/{tmp_path.name}",
        s3__endpoint=s3_server.endpoint,
        s3__region=s3_servers.REGION,
        maxBytesPerPartition="2m",
    )
    found = df.select("offset", "value").collect()
    assert sorted((row.offset, len(row.value)) for row in found) == [
        (offset, 3000 if offset < 2000 else len(f"value {offset}")) for offset in range(2100)
    ]
    assert "there is no bucket absent-bucket" in planning_refused(
        load(spark, "s3://absent-bucket/x", s3__endpoint=s3_server.endpoint, s3__region=s3_servers.REGION)
    )
