"""Arrow tables, made without Spark, hold the rows that Spark gets, in Spark's types."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import pyspark_tidelog
from pyspark_tidelog.columns import NAMES, arrow_schema
from pyspark_tidelog.options import OptionError
from pyspark_tidelog.spark_columns import full_schema, spark_arrow_schema
from storage_tiers.errors import TierObjectMissing
from storage_tiers.records.batch import Codec
from storage_tiers.records.builder import NewRecord, build_batch
from tests.spark.buckets import START_MS, Bucket, numbered, options, read


@pytest.fixture
def store(tmp_path: Path, bucket: Bucket) -> Path:
    bucket.publish("a", 2)
    bucket.extend("a", numbered(0, 3000, codec=Codec.LZ4, value_bytes=100))
    bucket.extend("a", build_batch([NewRecord(None, None, [("h", b"1")], START_MS)], base_offset=3000, leader_epoch=1))
    bucket.extend("a", numbered(0, 20), partition=1)
    return tmp_path / "store"


def test_the_schema_is_sparks() -> None:
    for headers in (False, True):
        assert arrow_schema(None, headers) == spark_arrow_schema(full_schema(headers))
    assert tuple(arrow_schema(None, True).names) == NAMES


def test_the_rows_are_sparks(store: Path) -> None:
    asked = options(store, "a", includeHeaders="true", maxBytesPerPartition="64k")
    found = pyspark_tidelog.tables(**asked)
    table = found.table()
    table.validate(full=True)
    assert table.to_pylist() == read(asked)
    assert [str(plan.ids) for plan in found.plans] == ["a-0", "a-1"]
    assert found.splits == 3
    parts = [found.reader(split) for split in range(found.splits)]
    assert pa.concat_tables(part.read_all() for part in parts).to_pylist() == table.to_pylist()
    assert pa.table(found).num_rows == 3021  # through Arrow's C stream interface


def test_chosen_columns_of_a_range_are_read(store: Path) -> None:
    found = pyspark_tidelog.tables(
        ["offset", "partition"], **options(store, "a", startingOffsets='{"a": {"0": 2999, "1": 18}}')
    )
    assert found.table().to_pydict() == {"offset": [2999, 3000, 18, 19], "partition": [0, 0, 1, 1]}


def test_batches_come_one_by_one(store: Path) -> None:
    reader = pyspark_tidelog.tables(["offset"], **options(store, "a", maxBytesPerPartition="64k")).reader()
    assert isinstance(reader, pa.RecordBatchReader)
    assert reader.read_next_batch().num_rows < 3021


@pytest.mark.parametrize("split", [2, -1])
def test_a_split_that_is_not_there(store: Path, split: int) -> None:
    found = pyspark_tidelog.tables(**options(store, "a"))
    with pytest.raises(OptionError, match=f"no split {split}; the plan has 2, counted from 0"):
        found.reader(split)


def test_nothing_there_is_an_empty_table(tmp_path: Path, bucket: Bucket) -> None:
    bucket.publish("empty", 3)
    table = pyspark_tidelog.tables(**options(tmp_path / "store", "empty")).table()
    assert (table.num_rows, table.column_names) == (0, list(NAMES[:-1]))


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (["payload"], "there is no column 'payload'; columns are key, value"),
        ([], "a column is missing, or named twice"),
        (["key", "key"], "a column is missing, or named twice"),
    ],
)
def test_wrong_columns_are_refused(store: Path, columns: list[str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        pyspark_tidelog.tables(columns, **options(store, "a"))


# --- as of a commit ---------------------------------------------------------------------------------------------------
def rows_at(store: Path, commit: int | str, **more: str) -> list[int]:
    found = pyspark_tidelog.tables(["offset"], **options(store, "t", snapshotCommit=str(commit), **more))
    (plan,) = found.plans
    assert (str(plan.commit), plan.end) == (str(commit), plan.manifest_end)
    offsets: list[int] = found.table().column("offset").to_pylist()
    return offsets


def test_a_topic_as_of_a_commit_while_its_objects_live(bucket: Bucket, tmp_path: Path) -> None:
    bucket.publish("t", 1)
    for base in range(0, 50, 10):
        bucket.extend("t", numbered(base, 10))  # commits 1 to 5
    store = tmp_path / "store"
    assert [len(rows_at(store, commit)) for commit in range(1, 6)] == [10, 20, 30, 40, 50]
    manifest = bucket.expire("t", 20)  # commit 6 removes two segments
    assert rows_at(store, 2) == list(range(20))
    assert rows_at(store, 5) == list(range(50))
    assert rows_at(store, manifest.commit) == list(range(20, 50))
    times = options(store, "t", snapshotCommit="2", startingTimestamp=str(START_MS + 15_000))
    assert pyspark_tidelog.tables(["offset"], **times).table().column("offset").to_pylist() == list(range(15, 20))
    bucket.sweep("t")
    with pytest.raises(
        OptionError, match="snapshotCommit 2 cannot be read: t-0: segments removed up to commit 6 have been"
    ):
        rows_at(store, 2)
    with pytest.raises(OptionError, match=r"t-0 has reached commit [0-9]+, not 99"):
        rows_at(store, 99)


def test_deleted_records_of_a_live_segment_stay_hidden(bucket: Bucket, tmp_path: Path) -> None:
    bucket.publish("t", 1)
    bucket.extend("t", numbered(0, 10))
    bucket.extend("t", numbered(10, 10))
    bucket.expire("t", 4)
    assert rows_at(tmp_path / "store", 1) == list(range(4, 10))


def test_objects_swept_after_the_plan_are_an_error(bucket: Bucket, tmp_path: Path) -> None:
    bucket.publish("t", 1)
    bucket.extend("t", numbered(0, 10))
    bucket.extend("t", numbered(10, 10))
    bucket.expire("t", 10)
    found = pyspark_tidelog.tables(**options(tmp_path / "store", "t", snapshotCommit="2"))
    bucket.sweep("t")
    with pytest.raises(TierObjectMissing, match="retention has removed them since commit 2"):
        found.table()


def test_each_partition_has_its_own_commits(store: Path) -> None:
    with pytest.raises(OptionError, match="is the commit of one manifest, but 2 partitions are read"):
        pyspark_tidelog.tables(**options(store, "a", snapshotCommit="1"))
    with pytest.raises(OptionError, match="snapshotCommit lacks partitions \\[1\\] of a; 0 is before"):
        pyspark_tidelog.tables(**options(store, "a", snapshotCommit='{"a": {"0": 1}}'))
    found = pyspark_tidelog.tables(**options(store, "a", snapshotCommit='{"a": {"0": 1, "1": 0}}'))
    assert [(plan.commit, plan.end) for plan in found.plans] == [(1, 3000), (0, 0)]
    assert found.table().num_rows == 3000
