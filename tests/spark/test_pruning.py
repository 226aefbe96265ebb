"""Pruning drops every segment that need not be read, and none with a row that the filters would keep."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from pyspark_tidelog import DefaultSource
from pyspark_tidelog.pruning import Comparison, Pruning
from pyspark_tidelog.source import FilteringReader
from tests.spark.buckets import START_MS, Bucket, numbered, options

KEEPS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda value, other: value == other,
    ">": lambda value, other: value > other,
    ">=": lambda value, other: value >= other,
    "<": lambda value, other: value < other,
    "<=": lambda value, other: value <= other,
    "in": lambda value, others: value in others,
}
numbers = st.integers(0, 12)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


@st.composite
def comparisons(draw: Any, column: str) -> Comparison:
    operator = draw(st.sampled_from(list(KEEPS)))
    value = draw(st.lists(numbers, min_size=1).map(tuple) if operator == "in" else numbers)
    return Comparison(column, operator, value)


@given(st.lists(comparisons("offset"), max_size=4), st.lists(comparisons("partition"), max_size=3), numbers, numbers)
def test_pruned_partitions_are_exact_and_pruned_offsets_never_too_few(
    by_offset: list[Comparison], by_partition: list[Comparison], start: int, end: int
) -> None:
    pruning = Pruning((*by_offset, *by_partition))
    low, high = pruning.offsets(start, max(start, end))
    kept = {at for at in range(start, end) if all(KEEPS[each.operator](at, each.value) for each in by_offset)}
    assert kept <= set(range(low, high))
    assert start <= low <= high <= max(start, end)
    for partition in range(13):
        wanted = all(KEEPS[each.operator](partition, each.value) for each in by_partition)
        assert pruning.wants_partition(partition) == wanted


@given(st.lists(comparisons("timestamp"), max_size=3), st.lists(numbers, min_size=1))
def test_a_range_with_a_wanted_time_is_wanted(by_time: list[Comparison], times_ms: list[int]) -> None:
    values = [tuple(map(moment, each.value)) if each.operator == "in" else moment(each.value) for each in by_time]
    asked = [Comparison("timestamp", each.operator, value) for each, value in zip(by_time, values, strict=True)]
    rows = [moment(time * 1000) for time in times_ms]
    if any(all(KEEPS[each.operator](row, each.value) for each in asked) for row in rows):
        assert Pruning(tuple(asked)).wants_newest(max(times_ms))


def reader_of(store: Path, *filters: Filter) -> FilteringReader:
    reader = DefaultSource(options(store, "a", pushdown="true")).reader(DefaultSource(options(store, "a")).schema())
    assert isinstance(reader, FilteringReader)
    assert list(reader.pushFilters(list(filters))) == list(filters)  # Spark filters again
    return reader


def pieces(reader: FilteringReader) -> list[tuple[int, int, int]]:
    return [
        (partition.value.ids.partition, piece.start, piece.stop)
        for partition in reader.partitions()
        for piece in partition.value.pieces
    ]


OFFSET, PARTITION, TIMESTAMP = ("offset",), ("partition",), ("timestamp",)


@pytest.mark.parametrize(
    ("filters", "read"),
    [
        ((), [(0, 0, 100), (0, 100, 200), (1, 0, 50)]),
        ((EqualTo(PARTITION, 1),), [(1, 0, 50)]),
        ((In(PARTITION, (1, 7)), IsNotNull(PARTITION)), [(1, 0, 50)]),
        ((GreaterThan(OFFSET, 120),), [(0, 121, 200)]),
        ((GreaterThanOrEqual(OFFSET, 30), LessThan(OFFSET, 40), EqualNullSafe(PARTITION, 0)), [(0, 30, 40)]),
        ((LessThanOrEqual(OFFSET, 10),), [(0, 0, 11), (1, 0, 11)]),
        ((In(OFFSET, (150, 160)),), [(0, 150, 161)]),
        ((EqualTo(OFFSET, 150),), [(0, 150, 151)]),
        ((EqualTo(OFFSET, 1), EqualTo(OFFSET, 2)), []),
        ((GreaterThan(TIMESTAMP, moment((START_MS + 99_000) * 1000)),), [(0, 100, 200)]),
        ((GreaterThanOrEqual(TIMESTAMP, moment((START_MS + 99_000) * 1000)),), [(0, 0, 100), (0, 100, 200)]),
        ((LessThan(TIMESTAMP, moment(0)),), [(0, 0, 100), (0, 100, 200), (1, 0, 50)]),
        # A filter that does not constrain segments prunes nothing.
        ((EqualTo(("key",), b"key 5"),), [(0, 0, 100), (0, 100, 200), (1, 0, 50)]),
        ((Not(EqualTo(PARTITION, 1)),), [(0, 0, 100), (0, 100, 200), (1, 0, 50)]),
        ((StringStartsWith(("topic",), "b"), EqualNullSafe(OFFSET, None)), [(0, 0, 100), (0, 100, 200), (1, 0, 50)]),
    ],
)
def test_only_wanted_segments_and_pages_are_planned(
    bucket: Bucket, tmp_path: Path, filters: tuple[Filter, ...], read: list[tuple[int, int, int]]
) -> None:
    bucket.publish("a", 2)
    bucket.extend("a", numbered(0, 100))
    bucket.extend("a", numbered(100, 100))
    bucket.extend("a", numbered(0, 50), partition=1)
    assert pieces(reader_of(tmp_path / "store", *filters)) == read


def test_the_log_names_the_pruning_conditions(bucket: Bucket, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reader_of(tmp_path / "store", EqualTo(("key",), b"k"), GreaterThan(OFFSET, 5))
    reader_of(tmp_path / "store", StringStartsWith(("topic",), "b"))
    assert [entry.message for entry in caplog.records] == [
        "pruning by offset > 5; key = b'k' prunes nothing yet",
        "pruning by nothing",
    ]
