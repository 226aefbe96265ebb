"""Errors that are sentences for the user reach them as sentences, not below a Python traceback and Spark's own.

A worker of Spark writes the traceback of what it dies of into the error that the driver shows, unless SPARK_HIDE_TRACEBACK
is set (`spark.sql.execution.pyspark.udf.hideTraceback.enabled`). Setting it for what is expected, in a worker, which ends
with the error, affects nothing else. Mistakes of ours keep their traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark_tidelog.options import OptionError


@contextmanager
def one_sentence() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if _in_a_worker() and _is_expected(error):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # noqa: TID251 (written for Spark, not read)
        raise


def _in_a_worker() -> bool:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")


def _is_expected(error: Exception) -> bool:
    if isinstance(error, OptionError | ModuleNotFoundError):
        return True
    errors = sys.modules.get("storage_tiers.errors")  # what was never imported cannot have been raised
    return errors is not None and isinstance(error, errors.LogError)
