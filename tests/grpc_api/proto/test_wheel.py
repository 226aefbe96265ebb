"""The wheel contains the .proto files for other languages and the marker for type checkers."""

from __future__ import annotations

from hatchling.builders.wheel import WheelBuilder

from grpc_api.proto.generate import ROOT, sources


def test_the_wheel_has_every_proto_file_and_the_typed_marker() -> None:
    shipped = {file.distribution_path for file in WheelBuilder(str(ROOT)).recurse_included_files()}

    protos = {str(source.relative_to(ROOT)) for source in sources()}
    assert {name for name in protos if name.startswith("grpc_api/")} <= shipped
    typed = {"tidelog", "grpc_api", "storage_tiers", "pyspark_tidelog"}
    assert {f"{package}/py.typed" for package in typed} | {"grpc_api/sdk/client.py"} <= shipped
