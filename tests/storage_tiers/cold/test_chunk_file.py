"""A chunk of an object is written in pieces and checked per MiB."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from storage_tiers.cold.process.chunk_file import ChunkFile
from storage_tiers.cold.process.settings import MIB
from storage_tiers.errors import StorageError, TierCorrupt
from storage_tiers.records.checksum import crc32c

CONTENT = random.Random(7).randbytes(2 * MIB + 12_345)
CRCS = tuple(crc32c(CONTENT[at : at + MIB]) for at in range(0, len(CONTENT), MIB))


def begun(directory: Path, crcs: tuple[int, ...] | None = CRCS) -> ChunkFile:
    return ChunkFile(str(directory / "chunk"), "topic/segment.log", 8 * MIB, len(CONTENT), crcs)


@pytest.mark.parametrize("size", [1000, 65_536, 262_144, MIB, MIB + 1, len(CONTENT)])
def test_pieces_of_any_size_become_the_file(tmp_path: Path, size: int) -> None:
    file = begun(tmp_path)
    for at in range(0, len(CONTENT), size):
        assert [path.name for path in tmp_path.iterdir()] == ["chunk.tmp"]
        file.write(CONTENT[at : at + size])
    file.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["chunk"]
    assert (tmp_path / "chunk").read_bytes() == CONTENT


@pytest.mark.parametrize("at", [0, MIB - 1, MIB, 2 * MIB, len(CONTENT) - 1])
def test_a_flipped_bit_is_found_at_the_end_of_its_mib(tmp_path: Path, at: int) -> None:
    damaged = bytearray(CONTENT)
    damaged[at] ^= 1
    file, written = begun(tmp_path), 0
    with pytest.raises(TierCorrupt, match=rf"MiB at byte {8 * MIB + at // MIB * MIB} "):
        for written in range(0, len(damaged), 100_000):
            file.write(bytes(damaged[written : written + 100_000]))
    assert written < (at // MIB + 1) * MIB
    file.discard()
    assert list(tmp_path.iterdir()) == []


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    file = begun(tmp_path, crcs=None)
    file.write(CONTENT[:-1])
    with pytest.raises(TierCorrupt, match=f"ends at byte {8 * MIB + len(CONTENT) - 1}, before byte"):
        file.finish()
    file.discard()
    assert list(tmp_path.iterdir()) == []


def test_an_answer_longer_than_requested_is_refused(tmp_path: Path) -> None:
    file = begun(tmp_path, crcs=None)
    file.write(CONTENT)
    with pytest.raises(TierCorrupt, match=f"more than the {len(CONTENT)} bytes"):
        file.write(b"x")
    file.discard()


def test_chunks_from_before_a_restart_are_forgotten(tmp_path: Path) -> None:
    file = begun(tmp_path)
    file.write(b"x" * (MIB // 2))
    file.restart()
    file.write(CONTENT)
    file.finish()
    assert (tmp_path / "chunk").read_bytes() == CONTENT


def test_an_unwritable_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="Not a directory; free some space, or let the node write there"):
        begun(tmp_path / "file")
    (tmp_path / "file").unlink()
    file = begun(tmp_path)
    os.mkdir(tmp_path / "chunk")
    file.write(CONTENT)
    with pytest.raises(StorageError, match="Is a directory"):
        file.finish()
    file.discard()
    assert [path.name for path in tmp_path.iterdir()] == ["chunk"]
    # The test follows the error message's advice.
    os.rmdir(tmp_path / "chunk")
    file = begun(tmp_path)
    file.write(CONTENT)
    file.finish()
    assert (tmp_path / "chunk").read_bytes() == CONTENT
