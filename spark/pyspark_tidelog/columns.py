"""The columns of a topic as Arrow types: those of Spark's Kafka source, in its order. Imports Arrow lazily, and never Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark_tidelog.options import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

HEADERS = "headers"
NAMES = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", HEADERS)


def arrow_schema(names: Sequence[str] | None, include_headers: bool) -> pa.Schema:
    """The schema of the named columns, or of all (headers only if included); equal to Spark's. Raises OptionError for wrong
    names."""
    import pyarrow as pa

    types = {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestampType": pa.int32(),
        HEADERS: pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    }
    if names is None:
        names = [name for name in NAMES if include_headers or name != HEADERS]
    unknown = [name for name in names if name not in types]
    if unknown or not names or len(set(names)) < len(names):
        fault = f"there is no column {unknown[0]!r}" if unknown else "a column is missing, or named twice"
        raise OptionError(f"{fault}; columns are {', '.join(NAMES)}")
    return pa.schema([(name, types[name]) for name in names])
