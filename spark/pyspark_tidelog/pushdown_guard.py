"""A plan that one query's filters have pruned must not answer another query.

Spark 4.2.0 keeps the plan that filters were pushed into with what `load()` returned, and hands it to the next query of the
same `load()` that pushes no filter: which then misses rows (later versions keep it with the query). No Python is asked in
between, so the tasks look: each executor notes in Spark's own scratch directory, gone with the application, which query a
pruned plan was first read for, and refuses it to all others.

Not noticed: a query none of whose tasks runs where one of the first query's did, and two filters inside one query (a union
of two parts of one `load()`). Refused though harmless: to collect the very same DataFrame twice.
"""

from __future__ import annotations

import os
import tempfile

from pyspark import TaskContext

from pyspark_tidelog.options import OptionError

_EXECUTION_IDS = ("spark.sql.execution.root.id", "spark.sql.execution.id")


def check_pushdown(plan_id: str, pruned_by: str) -> None:
    """OptionError if this task's query is not the first that reads the plan."""
    context = TaskContext.get()
    if context is None:  # no task of Spark's
        return
    query = next((found for name in _EXECUTION_IDS if (found := context.getLocalProperty(name))), "none")
    directory = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()  # noqa: TID251 (Spark's)
    note = os.path.join(directory, f"tidelog-plan-{plan_id}")
    try:
        os.symlink(query, note)  # made whole or not at all, unlike a file
    except FileExistsError:
        if os.readlink(note) != query:
            raise OptionError(
                f"this plan was pruned by {pruned_by} for another query, and Spark 4.2 hands it to every query of one "
                "load(): with pushdown, load() anew for each query, or leave pushdown out"
            ) from None
