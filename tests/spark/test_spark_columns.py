"""The columns of the data source and their pruning, without a JVM."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, StringType, StructField, StructType

from pyspark_tidelog.options import OptionError
from pyspark_tidelog.spark_columns import checked, full_schema, spark_arrow_schema


def test_the_columns_are_those_of_sparks_kafka_source() -> None:
    assert full_schema(False).simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    assert full_schema(True).simpleString().endswith(",headers:array<struct<key:string,value:binary>>>")


def test_the_arrow_schema_is_exact() -> None:
    assert spark_arrow_schema(full_schema(True)) == pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("timestampType", pa.int32()),
            ("headers", pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))),
        ]
    )


def test_a_schema_may_have_any_columns_in_any_order_and_nullability() -> None:
    wanted = StructType([StructField("offset", LongType(), nullable=False), StructField("key", BinaryType())])
    assert checked(wanted) is wanted
    assert spark_arrow_schema(wanted) == pa.schema(
        [pa.field("offset", pa.int64(), nullable=False), ("key", pa.binary())]
    )


def refusal(*fields: StructField) -> str:
    with pytest.raises(OptionError) as refused:
        checked(StructType(list(fields)))
    return str(refused.value)


def test_refusals_name_the_columns() -> None:
    assert "'payload'; columns are key binary, value binary" in refusal(StructField("payload", BinaryType()))
    assert "'offset' is bigint, not int" in refusal(StructField("offset", IntegerType()))
    assert "array<struct<key:string,value:binary>>, not array<string>" in refusal(
        StructField("headers", ArrayType(StringType()))
    )
    assert "appears twice" in refusal(StructField("key", BinaryType()), StructField("key", BinaryType()))
    assert "has no column" in refusal()
