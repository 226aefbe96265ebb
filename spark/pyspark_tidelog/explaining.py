"""Prints the offsets that a DataFrame's plan reads from tidelog, because Spark's `explain()` names only the source.

The lines come from the splits that this package pickled into the physical plan. So they describe the DataFrame's next
`collect()`, not a new plan. They do not show partitions with nothing to read (the plan has no task for them), reads in
subqueries, or the source of a cached DataFrame.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def explain(df: DataFrame, mode: str | None = None) -> None:
    """Prints `df.explain(mode=...)`, then the offsets to read, the manifest's commit and its time for each partition of each
    topic. Plans the read if there is no plan yet. Raises TypeError for a DataFrame of Spark Connect."""
    if getattr(df, "_jdf", None) is None:
        raise TypeError(
            "Spark Connect does not show plans to its clients. The log of the planning process has these lines, and "
            "pyspark_tidelog.describe(...) shows the plan of a new read"
        )
    df.explain(mode=mode)
    print("== tidelog ==", *planned(df), sep="\n")


def planned(df: DataFrame) -> list[str]:
    """The lines, in the order of the plan."""
    physical = df._jdf.queryExecution().executedPlan()
    lines = [line for scan in _scans(physical) for line in _lines(scan)]
    return list(dict.fromkeys(lines)) or ["no topic is read"]


def _scans(plan: Any) -> Iterator[Any]:
    if plan.getClass().getSimpleName() == "AdaptiveSparkPlanExec":
        yield from _scans(plan.initialPlan())  # the final plan has the same scans, hidden in its stages
        return
    for leaf in _each(plan.collectLeaves()):
        if leaf.getClass().getSimpleName() == "BatchScanExec" and leaf.table().name().lower() == "tidelog":
            yield leaf


def _lines(scan: Any) -> Iterator[str]:
    for partition in _each(scan.inputPartitions()):
        plan = getattr(pickle.loads(partition.pickedPartition()), "plan", None)
        if plan is not None:  # an empty read has one partition without a split
            yield plan


def _each(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(at) for at in range(sequence.size()))
