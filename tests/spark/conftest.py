"""One Spark session for all tests in this folder, and buckets to read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from examples.flights.spark_python import python_for_spark
from storage_tiers.cold.stores.directory import BlockingDirectoryStore
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.files import OsFiles
from tests.spark.buckets import JAVA_OPTIONS, START_MS, Bucket
from tests.support import kafka_jars, s3_servers
from tests.support.clock import ManualClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark's defaults for a small machine and its connector for Kafka, with a JVM that does not optimise code that runs once.
    Workers use the test's Python and inherit its environment."""
    from pyspark.sql import SparkSession

    s3_servers.set_environment()
    warehouse = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", python_for_spark(warehouse))
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        session = (
            SparkSession.builder.master("local[2]")
            .appName("tidelog tests")
            .config("spark.ui.enabled", "false")
            .config("spark.jars", ",".join(map(str, kafka_jars.spark_connector())))
            .config("spark.driver.memory", "1g")
            .config("spark.driver.extraJavaOptions", JAVA_OPTIONS)
            .config("spark.sql.warehouse.dir", str(warehouse))
            .config("spark.local.dir", str(warehouse))
            .getOrCreate()
        )
        yield session
        session.stop()


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    """A directory store at tmp_path/store with a cluster but no topic."""
    store = BlockingDirectoryStore(str(tmp_path / "store"), OsFiles())
    store.create_root()
    local = tmp_path / "local"
    local.mkdir()
    made = Bucket(store, local)
    made.create_cluster()
    return made


@pytest.fixture
def memory_bucket(tmp_path: Path) -> Bucket:
    """A bucket in a memory store with a cluster but no topic, for tests that need no Spark."""
    made = Bucket(MemoryStore(ManualClock(START_MS)).blocking(), tmp_path)
    made.create_cluster()
    return made
