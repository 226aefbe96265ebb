"""The `tidelog` command as it is installed.

The server's packages have names that programs use for their own files (`service`, `lambdas`). So an installed server keeps
them inside this package, the one name that it adds to an environment, and the command puts this folder first on its own path
before it imports any of them. Nothing of another package is overwritten, `import service` of a program beside it finds that
program's file, and the command finds the server's whatever lies in the current directory or on PYTHONPATH.

In a clone this folder holds no packages: they are those of the tree, which its editable install has put on the path.
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
