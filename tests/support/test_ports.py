"""Each process has a block of ports of its own as long as it lives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.children import start_child
from tests.support.node import ROOT
from tests.support.ports import own_block

OTHER = """
import sys
from pathlib import Path
from tests.support.ports import own_block
print(own_block(Path(sys.argv[1])), flush=True)
sys.stdin.read()
"""


def other(path: Path) -> subprocess.Popen[str]:
    """A process that takes a block and keeps it until its input ends."""
    command = [sys.executable, "-c", OTHER, str(path)]
    return start_child(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def block_of(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def test_processes_share_no_block_and_one_that_was_killed_gives_its_own_back(tmp_path: Path) -> None:
    path = tmp_path / "blocks"
    assert own_block(path) == 0
    with other(path) as first, other(path) as second:
        blocks = block_of(first), block_of(second)
        assert sorted(blocks) == [1, 2]
        first.kill()
        first.wait()
        with other(path) as third:
            assert block_of(third) == blocks[0]
