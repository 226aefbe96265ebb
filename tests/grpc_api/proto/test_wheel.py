"""The wheel has what programs in other languages and type checkers need."""

from __future__ import annotations

from hatchling.builders.wheel import WheelBuilder

from grpc_api.proto.generate import ROOT, sources


def test_the_wheel_holds_every_proto_file_and_says_that_it_is_typed() -> None:
    shipped = {file.distribution_path for file in WheelBuilder(str(ROOT)).recurse_included_files()}

    assert {str(source.relative_to(ROOT)) for source in sources()} <= shipped
    assert {"grpc_api/py.typed", "storage_tiers/py.typed", "grpc_api/sdk/client.py"} <= shipped
