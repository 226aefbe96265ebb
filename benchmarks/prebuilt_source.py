"""A Spark data source that yields Arrow batches from memory-mapped files: an upper bound for any source in Python."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType


class PrebuiltSource(DataSource):
    """Reads the Arrow IPC streams in the directory named by the option `folder`, one file per task. `.schema(...)` gives the
    schema."""

    @classmethod
    def name(cls) -> str:
        return "prebuilt"

    def reader(self, schema: StructType) -> DataSourceReader:
        return PrebuiltReader(self.options["folder"])


class PrebuiltReader(DataSourceReader):
    def __init__(self, folder: str) -> None:
        self._folder = folder

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(str(path)) for path in sorted(Path(self._folder).glob("*.arrow"))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        with pa.memory_map(partition.value) as mapped:
            yield from pa.ipc.open_stream(mapped)
