"""The hot log on a file system that is really full: it refuses appends, stays readable, and resumes when space returns."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_tiers.errors import StorageError
from storage_tiers.files import OsFiles
from storage_tiers.hot.checkpoints import (
    RECOVERY_POINTS,
    read_offsets,
    take_clean_shutdown_marker,
    write_clean_shutdown_marker,
    write_offsets,
)
from storage_tiers.hot.log import HotLog
from storage_tiers.hot.settings import LogSettings
from tests.faults.disks import fill, small_disk
from tests.storage_tiers.hot.support import (
    PARTITION,
    START_MS,
    append,
    batch_of,
    evict_below,
    open_log,
    placed,
    read_all,
)

#: Small enough for many segments, whose indexes take more than a page.
SETTINGS = LogSettings(segment_bytes=1 << 20, index_interval_bytes=0)


@pytest.fixture(name="small_disk")
def _small_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path) as path:
        yield path


class Workload:
    """Appends numbered batches, and knows what reads must return."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log: HotLog = open_log(root, settings=SETTINGS)
        self.content: list[bytes] = []

    def __enter__(self) -> Workload:
        return self

    def __exit__(self, *_: object) -> None:
        self.log.close(clean=False)

    def append(self) -> None:
        number = len(self.content)
        batch = batch_of(1, value=b"%06d" % number * 20, timestamps=[START_MS + number])
        self.content.append(placed(batch, append(self.log, batch), 0))

    def append_until_refused(self) -> None:
        with pytest.raises(StorageError, match="No space left on device"):
            while True:
                self.append()

    def check(self) -> None:
        expected = b"".join(self.content)
        assert self.log.end_offset == len(self.content)
        assert b"".join(self._large_reads()) == expected
        middle = len(self.content) // 2
        assert self.log.offset_for_timestamp(START_MS + middle) == (START_MS + middle, middle, 0)

    def _large_reads(self) -> Iterator[bytes]:
        for segment in self.log.segments():
            slices = self.log.reader.read(
                segment.base, max_bytes=SETTINGS.segment_bytes, upto_offset=self.log.end_offset
            )
            for each in slices:
                yield os.pread(each.file.fd, each.length, each.position)
                each.file.release()

    def reopen(self, *, clean: bool) -> None:
        point = read_offsets(str(self.root / RECOVERY_POINTS)).get(PARTITION, 0)
        self.log = open_log(self.root, settings=SETTINGS, clean=clean, recovery_point=point)
        assert self.log.cuts == ()


def test_appends_and_rolls_on_a_full_disk_lose_nothing_acknowledged(small_disk: Path) -> None:
    filler = small_disk / "filler"
    with Workload(small_disk) as work:
        for spare in (3 << 20, 1000, 0):
            fill(filler)
            os.truncate(filler, max(0, os.path.getsize(filler) - spare))
            work.append_until_refused()
            work.append_until_refused()
            work.check()
            os.truncate(filler, os.path.getsize(filler) // 2)
            for _ in range(2000):
                work.append()
        os.unlink(filler)
        work.check()
        work.log.close(clean=False)
        work.reopen(clean=False)
        work.check()


def test_indexes_that_a_full_disk_refuses_wait_for_space_and_the_log_is_durable(small_disk: Path) -> None:
    filler = small_disk / "filler"
    with Workload(small_disk) as work:
        while len(work.log.segments()) < 3:
            work.append()
        fill(filler)
        work.log.flush()
        # The log itself is durable; its indexes wait for space.
        assert work.log.recovery_point == work.log.end_offset
        names = os.listdir(work.log.directory)
        assert not [name for name in names if name.endswith((".timeindex", ".tmp"))]
        work.check()
        with pytest.raises(StorageError, match="indexes could not be written"):
            work.log.close(clean=True)
        work.reopen(clean=False)
        work.check()
        os.unlink(filler)
        work.log.flush()
        assert len([name for name in os.listdir(work.log.directory) if name.endswith(".index")]) == 2
        work.log.close(clean=True)
        work.reopen(clean=True)
        work.check()


def test_a_checkpoint_refused_by_a_full_disk_leaves_the_old_one(small_disk: Path) -> None:
    files, filler, path = OsFiles(), small_disk / "filler", str(small_disk / RECOVERY_POINTS)
    write_offsets(files, path, {PARTITION: 7})
    fill(filler)
    with pytest.raises(StorageError, match="cannot write"):
        write_offsets(files, path, {PARTITION: 8})
    assert read_offsets(path) == {PARTITION: 7}
    assert sorted(os.listdir(small_disk)) == ["filler", RECOVERY_POINTS]
    os.unlink(filler)
    write_offsets(files, path, {PARTITION: 8})
    assert read_offsets(path) == {PARTITION: 8}


def test_truncation_eviction_and_restart_need_no_space(small_disk: Path) -> None:
    filler = small_disk / "filler"
    with Workload(small_disk) as work:
        while len(work.log.segments()) < 4:
            work.append()
        work.log.flush()
        write_offsets(OsFiles(), str(small_disk / RECOVERY_POINTS), {PARTITION: work.log.recovery_point})
        work.log.close(clean=True)
        write_clean_shutdown_marker(OsFiles(), str(small_disk))
        fill(filler)
        clean = take_clean_shutdown_marker(OsFiles(), str(small_disk))
        work.reopen(clean=clean)
        assert clean
        work.check()
        keep = work.log.segments()[2].base + 5
        work.log.truncate_to(keep)
        del work.content[keep:]
        work.check()
        evict_below(work.log, work.log.segments()[1].base)
        # Eviction made room.
        work.append()
        start = work.log.local_start_offset
        assert start == work.log.segments()[0].base > 0
        assert read_all(work.log, len(work.content) - 3) == b"".join(work.content[-3:])


def test_a_log_that_a_full_disk_refuses_is_created_once_space_is_free(small_disk: Path) -> None:
    fill(small_disk / "filler")
    with pytest.raises(StorageError, match="free space"):
        open_log(small_disk)
    os.unlink(small_disk / "filler")
    with Workload(small_disk) as work:
        work.append()
        work.check()
