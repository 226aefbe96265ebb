"""A log whose descriptors or disk space run out at times: each step either succeeds or is refused, and a refused step
succeeds later on the same log. Only a failed fsync is final.

The steps are those of a broker: append, roll, flush in two halves, raise log start, evict, truncate, read, stop and start.
A plain list of the acknowledged batches gives the expected reads.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from storage_tiers.errors import StorageError
from storage_tiers.files import Buffer, OsFiles
from storage_tiers.hot.log import HotLog
from storage_tiers.hot.settings import LogSettings
from storage_tiers.types import FileSlice
from tests.storage_tiers.hot.support import START_MS, append, batch_of, open_log, placed, take

SETTINGS = LogSettings(segment_bytes=700, index_interval_bytes=0)
SEED = int(os.environ.get("TIDELOG_FAULT_SEED", "20240601"))


class ScarceFiles(OsFiles):
    """`no_descriptor` refuses every open; `no_space` refuses to create or extend a file."""

    def __init__(self) -> None:
        self.no_descriptor = self.no_space = False
        self.refused = 0

    def _descriptor(self) -> None:
        if self.no_descriptor:
            self.refused += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def _space(self) -> None:
        if self.no_space:
            self.refused += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, truncate: bool = False) -> int:
        self._descriptor()
        if create and not os.path.exists(path):
            self._space()
        return super().open(path, create=create, exclusive=exclusive, truncate=truncate)

    def fsync_dir(self, path: str) -> None:
        self._descriptor()
        super().fsync_dir(path)

    def pwrite(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        self._space()
        return super().pwrite(fd, buffers, position)


class Sim:
    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.random = random.Random(seed)
        self.files = ScarceFiles()
        self.kept: list[bytes] = []
        self.log_start = 0
        self.epoch = 0
        self.done = 0
        self.log: HotLog = open_log(root, settings=SETTINGS, files=self.files)

    def append(self) -> None:
        batch = batch_of(1, value=b"%06d" % len(self.kept) * 10, timestamps=[START_MS + len(self.kept)])
        assert append(self.log, batch, epoch=self.epoch) == len(self.kept)
        self.kept.append(placed(batch, len(self.kept), self.epoch))

    def roll(self) -> None:
        self.log.roll()

    def flush(self, *, appending: bool = True) -> None:
        """Flushes in two halves, with a possible append between them."""
        targets = self.log.begin_flush()
        try:
            if appending and self.random.random() < 0.5:
                self.append()
            targets.sync()
        except OSError as error:
            raise StorageError(str(error)) from error
        finally:
            self.log.finish_flush(targets)

    def raise_log_start(self) -> None:
        self.log_start = self.random.randint(self.log_start, len(self.kept))
        self.log.raise_log_start(self.log_start)

    def evict(self) -> None:
        while (eviction := self.log.evict_oldest(self.log_start)) is not None:
            eviction.sync()
            eviction.finish()
            eviction.free()

    def truncate(self) -> None:
        if self.random.random() < 0.2 and len(self.kept) > self.log.local_start_offset:
            offset = max(self.random.randint(len(self.kept) - 5, len(self.kept)), self.log.local_start_offset + 1)
            if offset > self.log_start:
                self.log.truncate_to(offset)
                del self.kept[self.log.end_offset :]
                self.epoch += 1

    def read(self) -> None:
        offset = self.log.local_start_offset
        while offset < len(self.kept):
            slices: list[FileSlice] = self.log.reader.read(offset, max_bytes=300, upto_offset=len(self.kept))
            data = take(slices)
            assert data.startswith(self.kept[offset])
            offset += 1

    def restart(self) -> None:
        """A clean stop, which may be refused, and a start with resources available."""
        if self.random.random() < 0.2:
            point = self.log.recovery_point
            try:
                self.log.close(clean=True)
                clean = True
            except StorageError:
                clean = False
            self.relax()
            self.log = open_log(
                self.root,
                settings=SETTINGS,
                files=self.files,
                clean=clean,
                recovery_point=point,
                log_start_offset=self.log_start,
            )
            assert self.log.cuts == ()

    def relax(self) -> None:
        self.files.no_descriptor = self.files.no_space = False

    def run(self, steps: int) -> None:
        moves = [self.append, self.roll, self.flush, self.raise_log_start, self.evict]
        moves += [self.truncate, self.read, self.restart]
        for _ in range(steps):
            self.files.no_descriptor = self.random.random() < 0.3
            self.files.no_space = self.random.random() < 0.3
            try:
                self.random.choices(moves, weights=(12, 2, 4, 1, 3, 1, 3, 1))[0]()
                self.done += 1
            except StorageError as error:
                assert self.files.no_descriptor or self.files.no_space, error

    def sound(self) -> None:
        """Asserts that everything refused before now succeeds without a restart."""
        self.relax()
        assert self.log.end_offset == len(self.kept)
        self.append()
        self.flush(appending=False)
        assert self.log.recovery_point == len(self.kept)
        self.evict()
        self.read()
        assert not [name for name in os.listdir(self.log.directory) if name.endswith(".tmp")]


@pytest.mark.parametrize("number", range(12))
def test_a_transient_refusal_is_retried(tmp_path: Path, number: int) -> None:
    print(f"TIDELOG_FAULT_SEED={SEED}")
    sim = Sim(tmp_path, SEED + number)
    sim.run(250)
    assert sim.files.refused > 20 and sim.done > 100
    sim.sound()
    sim.log.close(clean=False)
    sim.log = open_log(tmp_path, settings=SETTINGS, log_start_offset=sim.log_start)
    assert sim.log.cuts == ()
    sim.read()
    sim.log.close(clean=False)


def test_a_segment_that_left_the_log_is_no_longer_flushed(tmp_path: Path) -> None:
    """The segment's indexes could not be written because the disk was full; then the segment expired."""
    sim = Sim(tmp_path, 1)
    for _ in range(10):
        sim.append()
    sim.files.no_space = True
    sim.log.flush()
    sim.log.raise_log_start(10)
    sim.evict()
    sim.log_start = 10
    sim.evict()
    sim.files.no_space = False
    sim.append()
    sim.flush(appending=False)
    assert sim.log.recovery_point == 11
