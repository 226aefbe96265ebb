"""The metadata log: a proposal is durable before anyone sees it, and survives a restart."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from grpc_api.contract.topics import Resource, ResourceKind
from service.metadata import records_pb2 as pb
from service.metadata.image import MetadataImage
from service.metadata.log import MAX_GROUP_RECORDS, MAX_PROPOSAL_BYTES, MetadataLog
from service.metadata.parts import Changes
from service.metadata.store import DIRECTORY, LOG_BYTES_PER_SNAPSHOT
from storage_tiers.clock import SystemRng
from storage_tiers.errors import InvalidRequest, MetadataCorrupt, StorageError
from tests.service.metadata.disks import TroubledFiles
from tests.service.metadata.records import configured, new_topic, topic_id


class LowestSteps(SystemRng):
    """Each term is one above the last."""

    def token(self, size: int) -> bytes:
        return bytes(size)


@asynccontextmanager
async def opened(
    path: Path, files: TroubledFiles | None = None, *, bound: int = LOG_BYTES_PER_SNAPSHOT
) -> AsyncIterator[MetadataLog]:
    log = MetadataLog.open(str(path), files or TroubledFiles(), LowestSteps(), log_bytes_per_snapshot=bound)
    try:
        yield log
    finally:
        await log.close()


def names(path: Path) -> list[str]:
    return sorted(os.listdir(path / DIRECTORY))


async def test_a_proposal_is_in_the_image_once_it_is_durable_and_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        assert await log.propose(new_topic("a", 1)) == 1
        assert await log.propose(new_topic("b", 2)) == 2
        assert sorted(log.image.topic_ids) == ["a", "b"]
        written = log.image
    async with opened(tmp_path) as log:
        assert log.image == written
        assert log.proposed is log.image
        assert log.last_index == 2


async def test_the_image_waits_for_the_disk_and_the_next_plan_does_not(tmp_path: Path) -> None:
    files = TroubledFiles()
    async with opened(tmp_path, files) as log:
        files.hold.clear()
        done = log.propose(new_topic("a", 1))
        assert "a" in log.proposed.topic_ids
        await asyncio.sleep(0)
        assert not done.done()
        assert "a" not in log.image.topic_ids
        with pytest.raises(MetadataCorrupt, match="exists already"):
            log.propose(new_topic("a", 2))
        files.hold.set()
        await done
        assert "a" in log.image.topic_ids


async def test_proposals_made_while_the_disk_is_busy_share_one_fsync_and_apply_in_order(tmp_path: Path) -> None:
    files = TroubledFiles()
    async with opened(tmp_path, files) as log:
        files.hold.clear()
        first = log.propose(new_topic("a", 1))
        while not files.calls["pwrite"]:
            await asyncio.sleep(0)
        before = files.calls["fsync"]
        others = [log.propose([configured("a", "k", str(number))]) for number in range(50)]
        files.hold.set()
        assert await first == 1
        assert {await other for other in others} == {2}
        assert files.calls["fsync"] - before == 2
        assert log.image.topic_config("a") == {"k": "49"}


async def test_listeners_see_each_image_before_the_proposer_resumes(tmp_path: Path) -> None:
    seen: list[MetadataImage] = []
    async with opened(tmp_path) as log:
        log.subscribe(lambda image, changes: seen.append(image))
        await log.propose(new_topic("a", 1))
        assert seen == [log.image]


async def test_listeners_get_all_changes_since_their_last_call(tmp_path: Path) -> None:
    """Concurrent proposals share one fsync, and each listener gets one call for them."""
    told: list[tuple[MetadataImage, Changes]] = []
    async with opened(tmp_path) as log:
        log.subscribe(lambda image, changes: told.append((image, changes)))
        await asyncio.gather(*(log.propose(new_topic(name, number)) for number, name in enumerate("abc", 1)))
        await log.propose([configured("b", "k", "1")])
        assert [changes.topics for _, changes in told] == [(topic_id(1), topic_id(2), topic_id(3)), ()]
        assert told[-1][1].configs == (Resource(ResourceKind.TOPIC, "b"),)


async def test_proposals_of_many_records_do_not_share_an_entry(tmp_path: Path) -> None:
    """Listeners look at all changes of an entry in one turn of the loop."""
    half = [configured("a", f"k{number}", "1") for number in range(MAX_GROUP_RECORDS // 2)]
    async with opened(tmp_path) as log:
        await log.propose(new_topic("a", 1))
        proposed = [log.propose(records) for records in (half, half, half[:1], [*half, *half, *half], half[:1])]
        assert await asyncio.gather(*proposed) == [2, 2, 3, 4, 5]
        assert log.image.topic_config("a").keys() == {f"k{number}" for number in range(len(half))}


async def test_every_opening_is_a_higher_term(tmp_path: Path) -> None:
    terms = []
    for number in range(3):
        async with opened(tmp_path) as log:
            terms.append(log.term)
            await log.propose([configured("a", "k", str(number))])
    assert terms == [1, 2, 3]


async def test_a_cancelled_proposer_does_not_take_the_records_back(tmp_path: Path) -> None:
    files = TroubledFiles()
    async with opened(tmp_path, files) as log:
        files.hold.clear()
        waiting = asyncio.ensure_future(log.propose(new_topic("a", 1)))
        await asyncio.sleep(0)
        waiting.cancel()
        files.hold.set()
        await log.propose(new_topic("b", 2))
        assert sorted(log.image.topic_ids) == ["a", "b"]


# --- a disk that refuses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["pwrite", "fsync"])
async def test_a_full_disk_refuses_the_change_whole_and_the_next_one_succeeds(tmp_path: Path, operation: str) -> None:
    files = TroubledFiles()
    async with opened(tmp_path, files) as log:
        await log.propose(new_topic("a", 1))
        before = log.image
        files.fail[operation] = 1
        with pytest.raises(StorageError, match=r"No space left on device.*retry later"):
            await log.propose(new_topic("b", 2, partitions=20))
        assert log.image is before
        assert log.proposed is before
        assert await log.propose(new_topic("b", 3)) == 2
        written = log.image
    async with opened(tmp_path) as log:
        assert log.image == written


async def test_changes_planned_on_a_refused_one_are_refused_too(tmp_path: Path) -> None:
    files = TroubledFiles()
    async with opened(tmp_path, files) as log:
        files.hold.clear()
        files.fail["fsync"] = 1
        first = log.propose(new_topic("a", 1))
        while not files.calls["pwrite"]:
            await asyncio.sleep(0)
        second = log.propose([configured("a", "k", "v")])
        files.hold.set()
        for refused in (first, second):
            with pytest.raises(StorageError):
                await refused
        assert log.image == MetadataImage()
        assert await log.propose(new_topic("c", 1)) == 1


async def test_a_torn_end_that_cannot_be_cut_is_cut_before_the_next_entry(tmp_path: Path) -> None:
    files = TroubledFiles()
    async with opened(tmp_path, files) as log:
        files.fail.update(pwrite=1, truncate=2)
        with pytest.raises(StorageError):
            await log.propose(new_topic("long-name-" * 20, 1))
        with pytest.raises(StorageError):
            await log.propose(new_topic("b", 2))
        assert files.fail["truncate"] == 0
        await log.propose(new_topic("c", 3))
    async with opened(tmp_path) as log:
        assert list(log.image.topic_ids) == ["c"]


async def test_a_disk_that_refuses_to_open_is_a_storage_error(tmp_path: Path) -> None:
    files = TroubledFiles()
    files.fail["create"] = 1
    with pytest.raises(StorageError, match="cannot be opened"):
        MetadataLog.open(str(tmp_path), files, LowestSteps())
    async with opened(tmp_path) as log:
        assert await log.propose(new_topic("a", 1)) == 1


async def test_changes_beyond_the_bounds_are_refused_without_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as log:
        with pytest.raises(InvalidRequest, match="smaller requests"):
            log.propose([configured("a", "k", "v" * MAX_PROPOSAL_BYTES)])
        monkeypatch.setattr("service.metadata.log.MAX_WAITING_BYTES", 100)
        with pytest.raises(StorageError, match="wait for the disk"):
            log.propose([configured("a", "k", "v" * 100)])
        assert log.proposed == MetadataImage()
        assert await log.propose([configured("a", "k", "v")]) == 1


async def test_a_closed_log_refuses_proposals(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        last = log.propose(new_topic("a", 1))
    assert await last == 1
    with pytest.raises(StorageError, match="closed"):
        log.propose(new_topic("b", 2))


# --- snapshots --------------------------------------------------------------------------------------------------------


async def test_a_snapshot_replaces_a_long_log(tmp_path: Path) -> None:
    async with opened(tmp_path, bound=1000) as log:
        for number in range(30):
            await log.propose(new_topic(f"topic-{number}", number + 1))
        written = log.image
    files = names(tmp_path)
    assert len(files) == 2
    snapshot, newest = sorted(files, key=lambda name: name.endswith(".log"))
    index = int(snapshot[:20])
    assert newest == f"{index + 1:020}.log"
    assert os.path.getsize(tmp_path / DIRECTORY / snapshot) > 0
    async with opened(tmp_path, bound=1000) as log:
        assert log.image == written
        assert (log.last_index, log.term) == (30, 2)
        assert await log.propose(new_topic("more", 99)) == 31
    async with opened(tmp_path) as log:
        assert log.last_index == 31


@pytest.mark.parametrize("operation", ["rename", "create", "fsync_dir", "unlink"])
async def test_a_snapshot_that_fails_costs_nothing(tmp_path: Path, operation: str) -> None:
    files = TroubledFiles()
    async with opened(tmp_path, files, bound=400) as log:
        before = len(names(tmp_path))
        files.fail[operation] = 1
        for number in range(60):
            await log.propose(new_topic(f"topic-{number}", number + 1))
        assert files.fail[operation] == 0
        assert before == 1
        written = log.image
    assert len(names(tmp_path)) <= 3
    async with opened(tmp_path) as log:
        assert log.image == written
        assert log.last_index == 60
    assert len(names(tmp_path)) <= 2


async def test_a_crash_between_snapshot_and_new_log_is_finished_at_the_next_start(tmp_path: Path) -> None:
    directory = tmp_path / DIRECTORY
    async with opened(tmp_path) as log:
        for number in range(5):
            await log.propose(new_topic(f"topic-{number}", number + 1))
        written = log.image
    old_log = (directory / f"{1:020}.log").read_bytes()
    async with opened(tmp_path, bound=1) as log:
        await log.propose([configured("topic-1", "k", "v")])
        with_config = log.image
    assert with_config != written
    newest = f"{7:020}.log"
    assert newest in names(tmp_path)
    (directory / newest).unlink()
    (directory / f"{1:020}.log").write_bytes(old_log)
    (directory / "half.snapshot.tmp").write_bytes(b"half")
    async with opened(tmp_path) as log:
        assert log.image == with_config
        assert log.last_index == 6
    assert names(tmp_path) == [f"{6:020}-{2:010}.snapshot", newest]


# --- damage -----------------------------------------------------------------------------------------------------------


async def damaged(tmp_path: Path, suffix: str, position: int, *, bound: int = LOG_BYTES_PER_SNAPSHOT) -> str:
    async with opened(tmp_path, bound=bound) as log:
        for number in range(3):
            await log.propose(new_topic(f"topic-{number}", number + 1))
    path = next((tmp_path / DIRECTORY).glob(f"*{suffix}"))
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    with pytest.raises(MetadataCorrupt) as error:
        MetadataLog.open(str(tmp_path), TroubledFiles(), LowestSteps())
    assert path.name in str(error.value)
    assert "move the metadata folder out of the data directory" in str(error.value)
    return str(error.value)


async def test_damage_before_the_end_of_the_log_stops_the_start(tmp_path: Path) -> None:
    assert "entry 1 at byte 0 is damaged" in await damaged(tmp_path, ".log", 40)


async def test_a_damaged_snapshot_stops_the_start(tmp_path: Path) -> None:
    assert "checksum" in await damaged(tmp_path, ".snapshot", 40, bound=100)


async def test_a_missing_log_stops_the_start(tmp_path: Path) -> None:
    async with opened(tmp_path, bound=1) as log:
        await log.propose(new_topic("a", 1))
    next((tmp_path / DIRECTORY).glob("*.log")).unlink()
    with pytest.raises(MetadataCorrupt, match="is gone"):
        MetadataLog.open(str(tmp_path), TroubledFiles(), LowestSteps())


async def test_a_missing_snapshot_stops_the_start(tmp_path: Path) -> None:
    async with opened(tmp_path, bound=1) as log:
        await log.propose(new_topic("a", 1))
    next((tmp_path / DIRECTORY).glob("*.snapshot")).unlink()
    with pytest.raises(MetadataCorrupt, match="begins with entry 2, but entries are known up to 0 only"):
        MetadataLog.open(str(tmp_path), TroubledFiles(), LowestSteps())


async def test_a_sound_frame_of_an_unreadable_batch_stops_the_start(tmp_path: Path) -> None:
    from service.metadata.frames import Frame, encode

    directory = tmp_path / DIRECTORY
    directory.mkdir()
    log = directory / f"{1:020}.log"
    log.write_bytes(encode(Frame(1, 1, b"\xff\xff")))
    with pytest.raises(MetadataCorrupt, match="entry 1 is not a metadata batch"):
        MetadataLog.open(str(tmp_path), TroubledFiles(), LowestSteps())
    twice = pb.MetadataBatch(records=[*new_topic("a", 1), *new_topic("a", 2)])
    log.write_bytes(encode(Frame(1, 1, twice.SerializeToString())))
    with pytest.raises(MetadataCorrupt, match="entry 1: the metadata creates the topic 'a', which exists already"):
        MetadataLog.open(str(tmp_path), TroubledFiles(), LowestSteps())
