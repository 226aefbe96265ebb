"""Each of several brokers on one machine takes its share of the machine's bounds."""

from __future__ import annotations

import os
from pathlib import Path

from service.serve.servers import connection_limits, gateway_options
from service.settings.node_settings import Supervision
from storage_tiers.cold.read.cache import LEAST_BYTES
from tests.service.broker.support import running

BOUNDS = {"max.connections": "90", "tidelog.tier.chunk.cache.bytes": str(300 << 20)}


async def test_bounds_are_divided_by_the_brokers(tmp_path: Path) -> None:
    alone = None
    for brokers in (None, 3):
        word = None if brokers is None else Supervision(pid=os.getppid(), brokers=brokers)
        async with running(tmp_path / str(brokers), broker=BOUNDS, supervised=word) as node:
            assert node.node.tier is not None
            memory = gateway_options(node.node).settings.request_memory_bytes
            limits = connection_limits(node.node)
            assert limits.total_by == "max.connections"
            found = (memory, limits.total, node.node.tier.cache.limit_bytes)
            alone = alone or found
    assert alone == (1 << 30, 90, 300 << 20)
    assert found == ((1 << 30) // 3, 30, 100 << 20)


async def test_a_part_has_room_for_large_requests_and_a_chunk(tmp_path: Path) -> None:
    word = Supervision(pid=os.getppid(), brokers=64)
    async with running(tmp_path, broker=BOUNDS, supervised=word) as node:
        assert node.node.tier is not None
        memory = gateway_options(node.node).settings.request_memory_bytes
        assert memory == 2 * node.node.configs.broker.socket_request_max_bytes
        assert node.node.tier.cache.limit_bytes == LEAST_BYTES
        assert connection_limits(node.node).total == 1
