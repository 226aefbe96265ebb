"""This Python, by a path that Spark can start."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path


def python_for_spark(directory: Path) -> str:
    """What `PYSPARK_PYTHON` is to be. Before Spark looks for formats it asks a shell whether that command is there, without
    quoting it: where the path has a space, the format would not be found. A script in `directory` then stands for it."""
    if shlex.quote(sys.executable) == sys.executable:
        return sys.executable
    script = directory / "python"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    return str(script)
