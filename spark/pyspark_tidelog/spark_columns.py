"""The columns of a topic as Spark types.

`.schema(...)` selects columns, in any order, with exactly these types. Other columns are neither built nor sent to Spark. Spark
itself does not prune the columns of a Python data source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_tidelog.columns import HEADERS
from pyspark_tidelog.options import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    HEADERS: ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}


def full_schema(include_headers: bool) -> StructType:
    return StructType([StructField(name, kind) for name, kind in _TYPES.items() if include_headers or name != HEADERS])


def checked(schema: StructType) -> StructType:
    """Returns `schema`. Raises OptionError for an unknown column or another type."""
    known = ", ".join(f"{name} {kind.simpleString()}" for name, kind in _TYPES.items())
    for field in schema.fields:
        kind = _TYPES.get(field.name)
        if kind is None:
            raise OptionError(f"there is no column {field.name!r}; columns are {known}")
        if field.dataType.simpleString() != kind.simpleString():
            raise OptionError(f"column {field.name!r} is {kind.simpleString()}, not {field.dataType.simpleString()}")
    if len(set(schema.names)) != len(schema.names):
        raise OptionError(f"a column appears twice in the schema: {', '.join(schema.names)}")
    if not schema.names:
        raise OptionError(f"the schema has no column; columns are {known}")
    return schema


def spark_arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema with which Spark compares batches, including all flags. Spark's worker uses the same function."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
