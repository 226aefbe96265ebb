"""The running Python, under a path that Spark can start."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path


def python_for_spark(directory: Path) -> str:
    """A value for `PYSPARK_PYTHON`. Before Spark looks for formats it checks this command in a shell, unquoted, so that a path
    with a space would hide the format. For such a path this writes a script into `directory` and returns that."""
    if shlex.quote(sys.executable) == sys.executable:
        return sys.executable
    script = directory / "python"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    return str(script)
