"""For every metric, a piece of work changes the metric by an amount known beforehand."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from service.observability.metrics import METRICS
from service.observability.stats import ASK_S
from storage_tiers.errors import LeaderNotAvailable
from storage_tiers.types import TopicPartition
from tests.service.observability import works, works_cold, works_coordinators, works_fetching
from tests.service.observability.world import WORKS, Change, Is, Rose, Samples, Within, observed
from tests.support.clients import TIERED, create, produce, seal, until
from tests.support.node import Node

#: Metrics that only a node in its own process has; `test_the_tier_process_is_seen` covers them.
IN_A_PROCESS = {
    "tidelog_tier_process_resident_bytes",
    "tidelog_tier_process_peak_resident_bytes",
    "tidelog_tier_process_lost_total",
    "tidelog_node_info",
    "tidelog_broker_up",
    "tidelog_broker_restarts_total",
}
_MODULES = (works, works_cold, works_coordinators, works_fetching)
_SUFFIXES = ("_count", "_sum", "_bucket")


@pytest.mark.parametrize("name", WORKS)
async def test_known_work_changes_metrics_by_known_amounts(name: str, tmp_path: Path) -> None:
    declared = WORKS[name]
    async with observed(tmp_path / "data", declared.broker) as world:
        steps = declared.act(world)
        await anext(steps)
        before = await world.scrape()
        await anext(steps)
        after = await world.scrape()
        async for _ in steps:
            raise AssertionError("a third yield")
    wrong = [
        f"{sample}: {before.get(sample)} -> {after.get(sample)}, not {change}"
        for sample, change in declared.changes.items()
        if not _fits(before.get(sample, 0.0), after.get(sample), change)
    ]
    assert not wrong, "\n".join(wrong)
    _check_counters(before, after)


async def test_metrics_have_the_values_that_their_names_say(tmp_path: Path) -> None:
    """Compares numbers that are usually equal, in a case where they differ."""
    async with observed(tmp_path / "data", {}) as world:
        await world.create("t", 3)
        broker = world.inner.broker
        broker.partitions.get(TopicPartition("t", 0)).recover(LeaderNotAvailable("waits for the store"))
        broker.append_queues.held_bytes, broker.append_queues.writing_bytes = 70_000, 20_000
        found = await world.scrape()
        broker.append_queues.held_bytes = broker.append_queues.writing_bytes = 0
    manager = "kafka_server_replicamanager_"
    shown = [found[manager + name] for name in ("partitioncount", "leadercount", "atminisrpartitioncount")]
    assert shown == [3, 2, 2]
    assert found["tidelog_append_queue_bytes"] == 70_000


def _fits(before: float, after: float | None, change: Change) -> bool:
    match change:
        case Rose():
            return after is not None and after > before
        case Is(value):
            return after == value
        case Within(least, most):
            return after is not None and least <= after <= most
        case 0:
            return (after or 0.0) == before
        case _:
            return after is not None and after - before == pytest.approx(change)


def _check_counters(before: Samples, after: Samples) -> None:
    """No counter falls, except those of a deleted topic."""
    fallen = [
        sample
        for sample, value in before.items()
        if sample.partition("{")[0].endswith("_total") and "topic=" not in sample and after.get(sample, -1) < value
    ]
    assert not fallen


def test_every_metric_has_a_row() -> None:
    samples = {sample.partition("{")[0] for declared in WORKS.values() for sample in declared.changes}
    shown = {_metric_of(sample) for sample in samples} | IN_A_PROCESS
    assert shown == set(METRICS)


def _metric_of(sample: str) -> str:
    if sample in METRICS:
        return sample
    return next(sample.removesuffix(suffix) for suffix in _SUFFIXES if sample.removesuffix(suffix) in METRICS)


def scrape(node: Node) -> Samples:
    status, body = node.get("/metrics", timeout=ASK_S + 30)
    assert status == 200
    lines = [line.rpartition(" ") for line in body.splitlines() if not line.startswith("#")]
    return {sample: float(value) for sample, _, value in lines}


def test_the_tier_process_is_seen(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        create(node, "t", 1, TIERED)
        produce(node, "t", 100)
        seal(node, "t")
        found = scrape(node)
        resident = found["tidelog_tier_process_resident_bytes"]
        assert 10e6 < resident < 400e6
        assert found["tidelog_tier_process_peak_resident_bytes"] >= resident * 0.9
        assert found["tidelog_tier_process_running"] == 1
        (info,) = (sample for sample in found if sample.startswith("tidelog_node_info"))
        version, cluster, number = re.findall(r'"([^"]*)"', info)
        assert version
        assert len(cluster) == 22
        assert number == "1"
        os.kill(_child_of(node.pid), signal.SIGKILL)
        until(lambda: scrape(node)["tidelog_tier_process_running"] == 0, "the exit is noticed")
        ended = scrape(node)
        assert ended["tidelog_tier_process_lost_total"] == 1
        assert ended["tidelog_tier_process_resident_bytes"] == 0
        assert ended["tidelog_store_uploaded_bytes_total"] >= found["tidelog_store_uploaded_bytes_total"] > 0


def _child_of(pid: int) -> int:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    (child,) = [int(each) for task in tasks for each in (task / "children").read_text().split()]
    return child
