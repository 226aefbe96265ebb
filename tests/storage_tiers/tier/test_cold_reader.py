"""Reading offloaded records: every byte, from any offset, without gap or repeat, despite concurrent changes."""

from __future__ import annotations

import asyncio
import random
import struct
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from storage_tiers.cold.manifest.model import Section
from storage_tiers.cold.process.operations import Expire, RaiseLogStart
from storage_tiers.cold.read import reader as cold_reader
from storage_tiers.cold.read.cache import ChunkKey
from storage_tiers.cold.read.known_segments import KnownSegments, cost
from storage_tiers.cold.read.lookup_permits import MAX_HYDRATIONS, LookupPermits
from storage_tiers.cold.read.reader import ColdMiss, ColdReader
from storage_tiers.cold.read.recently_corrupt import CORRUPT_S
from storage_tiers.cold.segments import sidecar
from storage_tiers.errors import OffsetOutOfRange, TierCorrupt, TierObjectMissing, TierUnavailable
from storage_tiers.records.batch import headers, read_header
from storage_tiers.records.builder import assemble
from storage_tiers.records.checksum import crc32c
from storage_tiers.types import AbortedTransaction, EpochEntry, TimestampOffset
from tests.storage_tiers.cold.support import IDS, segment_of
from tests.storage_tiers.tier.support import QUICK, WRITER, Broker, batch, broker, read, taken, until

MIB = 1 << 20


async def test_a_first_read_fetches_one_sidecar_and_one_chunk(tmp_path: Path) -> None:
    async with broker(tmp_path) as b:
        content = b"".join(batch(offset) for offset in range(100))
        manifest = await b.offload(content, 0, 100)
        before = len(b.store.calls)
        reader = b.reader()
        found = reader.read(manifest, 0, 1 << 20, log_start=0)
        assert isinstance(found, ColdMiss)
        await found.waiter
        again = reader.read(manifest, 0, 1 << 20, log_start=0)
        assert not isinstance(again, ColdMiss)
        assert taken(again) == content
        assert [call for call, _ in b.store.calls[before:]] == ["get", "get"]
        assert b.gets(".idx") == 1 and b.gets(".log") == 1


@pytest.mark.parametrize("comes", [True, False])
async def test_hydrated_chunks_stay_until_their_waiter_has_read_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comes: bool
) -> None:
    """Other chunks may need the chunk's room before the waiter runs. A waiter that never returns holds the chunk for HOLD_S."""
    monkeypatch.setattr(cold_reader, "HOLD_S", 3600.0 if comes else 0.05)
    async with broker(tmp_path) as b:
        manifest = await b.offload(b"".join(batch(offset) for offset in range(10)), 0, 10)
        reader = b.reader()
        missed = reader.read(manifest, 0, 1 << 20, log_start=0)
        assert isinstance(missed, ColdMiss)
        file = None

        def arrived(_: asyncio.Future[None]) -> None:
            nonlocal file
            file = b.hydrator.chunk(manifest.segments[0], 0)
            assert file is not None
            users.append(file.users)

        users: list[int] = []
        missed.waiter.add_done_callback(arrived)
        await missed.waiter
        if comes:
            found = reader.read(manifest, 0, 1 << 20, log_start=0)
            assert not isinstance(found, ColdMiss)
            assert taken(found)
        await until(lambda: file is not None and file.users == 1)
        assert users == [2], "the cache, and the reader for its waiter"


async def test_any_offset_begins_with_its_batch(tmp_path: Path) -> None:
    rng = random.Random(4)
    async with broker(tmp_path) as b:
        content, starts, offset = b"", {}, 0
        while len(content) < 9 * MIB:
            count = rng.randint(1, 40)
            starts.update(dict.fromkeys(range(offset, offset + count), len(content)))
            content += batch(offset, count, size=rng.choice((10, 300, 20_000)))
            offset += count
        manifest = await b.offload(content, 0, offset)
        reader = b.reader()
        for wanted in (0, offset - 1, *(rng.randrange(offset) for _ in range(60))):
            data = taken(await read(reader, manifest, wanted, 100_000))
            start = starts[wanted]
            assert data == content[start : start + len(data)]
            first = next(iter(headers(data)))[1]
            assert len(data) >= max(first.size, min(100_000, len(content) - start) - 4 * MIB)
            assert len(data) <= max(first.size, 100_000)


async def test_segments_that_compaction_left_without_a_record_are_passed_over(tmp_path: Path) -> None:
    """A consumer would take an answer without a record for one that its size limit cut short."""
    async with broker(tmp_path) as b:
        header, last = read_header(batch(10, 10)), batch(30, 10)
        await b.offload(batch(0, 10), 0, 10)
        for base in (10, 20):
            await b.offload(assemble(header._replace(base_offset=base, attributes=0, count=0), b""), base, base + 10)
        manifest = await b.offload(last, 30, 40)
        assert [segment.records for segment in manifest.segments] == [10, 0, 0, 10]
        for offset in (10, 19, 25, 30):
            assert taken(await read(b.reader(), manifest, offset, 100)) == last


async def test_a_scan_has_no_gap_and_no_repeat_across_segments_and_chunks(tmp_path: Path) -> None:
    async with broker(tmp_path) as b:
        content, offset = b"", 0
        for size in (5 * MIB, 300_000, 4 * MIB, 60_000, 9 * MIB):
            segment, base = b"", offset
            while len(segment) < size:
                segment += batch(offset, 7, size=9_000)
                offset += 7
            await b.offload(segment, base, offset)
            content += segment
        assert await scanned(b, max_bytes=1 * MIB) == content
        assert b.gets() == 2 + 1 + 2 + 1 + 3
        assert b.gets(".idx") == 5


async def scanned(b: Broker, max_bytes: int, reader: ColdReader | None = None, offset: int = 0) -> bytes:
    """Reads all from `offset` on as a consumer does: keeps each response's whole batches and continues after them."""
    reader, data = reader or b.reader(), b""
    assert b.manifest is not None
    while offset < b.manifest.end:
        found = await read(reader, lambda: b.manifest, offset, max_bytes)
        answer = taken(found)
        if not answer:
            assert found.next_offset == b.manifest.end
            break
        whole = 0
        for position, header in headers(answer):
            if position + header.size > len(answer):
                break
            whole = position + header.size
            offset = header.next_offset
        data += answer[:whole]
    return data


async def test_a_batch_larger_than_max_bytes_and_chunks_comes_whole(tmp_path: Path) -> None:
    async with broker(tmp_path) as b:
        small, large = batch(0), batch(1, 3, size=3 * MIB)
        manifest = await b.offload(small + large + batch(4), 0, 5)
        data = taken(await read(b.reader(), manifest, 2, 1000))
        assert data == large
        assert taken(await read(b.reader(), manifest, 4, 1000)) == batch(4)


async def test_offsets_in_holes_lead_to_the_next_batch(tmp_path: Path) -> None:
    async with broker(tmp_path) as b:
        await b.offload(batch(0) + batch(10), 0, 20)
        manifest = await b.offload(batch(25, size=200_000) + batch(40), 20, 60)
        reader = b.reader()
        for offset, expected in ((5, 10), (11, 25), (19, 25), (20, 25), (26, 40)):
            data = taken(await read(reader, manifest, offset))
            assert next(iter(headers(data)))[1].base_offset == expected
        end = await read(reader, manifest, 41)
        assert end.slices == () and end.next_offset == 60


async def test_a_recorded_gap_is_stepped_over(tmp_path: Path) -> None:
    async with broker(tmp_path) as b:
        await b.offload(batch(0, 10), 0, 10)
        await b.client.ask(RaiseLogStart(b.reader().ids, WRITER, 10))
        manifest = await b.offload(batch(30, 10), 30, 40, log_start=30)
        assert manifest.log_start == 30 and manifest.segments[-1].gap_from == 10
        assert taken(await read(b.reader(), manifest, 30, log_start=30)) == batch(30, 10)


async def test_below_log_start_is_out_of_range(tmp_path: Path) -> None:
    async with broker(tmp_path) as b:
        manifest = await b.offload(batch(0, 10), 0, 10)
        with pytest.raises(OffsetOutOfRange, match="below log start 5"):
            b.reader().read(manifest, 4, 100, log_start=5)
        # A batch that spans log start is served whole: its consumer drops the records below.
        assert taken(await read(b.reader(), manifest, 5, log_start=5)) == batch(0, 10)


async def test_an_answer_has_the_aborted_transactions_that_overlap_it(tmp_path: Path) -> None:
    async with broker(tmp_path) as b:
        early, late = AbortedTransaction(7, 0, 3, 4), AbortedTransaction(8, 5, 9, 10)
        manifest = await b.offload(b"".join(batch(o) for o in range(10)), 0, 10, aborted=(early, late))
        found = await read(b.reader(), manifest, 4)
        assert found.aborted == (late,)
        taken(found)


async def test_pages_are_searched_by_the_tier_process(tmp_path: Path) -> None:
    async with broker(tmp_path) as b:
        content = b""
        for base in range(90):
            segment = batch(base, timestamp=1_700_000_000_000 + base)
            await b.offload(segment, base, base + 1)
            content += segment
        assert b.manifest is not None and b.manifest.live_pages
        assert await scanned(b, max_bytes=10_000) == content
        reader = b.reader()
        for offset in (0, 3, 70, 89):
            data = taken(await read(reader, b.manifest, offset))
            assert data == batch(offset, timestamp=1_700_000_000_000 + offset)
            at = 1_700_000_000_000 + offset
            assert await reader.offset_for_timestamp(b.manifest, at, log_start=0) == TimestampOffset(at, offset, 1)
        assert await reader.max_timestamp(b.manifest, log_start=0) == TimestampOffset(1_700_000_000_089, 89, 1)


async def test_the_largest_timestamp_is_found_in_a_page_above_an_expired_one(tmp_path: Path) -> None:
    def stamp(offset: int) -> int:
        return 1_700_000_000_000 + {0: 900, 70: 500}.get(offset, offset)

    async with broker(tmp_path) as b:
        for base in range(150):
            await b.offload(batch(base, timestamp=stamp(base)), base, base + 1)
        manifest = b.manifest
        assert manifest is not None and len(manifest.live_pages) >= 2
        passed = manifest.live_pages[0].end
        assert passed <= 70 < manifest.live_pages[-1].end
        reader = b.reader()
        assert await reader.max_timestamp(manifest, log_start=0) == TimestampOffset(stamp(0), 0, 1)
        for start in (1, passed - 1, passed, passed + 1):
            assert await reader.max_timestamp(manifest, log_start=start) == TimestampOffset(stamp(70), 70, 1)


async def test_hydration_outlives_its_requester_and_is_shared(tmp_path: Path) -> None:
    async with broker(tmp_path) as b:
        manifest = await b.offload(batch(0, 10), 0, 10)
        gate = b.store.hold(1, "get", ".log")
        reader = b.reader()
        first, second = (reader.read(manifest, 0, 100, log_start=0) for _ in range(2))
        assert isinstance(first, ColdMiss) and isinstance(second, ColdMiss)
        assert first.waiter is second.waiter
        await gate.reached.wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(first.waiter), 0.01)
        gate.open()
        await until(lambda: b.hydrator.brought == 1)
        assert taken(await read(reader, manifest, 3)) == batch(0, 10)
        assert b.gets() == 1


async def test_identical_requests_at_one_time_are_one_request(tmp_path: Path) -> None:
    """Any number of readers request manifests, newest states, pages, sidecars and chunks; all of them get the result."""
    async with broker(tmp_path) as b:
        for base in range(90):
            await b.offload(batch(base, timestamp=1_700_000_000_000 + base), base, base + 1)
        manifest = b.manifest
        assert manifest is not None and manifest.live_pages
        readers = [b.reader() for _ in range(5)]
        before = Counter(b.client.stats.asked)

        assert all(found is manifest for found in await asyncio.gather(*(reader.manifest() for reader in readers)))
        assert b.hydrator.known.loads == 1
        states = await asyncio.gather(*(reader.newest_state(manifest) for reader in readers))
        assert all(state == states[0] for state in states)
        assert Counter(b.client.stats.asked) - before == {"FetchObject": 1}

        at = 1_700_000_000_003
        looking = (reader.offset_for_timestamp(manifest, at, log_start=0) for reader in readers)
        assert set(await asyncio.gather(*looking)) == {TimestampOffset(at, 3, 1)}
        assert Counter(b.client.stats.asked) - before == {"FetchObject": 2, "PageSegments": 1, "FetchChunk": 1}
        assert b.hydrator.in_flight == 0


async def test_a_failure_goes_to_its_waiters_and_is_not_cached(tmp_path: Path) -> None:
    async with broker(tmp_path, settings=QUICK) as b:
        manifest = await b.offload(batch(0, 10), 0, 10)
        b.store.down = True
        found = b.reader().read(manifest, 0, 100, log_start=0)
        assert isinstance(found, ColdMiss)
        with pytest.raises(TierUnavailable):
            await found.waiter
        b.store.down = False
        assert taken(await read(b.reader(), manifest, 0)) == batch(0, 10)


async def test_a_tampered_chunk_is_refused_and_never_cached(tmp_path: Path) -> None:
    async with broker(tmp_path) as b:
        content = batch(0, 10)
        manifest = await b.offload(content, 0, 10)
        for damaged in (content[:-1] + bytes([content[-1] ^ 1]), content[:-5], b""):
            await b.store.put(manifest.segments[0].key, damaged)
            found = b.reader().read(manifest, 0, 100, log_start=0)
            assert isinstance(found, ColdMiss)
            with pytest.raises(TierCorrupt, match="fsck"):
                await found.waiter
            assert len(b.cache) == 0 and list((tmp_path / "cache").iterdir()) == []
            b.clock.advance(CORRUPT_S)
        await b.store.put(manifest.segments[0].key, content)
        assert taken(await read(b.reader(), manifest, 0)) == content


@pytest.mark.parametrize("of", ["chunk", "sidecar"])
async def test_an_object_that_was_corrupt_twice_is_not_asked_for_again_at_once(tmp_path: Path, of: str) -> None:
    async with broker(tmp_path) as b:
        manifest = await b.offload(content := batch(0, 10), 0, 10)
        segment = manifest.segments[0]
        key = segment.key if of == "chunk" else segment.sidecar_key
        whole = (await b.store.get(key)).data
        await b.store.put(key, bytes(len(whole)))
        failures, asked = set(), []
        for _ in range(4):
            found = b.reader().read(manifest, 0, 100, log_start=0)
            assert isinstance(found, ColdMiss)
            with pytest.raises(TierCorrupt) as failure:
                await found.waiter
            failures.add(str(failure.value))
            asked.append(b.store.count("get", key) + b.store.count("get_into", key))
        assert len(failures) == 1
        assert asked[0] < asked[1], "bytes that were damaged on their way are not asked for again"
        assert asked[1] == asked[-1], "each retry cost the store a request"
        await b.store.put(key, whole)
        b.clock.advance(CORRUPT_S)
        assert taken(await read(b.reader(), manifest, 0)) == content


async def test_a_failure_after_a_success_is_the_first_in_a_row(tmp_path: Path) -> None:
    async with broker(tmp_path) as b:
        manifest = await b.offload(content := batch(0, 10), 0, 10)
        segment = manifest.segments[0]
        asked = []
        for damaged in (True, False, True, True):
            await b.store.put(segment.key, bytes(len(content)) if damaged else content)
            b.cache.drop(ChunkKey(segment.key, segment.position, 0))
            before = b.store.count("get", segment.key) + b.store.count("get_into", segment.key)
            found = b.reader().read(manifest, 0, 100, log_start=0)
            assert isinstance(found, ColdMiss)
            if damaged:
                with pytest.raises(TierCorrupt):
                    await found.waiter
            else:
                await found.waiter
            asked.append(b.store.count("get", segment.key) + b.store.count("get_into", segment.key) > before)
        assert asked == [True, True, True, True]


async def test_a_damaged_sidecar_is_refused(tmp_path: Path) -> None:
    async with broker(tmp_path) as b:
        manifest = await b.offload(batch(0, 10), 0, 10)
        key = manifest.segments[0].sidecar_key
        whole = (await b.store.get(key)).data
        for damaged in (whole[:100], whole[:-1] + b"x", bytes(len(whole))):
            await b.store.put(key, damaged)
            b.clock.advance(CORRUPT_S)
            if damaged == whole[:-1] + b"x":
                with pytest.raises(TierCorrupt):
                    await b.reader().newest_state(manifest)
                continue
            found = b.reader().read(manifest, 0, 100, log_start=0)
            assert isinstance(found, ColdMiss)
            with pytest.raises(TierCorrupt):
                await found.waiter


async def test_objects_of_another_segment_are_refused(tmp_path: Path) -> None:
    async with broker(tmp_path) as b:
        await b.offload(batch(0, 10), 0, 10)
        manifest = await b.offload(batch(10, 10), 10, 20)
        first, second = manifest.segments
        await b.store.put(first.key, (await b.store.get(second.key)).data)
        found = b.reader().read(manifest, 0, 100, log_start=0)
        assert isinstance(found, ColdMiss)
        with pytest.raises(TierCorrupt):
            await found.waiter


async def test_a_missing_object_reloads_the_manifest(tmp_path: Path) -> None:
    async with broker(tmp_path) as b:
        await b.offload(batch(0, 10), 0, 10)
        old = await b.offload(batch(10, 10), 10, 20)
        await b.client.ask(Expire(old.ids, WRITER, 10))
        await b.store.delete([old.segments[0].key, old.segments[0].sidecar_key])
        reader = b.reader()
        with pytest.raises(OffsetOutOfRange, match="below log start 10"):
            await read(reader, lambda: b.manifest, 3)
        assert b.reloads == 1
        assert b.manifest is not None and b.manifest.log_start == 10
        assert taken(await read(reader, lambda: b.manifest, 13)) == batch(10, 10)


async def test_a_missing_object_that_the_newest_manifest_names_is_an_error(tmp_path: Path) -> None:
    async with broker(tmp_path) as b:
        manifest = await b.offload(batch(0, 10), 0, 10)
        await b.store.delete([manifest.segments[0].key])
        found = b.reader().read(manifest, 0, 100, log_start=0)
        assert isinstance(found, ColdMiss)
        with pytest.raises(TierObjectMissing):
            await found.waiter


async def test_timestamps_that_do_not_rise_are_looked_up_exactly(tmp_path: Path) -> None:
    stamps = [50, 10, 70, 20, 70, 5, 90, 60, 15, 80]
    async with broker(tmp_path) as b:
        for base in (0, 5):
            segment = b"".join(batch(base + i, timestamp=stamps[base + i], size=30_000) for i in range(5))
            await b.offload(segment, base, base + 5)
        assert b.manifest is not None
        reader = b.reader()
        for start in range(10):
            for wanted in range(0, 100, 5):
                hits = [o for o in range(start, 10) if stamps[o] >= wanted]
                expected = TimestampOffset(stamps[hits[0]], hits[0], 1) if hits else None
                assert await reader.offset_for_timestamp(b.manifest, wanted, log_start=start) == expected
            newest = max(range(start, 10), key=lambda o: (stamps[o], -o))
            expected = TimestampOffset(stamps[newest], newest, 1)
            assert await reader.max_timestamp(b.manifest, log_start=start) == expected


async def test_timestamps_inside_a_batch_that_log_start_cuts_are_looked_up_exactly(tmp_path: Path) -> None:
    async with broker(tmp_path) as b:
        manifest = await b.offload(batch(0, 10, timestamp=100) + batch(10, timestamp=50), 0, 11)
        reader = b.reader()
        assert await reader.offset_for_timestamp(manifest, 0, log_start=4) == TimestampOffset(104, 4, 1)
        assert await reader.offset_for_timestamp(manifest, 108, log_start=0) == TimestampOffset(108, 8, 1)
        assert await reader.max_timestamp(manifest, log_start=4) == TimestampOffset(109, 9, 1)
        assert await reader.max_timestamp(manifest, log_start=10) == TimestampOffset(50, 10, 1)
        assert await reader.max_timestamp(manifest, log_start=11) is None


async def test_epochs_come_from_the_newest_sidecar(tmp_path: Path) -> None:
    async with broker(tmp_path) as b:
        epochs = (EpochEntry(1, 0), EpochEntry(3, 10), EpochEntry(6, 15))
        manifest = await b.offload(
            batch(0, 10, epoch=1) + batch(10, 5, epoch=3) + batch(15, 5, epoch=6), 0, 20, epochs=epochs
        )
        reader = b.reader()
        ends = [await reader.epoch_end_offset(manifest, epoch) for epoch in range(8)]
        assert ends == [(-1, -1), (1, 10), (1, 10), (3, 15), (3, 15), (3, 15), (6, 20), (6, 20)]
        assert [await reader.epoch_at(manifest, offset) for offset in (0, 9, 10, 15, 19, 20)] == [1, 1, 3, 6, 6, -1]
        assert (await reader.newest_state(manifest)).producer_state == b"producers"


async def test_the_indexes_of_twenty_segments_of_a_gibibyte_stay_at_hand(tmp_path: Path) -> None:
    """Twenty readers, each in its own segment, then fetch one index each instead of one per chunk."""
    rows = b"".join(struct.pack(">IIq", at, at * sidecar.INTERVAL_BYTES, at) for at in range(16 * 1024))
    checks = struct.pack(">1024I", *range(1024))
    sections = (
        Section(sidecar.INDEX, 0, len(rows), crc32c(rows)),
        Section(sidecar.CHECKS, len(rows), len(checks), crc32c(checks)),
    )
    async with broker(tmp_path) as b:
        segments = []
        for number in range(20):
            made = segment_of(IDS, number << 32, (number + 1) << 32, number, size=1 << 30)
            segments.append(replace(made, sections=sections))
            await b.store.put(made.sidecar_key, rows + checks)
        for segment in segments * 3:
            if b.hydrator.front(segment) is None:
                await b.hydrator.bring_front(segment)
            front = b.hydrator.front(segment)
            assert front is not None
            assert front.floor_position(segment.base + 77) == (segment.base + 77, 77 * sidecar.INTERVAL_BYTES)
            assert list(front.mib_crcs) == list(range(1024))
        assert b.gets(".idx") == 20


async def test_a_fetch_of_thousands_of_cold_partitions_reads_a_bounded_number_at_a_time(tmp_path: Path) -> None:
    """Memory has no room for the manifests of all partitions, which are read again and again in the same order."""
    partitions = 2 * MAX_HYDRATIONS
    async with broker(tmp_path) as b:
        manifest = await b.offload(batch(0), 0, 1)
        b.hydrator.known = KnownSegments(partitions // 2 * cost(manifest))
        readers = [b.reader(replace(IDS, partition=n)) for n in range(partitions)]

        def look() -> tuple[int, list[asyncio.Future[None]]]:
            found = [reader.read(reader.manifest_in_memory, 0, 1 << 20, log_start=0) for reader in readers]
            waiting = [one.waiter for one in found if isinstance(one, ColdMiss)]
            return sum(bool(taken(one)) for one in found if not isinstance(one, ColdMiss)), waiting

        at_hand, most = 0, 0
        for _ in range(10):
            at_hand, waiting = look()
            most = max(most, b.hydrator.permits.taken)
            if at_hand:
                break
            await asyncio.wait(waiting)
        assert at_hand > 0
        assert most == MAX_HYDRATIONS
        await until(lambda: b.hydrator.permits.taken == 0)


async def test_a_read_without_room_is_resumed_when_there_is_room(tmp_path: Path) -> None:
    permits = LookupPermits(4)
    assert [permits.take() for _ in range(4)] == [None] * 4
    room = permits.take()
    assert room is not None and room is permits.take()
    permits.give_back()
    assert not room.done()
    assert permits.take() is None
    permits.give_back()
    permits.give_back()
    assert room.done()
    assert [permits.take() for _ in range(2)] == [None, None]
    assert permits.take() is not room
