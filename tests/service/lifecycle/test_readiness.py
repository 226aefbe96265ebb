"""The report of /readyz: whether the node is ready, and what it still waits for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from service.lifecycle.readiness import Readiness, Reports
from storage_tiers.errors import RequestTimedOut, StorageError
from tests.service.broker.support import TIERED, Running, running, until


def named(node: Running) -> str:
    store: str = json.loads(node.node.ground.readiness.body())["store"]
    return store


async def test_a_store_that_fails_after_the_probe_is_named_until_it_answers(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as node:
        await until(lambda: named(node) == "ok")
        await node.create("t", configs=TIERED)
        await node.seal("t")
        node.store.down = True
        await node.append("t", b"a")
        with pytest.raises(RequestTimedOut):
            await node.log.seal("t", wait=True, timeout_ms=100)
        await until(lambda: "the store is down" in named(node))
        assert named(node).startswith("did not answer")
        node.store.down = False
        await node.seal("t")
        assert named(node) == "ok"


async def test_a_disk_that_refuses_produce_is_named_and_fetches_are_served(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as node:
        await until(lambda: named(node) == "ok")
        readiness = node.node.ground.readiness
        assert json.loads(readiness.body())["disk"] == "ok"
        await node.create("t")
        await node.append("t", b"a")
    nothing_left = {"tidelog.disk.watermark.slow": "1e-9", "tidelog.disk.watermark.refuse": "1e-9"}
    async with running(tmp_path / "data", node.store, nothing_left) as node:
        readiness = node.node.ground.readiness
        await until(lambda: "full" in json.loads(readiness.body())["disk"])
        with pytest.raises(StorageError, match="produce is refused"):
            await node.append("t", b"b")
        assert "produce is refused" in json.loads(readiness.body())["disk"]
        assert [record.value for record in await node.read_all("t")] == [b"a"]


@pytest.mark.parametrize("fenced", [False, True])
def test_a_broker_is_ready_once_its_controller_lets_it_lead(fenced: bool) -> None:
    readiness = Readiness(recovered=True, probed=True, reports=Reports(fenced=lambda: fenced))
    assert readiness.ready is not fenced
    assert json.loads(readiness.body())["fenced"] is fenced


@pytest.mark.parametrize("trouble", [None, "127.0.0.1:9095 does not answer"])
def test_a_broker_without_its_controller_is_ready_and_says_so(trouble: str | None) -> None:
    readiness = Readiness(recovered=True, probed=True, reports=Reports(controller=lambda: trouble))
    assert readiness.ready, "it serves what it leads"
    assert json.loads(readiness.body())["controller"] == (trouble or "ok")


def test_a_node_with_a_coordinator_that_cannot_be_loaded_is_ready_and_names_it() -> None:
    damaged = {"__consumer_offsets-3": "a committed offset of 20 bytes: a field of 8 bytes at 16 does not fit"}
    readiness = Readiness(recovered=True, probed=True, reports=Reports(unreadable=lambda: damaged))
    assert readiness.ready, "it serves the groups of all other partitions"
    assert json.loads(readiness.body())["unreadable_coordinators"] == damaged
