"""Spark's data source: the format, and readers. A reader plans once per query in Spark's planning process, and reads once per
split in a worker.

Spark pickles the reader (options and a schema, no connection) and each `Split` (inside an `InputPartition`) for the workers.
Methods import the optional dependencies, so that an executor without one reports it in one sentence.
"""

from __future__ import annotations

import logging
import secrets  # noqa: TID251 - plan ids must be unique over all drivers
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import datasource as spark_filters
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from pyspark_tidelog.failures import one_sentence
from pyspark_tidelog.optional_dependencies import check_dependencies
from pyspark_tidelog.options import ReadOptions, parse_options
from pyspark_tidelog.pruning import COLUMNS, NOTHING, Comparison, Pruning
from pyspark_tidelog.pushdown_guard import check_pushdown
from pyspark_tidelog.spark_columns import checked, full_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_tidelog.plan import Split

logger = logging.getLogger("pyspark_tidelog")

_OPERATORS: Mapping[type[Filter], str] = {
    spark_filters.EqualTo: "=",
    spark_filters.EqualNullSafe: "=",
    spark_filters.GreaterThan: ">",
    spark_filters.GreaterThanOrEqual: ">=",
    spark_filters.LessThan: "<",
    spark_filters.LessThanOrEqual: "<=",
    spark_filters.In: "in",
}


class DefaultSource(DataSource):
    """The format "tidelog". Options: `pyspark_tidelog.options`; columns: `pyspark_tidelog.columns`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        with one_sentence():
            self._parsed = parse_options(options)
            check_dependencies(self._parsed.store)

    @classmethod
    def name(cls) -> str:
        return "tidelog"

    def schema(self) -> StructType:
        return full_schema(self._parsed.include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        with one_sentence():
            kind = FilteringReader if self._parsed.pushdown else TopicReader
            return kind(self._parsed, checked(schema))


class PlannedSplit(InputPartition):
    """A split in Spark's form. `plan` describes the plan of its partition for `pyspark_tidelog.explain`."""

    def __init__(self, split: Split, plan: str) -> None:
        super().__init__(split)
        self.plan = plan


class TopicReader(DataSourceReader):
    """Plans and reads one query. A split is a Spark partition. Spark pickles the reader for its executors."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._pruning = NOTHING
        #: The id of a pruned plan. None for a plan that no filter pruned.
        self._plan_id: str | None = None

    def partitions(self) -> list[InputPartition]:
        with one_sentence():
            check_dependencies(self._options.store)
            from pyspark_tidelog.partition_plans import described, plan_read

            plans = plan_read(self._options, self._pruning)
        lines = [described(plan) for plan in plans]
        _log(lines)
        if self._pruning.comparisons:
            lines = [f"{line}; pruned by {self._pruning}" for line in lines]
        return [PlannedSplit(split, line) for plan, line in zip(plans, lines, strict=True) for split in plan.splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:  # Spark's partition for a plan without splits
            return
        with one_sentence():
            check_dependencies(self._options.store)
            from pyspark_tidelog.spark_columns import spark_arrow_schema
            from pyspark_tidelog.split_reader import read

            if self._plan_id is not None:
                check_pushdown(self._plan_id, str(self._pruning))
            yield from read(self._options, spark_arrow_schema(self._schema), partition.value)


class FilteringReader(TopicReader):
    """Prunes segments by Spark's filters. It is a separate class, because Spark refuses a reader with `pushFilters` unless
    `spark.sql.python.filterPushdown.enabled` is set."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's name)
        """Returns all filters, so that Spark applies them to the rows read."""
        known = [found for found in map(_comparison, filters) if found is not None]
        self._pruning = Pruning(tuple(each for each in known if each.column in COLUMNS))
        self._plan_id = secrets.token_hex(16) if self._pruning.comparisons else None
        idle = [str(each) for each in known if each.column == "key"]
        _log([f"pruning by {self._pruning}" + (f"; {', '.join(idle)} prunes nothing yet" if idle else "")])
        return filters


def _comparison(pushed: Filter) -> Comparison | None:
    found = _OPERATORS.get(type(pushed))
    if found is None or len(pushed.attribute) != 1:  # type: ignore[attr-defined]
        return None
    value = tuple(pushed.value) if found == "in" else pushed.value  # type: ignore[attr-defined]
    if value is None or (found == "in" and (not value or None in value)):
        return None
    return Comparison(pushed.attribute[0], found, value)  # type: ignore[attr-defined]


def _log(lines: Sequence[str]) -> None:
    if not logger.hasHandlers():
        # Spark plans in a separate process. Users cannot configure its logging, and its stderr is the driver's.
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    for line in lines:
        logger.info("%s", line)
