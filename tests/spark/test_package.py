"""`pyspark_tidelog` in a user's Python: it imports little, Spark finds it, and the user's files may have any name."""

from __future__ import annotations

import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import pyspark_tidelog
from examples.flights.spark_python import python_for_spark
from pyspark_tidelog import DefaultSource, describe, optional_dependencies, tables
from pyspark_tidelog.options import OptionError
from tests.spark.buckets import JAVA_OPTIONS, Bucket, numbered, options

USERS_OWN = 'raise AssertionError(f"{__name__}.py of the user was imported")\n'


def run_as_user(directory: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Runs a script in a folder that holds the user's own spark.py, service.py and the like, with tidelog as installed."""
    for name in ("spark", "service", "storage", "options", "plan"):
        (directory / f"{name}.py").write_text(USERS_OWN)
    (directory / "job.py").write_text(script)
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": python_for_spark(directory),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_TOOL_OPTIONS": JAVA_OPTIONS,
    }
    environment.pop("PYTHONPATH", None)
    return subprocess.run(
        [sys.executable, "job.py"], cwd=directory, env=environment, capture_output=True, text=True, timeout=170
    )


def test_spark_can_list_the_package() -> None:
    assert "pyspark_tidelog" in {module.name for module in pkgutil.iter_modules()}
    assert DefaultSource.name() == "tidelog"
    assert pyspark_tidelog.__file__ is not None


def test_the_import_brings_pyspark_and_the_standard_library_only(tmp_path: Path) -> None:
    done = run_as_user(
        tmp_path,
        """
import sys
import pyspark.sql.datasource
before = set(sys.modules)
from pyspark_tidelog import DefaultSource
source = DefaultSource({"store": "s3://bucket/prefix", "topics": "a"})
source.schema()
brought = {name.partition(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
print(sorted(brought))
""",
    )
    assert done.stderr == ""
    assert done.stdout == "['pyspark_tidelog']\n"


@pytest.mark.parametrize(
    ("store", "missing", "named"),
    [
        ("s3://bucket", {"boto3"}, "needs boto3 "),
        ("s3://bucket", {"boto3", "pyarrow"}, "needs pyarrow, boto3 "),
        ("/directory", {"crc32c", "boto3"}, "needs crc32c "),
    ],
)
def test_missing_extras_are_named_with_the_command(
    monkeypatch: pytest.MonkeyPatch, store: str, missing: set[str], named: str
) -> None:
    monkeypatch.setattr(optional_dependencies, "find_spec", lambda name: None if name in missing else object())
    with pytest.raises(ModuleNotFoundError) as refused:
        DefaultSource({"store": store, "topics": "a"})
    assert named in str(refused.value)
    assert "pip install 'tidelog[spark]'" in str(refused.value)


def test_tables_name_their_own_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optional_dependencies, "find_spec", lambda name: None if name == "pyarrow" else object())
    with pytest.raises(ModuleNotFoundError, match=r"as Arrow needs pyarrow: pip install 'tidelog\[arrow\]'$"):
        tables(store="/directory", topics="a")


def test_an_executor_without_a_dependency_names_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bucket: Bucket
) -> None:
    bucket.publish("a", 1)
    bucket.extend("a", numbered(0, 10))
    source = DefaultSource(options(tmp_path / "store", "a"))
    reader = source.reader(source.schema())
    (partition,) = reader.partitions()
    monkeypatch.setattr(optional_dependencies, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="needs pyarrow, crc32c, cramjam on the driver and every executor"):
        next(reader.read(partition))


def test_a_directory_needs_no_boto3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optional_dependencies, "find_spec", lambda name: None if name == "boto3" else object())
    DefaultSource({"store": "/directory", "topics": "a"})


def test_tables_need_no_pyspark(tmp_path: Path, bucket: Bucket) -> None:
    bucket.publish("a", 1)
    bucket.extend("a", numbered(0, 1000))
    user = tmp_path / "user"
    user.mkdir()
    done = run_as_user(
        user,
        f"""
import sys
sys.modules["pyspark"] = None  # makes its import fail
import pyspark_tidelog
print(sorted({{name.partition(".")[0] for name in sys.modules}} & {{"pyarrow", "boto3", "storage_tiers"}}))
found = pyspark_tidelog.tables(store={str(tmp_path / "store")!r}, topics="a")
print(found.table().num_rows, [batch.num_rows for batch in found.reader()])
try:
    pyspark_tidelog.DefaultSource
except ImportError as error:
    print(error)
""",
    )
    assert done.stderr == ""
    assert done.stdout.splitlines()[:2] == ["[]", "1000 [1000]"]
    assert "pyspark" in done.stdout.splitlines()[2]


def test_describe_shows_the_plan(tmp_path: Path, bucket: Bucket) -> None:
    bucket.publish("a", 1)
    bucket.extend("a", numbered(0, 10))
    (plan,) = describe(**options(tmp_path / "store", "a"))
    with pytest.raises(OptionError, match="pushdown works only in Spark"):
        describe(**options(tmp_path / "store", "a", pushdown="true"))
    assert (str(plan.ids), plan.start, plan.end, plan.commit, len(plan.splits)) == ("a-0", 0, 10, 1, 1)


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_a_fresh_interpreter_finds_the_format_and_logs_the_plan(tmp_path: Path, bucket: Bucket) -> None:
    bucket.publish("a", 1)
    bucket.extend("a", numbered(0, 100))
    user = tmp_path / "user"
    user.mkdir()
    done = run_as_user(
        user,
        f"""
from pyspark.sql import SparkSession
session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
df = session.read.format("tidelog").option("store", {str(tmp_path / "store")!r}).option("topics", "a").load()
print("rows", df.count())
""",
    )
    assert done.stdout == "rows 100\n", done.stderr
    assert "INFO pyspark_tidelog: a-0 (topic id " in done.stderr
    assert "offsets [0, 100) as of manifest commit 1 at 2023-11-14T22:13:21.000+00:00" in done.stderr
