"""promtool, which parses and tests Prometheus' rules: the machine's own, else the one in Debian's package, unpacked into
`.cache` and not installed. `promtool()` fetches it if necessary."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / ".cache" / "bin"
TIMEOUT_S = 300


def promtool() -> str:
    """The command's path. Raises OSError or SubprocessError if it cannot be fetched."""
    found = shutil.which("promtool")
    if found is not None:
        return found
    target = FOLDER / "promtool"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "promtool.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            _unpack(target)
    return str(target)


def _unpack(target: Path) -> None:
    fresh = FOLDER / "prometheus"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    download = ["apt-get", "download", "-q", "prometheus"]
    try:
        if subprocess.run(download, cwd=fresh, capture_output=True, timeout=TIMEOUT_S, check=False).returncode != 0:
            subprocess.run(["apt-get", "update", "-q"], check=True, capture_output=True, timeout=TIMEOUT_S)
            subprocess.run(download, cwd=fresh, check=True, capture_output=True, timeout=TIMEOUT_S)
        (package,) = fresh.glob("prometheus_*.deb")
        subprocess.run(["dpkg-deb", "-x", package, fresh], check=True, capture_output=True, timeout=TIMEOUT_S)
        (fresh / "usr" / "bin" / "promtool").replace(target)
    finally:
        shutil.rmtree(fresh)
