"""PySpark reads tidelog topics straight from the bucket; no broker is asked.

    spark.read.format("tidelog").option("store", "s3://bucket/prefix").option("topics", "a,b").load()

Spark finds this package by its name (top-level modules `pyspark_*`) and takes `DefaultSource` from it: so, unlike every
other package here, it exposes a class. Whoever starts Spark imports it, needing it or not; until a read is planned it
therefore imports pyspark and the standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from pyspark_tidelog.columns import checked, full_schema
from pyspark_tidelog.extras import check_extras
from pyspark_tidelog.options import parse_options
from pyspark_tidelog.topic_reader import TopicReader

if TYPE_CHECKING:
    from pyspark_tidelog.plan import PartitionPlan


class DefaultSource(DataSource):
    """The format "tidelog". Options: `pyspark_tidelog.options`; columns: `pyspark_tidelog.columns`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._parsed = parse_options(options)
        check_extras(self._parsed.store)

    @classmethod
    def name(cls) -> str:
        return "tidelog"

    def schema(self) -> StructType:
        return full_schema(self._parsed.include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        return TopicReader(self._parsed, checked(schema))


def describe(**options: str) -> tuple[PartitionPlan, ...]:
    """What a read with these options would read now, partition by partition: offsets, commit and its time, splits.

    Options with a dot in their name: `describe(**{"store": url, "topics": "a", "s3.endpoint": endpoint})`.
    """
    parsed = parse_options(options)
    check_extras(parsed.store)
    from pyspark_tidelog.planning import plan_read

    return plan_read(parsed)
