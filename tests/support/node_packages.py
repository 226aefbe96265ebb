"""npm packages, as a `package-lock.json` pins them: kafkajs with the codecs that it leaves to its users for
`tests/clients/javascript`, and gRPC for `examples/grpc_javascript`.

Fetched once into `.cache/node-<hash of the lock file>`; no package runs a script.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "clients" / "javascript"
CACHE = Path(__file__).resolve().parents[2] / ".cache"
FETCH_SECONDS = 600


def node_path(source: Path = SOURCE) -> Path:
    """The value for NODE_PATH. Fetches the packages if they are missing; CalledProcessError if that fails."""
    lock_file = source / "package-lock.json"
    folder = CACHE / f"node-{hashlib.sha256(lock_file.read_bytes()).hexdigest()[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            for name in ("package.json", "package-lock.json"):
                shutil.copy(source / name, folder)
            command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
            subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, timeout=FETCH_SECONDS)
            (folder / "complete").touch()
    return folder / "node_modules"
