"""Shows expected errors as one sentence, without the Python traceback that Spark would add.

A Spark worker adds its traceback to the error that the driver shows, unless SPARK_HIDE_TRACEBACK is set
(`spark.sql.execution.pyspark.udf.hideTraceback.enabled`). The worker exits after the error, so setting the variable for an
expected error affects nothing else. Bugs keep their traceback.
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
    errors = sys.modules.get("storage_tiers.errors")  # if never imported, its errors were never raised
    return errors is not None and isinstance(error, errors.LogError)
