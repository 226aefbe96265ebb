"""The arguments that run another `tidelog` command in a process of its own, with the code of this process.

The command is not looked up by its name: PATH may have another version, and a program that imports the server may have no such
command.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

#: The program. It uses this process's `sys.path` without the current directory, where files may have the names of modules.
_COMMAND = "import sys; sys.path[:] = {path!r}; from service.cli.main import app; app(prog_name='tidelog')"


def own_command(words: Sequence[str]) -> list[str]:
    """The program and its arguments for `tidelog <words>`."""
    command = _COMMAND.format(path=[path for path in sys.path if path])
    return [sys.executable, "-P", "-c", command, *words]
