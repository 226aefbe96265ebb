"""Reads topics directly from the bucket, without a broker: in PySpark, or as Arrow tables.

    spark.read.format("tidelog").option("store", "s3://bucket/prefix").option("topics", "a,b").load()
    pyspark_tidelog.tables(store="s3://bucket/prefix", topics="a,b").table()

Spark finds this package by its name (top-level modules `pyspark_*`) and takes `DefaultSource` from it. Therefore this package
exports names. Every Spark session imports this package, so its own imports are lazy: `DefaultSource` imports pyspark, and the
first read imports pyarrow and the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark_tidelog.arrow_tables import Tables as Tables
from pyspark_tidelog.arrow_tables import describe as describe
from pyspark_tidelog.arrow_tables import tables as tables
from pyspark_tidelog.explaining import explain as explain

if TYPE_CHECKING:
    from pyspark_tidelog.source import DefaultSource as DefaultSource


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":
        from pyspark_tidelog.source import DefaultSource

        return DefaultSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
