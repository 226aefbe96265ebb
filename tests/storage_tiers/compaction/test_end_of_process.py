"""The cleaner process ends with its broker, even while it is stopped: a later broker on the directory writes files of the same
names."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_tiers.compaction.main import NICENESS
from tests.faults.clients import until
from tests.support.node import ROOT

_BROKER = """
import asyncio
from storage_tiers.child_process import start_child

async def main():
    started = await start_child("storage_tiers.compaction.main")
    print(started.process.process_id, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def broker() -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", _BROKER], stdout=subprocess.PIPE, env=environment)
    yield process
    process.kill()
    process.wait()


def fields(pid: int) -> list[str]:
    """The fields of proc(5)'s `stat` from the state on; empty once the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return []


def is_gone(pid: int) -> bool:
    return fields(pid)[:1] in ([], ["Z"], ["X"])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills a process with its parent")
def test_a_stopped_cleaner_dies_with_its_broker(broker: subprocess.Popen[bytes]) -> None:
    assert broker.stdout is not None
    cleaner = int(broker.stdout.readline())
    nice = os.getpriority(os.PRIO_PROCESS, broker.pid) + NICENESS
    until(lambda: fields(cleaner)[16:17] == [str(min(nice, 19))], "the cleaner has begun")
    os.kill(cleaner, signal.SIGSTOP)
    until(lambda: fields(cleaner)[:1] == ["T"], "the cleaner is stopped")
    try:
        broker.kill()
        until(lambda: is_gone(cleaner), "the cleaner is gone")
    finally:
        if not is_gone(cleaner):
            os.kill(cleaner, signal.SIGKILL)
