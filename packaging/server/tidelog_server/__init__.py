"""The installed `tidelog` command.

The server's packages have names that programs use for their own files (`service`, `lambdas`). So an installed server keeps
them inside this package, its only top-level name, and the command puts this folder first on its path before importing them.
The server overwrites no other package's files. Another program's `import service` finds that program's file, and the command
finds the server's regardless of the current directory and PYTHONPATH.

In a clone this folder contains no packages. The editable install puts those of the tree on the path.
"""

from __future__ import annotations

import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent


def main() -> None:
    """The console script."""
    if (_HERE / "service").is_dir():
        sys.path.insert(0, str(_HERE))
    from service.cli.main import app

    app()
