"""Reading as Spark does (plan, pickle, read) but without a JVM, from a directory store that the project's writer made."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from pyspark_tidelog import DefaultSource, describe
from pyspark_tidelog.options import OptionError
from pyspark_tidelog.spark_columns import full_schema, spark_arrow_schema
from storage_tiers.cold.segments import sidecar_builder
from storage_tiers.errors import LogError, TierCorrupt, TierObjectMissing
from storage_tiers.records.batch import Codec
from storage_tiers.records.batch_walk import scan_batches
from storage_tiers.records.builder import ControlKind, NewRecord, build_batch, build_control_batch
from storage_tiers.types import AbortedTransaction
from tests.spark.buckets import START_MS, Bucket, numbered, offsets, options, read, record, topic_id_of

ONLY_OFFSETS = StructType([StructField("offset", LongType())])


@pytest.fixture
def store(tmp_path: Path, bucket: Bucket) -> Path:
    """Topic `a` with one partition."""
    bucket.publish("a", 1)
    return tmp_path / "store"


def read_offsets(store: Path, **more: str) -> list[int]:
    return offsets(read(options(store, "a", **more), ONLY_OFFSETS))


# --- content of rows ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("codec", list(Codec))
def test_records_of_every_codec_are_read(bucket: Bucket, store: Path, codec: Codec) -> None:
    bucket.extend("a", numbered(0, 100, codec=codec, value_bytes=200))
    rows = read(options(store, "a"))
    assert rows == [
        {
            "key": f"key {offset}".encode(),
            "value": f"value {offset}".encode().ljust(200, b"."),
            "topic": "a",
            "partition": 0,
            "offset": offset,
            "timestamp": datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(seconds=offset),
            "timestampType": 0,
        }
        for offset in range(100)
    ]


def test_nulls_headers_and_timestamps_are_returned(bucket: Bucket, store: Path) -> None:
    records = [
        NewRecord(None, None, (), START_MS),
        NewRecord(b"", b"", (("one", b"1"), ("none", None), ("one", b"again")), START_MS + 1),
        NewRecord(b"k", b"v", (("umlaut ü", b"\xff"),), -1),
        NewRecord(b"k", b"v", (), -(1 << 62)),
    ]
    bucket.extend("a", build_batch(records, leader_epoch=1))
    bucket.extend("a", build_batch(records[:2], base_offset=4, leader_epoch=1, log_append_time=START_MS + 7))
    rows = read(options(store, "a", includeHeaders="true"))
    moment = datetime.fromtimestamp(START_MS / 1000, UTC)
    assert [(row["key"], row["value"]) for row in rows[:3]] == [(None, None), (b"", b""), (b"k", b"v")]
    assert [row["headers"] for row in rows[:3]] == [
        None,
        [{"key": "one", "value": b"1"}, {"key": "none", "value": None}, {"key": "one", "value": b"again"}],
        [{"key": "umlaut ü", "value": b"\xff"}],
    ]
    assert [row["timestamp"] for row in rows] == [
        moment,
        moment + timedelta(milliseconds=1),
        datetime(1970, 1, 1, tzinfo=UTC) - timedelta(milliseconds=1),
        None,  # beyond the range of Spark's timestamps
        moment + timedelta(milliseconds=7),
        moment + timedelta(milliseconds=7),
    ]
    assert [row["timestampType"] for row in rows] == [0, 0, 0, 0, 1, 1]


def test_pruned_columns_are_returned_in_the_wanted_order(bucket: Bucket, store: Path) -> None:
    bucket.extend("a", numbered(0, 3))
    wanted = StructType([StructField("offset", LongType()), StructField("key", BinaryType())])
    assert [tuple(row.items()) for row in read(options(store, "a"), wanted)] == [
        (("offset", offset), ("key", f"key {offset}".encode())) for offset in range(3)
    ]


def test_batches_are_valid_arrow_of_the_exact_schema(bucket: Bucket, store: Path) -> None:
    with_headers = [NewRecord(None, b"v", (("h", None), ("h", b"1")), -(1 << 62)), NewRecord(b"k", None)]
    bucket.extend(
        "a", numbered(0, 20_000, per_batch=1000) + build_batch(with_headers, base_offset=20_000, leader_epoch=1)
    )
    schema = full_schema(True)
    reader: Any = DefaultSource(options(store, "a")).reader(schema)
    found = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    for batch in found:
        batch.validate(full=True)
        assert batch.schema == spark_arrow_schema(schema)
    assert [batch.num_rows for batch in found] == [16_384, 3618]
    assert [row for batch in found for row in batch.column("offset").to_pylist()] == list(range(20_002))


def test_several_topics_and_partitions_are_read(bucket: Bucket, store: Path) -> None:
    bucket.publish("b", 3)
    bucket.extend("a", numbered(0, 5))
    bucket.extend("b", numbered(0, 4), partition=0)
    bucket.extend("b", numbered(0, 3), partition=2)
    rows = read(options(store, "a,b"))
    assert [(row["topic"], row["partition"], row["offset"]) for row in rows] == [
        *(("a", 0, offset) for offset in range(5)),
        *(("b", 0, offset) for offset in range(4)),
        *(("b", 2, offset) for offset in range(3)),
    ]


# --- offsets -----------------------------------------------------------------------------------------------------------
def test_an_empty_range_gives_no_rows(bucket: Bucket, store: Path) -> None:
    reader = DefaultSource(options(store, "a")).reader(ONLY_OFFSETS)
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []  # Spark's task for an empty plan


def test_many_ranges_spilled_to_pages_are_read(bucket: Bucket, store: Path) -> None:
    for base in range(0, 400, 4):
        manifest = bucket.extend("a", numbered(base, 4))
    assert manifest.live_pages
    assert read_offsets(store) == list(range(400))
    assert read_offsets(store, startingOffsets='{"a": {"0": 101}}', endingOffsets='{"a": {"0": 303}}') == list(
        range(101, 303)
    )


def test_below_log_start_nothing_is_seen(bucket: Bucket, store: Path) -> None:
    bucket.extend("a", numbered(0, 50))
    bucket.extend("a", numbered(50, 50))
    bucket.expire("a", 63)
    assert read_offsets(store) == list(range(63, 100))
    assert read_offsets(store, endingOffsets='{"a": {"0": 20}}') == []
    with pytest.raises(ValueError, match="a-0 begins at offset 63 and no longer has offset 20"):
        read_offsets(store, startingOffsets='{"a": {"0": 20}}')


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_any_range_in_any_splits_is_read_exactly_once(bucket: Bucket, store: Path, data: st.DataObject) -> None:
    if bucket.written == 0:
        for base in range(0, 6000, 2000):  # three segments of about 200 KiB: several indexed intervals each
            bucket.extend("a", numbered(base, 2000, per_batch=20, value_bytes=80))
    start = data.draw(st.integers(0, 6000))
    end = data.draw(st.integers(start, 6000))
    size = data.draw(st.sampled_from(["1", "70k", "150k", "500k", "1g"]))
    wanted = options(
        store,
        "a",
        startingOffsets=f'{{"a": {{"0": {start}}}}}',
        endingOffsets=f'{{"a": {{"0": {end}}}}}',
        maxBytesPerPartition=size,
    )
    assert offsets(read(wanted, ONLY_OFFSETS)) == list(range(start, end))


@pytest.mark.parametrize(("start", "end"), [(0, 40), (0, 1), (3, 9), (9, 10), (10, 31), (25, 40), (39, 40), (20, 20)])
def test_ranges_with_gaps_are_read(bucket: Bucket, store: Path, start: int, end: int) -> None:
    """As after compaction, offsets are missing at the start and end of a segment, between batches and inside them."""
    there = [5, 8, 12, 13, 25, 38]
    first = build_batch(
        [record(5), record(8)], base_offset=4, offset_deltas=(1, 4), last_offset_delta=5, leader_epoch=1
    )
    second = build_batch([record(12), record(13)], base_offset=12, leader_epoch=1)
    third = build_batch([record(25)], base_offset=25, leader_epoch=1)
    bucket.extend("a", first + second, base=0, end=20)
    bucket.extend("a", third + numbered(38, 1), base=20, end=40)
    found = read_offsets(store, startingOffsets=f'{{"a": {{"0": {start}}}}}', endingOffsets=f'{{"a": {{"0": {end}}}}}')
    assert found == [offset for offset in there if start <= offset < end]


def test_a_small_split_size_gives_many_splits(bucket: Bucket, store: Path) -> None:
    bucket.extend("a", numbered(0, 2000, per_batch=20, value_bytes=200))
    (plan,) = describe(**options(store, "a", maxBytesPerPartition="64k"))
    assert len(plan.splits) >= 6
    assert (plan.start, plan.end, plan.manifest_end, plan.commit) == (0, 2000, 2000, 1)


# --- times -------------------------------------------------------------------------------------------------------------
def at(offset: int) -> str:
    return str(START_MS + offset * 1000)


@pytest.fixture
def timed(bucket: Bucket, store: Path) -> Path:
    """Two segments of several indexed intervals each; records are one second apart."""
    bucket.extend("a", numbered(0, 3000, per_batch=20, value_bytes=80, codec=Codec.NONE))
    bucket.extend("a", numbered(3000, 3000, per_batch=20, value_bytes=80, codec=Codec.LZ4))
    return store


@pytest.mark.parametrize(
    ("start", "end"), [(0, 6000), (1, 2), (19, 21), (2999, 3001), (3000, 3000), (1234, 4567), (5999, 6000)]
)
def test_times_are_exact_offsets(timed: Path, start: int, end: int) -> None:
    assert read_offsets(timed, startingTimestamp=at(start), endingTimestamp=at(end)) == list(range(start, end))
    first, last = (datetime.fromtimestamp(int(at(each)) / 1000, UTC).isoformat() for each in (start, end))
    assert read_offsets(timed, startingTimestamp=first, endingTimestamp=last) == list(range(start, end))


def test_times_before_and_after_all_records_choose_all_or_none(timed: Path) -> None:
    assert read_offsets(timed, startingTimestamp="0") == list(range(6000))
    assert read_offsets(timed, endingTimestamp="0") == []
    assert read_offsets(timed, startingTimestamp=at(6000)) == []
    assert read_offsets(timed, startingTimestamp=at(5990), endingTimestamp=at(7000)) == list(range(5990, 6000))
    assert read_offsets(timed, startingTimestamp=str(int(at(17)) - 999)) == list(range(17, 6000))


def test_times_that_do_not_rise_mean_the_first_record_in_offset_order(bucket: Bucket, store: Path) -> None:
    seconds = [5, 3, 9, 4, 20, 1, 12, 30]
    records = [NewRecord(None, b"", (), START_MS + second * 1000) for second in seconds]
    bucket.extend(
        "a", build_batch(records[:4], leader_epoch=1) + build_batch(records[4:], base_offset=4, leader_epoch=1)
    )
    assert read_offsets(store, startingTimestamp=at(10)) == [4, 5, 6, 7]
    assert read_offsets(store, startingTimestamp=at(6), endingTimestamp=at(25)) == [2, 3, 4, 5, 6]


def test_log_start_hides_the_record_of_a_time(bucket: Bucket, store: Path) -> None:
    records = [NewRecord(None, b"", (), START_MS + second * 1000) for second in (50, 1, 2, 60)]
    bucket.extend("a", build_batch(records, leader_epoch=1))
    bucket.extend("a", numbered(4, 1, step_ms=20_000))
    bucket.expire("a", 1)
    assert read_offsets(store, startingTimestamp=at(40)) == [3, 4]
    assert read_offsets(store, startingTimestamp=at(70)) == [4]
    bucket.expire("a", 4)
    assert read_offsets(store, startingTimestamp=at(40)) == [4]


def test_log_append_time_is_the_batchs(bucket: Bucket, store: Path) -> None:
    first = build_batch([record(0), record(1)], leader_epoch=1, log_append_time=START_MS + 5_000)
    second = build_batch([record(2), record(3)], base_offset=2, leader_epoch=1, log_append_time=START_MS + 9_000)
    bucket.extend("a", first + second)
    assert read_offsets(store, startingTimestamp=at(5)) == [0, 1, 2, 3]
    assert read_offsets(store, startingTimestamp=at(6)) == [2, 3]


# --- transactions ------------------------------------------------------------------------------------------------------
def of_producer(base: int, count: int, producer: int) -> bytes:
    return numbered(base, count, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)


def marker(offset: int, producer: int, kind: ControlKind) -> bytes:
    return build_control_batch(
        kind,
        producer_id=producer,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp=START_MS,
        base_offset=offset,
        leader_epoch=1,
    )


@pytest.fixture
def transactional(bucket: Bucket, store: Path) -> Path:
    """Offsets 0-4 aborted, 5-9 of another producer committed, 10-14 plain, then markers; a transaction over two segments."""
    bucket.extend(
        "a",
        of_producer(0, 5, 1)
        + of_producer(5, 5, 2)
        + numbered(10, 5)
        + marker(15, 1, ControlKind.ABORT)
        + marker(16, 2, ControlKind.COMMIT)
        + of_producer(17, 3, 1),  # committed in the next segment
        aborted=[AbortedTransaction(1, 0, 15, 0)],
    )
    bucket.extend(
        "a",
        marker(20, 1, ControlKind.COMMIT) + of_producer(21, 4, 3) + numbered(25, 5),
        aborted=[AbortedTransaction(3, 21, 31, 21)],
    )
    bucket.extend("a", numbered(30, 1) + marker(31, 3, ControlKind.ABORT), aborted=[AbortedTransaction(3, 21, 31, 21)])
    return store


COMMITTED = [*range(5, 15), *range(17, 20), *range(25, 31)]


def test_aborted_records_and_markers_are_not_read(transactional: Path) -> None:
    assert read_offsets(transactional) == COMMITTED
    assert read_offsets(transactional, isolationLevel="read_committed") == COMMITTED


def test_aborted_records_are_read_on_request(transactional: Path) -> None:
    markers = {15, 16, 20, 31}
    expected = [offset for offset in range(32) if offset not in markers]
    assert read_offsets(transactional, isolationLevel="read_uncommitted") == expected


@pytest.mark.parametrize("start", range(0, 32, 3))
def test_ranges_that_begin_inside_a_transaction(transactional: Path, start: int) -> None:
    found = read_offsets(transactional, startingOffsets=f'{{"a": {{"0": {start}}}}}')
    assert found == [offset for offset in COMMITTED if offset >= start]


def test_transactions_aborted_across_chunks_of_one_range_are_not_read(bucket: Bucket, store: Path) -> None:
    """With several MiB between first record and marker, each run of batches must still apply the abort."""
    data = b"".join(
        (numbered(offset, 100, value_bytes=5000) if offset % 200 else of_producer_large(offset))
        for offset in range(0, 2000, 100)
    )
    data += marker(2000, 1, ControlKind.ABORT) + of_producer(2001, 5, 1) + marker(2006, 1, ControlKind.COMMIT)
    bucket.extend("a", data, aborted=[AbortedTransaction(1, 0, 2000, 0)])
    expected = [offset for offset in range(2000) if offset // 100 % 2] + list(range(2001, 2006))
    assert read_offsets(store) == expected
    assert read_offsets(store, maxBytesPerPartition="1m") == expected


def of_producer_large(base: int) -> bytes:
    return numbered(base, 100, value_bytes=5000, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)


# --- errors ------------------------------------------------------------------------------------------------------------
def planned(store: Path, **more: str) -> tuple[Any, Sequence[InputPartition]]:
    reader = DefaultSource(options(store, "a", **more)).reader(ONLY_OFFSETS)
    return reader, reader.partitions()


def consumed(reader: Any, partitions: Sequence[InputPartition]) -> list[int]:
    return [row for part in partitions for batch in reader.read(part) for row in batch.column("offset").to_pylist()]


def failure(reader: Any, partitions: Sequence[InputPartition], kind: type[LogError]) -> str:
    with pytest.raises(kind) as failed:
        consumed(reader, partitions)
    return str(failed.value)


def test_a_range_swept_since_the_plan_is_an_error(bucket: Bucket, store: Path) -> None:
    bucket.extend("a", numbered(0, 50))
    bucket.extend("a", numbered(50, 50))
    reader, partitions = planned(store)
    bucket.expire("a", 60)
    assert consumed(reader, partitions) == list(range(100))  # removed, but readable within the grace period
    bucket.sweep("a")
    message = failure(reader, partitions, TierObjectMissing)
    assert "offsets [0, 50) of a-0 are gone: retention has removed them since commit 2" in message
    assert "the log now begins at 60" in message
    assert read_offsets(store) == list(range(60, 100))


def test_a_range_swept_while_it_is_scanned_ends_the_scan(bucket: Bucket, store: Path) -> None:
    for base in range(0, 120_000, 20_000):
        bucket.extend("a", numbered(base, 20_000, per_batch=5000))
    reader, (partition,) = planned(store)
    batches = reader.read(partition)
    assert next(batches).column("offset")[0].as_py() == 0
    bucket.expire("a", 120_000)
    bucket.sweep("a")
    with pytest.raises(
        TierObjectMissing, match=r"offsets \[\d+, \d+\) of a-0 are gone: retention has removed them since"
    ):
        list(batches)


def test_a_topic_deleted_since_the_plan_is_an_error(bucket: Bucket, store: Path) -> None:
    manifest = bucket.extend("a", numbered(0, 50))
    reader, partitions = planned(store)
    asyncio.run(bucket.tier("a").delete_partition())
    bucket.store.delete([manifest.segments[0].key])
    assert "the topic was deleted while it was read" in failure(reader, partitions, TierObjectMissing)
    bucket.store.delete([manifest.ids.manifest_key])
    assert "their manifest is gone too" in failure(reader, partitions, TierObjectMissing)


def test_an_object_missing_that_the_manifest_names_is_damage(bucket: Bucket, store: Path) -> None:
    manifest = bucket.extend("a", numbered(0, 50))
    reader, partitions = planned(store)
    bucket.store.delete([manifest.segments[0].key])
    assert "are missing, although their manifest names them" in failure(reader, partitions, TierCorrupt)


def test_a_range_rewritten_and_swept_since_the_plan_is_an_error(bucket: Bucket, store: Path) -> None:
    bucket.extend("a", numbered(0, 50))
    reader, partitions = planned(store)
    kept = {info.key: bucket.store.get(info.key).data for info in bucket.store.list(f"{bucket.cluster}/topics/a/")}
    bucket.store.delete(list(kept))
    bucket.tiers.clear()
    bucket.tier("other")  # the next tier draws other uuids
    bucket.extend("a", numbered(0, 50, codec=Codec.ZSTD))
    message = failure(reader, partitions, TierObjectMissing)
    assert "were rewritten after commit 1" in message
    assert "Run the query again" in message
    bucket.publish("a", 1)
    assert read_offsets(store) == list(range(50))


def test_offsets_that_are_not_offloaded_yet_are_read_once_they_are(bucket: Bucket, store: Path) -> None:
    bucket.extend("a", numbered(0, 50))
    with pytest.raises(OptionError, match="wait until it is offloaded"):
        read_offsets(store, endingOffsets='{"a": {"0": 80}}')
    bucket.extend("a", numbered(50, 50))
    assert read_offsets(store, endingOffsets='{"a": {"0": 80}}') == list(range(80))


def test_a_start_below_log_start_reads_from_log_start(bucket: Bucket, store: Path) -> None:
    bucket.extend("a", numbered(0, 50))
    bucket.extend("a", numbered(50, 50))
    bucket.expire("a", 60)
    with pytest.raises(OptionError, match="start there, or at -2"):
        read_offsets(store, startingOffsets='{"a": {"0": 10}}')
    for start in (60, -2):
        assert read_offsets(store, startingOffsets=f'{{"a": {{"0": {start}}}}}') == list(range(60, 100))


def test_tampered_and_truncated_objects_are_errors(bucket: Bucket, store: Path) -> None:
    manifest = bucket.extend("a", numbered(0, 50))
    reader, partitions = planned(store)
    key = manifest.segments[0].key
    data = bytearray(bucket.store.get(key).data)
    data[-3] ^= 1
    bucket.store.put(key, bytes(data))
    assert f"{key}: the MiB at byte 0 has CRC-32C" in failure(reader, partitions, TierCorrupt)
    bucket.store.put(key, bytes(data[:-7]))
    assert f"{key} ends at byte {len(data) - 7}" in failure(reader, partitions, TierCorrupt)


def test_a_batch_damaged_before_its_offload_is_an_error(bucket: Bucket, store: Path) -> None:
    data = bytearray(numbered(0, 50, codec=Codec.GZIP))
    data[-3] ^= 1
    # The writer is patched to check headers only.
    with mock.patch.object(
        sidecar_builder, "recover_scan", lambda piece, start, *_: scan_batches(piece, start, len(piece))
    ):
        bucket.extend("a", bytes(data))
    with pytest.raises(TierCorrupt, match="CRC-32C of the record batch is"):
        read_offsets(store)


def test_the_plan_is_logged_per_partition(bucket: Bucket, store: Path, caplog: pytest.LogCaptureFixture) -> None:
    bucket.extend("a", numbered(0, 50))
    planned(store)
    (line,) = [entry.message for entry in caplog.records if entry.name == "pyspark_tidelog"]
    assert line == (
        f"a-0 (topic id {topic_id_of('a')}, cluster {bucket.cluster}): offsets [0, 50) as of manifest commit 1 at "
        "2023-11-14T22:13:21.000+00:00, which ends at 50; 1 split, 1385 bytes"
    )
