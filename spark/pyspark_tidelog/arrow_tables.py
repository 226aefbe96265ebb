"""The same rows as in Spark, as Arrow tables and batches in this process. pyarrow is imported on first use.

Options are Spark's, as keyword arguments. Write options with a dot in their name as `**{"s3.endpoint": endpoint}`. Errors are
also Spark's: OptionError for errors that the caller can correct, LogError for others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from pyspark_tidelog.optional_dependencies import AS_ARROW, check_dependencies
from pyspark_tidelog.options import OptionError, ReadOptions, parse_options

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_tidelog.plan import PartitionPlan


class Tables:
    """Topics as of one plan. Each read returns the same rows, or fails if retention has removed some of them."""

    def __init__(self, options: ReadOptions, schema: pa.Schema, plans: tuple[PartitionPlan, ...]) -> None:
        self._options = options
        self.schema = schema
        #: The plan of each partition: offsets, commit and its time, splits.
        self.plans = plans

    def reader(self, split: int | None = None) -> pa.RecordBatchReader:
        """Batches of all splits, or of one (0 to `splits` - 1), ordered by partition and offset. Needs the memory of one Spark
        task. Raises OptionError if there is no such split."""
        import pyarrow as pa

        from pyspark_tidelog.split_reader import read

        splits = [each for plan in self.plans for each in plan.splits]
        if split is not None and not 0 <= split < len(splits):
            raise OptionError(f"there is no split {split}; the plan has {len(splits)}, counted from 0")
        chosen = splits if split is None else [splits[split]]
        batches: Iterator[pa.RecordBatch] = chain.from_iterable(
            read(self._options, self.schema, each) for each in chosen
        )
        return pa.RecordBatchReader.from_batches(self.schema, batches)

    @property
    def splits(self) -> int:
        """The number of splits, which may be read in parallel."""
        return sum(len(plan.splits) for plan in self.plans)

    def table(self) -> pa.Table:
        """All rows, in memory."""
        return self.reader().read_all()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rows as an Arrow stream (PyCapsule protocol), for polars, DuckDB and pandas."""
        return self.reader().__arrow_c_stream__(requested_schema)


def tables(columns: Sequence[str] | None = None, **options: str) -> Tables:
    """Plans a read now. `columns` may be in any order. The default is all columns, with headers if `includeHeaders="true"`."""
    parsed = _parsed(options)
    from pyspark_tidelog.columns import arrow_schema
    from pyspark_tidelog.partition_plans import plan_read

    schema = arrow_schema(columns, parsed.include_headers)
    return Tables(parsed, schema, plan_read(parsed))


def describe(**options: str) -> tuple[PartitionPlan, ...]:
    """The plan of a read with these options, by partition: offsets, commit and its time, splits."""
    parsed = _parsed(options)
    from pyspark_tidelog.partition_plans import plan_read

    return plan_read(parsed)


def _parsed(options: dict[str, str]) -> ReadOptions:
    parsed = parse_options(options)
    if parsed.pushdown:
        raise OptionError(
            "pushdown works only in Spark, because there are no filters here; choose offsets, times and columns"
        )
    check_dependencies(parsed.store, AS_ARROW)
    return parsed
