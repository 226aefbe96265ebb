"""No child outlives the process that started it, and each child outlives the thread that started it."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from tests.support.node import ROOT

#: The program's child repeats a line, and sleeps once the program closes the pipe. The child's stderr is the program's stdout.
PARENT = """
import os, signal, subprocess, sys, threading
from tests.support.children import start_child

def start():
    program = "read line; echo $line; cat; exec sleep 600"
    children.append(start_child(["sh", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=1))

children = []
if sys.argv[1] == "thread":
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
else:
    start()
[child] = children
child.stdin.write(b"alive\\n")
child.stdin.flush()
assert child.stdout.readline() == b"alive\\n"
print("heard", flush=True)
{"abort": os.abort, "kill": lambda: os.kill(os.getpid(), signal.SIGKILL), "return": lambda: None}[sys.argv[2]]()
"""


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="nothing asks the kernel to end children")
@pytest.mark.parametrize("end", ["abort", "kill", "return"])
@pytest.mark.parametrize("starter", ["main thread", "thread"])
def test_a_child_ends_with_its_parent(starter: str, end: str) -> None:
    words = [sys.executable, "-c", PARENT, starter, end]
    with subprocess.Popen(words, stdout=subprocess.PIPE, cwd=ROOT) as parent:
        said, _ = parent.communicate(timeout=120)  # until no process has the pipe
    assert said == b"heard\n"
