"""Compiles `examples/grpc_java` with Maven into `.cache`, once for each state of its sources and of the .proto files.

Maven fetches protoc, gRPC's plugin for it and the jars from Maven Central, pinned by `pom.xml`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "examples" / "grpc_java"
PROTOS = ROOT / "grpc_api" / "proto"
BUILD_SECONDS = 600


def class_path() -> str:
    """The argument of `java -cp` that runs its `Main`. Raises CalledProcessError with Maven's output if the build fails."""
    sources = [SOURCES / "pom.xml", *sorted(SOURCES.glob("src/**/*.java")), *sorted(PROTOS.glob("*.proto"))]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    target = ROOT / ".cache" / f"grpc_java-{digest}"
    target.parent.mkdir(exist_ok=True)
    with open(target.parent / "grpc_java.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=target.parent) as directory:
                _build(Path(directory))
                os.replace(Path(directory) / "examples" / "grpc_java" / "target", target)
    return f"{target / 'classes'}:{target / 'dependency'}/*"


def _build(clone: Path) -> None:
    """Builds in a copy with the layout of a clone, because `pom.xml` finds the .proto files two directories above it."""
    project = clone / "examples" / "grpc_java"
    shutil.copytree(SOURCES, project, ignore=shutil.ignore_patterns("target"))
    shutil.copytree(PROTOS, clone / "grpc_api" / "proto", ignore=shutil.ignore_patterns("*.py*"))
    command = ["mvn", "-q", "-B", "compile", "dependency:copy-dependencies"]
    subprocess.run(command, cwd=project, check=True, capture_output=True, text=True, timeout=BUILD_SECONDS)
