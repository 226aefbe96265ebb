"""The conformance suite of object stores: one for both ports and all stores.

A subclass provides the fixture `subject`. `Subject` names everything that a server lacks and the suite must allow for.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from crc32c import crc32c

from storage_tiers.clock import SystemClock
from storage_tiers.cold.stores.port import (
    MAX_PIECE_BYTES,
    MULTIPART_THRESHOLD,
    PART_BYTES,
    FileBody,
    ObjectInfo,
    ObjectStore,
)
from storage_tiers.errors import PreconditionFailed, StorageError, StoreRefused, TierCorrupt, TierObjectMissing
from tests.support.blocking_adapter import BlockingAdapter

LARGE = 8 << 20
IN_PARTS = MULTIPART_THRESHOLD + (1 << 20)
RACERS = 8
#: HTTP dates have a resolution of one second, and servers update them once a second.
CLOCK_MS = 3_000


@dataclass(frozen=True)
class Subject:
    """An empty store under test, and what the suite must know about it."""

    store: ObjectStore
    #: Begins the upload of a key and abandons it, as a writer that died would.
    leave_unfinished: Callable[[str], Awaitable[None]]
    #: The path of a key's file, where objects are files: the suite may write thousands of them directly, which is much faster.
    path_of: Callable[[str], Path] | None = None
    #: versitygw maps keys to paths: `a` excludes `a/b`, and empty or dotted components vanish.
    keys_are_paths: bool = False
    #: moto cannot route a key with a line feed.
    refuses: tuple[str, ...] = ()
    #: moto takes its lock for each of a thousand small writes, and dates every upload to 2010.
    is_moto: bool = False

    @property
    def is_blocking(self) -> bool:
        return isinstance(self.store, BlockingAdapter)


async def listed(store: ObjectStore, prefix: str = "", start_after: str = "") -> list[str]:
    return [info.key async for info in store.list(prefix, start_after=start_after)]


async def unfinished(store: ObjectStore, prefix: str = "") -> list[str]:
    return [upload.key async for upload in store.unfinished_uploads(prefix)]


def file_body(path: Path, content: bytes, position: int = 0, length: int | None = None) -> FileBody:
    path.write_bytes(content)
    chosen = content[position:] if length is None else content[position : position + length]
    return FileBody(str(path), position, len(chosen), crc32c(chosen))


async def race(attempts: list[Awaitable[ObjectInfo]]) -> list[int]:
    """The indexes of the winners; asserts that every other attempt got PreconditionFailed."""
    results = await asyncio.gather(*attempts, return_exceptions=True)
    losers = [result for result in results if isinstance(result, BaseException)]
    assert {type(loser) for loser in losers} <= {PreconditionFailed}, losers
    return [index for index, result in enumerate(results) if isinstance(result, ObjectInfo)]


class ObjectStoreConformance:
    @pytest.fixture
    def store(self, subject: Subject) -> ObjectStore:
        return subject.store

    # --- one object ---------------------------------------------------------------------------------------------------
    @pytest.mark.parametrize("content", [b"", b"x", bytes(range(256)) * 300], ids=["empty", "byte", "76800"])
    async def test_objects_are_read_as_they_were_put(self, store: ObjectStore, content: bytes) -> None:
        put = await store.put("folder/object", content)
        read = await store.get("folder/object")
        head = await store.head("folder/object")
        assert read.data == content
        assert put.key == head.key == "folder/object"
        assert put.size == head.size == len(content)
        assert put.etag == head.etag == read.etag

    async def test_a_checksum_is_right_or_not_reported(self, store: ObjectStore) -> None:
        content = b"checked" * 1000
        put = await store.put("object", content)
        head = await store.head("object")
        assert {put.crc32c, head.crc32c} <= {None, crc32c(content)}

    async def test_the_time_is_that_of_the_write(self, store: ObjectStore) -> None:
        before = SystemClock().unix_ms()
        put = await store.put("object", b"now")
        head = await store.head("object")
        (info,) = [info async for info in store.list("object")]
        after = SystemClock().unix_ms()
        for found in (put, head, info):
            assert before - CLOCK_MS <= found.modified_ms <= after + CLOCK_MS

    async def test_overwriting_changes_content_and_etag(self, store: ObjectStore) -> None:
        etags = {(await store.put("object", b"version %d" % version)).etag for version in range(5)}
        assert len(etags) == 5
        read = await store.get("object")
        assert read.data == b"version 4" and read.etag in etags

    async def test_a_range_returns_its_bytes_and_the_objects_etag(self, store: ObjectStore) -> None:
        content = bytes(range(100))
        etag = (await store.put("object", content)).etag
        closed = [(0, 5), (3, 4), (90, 10), (90, 500), (99, 1), (100, 1), (250, 10), (10, 0)]
        for start, length in [*closed, (0, None), (90, None), (100, None)]:
            read = await store.get("object", start, length)
            assert read.data == content[start : None if length is None else start + length], (start, length)
            assert read.etag == etag

    async def test_ranges_of_an_empty_object_are_empty(self, store: ObjectStore) -> None:
        etag = (await store.put("object", b"")).etag
        for start, length in ((0, 1), (0, 0), (5, None)):
            read = await store.get("object", start, length)
            assert (read.data, read.etag) == (b"", etag)

    async def test_a_range_comes_in_pieces_in_order(self, store: ObjectStore) -> None:
        content = random.Random(5).randbytes(3 * MAX_PIECE_BYTES)
        await store.put("object", content)
        for start, length in [(0, len(content)), (1, len(content)), (MAX_PIECE_BYTES - 1, 2), (len(content), 1)]:
            pieces: list[bytes | memoryview] = []
            await store.get_into("object", start, length, pieces.append)
            assert b"".join(pieces) == content[start : start + length], (start, length)
            assert all(0 < len(piece) <= MAX_PIECE_BYTES for piece in pieces)

    async def test_pieces_are_handed_over_on_the_readers_own_thread(self, store: ObjectStore) -> None:
        await store.put("object", bytes(2 * MAX_PIECE_BYTES))
        threads: set[int] = set()
        await store.get_into("object", 0, 2 * MAX_PIECE_BYTES, lambda piece: threads.add(threading.get_ident()))
        assert threads == {threading.get_ident()}

    async def test_a_sink_that_fails_ends_the_read_and_nothing_else(self, store: ObjectStore) -> None:
        await store.put("object", bytes(3 * MAX_PIECE_BYTES))
        given: list[int] = []

        def full(piece: bytes | memoryview) -> None:
            given.append(len(piece))
            raise StorageError("the disk is full")

        for count in (1, 2, 3):
            with pytest.raises(StorageError, match="the disk is full"):
                await store.get_into("object", 0, 3 * MAX_PIECE_BYTES, full)
            assert len(given) == count
        assert (await store.get("object", 0, 2)).data == b"\0\0"

    async def test_missing_objects_are_reported(self, store: ObjectStore) -> None:
        await store.put("folder/object", b"")
        for key in ("absent", "folder", "folder/absent"):
            with pytest.raises(TierObjectMissing):
                await store.get(key)
            with pytest.raises(TierObjectMissing):
                await store.get(key, 1, 0)
            with pytest.raises(TierObjectMissing):
                await store.get_into(key, 0, 1, lambda piece: None)
            with pytest.raises(TierObjectMissing):
                await store.head(key)

    # --- conditions ---------------------------------------------------------------------------------------------------
    async def test_creating_an_existing_key_fails_and_changes_nothing(self, store: ObjectStore) -> None:
        first = await store.put("root", b"first", if_absent=True)
        with pytest.raises(PreconditionFailed):
            await store.put("root", b"second", if_absent=True)
        read = await store.get("root")
        assert (read.data, read.etag) == (b"first", first.etag)

    async def test_a_deleted_object_can_be_created_again(self, store: ObjectStore) -> None:
        await store.put("root", b"first", if_absent=True)
        await store.delete(["root"])
        await store.put("root", b"second", if_absent=True)
        assert (await store.get("root")).data == b"second"

    async def test_replacing_needs_the_present_etag(self, store: ObjectStore) -> None:
        first = await store.put("root", b"first")
        second = await store.put("root", b"second", if_match=first.etag)
        with pytest.raises(PreconditionFailed):
            await store.put("root", b"third", if_match=first.etag)
        read = await store.get("root")
        assert (read.data, read.etag) == (b"second", second.etag)

    async def test_replacing_a_missing_key_fails_and_creates_nothing(self, store: ObjectStore) -> None:
        etag = (await store.put("other", b"")).etag
        with pytest.raises(PreconditionFailed):
            await store.put("root", b"first", if_match=etag)
        assert await listed(store) == ["other"]

    async def test_both_conditions_at_once_are_refused(self, store: ObjectStore) -> None:
        with pytest.raises(StoreRefused):
            await store.put("root", b"", if_absent=True, if_match="etag")
        assert await listed(store) == []

    @pytest.mark.parametrize(("size", "rounds"), [(100, 5), (LARGE, 1)], ids=["small", "8MiB"])
    async def test_exactly_one_of_racing_creations_wins(self, store: ObjectStore, size: int, rounds: int) -> None:
        for round_number in range(rounds):
            key = f"race/{round_number}"
            bodies = [bytes([racer]) * size for racer in range(RACERS)]
            (winner,) = await race([store.put(key, body, if_absent=True) for body in bodies])
            assert (await store.get(key)).data == bodies[winner]

    @pytest.mark.parametrize(("size", "rounds"), [(100, 5), (LARGE, 1)], ids=["small", "8MiB"])
    async def test_exactly_one_of_racing_updates_wins(self, store: ObjectStore, size: int, rounds: int) -> None:
        etag = (await store.put("root", b"initial")).etag
        for round_number in range(rounds):
            bodies = [bytes([round_number * RACERS + racer]) * size for racer in range(RACERS)]
            (winner,) = await race([store.put("root", body, if_match=etag) for body in bodies])
            read = await store.get("root")
            assert read.data == bodies[winner]
            etag = read.etag

    async def test_no_increment_is_lost(self, store: ObjectStore) -> None:
        """Four writers increment a counter by compare-and-swap concurrently; it ends at the number of increments."""
        await store.put("counter", b"0")

        async def raise_it(times: int) -> None:
            while times:
                read = await store.get("counter")
                try:
                    await store.put("counter", b"%d" % (int(read.data) + 1), if_match=read.etag)
                    times -= 1
                except PreconditionFailed:
                    continue

        await asyncio.gather(*(raise_it(5) for _ in range(4)))
        assert (await store.get("counter")).data == b"20"

    async def test_a_reader_never_sees_a_mixture(self, store: ObjectStore) -> None:
        await store.put("object", bytes([0]) * LARGE)

        async def write() -> None:
            for version in range(1, 5):
                await store.put("object", bytes([version]) * (LARGE + version))

        writing = asyncio.create_task(write())
        seen = []
        while not writing.done():
            data = (await store.get("object")).data
            assert len(data) == LARGE + data[0] and data.count(data[0]) == len(data)
            seen.append(data[0])
        await writing
        assert seen == sorted(seen)

    # --- listing ------------------------------------------------------------------------------------------------------
    async def test_an_empty_store_lists_nothing(self, store: ObjectStore) -> None:
        assert await listed(store) == [] == await listed(store, "folder/")

    async def test_keys_are_listed_in_the_order_of_their_bytes(self, subject: Subject) -> None:
        store = subject.store
        keys = ["a-b", "a.b", "a/0", "a/b/c", "a0", "b", "a/b.json/d", "ä", "z", "日本", "\U0001f600"]
        if not subject.keys_are_paths:
            keys += ["a", "a/b", "a/b.json"]
        for key in keys:
            await store.put(key, b"")
        ordered = sorted(keys, key=str.encode)
        assert await listed(store) == ordered
        for prefix in ("a", "a/", "a/b", "a/b/", "b", "c", "\u00e4", "a/b.json/"):
            assert await listed(store, prefix) == [key for key in ordered if key.startswith(prefix)], prefix
        for start in (*keys, "0", "a/", "a/a", "zz"):
            assert await listed(store, "", start) == [key for key in ordered if key.encode() > start.encode()], start
            assert await listed(store, "a/", start) == [
                key for key in ordered if key.startswith("a/") and key.encode() > start.encode()
            ], start

    async def test_a_listing_has_size_and_etag(self, store: ObjectStore) -> None:
        put = [await store.put(f"object-{size}", b"x" * size) for size in (0, 10, 1000)]
        found = [info async for info in store.list("object-")]
        assert [(info.key, info.size, info.etag) for info in found] == [(i.key, i.size, i.etag) for i in put]

    async def test_listings_longer_than_a_page_are_complete(self, subject: Subject) -> None:
        if subject.is_moto:
            pytest.skip("moto needs seconds for a thousand keys; versitygw shows the same code")
        store = subject.store
        keys = [f"many/{number:04}.log" for number in range(1_010)]
        await store.put(keys[0], b"")
        for key in keys:
            if subject.path_of is None:
                await store.put(key, b"")
            else:
                subject.path_of(key).touch()
        assert await listed(store, "many/") == keys
        assert await listed(store, "many/", keys[3]) == keys[4:]
        await store.delete(keys)
        assert await listed(store, "many/") == []

    async def test_folders_below_a_prefix_are_listed(self, subject: Subject) -> None:
        for key in ("top", "a/1", "a/b/2", "a.b/3", "c/d/e/4", "c/5", "a/b/6"):
            await subject.store.put(key, b"")
        folders = subject.store.list_folders
        assert list(await folders("")) == ["a.b", "a", "c"]
        assert list(await folders("a/")) == ["b"]
        assert list(await folders("c/d/")) == ["e"]
        assert list(await folders("absent/")) == []

    @pytest.mark.parametrize(
        "key",
        [
            *(
                "sp ace",
                "a+b&c=d?e#f",
                "100%41",
                "quote'\"<>",
                "back\\slash",
                "*",
                ".hidden",
                "tab\there",
                "line\nfeed",
            ),
            *(
                "ä日本\U0001f600",
                "e\u0301",
                "a//b",
                "trailing/",
                "./a",
                "../a",
                "a/../b",
                "long/" + "x" * 200,
                "%locks/00",
            ),
        ],
    )
    async def test_odd_keys_are_keys(self, subject: Subject, key: str) -> None:
        if key in subject.refuses or (subject.keys_are_paths and {"", ".", ".."} & set(key.split("/"))):
            pytest.skip("this server maps keys to paths, or cannot be asked for this one")
        store = subject.store
        await store.put("neighbour", b"")
        await store.put(key, key.encode())
        assert (await store.get(key)).data == key.encode()
        assert (await store.head(key)).key == key
        assert sorted(await listed(store)) == sorted(["neighbour", key])
        assert await listed(store, key) == [key]
        await store.delete([key])
        assert await listed(store) == ["neighbour"]

    @pytest.mark.parametrize("key", ["", "x" * 1025, "nul\0", "\ud800"], ids=["empty", "long", "nul", "surrogate"])
    async def test_invalid_keys_are_refused(self, store: ObjectStore, key: str) -> None:
        with pytest.raises(StoreRefused):
            await store.put(key, b"")
        with pytest.raises(StoreRefused):
            await store.get(key)
        assert await listed(store) == []

    # --- deleting -----------------------------------------------------------------------------------------------------
    async def test_deleted_objects_are_gone_and_absent_keys_are_no_error(self, store: ObjectStore) -> None:
        for key in ("a/1", "a/2", "b/1"):
            await store.put(key, b"")
        await store.delete(["a/1", "absent", "b/1", "b/absent"])
        assert await listed(store) == ["a/2"]
        with pytest.raises(TierObjectMissing):
            await store.get("a/1")
        await store.delete(["a/1"])
        await store.delete([])
        assert await listed(store) == ["a/2"]

    # --- bodies from files --------------------------------------------------------------------------------------------
    @pytest.mark.parametrize(("position", "length"), [(0, None), (10, None), (10, 3_000_000), (5, 0)])
    async def test_a_range_of_a_file_is_uploaded(
        self, store: ObjectStore, tmp_path: Path, position: int, length: int | None
    ) -> None:
        content = bytes(range(256)) * 13_000
        body = file_body(tmp_path / "segment.log", content, position, length)
        put = await store.put("object", body)
        read = await store.get("object")
        assert read.data == content[position : position + body.length]
        assert put.size == body.length and put.crc32c in (None, body.crc32c)

    @pytest.mark.parametrize("size", [1000, IN_PARTS], ids=["single", "parts"])
    async def test_a_file_that_changed_since_its_checksum_leaves_no_object(
        self, store: ObjectStore, tmp_path: Path, size: int
    ) -> None:
        path = tmp_path / "segment.log"
        body = file_body(path, b"x" * size)
        path.write_bytes(b"x" * (size - 1) + b"y")
        with pytest.raises(TierCorrupt):
            await store.put("object", body)
        path.write_bytes(b"x" * (size - 1))
        with pytest.raises(StorageError):
            await store.put("object", body)
        path.unlink()
        with pytest.raises(StorageError):
            await store.put("object", body)
        assert await listed(store) == [] == await unfinished(store)

    # --- objects in parts ---------------------------------------------------------------------------------------------
    async def test_objects_above_the_threshold_are_uploaded_in_parts_and_read_whole(
        self, store: ObjectStore, tmp_path: Path
    ) -> None:
        content = b"".join(bytes([part]) * (1 << 20) for part in range(17))
        assert len(content) == IN_PARTS
        put = await store.put("from-file", file_body(tmp_path / "segment.log", content), if_absent=True)
        await store.put("from-memory", content)
        for key in ("from-file", "from-memory"):
            head = await store.head(key)
            assert head.size == IN_PARTS and head.crc32c in (None, crc32c(content))
            across = await store.get(key, PART_BYTES - 10, 20)
            assert across.data == content[PART_BYTES - 10 : PART_BYTES + 10]
        whole = await store.get("from-file")
        assert whole.data == content and whole.etag == put.etag
        assert await unfinished(store) == []

    async def test_conditions_hold_above_the_threshold(self, store: ObjectStore) -> None:
        content = b"x" * IN_PARTS
        first = await store.put("object", b"first")
        with pytest.raises(PreconditionFailed):
            await store.put("object", content, if_absent=True)
        second = await store.put("object", b"second", if_match=first.etag)
        with pytest.raises(PreconditionFailed):
            await store.put("object", content, if_match=first.etag)
        assert (await store.get("object")).data == b"second"
        assert await unfinished(store) == []
        await store.put("object", content, if_match=second.etag)
        assert (await store.head("object")).size == IN_PARTS

    async def test_unfinished_uploads_are_listed_and_aborted(self, subject: Subject) -> None:
        store = subject.store
        before = SystemClock().unix_ms()
        for key in ("a/1", "a/2", "b/1"):
            await subject.leave_unfinished(key)
        await store.put("a/3", b"an object, not an upload")
        assert sorted(await unfinished(store)) == ["a/1", "a/2", "b/1"]
        assert sorted(await unfinished(store, "a/")) == ["a/1", "a/2"]
        assert await listed(store) == ["a/3"]
        uploads = [upload async for upload in store.unfinished_uploads("a/")]
        if not subject.is_moto:
            after = SystemClock().unix_ms()
            assert all(before - CLOCK_MS <= upload.started_ms <= after + CLOCK_MS for upload in uploads)
        if subject.is_blocking:
            return
        for upload in uploads:
            await store.abort_upload(upload)
            await store.abort_upload(upload)
        assert await unfinished(store) == ["b/1"]
        assert await listed(store) == ["a/3"]
