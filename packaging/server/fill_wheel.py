"""Fills the server's wheel from the repository around it: `service`, `kafka_gateway` and `lambdas` below `tidelog_server`.

For standard wheels only: in an editable install copies would shadow the tree, which the root's editable install puts on
the path. There is no sdist: the sources are outside this folder.
"""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("service", "kafka_gateway", "lambdas")
#: Files of a package. Compiled modules are named by their build: another Python's may lie beside them.
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
    """The files of the packages, in order."""
    for package in PACKAGES:
        yield from (path for path in sorted((ROOT / package).rglob("*")) if path.suffix in SUFFIXES and path.is_file())
