"""Fills the server's wheel from the repository around it: `service`, `kafka_gateway` and `lambdas` below `tidelog_server`.

It fills only standard wheels. In an editable install copies would shadow the tree, which the root's editable install puts on
the path. There is no sdist, because the sources are outside this folder.
"""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("service", "kafka_gateway", "lambdas")
#: The suffixes of a package's files. Compiled modules are added as the build names them, because those of another Python may
#: lie beside them.
SUFFIXES = frozenset({".py", ".pyi", ".pxd", ".proto", ".tsv", ".typed"})
INSIDE = "tidelog_server"


class ServerPackages(BuildHookInterface[Any]):
    """Puts the server's packages, with kernels compiled for this Python, into a standard wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "standard":
            return
        if not (ROOT / PACKAGES[0]).is_dir():
            raise RuntimeError("the server's wheel is built in a clone: python -m build --wheel packaging/server")
        included = build_data["force_include"]
        for source in sources():
            included[str(source)] = f"{INSIDE}/{source.relative_to(ROOT).as_posix()}"
        native = runpy.run_path(str(ROOT / "hatch_build.py"))
        for built in native["build_in_place"](native["kernels_of"](PACKAGES)):
            included[str(built)] = f"{INSIDE}/{built.relative_to(ROOT).as_posix()}"
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def sources() -> Iterator[Path]:
    """The files of the packages, sorted within each package."""
    for package in PACKAGES:
        yield from (path for path in sorted((ROOT / package).rglob("*")) if path.suffix in SUFFIXES and path.is_file())
