"""The probe accepts stores that honour conditional writes, names the condition that others ignore, and cleans up."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_tiers.clock import SystemClock
from storage_tiers.cold.stores.directory import DirectoryStore
from storage_tiers.cold.stores.location import StoreLocation
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.cold.stores.port import FileBody, ObjectInfo, ObjectStore
from storage_tiers.cold.stores.probe import LEFT_OVER_MS, probe_conditional_writes
from storage_tiers.cold.stores.s3 import S3Store
from storage_tiers.errors import LogError, PreconditionFailed, StoreRefused, TierUnavailable
from storage_tiers.files import OsFiles
from tests.support.clock import ManualClock, SeededRng
from tests.support.faulty_store import FaultyStore
from tests.support.s3_servers import BUCKET, REGION, S3Server

RNG = SeededRng(1)


async def keys(store: ObjectStore) -> list[str]:
    return [info.key async for info in store.list("")]


class Careless(MemoryStore):
    """A store that ignores one of the two conditions."""

    def __init__(self, ignores: str) -> None:
        super().__init__(SystemClock())
        self.ignores = ignores

    async def put(
        self, key: str, body: bytes | FileBody, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        if self.ignores == "if_absent":
            if_absent = False
        else:
            if_match = None
        return await super().put(key, body, if_absent=if_absent, if_match=if_match)


async def test_good_stores_pass_and_are_left_clean(tmp_path: Path) -> None:
    memory = MemoryStore(SystemClock())
    await memory.put("other", b"")
    await probe_conditional_writes(memory, "cluster/", RNG)
    assert await keys(memory) == ["other"]
    directory = await DirectoryStore.create(str(tmp_path), OsFiles())
    await probe_conditional_writes(directory, "cluster/", RNG)
    assert await keys(directory) == []
    await directory.close()


async def test_leftovers_of_an_interrupted_probe_go_with_the_next_one() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    await store.put("cluster/probe-0123456789abcdef.json", b"second")
    await store.put("cluster/cluster.json", b"{}")
    await probe_conditional_writes(store, "cluster/", RNG)
    assert len(await keys(store)) == 2, "another node may be probing just now"
    clock.advance(LEFT_OVER_MS / 1000 + 1)
    await probe_conditional_writes(store, "cluster/", RNG)
    assert await keys(store) == ["cluster/cluster.json"]


@pytest.mark.s3
@pytest.mark.parametrize("name", ["moto", "versitygw"])
async def test_s3_servers_pass(name: str, request: pytest.FixtureRequest) -> None:
    server: S3Server = request.getfixturevalue(name)
    location = StoreLocation.parse(f"s3://{BUCKET}/probed", endpoint=server.endpoint, region=REGION)
    store = await S3Store.open(location)
    await probe_conditional_writes(store, "cluster/", RNG)
    assert await keys(store) == []
    await store.close()


@pytest.mark.parametrize(("ignores", "named"), [("if_absent", "If-None-Match"), ("if_match", "If-Match")])
async def test_a_store_that_ignores_conditions_is_refused(ignores: str, named: str) -> None:
    store = Careless(ignores)
    with pytest.raises(StoreRefused, match=named):
        await probe_conditional_writes(store, "cluster/", RNG)
    assert await keys(store) == []


async def test_a_store_without_conditional_writes_is_refused() -> None:
    store = FaultyStore(MemoryStore(SystemClock()))
    store.fail(1, "put", error=PreconditionFailed("501 NotImplemented"))
    with pytest.raises(StoreRefused, match="conditional writes"):
        await probe_conditional_writes(store, "cluster/", RNG)


@pytest.mark.parametrize("error", [TierUnavailable("slow down"), StoreRefused("denied")])
@pytest.mark.parametrize("call", range(1, 9))
async def test_errors_of_the_store_are_passed_on(call: int, error: LogError) -> None:
    """The eighth call is the final deletion. The probe has its result by then, and ignores the error of that call."""
    store = FaultyStore(MemoryStore(SystemClock()))
    store.fail(call, error=error)
    if call == 8:
        await probe_conditional_writes(store, "cluster/", RNG)
        return
    with pytest.raises(type(error), match=str(error)):
        await probe_conditional_writes(store, "cluster/", RNG)
    assert await keys(store) == []
