"""Errors that advise `tidelog fsck`: it names the damage and changes nothing; once the damage is repaired, all records are
there."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from storage_tiers.clock import SystemClock
from storage_tiers.cold.manifest.saved_manifest import FILE_NAME as SAVED_MANIFEST
from storage_tiers.cold.stores.location import StoreLocation
from storage_tiers.cold.stores.open import open_store
from storage_tiers.errors import LogError
from storage_tiers.files import OsFiles
from tests.advice.support import configure, leads
from tests.service.broker.background.test_store_lineage import T0, led
from tests.service.broker.support import Running, filled, running, until
from tests.service.cli.support import tidelog
from tests.support.faulty_store import FaultyStore

SAYS = r"[Rr]un `tidelog fsck`"


@asynccontextmanager
async def on_disk(path: Path) -> AsyncIterator[Running]:
    """A node whose store is the directory `path / "store"`."""
    (path / "store").mkdir(exist_ok=True)
    store = FaultyStore(await open_store(StoreLocation.parse(f"file://{path}/store"), OsFiles(), SystemClock()))
    async with running(path / "data", store) as node:
        yield node


def files(path: Path) -> dict[Path, bytes]:
    """The objects of all topics in the store, by path."""
    return {file: file.read_bytes() for file in (path / "store").glob("*/topics/**/*") if file.is_file()}


def found_by_fsck(path: Path, *words: str | Path) -> str:
    """fsck's report of the damage; asserts that it leaves every byte as it was."""
    before = files(path)
    ran = tidelog("fsck", "--store", f"file://{path}/store", *words)
    assert ran.code == 1, ran
    assert files(path) == before
    return ran.out


def sound(path: Path, *words: str | Path) -> bool:
    return tidelog("fsck", "--store", f"file://{path}/store", *words).code == 0


def flipped(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0x20
    file.write_bytes(data)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-10])


@pytest.mark.parametrize("damage", [flipped, cut])
async def test_damage_is_found_where_the_error_says_to_look(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    async with on_disk(tmp_path) as node:
        await filled(node, 20)
        await node.seal("t")
        await node.evicted("t")
    (first, *_) = sorted(file for file in (tmp_path / "store").rglob("00000000000000000000*.log*") if file.is_file())
    whole = first.read_bytes()
    damage(first)
    async with on_disk(tmp_path) as node:
        await leads(node, "t")
        # A start rewrites topic.json under its own incarnation; that must not happen while fsck reads.
        await node.node.work.topic_files.publish_now("t")
        with pytest.raises(LogError, match=SAYS):
            await node.read("t", 0)
        assert first.name.split(".")[0] in found_by_fsck(tmp_path)
        first.write_bytes(whole)
        assert [record.offset for record in await node.read_all("t")] == list(range(20))
    assert sound(tmp_path)


async def test_a_manifest_that_is_gone_is_found_where_the_error_says_to_look(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as node:
        await filled(node, 20)
        await node.seal("t")
        await node.evicted("t")
        (manifest,) = (tmp_path / "store").rglob("manifests/*.json")
        whole = manifest.read_bytes()
        manifest.unlink()
        found = found_by_fsck(tmp_path)
        assert "manifest" in found and "t-0" in found
        manifest.write_bytes(whole)
        await node.append("t", b"more")
        await node.seal("t")
        assert [record.offset for record in await node.read_all("t")] == list(range(21))
    assert sound(tmp_path)


@pytest.mark.parametrize("what", ["a length", "the end"])
async def test_local_damage_is_shown_by_a_dump_and_mended_by_a_copy(tmp_path: Path, what: str) -> None:
    async with on_disk(tmp_path) as node:
        await filled(node, 20, {"remote.log.copy.disable": "true"})
        segment = sorted((tmp_path / "data" / "t-0").glob("*.log"))[2]
        whole = segment.read_bytes()
        base = int(segment.stem)
        segment.write_bytes(whole[:8] + b"\xff" * 4 + whole[12:] if what == "a length" else b"")
        with pytest.raises(LogError, match=r"put (it|the file) back from a copy") as said:
            await node.read("t", base)
        told = re.search(r"`tidelog (log dump .+)`", str(said.value))
        assert told is not None
        assert tidelog(*told[1].split()).code == (1 if what == "a length" else 0)
        assert str(segment) in str(said.value)
        segment.write_bytes(whole)
        assert tidelog("log", "dump", segment).code == 0
        assert [record.offset for record in await node.read_all("t")] == list(range(20))
        await configure(node, "t", {"remote.log.copy.disable": "false"})
        await node.seal("t")
    assert sound(tmp_path, "--data-dir", tmp_path / "data")


async def test_a_file_that_fsck_says_to_keep_shows_what_is_missing(tmp_path: Path) -> None:
    """The saved manifest beside the segments serves to rebuild the manifest."""
    async with on_disk(tmp_path) as node:
        await filled(node, 20)
        await node.seal("t")
        await node.evicted("t")
    (manifest,) = (tmp_path / "store").rglob("manifests/*.json")
    manifest.unlink()
    found = found_by_fsck(tmp_path, "--data-dir", tmp_path / "data")
    assert "Keep this file and the segments beside it" in found
    assert str(tmp_path / "data" / "t-0" / SAVED_MANIFEST) in found
    async with on_disk(tmp_path) as node:
        await until(lambda: led(node) in node.node.work.tiering.lineage)
        repaired = await node.core.cold.repair(T0, apply=True)
        assert repaired.commit > 0 and not repaired.refused
        await leads(node, "t")
        assert [record.offset for record in await node.read_all("t")] == list(range(20))
    assert sound(tmp_path, "--data-dir", tmp_path / "data")


async def test_the_buckets_records_are_served_once_local_files_that_differ_from_them_are_moved_away(
    tmp_path: Path,
) -> None:
    """The test follows the row of `local_disagrees` in docs/operations.md. A start alone keeps such a log."""
    async with on_disk(tmp_path) as node:
        await filled(node, 20, {"local.retention.ms": "-1", "local.retention.bytes": "-1"})
        await node.append("t", b"in the bucket later")
        written = [record.value for record in await node.read_all("t")]
    segments = sorted((tmp_path / "data" / "t-0").glob("*.log"))
    damaged = segments[1]
    async with on_disk(tmp_path) as node:
        await node.seal("t")
    damaged.write_bytes(damaged.read_bytes().replace(b"%03d" % int(damaged.stem), b"999"))
    for _ in range(2):
        assert str(damaged) in found_by_fsck(tmp_path, "--data-dir", tmp_path / "data")
        async with on_disk(tmp_path) as node:
            await leads(node, "t")
    (tmp_path / "elsewhere").mkdir()
    for segment in segments[:2]:
        segment.rename(tmp_path / "elsewhere" / segment.name)
    async with on_disk(tmp_path) as node:
        await leads(node, "t")
        assert [record.value for record in await node.read_all("t")] == written
        assert (await node.append("t", b"more")).base_offset == 21
        assert node.node.broker.partitions.get(T0).log.hot.local_start_offset == int(segments[2].stem)
    assert sound(tmp_path, "--data-dir", tmp_path / "data")
