"""Child processes that end with their parent, even if a signal kills it. Otherwise a worker of pytest-xdist that aborts would
leave its nodes and servers running during all later tests.

    process = start_child([sys.executable, "-m", "service.cli.main"], stdout=output)      # as subprocess.Popen

The kernel kills a child once the thread that started it ends (PR_SET_PDEATHSIG in prctl(2)). A fixture may start its node in
a thread of an executor that ends with the event loop, so children of threads other than the main one are started by a
thread that never ends. `setpriv` makes the request to the kernel, because Python code between fork and exec aborts while
threads are in gRPC. Without `setpriv`, children outlive their parent.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any


@cache
def _prefix() -> list[str]:
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--"] if setpriv is not None else []


#: This thread ends only with the process. A test waits for it only while a child starts.
_starter = ThreadPoolExecutor(1, "starts-children")

if TYPE_CHECKING:
    start_child = subprocess.Popen
else:

    def start_child(command: Sequence[str | Path], **options: Any) -> subprocess.Popen[Any]:
        def start() -> subprocess.Popen[Any]:
            return subprocess.Popen([*_prefix(), *command], **options)

        main = threading.current_thread() is threading.main_thread()
        return start() if main else _starter.submit(start).result()
