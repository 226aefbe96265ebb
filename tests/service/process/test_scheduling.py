"""The event loop's short scheduler time slice, and the time that the loop waits for a processor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from service.process.scheduling import SHORTEST_SLICE_NS, slice_of
from tests.support.node import ROOT, Node

PROGRAM = """
import json, os, subprocess, sys, threading
from service.process.scheduling import shorten_slice, slice_of
os.nice(int(sys.argv[1]))
before, nice = slice_of(), os.getpriority(os.PRIO_PROCESS, 0)
asked, seen = shorten_slice(), []
thread = threading.Thread(target=lambda: seen.append(slice_of()))
thread.start()
thread.join()
look = "from service.process.scheduling import slice_of; print(slice_of())"
child = subprocess.run([sys.executable, "-c", look], capture_output=True)
print(json.dumps({
    "asked": asked, "before": before, "after": slice_of(), "thread": seen[0], "child": json.loads(child.stdout),
    "nice": [nice, os.getpriority(os.PRIO_PROCESS, 0)],
}))
"""


def in_a_process(*, nice: int = 0) -> dict[str, object]:
    # Not by `preexec_fn`: it runs Python between fork and exec, and a worker whose threads are in gRPC aborts there.
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(nice)], cwd=ROOT, check=True, capture_output=True, text=True
    )
    answer: dict[str, object] = json.loads(done.stdout)
    if not answer["asked"]:
        pytest.skip("this kernel grants no slices")
    return answer


def test_a_short_slice_applies_to_one_thread_only() -> None:
    seen = in_a_process()
    assert seen["after"] == SHORTEST_SLICE_NS
    assert seen["before"] != SHORTEST_SLICE_NS
    assert seen["thread"] == seen["child"] == seen["before"]


def test_a_nice_value_is_kept() -> None:
    nice = os.getpriority(os.PRIO_PROCESS, 0) + 3
    assert in_a_process(nice=3)["nice"] == [nice, nice]


def test_another_scheduling_policy_is_kept() -> None:
    program = (
        "import os; os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))\n"
        "from service.process.scheduling import shorten_slice\n"
        "print(shorten_slice(), os.sched_getscheduler(0) == os.SCHED_BATCH)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "True"]


def test_a_node_requests_a_short_slice_for_its_loop(tmp_path: Path) -> None:
    in_a_process()  # skips where the kernel grants no slices
    with Node(tmp_path, store="none") as node:
        assert slice_of(node.pid) == SHORTEST_SLICE_NS
        others = {int(thread) for thread in os.listdir(f"/proc/{node.pid}/task")} - {node.pid}
        assert SHORTEST_SLICE_NS not in {slice_of(thread) for thread in others}
        node.stop()


def test_time_waiting_for_a_processor_is_counted() -> None:
    """Two threads share one processor, which another process keeps busy: each thread's wait is counted separately."""
    if not os.path.exists("/proc/self/schedstat"):
        pytest.skip("this system does not count how long threads wait for a processor (no schedstat)")
    program = """
import os, threading
from service.process.scheduling import waited_s
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
busy = os.fork()
if busy == 0:
    while True:
        pass
try:
    seen, first = [], waited_s()
    while waited_s() < first + 0.05:
        pass
    other = threading.Thread(target=lambda: seen.append(waited_s()))
    other.start()
    other.join()
    print(seen[0] < waited_s())
finally:
    os.kill(busy, 9)
    os.waitpid(busy, 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "True\n"
