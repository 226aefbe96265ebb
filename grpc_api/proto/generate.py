"""Compiles every .proto file of the project: `python -m grpc_api.proto.generate`.

The generated modules are committed beside their sources, so neither running nor installing tidelog needs a compiler. The
compiler runs at the root of the tree, because generated modules import each other by their full names. A file that defines
services gets gRPC stubs too. The output depends only on the sources and the compiler's version.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: The packages that may hold .proto files. Other folders (virtual environments, data, builds) hold other projects' files.
PACKAGES = ("grpc_api", "service", "storage_tiers")
_SERVICE = re.compile(r"^service\s+\w+", re.MULTILINE)


class CompilerFailed(Exception):
    """protoc refused; it has printed file, line and reason."""


def sources() -> Iterator[Path]:
    """Every .proto file of the project, in order."""
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.proto"))


def generate(target: Path = ROOT) -> None:
    """Writes the generated modules and their types below `target`, in the layout of the tree. Raises CompilerFailed."""
    for source in sources():
        _compile(source, target)


def _compile(source: Path, target: Path) -> None:
    import grpc_tools
    from grpc_tools import protoc

    scripts = Path(sys.executable).parent
    arguments = [
        "protoc",
        f"--plugin=protoc-gen-mypy={scripts / 'protoc-gen-mypy'}",
        f"--plugin=protoc-gen-mypy_grpc={scripts / 'protoc-gen-mypy_grpc'}",
        f"--proto_path={ROOT}",
        f"--proto_path={Path(grpc_tools.__file__).parent / '_proto'}",
        f"--python_out={target}",
        f"--mypy_out=quiet:{target}",
    ]
    if _SERVICE.search(source.read_text()):
        arguments += [f"--grpc_python_out={target}", f"--mypy_grpc_out=quiet:{target}"]
    if protoc.main([*arguments, str(source)]) != 0:
        raise CompilerFailed(f"protoc refused {source.relative_to(ROOT)}")


if __name__ == "__main__":
    generate()
