"""Stored objects are compared with the bytes sent before any manifest names them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.cold.stores.port import FileBody, ObjectInfo
from storage_tiers.errors import TierUnavailable
from tests.storage_tiers.cold.support import EagerClock, Local, stored_live, tier_of
from tests.support.faulty_store import FaultyStore


class DamagingStore(FaultyStore):
    """Flips one bit of every object whose key contains `damaged`. With `tells` it reports the checksum of the damaged bytes,
    else none, like servers without checksums."""

    def __init__(self, store: MemoryStore, *, tells: bool) -> None:
        super().__init__(store)
        self.tells = tells
        self.damaged = "no key"

    async def put(
        self, key: str, body: bytes | FileBody, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        if self.damaged in key:
            whole = bytearray(Path(body.path).read_bytes() if isinstance(body, FileBody) else body)
            whole[len(whole) // 2] ^= 1
            body = bytes(whole)
        return self._told(await super().put(key, body, if_absent=if_absent, if_match=if_match))

    async def head(self, key: str) -> ObjectInfo:
        return self._told(await super().head(key))

    def _told(self, info: ObjectInfo) -> ObjectInfo:
        return info if self.tells else replace(info, crc32c=None)


@pytest.mark.parametrize("suffix", [".log", ".idx"])
@pytest.mark.parametrize("tells", [True, False], ids=["the store tells a checksum", "it is read back"])
async def test_other_bytes_of_the_same_length_are_never_named(tmp_path: Path, tells: bool, suffix: str) -> None:
    clock, local = EagerClock(), Local(tmp_path)
    memory = MemoryStore(clock)
    store = DamagingStore(memory, tells=tells)
    tier = tier_of(store, clock)
    assert (await tier.extend(local.job(0, 10))).end == 10
    assert {Path(key).suffix for operation, key in store.calls if operation == "put" and "/segments/" in key} == {
        ".log",
        ".idx",
    }
    store.damaged = suffix
    with pytest.raises(TierUnavailable, match="other bytes"):
        await tier.extend(local.job(10, 10))
    store.damaged = "no key"
    manifest = await tier.extend(local.job(10, 10))
    assert manifest.end == 20
    for segment in stored_live(memory.blocking(), manifest):
        assert memory.blocking().head(segment.key).crc32c == segment.crc32c
