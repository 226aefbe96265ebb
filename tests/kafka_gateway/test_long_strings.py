"""Strings beyond Kafka's 32,767 bytes are refused: the compact form could carry them, but no coordinator's record could hold
them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kafka_gateway.hot_parse import LONGEST_STRING
from tests.kafka_gateway.kio_frames import milliseconds, request_frame
from tests.kafka_gateway.server_support import connected, serving

JOIN: dict[str, Any] = {
    "group_id": "g",
    "session_timeout": milliseconds(10_000),
    "rebalance_timeout": milliseconds(10_000),
    "member_id": "",
    "group_instance_id": None,
    "protocol_type": "consumer",
    "protocols": (),
    "reason": None,
}
INIT: dict[str, Any] = {
    "transactional_id": "x",
    "transaction_timeout": milliseconds(10_000),
    "producer_id": -1,
    "producer_epoch": -1,
}


@pytest.mark.parametrize(
    ("schema", "version", "fields", "name"),
    [
        ("join_group", 9, JOIN, "group_id"),  # by its native codec
        ("join_group", 9, JOIN, "group_instance_id"),
        ("init_producer_id", 5, INIT, "transactional_id"),  # by its schema
        ("delete_groups", 2, {}, "groups_names"),
    ],
)
async def test_a_longer_string_ends_the_connection_and_a_shorter_one_is_answered(
    tmp_path: Path, schema: str, version: int, fields: dict[str, Any], name: str
) -> None:
    async with serving(tmp_path) as (_, server):
        for size in (LONGEST_STRING, LONGEST_STRING + 1):
            async with connected(server) as client:
                value: Any = "g" * size
                client.send(
                    request_frame(schema, version, **{**fields, name: (value,) if name.endswith("s") else value})
                )
                assert (await client.receive() is None) == (size > LONGEST_STRING)
