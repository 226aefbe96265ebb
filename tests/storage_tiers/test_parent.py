"""A process that asked to end with its parent does so, even if it is stopped, and at once if the parent has ended before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from tests.faults.clients import until
from tests.support.children import start_child
from tests.support.processes import is_alive

_CHILD = "from storage_tiers.parent import end_with; end_with({parent}); print('on', flush=True); input()"
_PARENT = (
    "import os, subprocess, sys; child = subprocess.Popen([sys.executable, '-c', sys.argv[1].format(parent=os.getpid())],"
    " stdin=subprocess.PIPE, stdout=subprocess.PIPE); child.stdout.readline(); print(child.pid, flush=True); input()"
)


def test_a_stopped_child_ends_with_its_parent() -> None:
    parent = start_child([sys.executable, "-c", _PARENT, _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    os.kill(child, signal.SIGSTOP)
    parent.kill()
    parent.wait()
    until(lambda: not is_alive(child), "the child has ended")


def test_a_child_whose_parent_has_ended_ends_at_once() -> None:
    ran = subprocess.run([sys.executable, "-c", _CHILD.format(parent=1)], stdin=subprocess.DEVNULL, capture_output=True)
    assert (ran.returncode, ran.stdout) == (-signal.SIGKILL, b"")
