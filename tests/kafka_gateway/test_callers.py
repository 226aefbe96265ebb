"""The caller that a request's header names, kept with its connection."""

from __future__ import annotations

import pytest

from grpc_api.contract.caller import Caller
from kafka_gateway.client import ConnectedClient
from kafka_gateway.message_handler import KEPT_ID_BYTES, caller_by_header


def header(client_id: str | None) -> bytearray:
    if client_id is None:
        return bytearray(b"....\xff\xff")
    content = client_id.encode()
    return bytearray(b"...." + len(content).to_bytes(2, "big") + content + b"more")


def test_each_request_has_the_caller_that_its_own_header_names() -> None:
    client = ConnectedClient("10.0.0.1", 7)
    for name in ("app", "app", "other", None, None, "", "ap", "app", "ü" * 16_000, "app"):
        expected = Caller("User:ANONYMOUS", name or "", "/10.0.0.1")
        assert caller_by_header(client, header(name), 4) == expected


@pytest.mark.parametrize("name", ["app", "", None])
def test_the_caller_of_a_client_that_keeps_its_name_is_made_once(name: str | None) -> None:
    client = ConnectedClient("10.0.0.1", 7)
    assert caller_by_header(client, header(name), 4) is caller_by_header(client, header(name), 4)


def test_long_names_are_not_kept() -> None:
    client = ConnectedClient()
    caller_by_header(client, header("x" * KEPT_ID_BYTES), 4)
    assert not client.named
    assert client.caller is None
