"""Remakes `records_pb2.py` and its types from `records.proto`: `python -m service.metadata.generate`.

The generated files are committed, so that running a node needs no protobuf compiler.
"""

from __future__ import annotations

import sys
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[2]


def generate() -> int:
    """The compiler's exit code."""
    return int(
        protoc.main(
            [
                "protoc",
                f"--plugin=protoc-gen-mypy={Path(sys.prefix) / 'bin/protoc-gen-mypy'}",
                f"--proto_path={ROOT}",
                f"--python_out={ROOT}",
                f"--mypy_out={ROOT}",
                str(ROOT / "service/metadata/records.proto"),
            ]
        )
    )


if __name__ == "__main__":
    sys.exit(generate())
