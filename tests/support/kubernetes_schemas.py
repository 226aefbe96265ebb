"""The schemas of Kubernetes' own resources, from the package kubernetes-validate. The package goes into `.cache`, beside the
environment, because only one test uses it and it brings the schemas of ten releases."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

VERSION = "1.33.0"
ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 300


def folder() -> Path:
    """The package's directory, for PYTHONPATH. Raises OSError or SubprocessError if it cannot be installed."""
    target = ROOT / ".cache" / f"kubernetes-validate-{VERSION}"
    target.mkdir(parents=True, exist_ok=True)
    with (target / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / "complete").exists():
            install = [sys.executable, "-m", "pip", "install", "-q", "--upgrade", "--target", str(target)]
            package = f"kubernetes-validate=={VERSION}"
            subprocess.run([*install, package], check=True, capture_output=True, timeout=TIMEOUT_S)
            (target / "complete").touch()
    return target
