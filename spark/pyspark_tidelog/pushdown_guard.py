"""Prevents the use of a plan that was pruned for one query's filters in another query.

Spark 4.2.0 stores a plan with pushed filters in the result of `load()`, and reuses it for the next query of the same `load()`
that pushes no filter. That query then misses rows. (Later versions store the plan with the query.) No Python runs in between,
so the tasks check: each executor records the first query of a pruned plan in Spark's scratch directory, which is deleted with
the application, and refuses the plan to all other queries.

The check does not detect a query whose tasks share no executor with those of the first query, or two filters in one query (a
union of two parts of one `load()`). It refuses to collect the same DataFrame twice, although that is harmless.
"""

from __future__ import annotations

import os
import tempfile

from pyspark import TaskContext

from pyspark_tidelog.options import OptionError

_EXECUTION_IDS = ("spark.sql.execution.root.id", "spark.sql.execution.id")


def check_pushdown(plan_id: str, pruned_by: str) -> None:
    """Raises OptionError if this task's query is not the first to read the plan."""
    context = TaskContext.get()
    if context is None:  # not in a Spark task
        return
    query = next((found for name in _EXECUTION_IDS if (found := context.getLocalProperty(name))), "none")
    directory = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()  # noqa: TID251 (Spark's)
    note = os.path.join(directory, f"tidelog-plan-{plan_id}")
    try:
        os.symlink(query, note)  # created atomically, unlike a file
    except FileExistsError:
        if os.readlink(note) != query:
            raise OptionError(
                f"this plan was pruned by {pruned_by} for another query, and Spark 4.2 uses it for every query of one "
                "load(); with pushdown, call load() again for each query, or leave pushdown out"
            ) from None
