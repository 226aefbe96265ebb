"""The cache stays within its bounds while chunks are in use, and chunks that it handed out stay readable."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from storage_tiers.cold.process.settings import CHUNK_BYTES
from storage_tiers.cold.read import cache as chunk_cache
from storage_tiers.cold.read.cache import LEAST_BYTES, SHRUNK_BYTES, ChunkCache, ChunkKey, default_cache_bytes
from storage_tiers.errors import TierUnavailable
from tests.storage_tiers.tier.support import no_descriptors


def filled(cache: ChunkCache, number: int, size: int = CHUNK_BYTES, *, unread: bool = False) -> ChunkKey:
    """Adds a chunk (a sparse file) as the hydrator does."""
    key = ChunkKey("object", 0, number)
    path = os.path.join(cache.directory, f"chunk-{number}-{size}")
    assert cache.reserve(size)
    with open(path, "wb") as file:
        file.write(str(number).encode())
        file.truncate(size)
    cache.unreserve(size)
    cache.add(key, path, size, unread=unread)
    return key


def names(cache: ChunkCache) -> set[str]:
    return set(os.listdir(cache.directory))


def test_the_cache_is_emptied_at_the_start(tmp_path: Path) -> None:
    first = ChunkCache(str(tmp_path / "cache"), LEAST_BYTES)
    filled(first, 1)
    (tmp_path / "cache" / "half.tmp").write_bytes(b"x")
    again = ChunkCache(str(tmp_path / "cache"), LEAST_BYTES)
    assert names(again) == set() and again.used_bytes == 0


def test_the_least_recently_used_chunk_is_evicted(tmp_path: Path) -> None:
    cache = ChunkCache(str(tmp_path), LEAST_BYTES)
    keys = [filled(cache, number) for number in range(4)]
    assert cache.used_bytes == LEAST_BYTES
    assert cache.get(keys[0]) is not None
    filled(cache, 4)
    assert keys[0] in cache and keys[1] not in cache
    assert cache.get(keys[1]) is None
    assert cache.used_bytes == LEAST_BYTES and len(names(cache)) == 4
    assert (cache.evicted, cache.wasted) == (1, 0)


def test_a_chunk_that_is_being_sent_is_not_evicted(tmp_path: Path) -> None:
    cache = ChunkCache(str(tmp_path), LEAST_BYTES)
    keys = [filled(cache, number) for number in range(4)]
    held = cache.get(keys[0])
    assert held is not None
    held.acquire()
    for number in range(4, 12):
        filled(cache, number)
        assert cache.used_bytes <= LEAST_BYTES
    assert keys[0] in cache
    assert os.pread(held.fd, 1, 0) == b"0"
    held.release()
    for number in range(12, 16):
        filled(cache, number)
    assert keys[0] not in cache


def test_removed_but_held_space_counts_until_it_is_released(tmp_path: Path) -> None:
    cache = ChunkCache(str(tmp_path), LEAST_BYTES)
    keys = [filled(cache, number) for number in range(4)]
    held = [cache.get(key) for key in keys]
    for file, key in zip(held, keys, strict=True):
        assert file is not None
        file.acquire()
        cache.drop(key)
    assert names(cache) == set() and cache.used_bytes == LEAST_BYTES
    assert not cache.reserve(1)
    assert held[2] is not None
    assert os.pread(held[2].fd, 1, 0) == b"2"
    held[2].release()
    assert cache.used_bytes == LEAST_BYTES - CHUNK_BYTES
    assert cache.reserve(CHUNK_BYTES)


def test_reservations_count(tmp_path: Path) -> None:
    cache = ChunkCache(str(tmp_path), LEAST_BYTES)
    for _ in range(4):
        assert cache.reserve(CHUNK_BYTES)
    assert not cache.reserve(1)


def test_a_file_that_vanished_is_a_miss(tmp_path: Path) -> None:
    cache = ChunkCache(str(tmp_path), LEAST_BYTES)
    key = filled(cache, 1)
    for name in names(cache):
        os.unlink(tmp_path / name)
    assert cache.get(key) is None
    assert key not in cache and cache.used_bytes == 0


def test_a_second_copy_of_a_chunk_is_removed(tmp_path: Path) -> None:
    cache = ChunkCache(str(tmp_path), LEAST_BYTES)
    key = filled(cache, 1, 100)
    copy = tmp_path / "copy"
    copy.write_bytes(b"x" * 100)
    cache.add(key, str(copy), 100, unread=False)
    assert not copy.exists() and cache.used_bytes == 100
    cache.add(key, str(tmp_path / "chunk-1-100"), 100, unread=False)
    assert cache.get(key) is not None


def test_strays_are_removed_and_chunks_stay(tmp_path: Path) -> None:
    cache = ChunkCache(str(tmp_path), LEAST_BYTES)
    key = filled(cache, 1, 10)
    (tmp_path / "stray").write_bytes(b"x")
    (tmp_path / "stray.tmp").write_bytes(b"x")
    cache.remove_strays()
    assert names(cache) == {"chunk-1-10"} and cache.get(key) is not None


def test_a_full_disk_shrinks_the_cache_and_it_grows_again(tmp_path: Path) -> None:
    cache = ChunkCache(str(tmp_path), 4 * LEAST_BYTES)
    for number in range(16):
        filled(cache, number)
    cache.shrink()
    assert cache.limit_bytes == cache.used_bytes == 2 * LEAST_BYTES
    for number in range(16, 24):
        filled(cache, number)
    assert cache.limit_bytes == 4 * LEAST_BYTES
    for _ in range(10):
        cache.shrink()
    assert cache.limit_bytes == SHRUNK_BYTES and cache.used_bytes <= SHRUNK_BYTES


def test_open_descriptors_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_cache, "MAX_OPEN_FILES", 3)
    cache = ChunkCache(str(tmp_path), LEAST_BYTES)
    keys = [filled(cache, number, 10) for number in range(20)]
    before = len(os.listdir("/proc/self/fd"))
    held = cache.get(keys[0])
    assert held is not None
    held.acquire()
    for key in keys * 2:
        assert cache.get(key) is not None
    assert len(os.listdir("/proc/self/fd")) <= before + 4
    assert held.users == 2 and cache.get(keys[0]) is held
    held.release()
    cache.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_descriptors_of_a_large_answer_do_not_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_cache, "MAX_OPEN_FILES", 3)
    cache = ChunkCache(str(tmp_path), LEAST_BYTES)
    keys = [filled(cache, number, 10) for number in range(20)]
    before = len(os.listdir("/proc/self/fd"))
    held = [file.acquire() for key in keys if (file := cache.get(key)) is not None]
    assert len(held) == 20
    for file in held:
        file.release()
    for number in range(20, 30):
        assert cache.get(filled(cache, number, 10)) is not None
    assert len(os.listdir("/proc/self/fd")) <= before + 3
    cache.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_chunk_is_not_lost_without_a_descriptor(tmp_path: Path) -> None:
    """Otherwise the chunk would be fetched from the bucket again and again while no descriptor is free."""
    cache = ChunkCache(str(tmp_path), LEAST_BYTES)
    key = filled(cache, 1, 10)
    with no_descriptors(), pytest.raises(TierUnavailable, match="Too many open files; retry"):
        cache.get(key)
    assert cache.get(key) is not None


def test_the_number_of_chunks_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_cache, "MAX_CHUNKS", 5)
    cache = ChunkCache(str(tmp_path), LEAST_BYTES)
    for number in range(9):
        filled(cache, number, 10)
    assert len(cache) == 5 and len(names(cache)) == 5


def test_unread_chunks_of_the_read_ahead_are_counted(tmp_path: Path) -> None:
    cache = ChunkCache(str(tmp_path), LEAST_BYTES)
    keys = [filled(cache, number, unread=True) for number in range(4)]
    assert cache.unread_bytes == LEAST_BYTES
    cache.get(keys[3])
    assert cache.unread_bytes == 3 * CHUNK_BYTES
    for number in range(4, 7):
        filled(cache, number)
    assert cache.unread_bytes == 0 and cache.wasted == 3


def test_the_default_size_of_the_cache_is_a_share_of_the_disk(tmp_path: Path) -> None:
    size = default_cache_bytes(str(tmp_path))
    assert LEAST_BYTES <= size <= 1 << 30
    with pytest.raises(ValueError, match="at least"):
        ChunkCache(str(tmp_path), LEAST_BYTES - 1)
