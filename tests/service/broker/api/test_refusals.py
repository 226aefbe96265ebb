"""A refusal leaves nothing in memory: no reference cycle through an answer's error may keep the frames that it passed
through."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from grpc_api.contract.log import Fetch, FetchPartition, OffsetQuery
from grpc_api.contract.ready import settled
from grpc_api.contract.topics import NewTopic
from storage_tiers.errors import LogError
from storage_tiers.types import TopicId, TopicPartition
from tests.service.broker.support import Running, running

NAMES = [f"unknown-{n}" for n in range(200)]
PARTITIONS = [TopicPartition(name, 0) for name in NAMES]


async def delete(node: Running) -> list[object]:
    return list(await node.core.topics.delete(NAMES, [TopicId(n.to_bytes(16, "big")) for n in range(1, 100)]))


async def create(node: Running) -> list[object]:
    return list(await node.core.topics.create([NewTopic(name, partitions=-5) for name in NAMES]))


async def describe(node: Running) -> list[object]:
    return list(node.core.topics.describe(["a bad name", *NAMES], [TopicId(bytes([7] * 16))]))


async def list_offsets(node: Running) -> list[object]:
    return list(await node.log.list_offsets([OffsetQuery(partition, 5) for partition in PARTITIONS]))


async def fetch(node: Running) -> list[object]:
    wanted = [FetchPartition(partition, 0, 100) for partition in PARTITIONS]
    return [part.error for part in await settled(node.log.fetch(Fetch(wanted, 0, 1, 100)))]


@pytest.mark.parametrize("refused", [delete, create, describe, list_offsets, fetch])
async def test_refusals_leave_no_cycles(refused: Callable[[Running], Awaitable[list[object]]], tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        answers = await refused(node)
        assert len(answers) >= len(NAMES) and all(isinstance(answer, LogError) for answer in answers)
        del answers
        gc.collect()
        gc.disable()
        try:
            before = len(gc.get_objects())
            for _ in range(10):
                await refused(node)
            assert len(gc.get_objects()) - before < len(NAMES)
        finally:
            gc.enable()
