"""A cluster id that begins with `-`, as ids generated elsewhere may: every command accepts it in the way its help describes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from storage_tiers.clock import SystemClock
from storage_tiers.cold.stores.location import StoreLocation
from storage_tiers.cold.stores.open import open_store
from storage_tiers.files import OsFiles
from storage_tiers.uuids import uuid_text
from tests.service.broker.support import TIERED, running
from tests.service.cli.support import tidelog
from tests.support.clients import until
from tests.support.faulty_store import FaultyStore
from tests.support.node import Node

RAW = bytes([0xF9, *range(15)])
ID = uuid_text(RAW)


async def fill(directory: Path) -> None:
    """Makes a cluster whose id begins with `-`, with one topic whose records are all in the store."""
    store = await open_store(StoreLocation.parse(str(directory / "store")), OsFiles(), SystemClock())
    async with running(directory / "first", FaultyStore(store)) as node:
        await node.create("orders", configs=TIERED)
        await node.append("orders", b"a", b"b")
        await node.seal("orders")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    assert ID.startswith("-")
    monkeypatch.setattr("service.node.random_uuid", lambda rng: RAW)
    asyncio.run(fill(tmp_path))
    return str(tmp_path / "store")


def test_commands_accept_an_id_with_a_dash(store: str, tmp_path: Path) -> None:
    for words in (["--cluster-id", ID], [f"--cluster-id={ID}"]):
        listed = tidelog("cold", "ls", "--store", store, *words)
        assert listed.code == 0 and f"cluster {ID}: 1 partition" in listed.out, listed.err
        checked = tidelog("fsck", "--store", store, *words)
        assert checked.code == 0 and checked.out.startswith("sound: 1 cluster"), checked.err
    data = tmp_path / "second"
    taken = tidelog("restore", "--store", store, "--data-dir", data, "--", ID)
    assert taken.code == 0 and "orders-0: offsets [0, 2)" in taken.out, taken.err
    help_text = " ".join(tidelog("restore", "--help").out.replace("│", " ").split())
    assert "If it begins with a dash, write it after --" in help_text


@pytest.mark.parametrize("words", [["--take-over", ID], [f"--take-over={ID}"]], ids=["a word", "with ="])
def test_a_node_takes_over_a_cluster_whose_id_begins_with_a_dash(store: str, tmp_path: Path, words: list[str]) -> None:
    with Node(tmp_path / "node", store=f"file://{store}", flags=words) as node:
        until(lambda: node.readyz() == 200, "the node serves")
        consumed = tidelog("consume", "orders", "--exit-at-end", "--bootstrap-server", node.kafka)
        assert consumed.out.split() == ["a", "b"], consumed.err
