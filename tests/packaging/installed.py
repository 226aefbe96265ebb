"""The wheels of dist/, environments with them installed, and a folder of a user's own files to use them from."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.packages import at_hand
from tests.support.node import ROOT, Node

WHEELS = ROOT / "dist"
#: Names that users give their own files and folders.
USERS_FILES = ("service.py", "spark.py", "contract.py", "kafka_gateway.py", "lambdas/__init__.py")
_OWN = "OWN = True\n"


def wheels(name: str) -> list[Path]:
    return sorted(WHEELS.glob(f"{name}-*.whl"))


def versions() -> list[str]:
    """Tags of the Python versions that have wheels: cp311, …"""
    return sorted({wheel.name.split("-")[2] for wheel in wheels("tidelog")})


@dataclass(frozen=True)
class Environment:
    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def site(self) -> Path:
        (found,) = self.folder.glob("lib/python*/site-packages")
        return found

    @property
    def command(self) -> Path:
        return self.folder / "bin" / "tidelog"


def installed(folder: Path, tag: str, requirements: Sequence[str]) -> Environment:
    """An environment for the Python of `tag`, with the requirements installed from the wheel files as a user would."""
    (python,) = (each for each in at_hand() if tag_of(each) == tag)
    subprocess.run([str(python), "-m", "venv", str(folder)], check=True, timeout=120)
    made = Environment(folder)
    command = [str(made.python), "-m", "pip", "install", "-q", "--find-links", str(WHEELS), *requirements]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    return made


def tag_of(python: Path) -> str:
    program = "import sys; print('cp%d%d' % sys.version_info[:2])"
    return subprocess.run([str(python), "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def users_folder(folder: Path) -> Path:
    for name in USERS_FILES:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_OWN)
    return folder


def ran(words: Sequence[str | Path], folder: Path, **environment: str) -> str:
    """Runs a command in `folder` without any settings for this source tree; returns its output."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PIP_CONSTRAINT")}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class InstalledNode(Node):
    """A node of the installed command, with the user's folder on PYTHONPATH. A folder named like one of our packages is
    only in the current directory, because on PYTHONPATH it would deliberately replace ours."""

    def __init__(self, environment: Environment, directory: Path, user: Path) -> None:
        super().__init__(directory, environment={"PYTHONPATH": str(user)})
        self.installed = environment

    def command(self) -> list[str]:
        words = super().command()
        return [str(self.installed.command), *words[words.index("serve") :]]
