"""Runs the tests of clients, commands and stores with the lowest versions that the two pyproject.toml files allow.

    python -m scripts.lowest_versions [PYTEST ARGUMENT ...]

Direct requirements are installed at their lower bounds, and pip chooses the versions of indirect ones. tidelog's packages are
installed from the wheels in dist/ (`make packages`), but the tests run the code of this tree. The environment is .cache/lowest.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WHEELS = ROOT / "dist"
ENVIRONMENT = ROOT / ".cache" / "lowest"
#: Other packages that the tests need, in the versions of constraints.txt.
TOOLS = ("hypothesis", "moto[server]", "pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist")
TESTS = (
    "tests/conformance/test_object_store.py",
    "tests/grpc_api/messages",
    "tests/grpc_api/sdk",
    "tests/grpc_api/test_partitioner.py",
    "tests/service/cli",
    "tests/service/serve/test_http.py",
    "tests/service/settings/test_node_settings.py",
    "tests/storage_tiers/cold/stores",
    "tests/storage_tiers/records/test_codecs.py",
    "tests/storage_tiers/records/test_walker.py",
)
_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*(?:>=|==)\s*([0-9][0-9A-Za-z.]*)")


def main() -> None:
    if not list(WHEELS.glob("*.whl")):
        sys.exit(f"{WHEELS} contains no wheels: run `make packages`")
    python = environment()
    # PYTEST_ADDOPTS may load the plugin that fails a run for skipped tests. That plugin expects the full environment.
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTEST_ADDOPTS", "PIP_CONSTRAINT")}
    variables["PYTHONPATH"] = os.pathsep.join((str(ROOT), str(ROOT / "spark")))
    words = [
        str(python),
        "-m",
        "pytest",
        "-q",
        "-n",
        str(os.cpu_count() or 1),
        "--dist",
        "loadgroup",
        "-p",
        "no:cacheprovider",
    ]
    sys.exit(subprocess.run([*words, *(sys.argv[1:] or TESTS)], cwd=ROOT, env=variables, check=False).returncode)


def lower_bounds() -> dict[str, str]:
    """The lower bounds of all direct requirements except `tidelog` itself."""
    return {name: version for name, version in map(bound, requirements()) if name != "tidelog"}


def requirements() -> Iterator[str]:
    """The requirements of the two packages and of their extras for users."""
    for path in (ROOT / "pyproject.toml", ROOT / "packaging" / "server" / "pyproject.toml"):
        project = tomllib.loads(path.read_text())["project"]
        extras = project.get("optional-dependencies", {})
        yield from project["dependencies"]
        for extra in extras.keys() - {"dev"}:
            yield from (each for each in extras[extra] if not each.startswith("tidelog["))


def bound(requirement: str) -> tuple[str, str]:
    """Returns the name and the lower bound of a requirement. Raises ValueError if it has no lower bound."""
    found = _REQUIREMENT.match(requirement)
    if found is None:
        raise ValueError(f"{requirement} has no lower bound")
    return found[1], found[2]


def environment() -> Path:
    """Builds an environment with the lowest versions; returns its interpreter. An earlier environment is discarded, because the
    wheels may have changed."""
    python = ENVIRONMENT / "bin" / "python"
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    tools = [f"{tool}=={pinned[tool.partition('[')[0]]}" for tool in TOOLS]
    constraints = ENVIRONMENT.with_suffix(".txt")
    constraints.parent.mkdir(exist_ok=True)
    constraints.write_text("".join(f"{name}=={version}\n" for name, version in lower_bounds().items()))
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], check=True)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    ours = [f"tidelog[arrow]=={version}", f"tidelog-server=={version}"]
    install = [str(python), "-m", "pip", "install", "-q", "--find-links", str(WHEELS), "-c", str(constraints)]
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PIP_CONSTRAINT")}
    subprocess.run([*install, *ours, *tools], check=True, env=variables)
    return python


if __name__ == "__main__":
    main()
