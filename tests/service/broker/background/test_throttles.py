"""Offloads keep to the rates of their configs: all offloads, and those of partitions that move to another broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpc_api.contract.topics import AlterOp, ConfigAlteration, Resource, ResourceKind
from service.broker.background import move_steps
from service.broker.background.offload_quotas import OffloadQuotas
from tests.service.broker.background.test_moving import KEY, moving, placed, with_target
from tests.service.broker.support import TIERED, Running, running, until


async def set_config(node: Running, kind: ResourceKind, name: str, key: str, value: str) -> None:
    await node.core.configs.alter_configs(Resource(kind, name), [ConfigAlteration(key, AlterOp.SET, value)])


async def test_a_throttled_move_waits_for_its_rate_and_other_offloads_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(move_steps, "HELD_TAIL_BYTES", 0)
    async with running(tmp_path) as node:
        await node.create("free", configs=TIERED)
        await with_target(node)
        asked = 0
        quotas = node.node.work.tiering._policy.quotas

        def delay_s(now: float, *, moves: bool) -> float:
            nonlocal asked
            asked += moves
            return min(0.001, OffloadQuotas.delay_s(quotas, now, moves=moves))

        monkeypatch.setattr(quotas, "delay_s", delay_s)
        await set_config(node, ResourceKind.TOPIC, "t", "leader.replication.throttled.replicas", "0:1")
        await set_config(node, ResourceKind.BROKER, "", "leader.replication.throttled.rate", "0")
        await moving(node)
        await until(lambda: asked > 20)
        await node.append("free", b"x")
        await node.seal("free")
        assert placed(node).leader == 1
        assert node.node.broker.partitions.get(KEY).log.tiered_end == 0
        await set_config(node, ResourceKind.BROKER, "1", "leader.replication.throttled.rate", "100000")
        await until(lambda: placed(node).leader == 2)
        assert placed(node).moved_end == 10


async def test_the_last_bytes_of_a_throttled_move_are_not_delayed_because_clients_wait(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await with_target(node)
        await set_config(node, ResourceKind.TOPIC, "t", "leader.replication.throttled.replicas", "*")
        await set_config(node, ResourceKind.BROKER, "", "leader.replication.throttled.rate", "0")
        await moving(node)
        await until(lambda: placed(node).leader == 2)


async def test_offloads_keep_to_the_quota_of_all_offloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as node:
        await node.create("t", configs={**TIERED, "segment.bytes": str(1 << 20)})
        await set_config(node, ResourceKind.BROKER, "", "remote.log.manager.copy.max.bytes.per.second", "1")
        await node.append("t", b"first")
        await node.seal("t")
        await node.append("t", b"second")
        (late,) = await node.log.seal("t", wait=False, timeout_ms=0)
        partition = node.node.broker.partitions.get(KEY)
        await until(lambda: partition in node.node.work.tiering._offloading)
        assert (late.end, partition.log.tiered_end) == (2, 1)
        await set_config(
            node, ResourceKind.BROKER, "", "remote.log.manager.copy.max.bytes.per.second", str((1 << 63) - 1)
        )
        await until(lambda: partition.log.tiered_end == 2)
