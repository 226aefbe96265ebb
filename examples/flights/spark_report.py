"""The mean arrival delay of every carrier, read by PySpark from the bucket, without a node.

To run it alone:  python -m examples.flights.spark_report STORE_URL [TOPIC]
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from examples.flights.data import Delay
from examples.flights.spark_python import python_for_spark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

PROGRESS_S = 0.2


@contextmanager
def session(work_directory: Path) -> Iterator[SparkSession]:
    """A local Spark on all cores. Its workers use the running Python."""
    os.environ.setdefault("PYSPARK_PYTHON", python_for_spark(work_directory))
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[*]").appName("flights")
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.log.level", "ERROR").config("spark.sql.shuffle.partitions", "2")
    builder = builder.config("spark.local.dir", str(work_directory))
    builder = builder.config("spark.sql.warehouse.dir", str(work_directory / "warehouse"))
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def delays_from_bucket(
    spark: SparkSession, store: str, topic: str, options: Mapping[str, str] | None = None
) -> dict[str, Delay]:
    """Computes the delays by carrier. `options` are further options of the format, such as `clusterId` and `s3.endpoint`."""
    from pyspark.sql import functions as f

    records = spark.read.format("tidelog").option("store", store).option("topics", topic).options(**(options or {}))
    flights = records.load().select(
        f.from_json(f.col("value").cast("string"), "carrier STRING, arr_delay INT").alias("flight")
    )
    by_carrier = flights.groupBy("flight.carrier").agg(
        f.avg("flight.arr_delay").alias("mean"),
        f.count("*").alias("flights"),
        f.count("flight.arr_delay").alias("known"),
    )
    return {row["carrier"]: Delay(_number(row["mean"]), row["flights"], row["known"]) for row in by_carrier.collect()}


def _number(mean: float | None) -> float:
    """Converts Spark's mean to pandas' form: the mean of no rows is null in Spark, and NaN in pandas."""
    return float("nan") if mean is None else mean


@contextmanager
def watched(spark: SparkSession, show: Callable[[int, int], object]) -> Iterator[None]:
    """Until the block ends, calls `show` with the numbers of finished tasks and of all tasks, over the stages seen so far."""
    tracker = spark.sparkContext.statusTracker()
    done, stages = threading.Event(), dict[int, tuple[int, int]]()

    def look() -> None:
        while not done.wait(PROGRESS_S):
            for stage in tracker.getActiveStageIds():
                info = tracker.getStageInfo(stage)
                if info is not None:
                    stages[stage] = (info.numCompletedTasks, info.numTasks)
                    show(sum(c for c, _ in stages.values()), sum(n for _, n in stages.values()))

    thread = threading.Thread(target=look, name="Spark's progress")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def main() -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as directory, session(Path(directory)) as spark:
        topic = sys.argv[2] if len(sys.argv) > 2 else "flights"
        for carrier, delay in sorted(delays_from_bucket(spark, sys.argv[1], topic).items()):
            print(f"{carrier}  {delay.mean:8.3f} minutes  of {delay.known} flights")


if __name__ == "__main__":
    main()
