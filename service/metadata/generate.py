"""Remakes `records_pb2.py` and its types from `records.proto`: `python -m service.metadata.generate`.

The generated files are committed, so that running a node needs no protobuf compiler; a test compares them with the
definition.
"""

from __future__ import annotations

import sys
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[2]
DEFINITION = "service/metadata/records.proto"


def generate(target: Path = ROOT) -> int:
    """Writes both files below `target`, at the definition's own path; returns the compiler's exit code."""
    return int(
        protoc.main(
            [
                "protoc",
                f"--plugin=protoc-gen-mypy={Path(sys.prefix) / 'bin/protoc-gen-mypy'}",
                f"--proto_path={ROOT}",
                f"--python_out={target}",
                f"--mypy_out={target}",
                DEFINITION,
            ]
        )
    )


if __name__ == "__main__":
    sys.exit(generate())
