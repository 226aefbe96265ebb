"""What Spark holds: plans once a query in Spark's planning process, reads once a split in a worker.

What travels between them is a `Split` inside an `InputPartition`, and this reader: options and a schema, no connection. The
extras are imported inside, so that an executor which lacks one says so in one sentence.

Not promised: push-down of filters; Spark refuses readers that offer it unless a conf is set.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_tidelog.extras import check_extras
from pyspark_tidelog.options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("pyspark_tidelog")


class TopicReader(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        check_extras(self._options.store)
        from pyspark_tidelog.planning import described, plan_read

        plans = plan_read(self._options)
        _log([described(plan) for plan in plans])
        return [InputPartition(split) for plan in plans for split in plan.splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:  # what Spark makes of a plan without splits
            return iter(())
        check_extras(self._options.store)
        from pyspark_tidelog.split_reader import read

        return read(self._options, self._schema, partition.value)


def _log(lines: Sequence[str]) -> None:
    if not logger.hasHandlers():
        # Spark plans in a process of its own, which no user can configure: its stderr is the driver's.
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    for line in lines:
        logger.info("%s", line)
