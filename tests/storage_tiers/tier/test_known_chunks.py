"""Two sessions of one tier process: a chunk of one is copied for the other, whatever has become of its file."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_tiers.clock import SystemClock, SystemRng
from storage_tiers.cold.process.byte_budget import ByteBudget
from storage_tiers.cold.process.downloads import Downloads
from storage_tiers.cold.process.known_chunks import MAX_CHUNKS, KnownChunks
from storage_tiers.cold.process.operations import FetchChunk, FetchObject
from storage_tiers.cold.process.patient_reads import PatientReads
from storage_tiers.cold.process.settings import MIB, TierSettings
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.records.checksum import crc32c
from tests.support.faulty_store import FaultyStore

BODY = os.urandom(2 * MIB + 7)
CHUNK = FetchChunk("o", 0, len(BODY), tuple(crc32c(BODY[at : at + MIB]) for at in range(0, len(BODY), MIB)))


class Sessions:
    def __init__(self, directory: Path) -> None:
        self.store, self.known = FaultyStore(MemoryStore(SystemClock())), KnownChunks()
        self.one, self.other = (self._session(directory / name, n) for n, name in enumerate(("one", "other")))

    def _session(self, directory: Path, owner: int) -> Downloads:
        async def store() -> FaultyStore:
            return self.store

        directory.mkdir()
        rng, settings = SystemRng(), TierSettings()
        reads = PatientReads(settings, SystemClock(), rng)
        return Downloads(store, str(directory), self.budget, owner, reads, rng, self.known)

    budget = ByteBudget(64 * MIB, 8)


async def fetched(session: Downloads) -> tuple[bytes, str, bool]:
    async with asyncio.timeout(60):
        ready = await session.fetch_chunk(CHUNK)
    return Path(ready.path).read_bytes(), ready.path, ready.is_copy


async def test_a_chunk_of_another_session_is_copied(tmp_path: Path) -> None:
    both = Sessions(tmp_path)
    await both.store.put("o", BODY)
    _, first, is_copy = await fetched(both.one)
    assert not is_copy
    found, second, is_copy = await fetched(both.other)
    assert (found, is_copy) == (BODY, True)
    assert Path(second).parent == tmp_path / "other"
    assert both.store.count("get") == 1
    assert not (await fetched(both.other))[2], "a session that asks again distrusts its own file"
    Path(first).unlink()
    assert (await fetched(both.one))[2], "the newest file is known"


def cut(path: Path) -> None:
    os.truncate(path, MIB)


def changed(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(len(BODY) - 1)
        file.write(bytes([BODY[-1] ^ 1]))


def grown(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


def linked(path: Path) -> None:
    path.rename(path.with_suffix(".moved"))
    path.symlink_to(path.with_suffix(".moved"))


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def renamed_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("spoil", [Path.unlink, cut, changed, grown, linked, piped, renamed_directory])
async def test_a_spoiled_file_of_another_session_is_not_copied(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    both = Sessions(tmp_path)
    await both.store.put("o", BODY)
    _, first, _ = await fetched(both.one)
    spoil(Path(first))
    found, second, is_copy = await fetched(both.other)
    assert (found, is_copy) == (BODY, False)
    assert both.store.count("get") == 2
    assert [each.name for each in (tmp_path / "other").iterdir()] == [Path(second).name]


async def test_a_failed_fetch_of_a_spoiled_chunk_leaves_nothing(tmp_path: Path) -> None:
    both = Sessions(tmp_path)
    await both.store.put("o", BODY)
    _, first, _ = await fetched(both.one)
    changed(Path(first))
    await both.store.delete("o")
    with pytest.raises(Exception, match="o"):
        await both.other.fetch_chunk(CHUNK)
    assert list((tmp_path / "other").iterdir()) == []
    assert both.known.find(CHUNK, asker=9) is None


async def test_objects_are_not_copied(tmp_path: Path) -> None:
    """The receiver removes their files at once."""
    both = Sessions(tmp_path)
    await both.store.put("o", BODY)
    for session in (both.one, both.other):
        assert not (await session.fetch_object(FetchObject("o", 0, 9))).is_copy
    assert len(both.known) == 0


def test_the_number_of_known_chunks_is_bounded() -> None:
    known = KnownChunks()
    for number in range(MAX_CHUNKS + 3):
        known.add(FetchChunk("o", number, 1, (0,)), 1, f"/{number}")
    assert len(known) == MAX_CHUNKS
    assert known.find(FetchChunk("o", 2, 1, (0,)), 2) is None
    assert known.find(FetchChunk("o", 3, 1, (0,)), 2) == "/3"
