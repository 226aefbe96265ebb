"""The tier process returns freed memory to the operating system."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.node import ROOT

#: A smaller block above each freed one keeps the heap from shrinking.
PROGRAM = """
import os, sys
from storage_tiers.cold.process.main import give_back_freed_blocks

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def churn():
    raised = b"x" * (8 << 20)
    del raised
    pins = []
    blocks = []
    for _ in range(8):
        blocks.append(b"x" * (4 << 20))
        pins.append(b"x" * 100_000)
    del blocks
    return pins

if sys.argv[1] == "given back" and not give_back_freed_blocks():
    sys.exit("no glibc")
before = resident()
pins = churn()
print(resident() - before)
"""


def grown(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], cwd=ROOT, check=False, capture_output=True, text=True)
    if done.stderr == "no glibc\n":
        pytest.skip("another C library than glibc")
    return int(done.stdout)


def test_freed_large_blocks_return_to_the_system() -> None:
    assert grown("kept") > 8 << 20, "otherwise the test shows nothing"
    assert grown("given back") < 4 << 20
