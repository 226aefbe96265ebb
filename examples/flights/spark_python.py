"""A path of the running Python that Spark can start."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path


def python_for_spark(directory: Path) -> str:
    """Returns a value for `PYSPARK_PYTHON`. Before Spark searches for formats, it runs this command in a shell, without quotes,
    as a check. If the path has a space, the check fails and Spark does not find the format. For such a path, this function
    writes a script into `directory` and returns the script's path."""
    if shlex.quote(sys.executable) == sys.executable:
        return sys.executable
    script = directory / "python"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    return str(script)
