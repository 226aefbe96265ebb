"""The processor time of a thread of another process: no more than the process has used."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks import processor
from benchmarks.burner import Used
from benchmarks.processor import LoopTime

_SPINS = "import time\nwhile time.process_time() < {}: pass\nprint(flush=True)\ninput()"


@pytest.mark.parametrize("exact", [True, False])
def test_a_loops_time_is_that_of_its_thread(exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not exact:
        monkeypatch.setattr(processor, "_task_clock", lambda thread: None)
    with subprocess.Popen(
        [sys.executable, "-c", _SPINS.format(0.5)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        spent, before = LoopTime(process.pid), Used.by(process.pid).seconds
        began = spent.seconds()
        process.stdout.readline()
        used = spent.seconds() - began
        whole = Used.by(process.pid).seconds
        process.kill()
    assert spent.is_exact is exact or processor._task_clock(process.pid) is None
    assert 0 < used <= whole
    assert used >= 0.5 - before - 0.1
