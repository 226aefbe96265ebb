"""Cache files damaged while a node runs: the damage is detected before a byte is served, logged, and the chunk is fetched
again."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage_tiers.tier.support import batch, broker, read, taken


def removed(directory: Path) -> None:
    shutil.rmtree(directory)


def emptied(directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink()


def truncated(directory: Path) -> None:
    for path in directory.iterdir():
        os.truncate(path, 100)


def overwritten(directory: Path) -> None:
    for path in directory.iterdir():
        kept = path.stat()
        with path.open("r+b") as file:
            file.write(bytes(kept.st_size))
        os.utime(path, ns=(kept.st_atime_ns, kept.st_mtime_ns))


def replaced(directory: Path) -> None:
    for path in directory.iterdir():
        other = path.with_suffix(".other")
        other.write_bytes(bytes(path.stat().st_size))
        other.rename(path)


def forbidden(directory: Path) -> None:
    for path in directory.iterdir():
        path.chmod(0)


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("harm", [removed, emptied, truncated, overwritten, replaced, forbidden])
async def test_a_damaged_cache_is_noticed_and_filled_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, harm: Callable[[Path], None], is_open: bool
) -> None:
    caplog.set_level(logging.INFO)
    async with broker(tmp_path) as b:
        content = b"".join(batch(offset) for offset in range(100))
        manifest = await b.offload(content, 0, 100)
        reader = b.reader()
        for _ in range(2):
            assert taken(await read(reader, manifest, 0)) == content
            if not is_open:
                for chunk in b.cache._chunks.values():  # as after accesses to many other chunks
                    assert chunk.file is not None
                    chunk.file.release()
                    chunk.file = None
                b.cache._open.clear()
            harm(tmp_path / "cache")
        fetched = b.gets(".log")
        assert taken(await read(reader, manifest, 0)) == content
        assert b.gets(".log") == fetched + 1
        assert taken(await read(reader, manifest, 50)) == content[content.index(batch(50)) :]
        assert b.gets(".log") == fetched + 1
        assert b.cache.used_bytes == len(content)
    said = [getattr(record, "event", "") for record in caplog.records]
    assert "cache.chunk_lost" in said
    assert ("cache.directory_lost" in said) == (harm is removed)
