"""Runs the steps of packaging/Dockerfile without a container engine or registry. Each stage is a copy of a Debian system made
by `debootstrap`. Then the script starts the image's command as the image's user and runs its health check.

    python -m scripts.image_in_chroot FOLDER     # as root, on Linux; creates FOLDER (2 GB), which may be removed afterwards

Here a stage based on `python:3.11-slim-bookworm` is the same Debian release with that release's own Python 3.11. The script
does not test a container engine's layers, namespaces and network.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
DOCKERFILE = ROOT / "packaging" / "Dockerfile"
RELEASE = "bookworm"
#: `python:3.11-slim-bookworm` also has the headers, because Python's own build installs them.
PACKAGES = "python3,python3-dev,python3-venv,python3-pip,ca-certificates"
MIRROR = "http://deb.debian.org/debian"
HEALTH_S = 60
#: Files of this machine that a stage needs to reach registries.
REGISTRIES = ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")


@dataclass
class Stage:
    """The file system of a stage, and the settings under which its next step runs."""

    root: Path
    environment: dict[str, str]
    folder: str = "/"
    user: str = "0:0"
    command: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)
    entry: list[str] = field(default_factory=list)

    def run(self, words: list[str], *, user: str = "0:0") -> subprocess.Popen[bytes]:
        inside = ["chroot", f"--userspec={user}", str(self.root), "/usr/bin/env", "-C", self.folder, *words]
        return subprocess.Popen(inside, env=self.environment, stdin=subprocess.DEVNULL)


def instructions(text: str) -> list[tuple[str, str]]:
    """Returns (word, rest) of each instruction. A continued instruction becomes one line."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines())]


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    base = debian(folder / RELEASE)
    stages: dict[str, Stage] = {}
    for word, rest in instructions(DOCKERFILE.read_text()):
        print(f"--> {word} {rest[:100]}", flush=True)
        if word == "FROM":
            name = rest.partition(" AS ")[2] or "image"
            stage = stages[name] = Stage(copied(base, folder / name), registries_environment())
        else:
            step(stage, word, rest, stages)
    check(stage)


def debian(base: Path) -> Path:
    if not (base / "complete").exists():
        subprocess.run(["debootstrap", "--variant=minbase", f"--include={PACKAGES}", RELEASE, base, MIRROR], check=True)
        (base / "complete").touch()
    return base


def copied(base: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["cp", "-a", "--one-file-system", base, target], check=True)
    for path in REGISTRIES:
        if os.path.exists(path):
            shutil.copy(os.path.realpath(path), target / path[1:])
    for name in ("null", "zero", "random", "urandom"):
        device = target / "dev" / name
        if not device.exists():
            subprocess.run(["cp", "-a", f"/dev/{name}", device], check=True)
    return target


def registries_environment() -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if name.startswith("PIP_") or name.lower().endswith("_proxy")
    }
    return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", **kept}


def step(stage: Stage, word: str, rest: str, stages: dict[str, Stage]) -> None:
    if word == "RUN":
        done = stage.run(["/bin/sh", "-c", rest]).wait()
        if done != 0:
            raise SystemExit(f"RUN {rest}: ended with {done}")
    elif word == "COPY":
        copy(stage, rest.split(), stages)
    elif word == "ENV":
        for pair in shlex.split(rest):
            name, _, value = pair.partition("=")
            stage.environment[name] = value.replace("$PATH", stage.environment["PATH"])
    elif word == "WORKDIR":
        stage.folder = rest
        (stage.root / rest[1:]).mkdir(parents=True, exist_ok=True)
    elif word == "USER":
        stage.user = rest
    elif word == "HEALTHCHECK":
        stage.health = json.loads(rest[rest.index("[") :])
    elif word == "ENTRYPOINT":
        stage.entry = json.loads(rest)
    elif word == "CMD":
        stage.command = json.loads(rest)
    elif word not in ("VOLUME", "EXPOSE", "STOPSIGNAL"):
        raise SystemExit(f"this script does not support the instruction {word}")


def copy(stage: Stage, words: list[str], stages: dict[str, Stage]) -> None:
    where = ROOT
    if words[0].startswith("--from="):
        where = stages[words.pop(0).removeprefix("--from=")].root
    source, target = words
    into = stage.root / str(PurePosixPath(stage.folder) / target)[1:]
    if source == ".":
        with tempfile.TemporaryDirectory() as context:
            archive = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
            names = list(subprocess.run(archive, capture_output=True, text=True, check=True).stdout.split("\0"))
            for name in filter(admitted, names):
                place = Path(context, name)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, place)
            shutil.copytree(context, into, dirs_exist_ok=True)
    elif (where / source.lstrip("/")).is_dir():
        shutil.copytree(where / source.lstrip("/"), into, symlinks=True, dirs_exist_ok=True)
    else:
        into.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(where / source.lstrip("/"), into)


def admitted(name: str) -> bool:
    """Whether packaging/Dockerfile.dockerignore allows that file in the build. Supports only the patterns used there."""
    if not name:
        return False
    kept = False
    for rule in (DOCKERFILE.parent / "Dockerfile.dockerignore").read_text().split("\n"):
        if rule.startswith("!"):
            kept = kept or name == rule[1:] or name.startswith(f"{rule[1:]}/")
        elif rule.startswith("**/"):
            kept = kept and not any(PurePosixPath(part).match(rule[3:]) for part in name.split("/"))
        elif rule == "**":
            kept = False
    return kept


def check(stage: Stage) -> None:
    """Checks that the command serves within HEALTH_S, passes the health check, and exits cleanly."""
    # A container has its own /proc and /tmp, and does not see the machine's.
    for words in (
        ["mount", "-t", "proc", "proc", f"{stage.root}/proc"],
        ["mount", "-t", "tmpfs", "tmp", f"{stage.root}/tmp"],
    ):
        subprocess.run(words, check=True)
    stage.environment = {name: value for name, value in stage.environment.items() if not name.startswith("PIP_")}
    stage.environment["HOME"] = "/"
    node = stage.run([*stage.entry, *stage.command], user=stage.user)
    try:
        deadline = time.monotonic() + HEALTH_S
        while stage.run(stage.health, user=stage.user).wait() != 0:
            if node.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the node has ended, or is not healthy after {HEALTH_S} s")
            time.sleep(1)
        user = os.stat(f"/proc/{node.pid}").st_uid
        print(f"--> healthy, as user {user}", flush=True)
    finally:
        node.send_signal(signal.SIGTERM)
        code = node.wait()
        for place in ("proc", "tmp"):
            subprocess.run(["umount", "-l", stage.root / place], check=False)
    size = subprocess.run(["du", "-sm", stage.root / "opt" / "tidelog"], capture_output=True, text=True, check=True)
    print(f"--> ended with {code}; /opt/tidelog has {size.stdout.split()[0]} MB", flush=True)
    if code != 0:
        raise SystemExit(code)


if __name__ == "__main__":
    main()
