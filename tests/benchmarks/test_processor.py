"""The processor time of a thread of another process: no more than the process has used."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks import processor
from benchmarks.burner import Used
from benchmarks.processor import LoopTime

#: The two clocks are read one after the other, and the process's clock counts in ticks of the kernel.
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
#: A program that reads a line, uses {} seconds of processor time, and then prints a line.
_SPINS = """
import time
input()
end = time.process_time() + {}
while time.process_time() < end: pass
print(flush=True)
input()
"""


@pytest.mark.parametrize("exact", [True, False])
def test_a_loops_time_is_that_of_its_thread(exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not exact:
        monkeypatch.setattr(processor, "_task_clock", lambda thread: None)
    with subprocess.Popen(
        [sys.executable, "-c", _SPINS.format(0.5)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        spent = LoopTime(process.pid)
        began = spent.seconds()
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        used = spent.seconds() - began
        whole = Used.by(process.pid).seconds
        process.kill()
    assert spent.is_exact is exact or processor._task_clock(process.pid) is None
    assert 0 < used <= whole + 2 * TICK_S  # user and system time are each cut to whole ticks
    assert used >= 0.5 - 0.1
