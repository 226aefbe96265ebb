"""The generated protobuf code matches the .proto files."""

from __future__ import annotations

from pathlib import Path

from grpc_api.proto.generate import ROOT, generate, sources


def test_generating_again_leaves_no_difference(tmp_path: Path) -> None:
    generate(tmp_path)

    made = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file())
    assert Path("grpc_api/proto/topics_pb2_grpc.py") in made
    stale = [str(path) for path in made if (tmp_path / path).read_bytes() != (ROOT / path).read_bytes()]
    assert stale == [], "run `make proto`"


def test_only_files_with_services_get_grpc_stubs(tmp_path: Path) -> None:
    generate(tmp_path)

    with_stubs = {
        source
        for source in sources()
        if (tmp_path / source.relative_to(ROOT).parent / f"{source.stem}_pb2_grpc.py").exists()
    }
    assert with_stubs == {source for source in sources() if "\nservice " in source.read_text()} != set()
