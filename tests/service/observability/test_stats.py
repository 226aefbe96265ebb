"""`/stats`: each fetched byte is counted once, under the tier that it came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.clients import TIERED, consume, create, local_bytes, produce, seal, until
from tests.support.node import Node

RECORDS = 2000


def stats(node: Node) -> dict[str, Any]:
    status, body = node.get("/stats")
    assert status == 200
    found: dict[str, Any] = json.loads(body)
    return found


def test_bytes_are_counted_by_the_tier_they_came_from(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        create(node, "counted", 1, {**TIERED, "internal.segment.bytes": str(1 << 20)})
        produce(node, "counted", RECORDS)
        written = local_bytes(node, "counted", 1)
        assert len(consume(node, "counted", 1, RECORDS)) == RECORDS
        hot = stats(node)
        assert hot["hot_bytes_read"] == written > 0
        assert hot["cold_bytes_read"] == 0
        seal(node, "counted")
        until(lambda: local_bytes(node, "counted", 1) == 0, "local segments are evicted")
        assert len(consume(node, "counted", 1, RECORDS)) == RECORDS
        cold = stats(node)
        assert cold["hot_bytes_read"] == written
        assert cold["cold_bytes_read"] == written
        assert cold["chunk_cache"]["brought"] > 0
        assert cold["tier_process"]["counters"]["bytes_downloaded"] >= written


def test_a_node_without_a_store_has_no_tier(tmp_path: Path) -> None:
    with Node(tmp_path, store="none") as node:
        found = stats(node)
        assert found["hot_bytes_read"] == found["cold_bytes_read"] == 0
        assert found["chunk_cache"] is None
        assert found["tier_process"] is None
