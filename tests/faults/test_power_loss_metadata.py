"""The metadata log under power loss: a run with restarts, snapshots, a killed process and failing disk calls is cut after
every operation. Whatever may be left must recover to all acknowledged entries, and to whole entries only.

Then every fsync is dropped in turn, and the same check must notice.
"""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from service.metadata import records_pb2 as pb
from service.metadata.frames import Frame, encode
from service.metadata.image import MetadataImage
from service.metadata.log import MetadataLog
from service.metadata.store import DIRECTORY, MetadataStore
from storage_tiers.clock import SystemRng
from storage_tiers.errors import LogError, StorageError
from storage_tiers.files import OsFiles
from tests.faults.power_loss import Operation, RecordingFiles, Tree, cuts, materialise, sites
from tests.service.metadata.records import configured, elected, new_topic

#: Small enough that the run makes several snapshots.
LOG_BYTES = 700


class Promise(NamedTuple):
    """Entries up to history[`least`] are acknowledged. `refused_may_show`: a refused entry may still have bytes on the disk."""

    least: int
    refused_may_show: bool = False


class UnreliableDisk(OsFiles):
    """Refuses the next call of an operation that a named function makes through a recorder."""

    def __init__(self) -> None:
        self.refuse: tuple[str, str] | None = None

    def fsync(self, fd: int) -> None:
        self._maybe_refuse("fsync")
        super().fsync(fd)

    def fsync_dir(self, path: str) -> None:
        self._maybe_refuse("fsync_dir")
        super().fsync_dir(path)

    def _maybe_refuse(self, operation: str) -> None:
        recorder_and_caller = 3
        if self.refuse == (operation, sys._getframe(recorder_and_caller).f_code.co_name):
            self.refuse = None
            raise OSError(errno.EIO, "Input/output error")


class UnreliableRecorder(RecordingFiles):
    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.disk = self._files = UnreliableDisk()


def change(number: int) -> list[pb.MetadataRecord]:
    """An entry of several records, so that half of it would be visible."""
    return [
        *new_topic(f"topic-{number}", number + 1, partitions=3),
        configured(f"topic-{number}", "retention.ms", str(number)),
        elected(number + 1, 2, number),
    ]


@dataclass(slots=True)
class Run:
    """The recorder of a workload, the image after each entry in the log, and the images of refused entries."""

    files: UnreliableRecorder
    history: list[MetadataImage]
    refused: list[MetadataImage]

    def entry(self) -> list[pb.MetadataRecord]:
        return change(len(self.history) + len(self.refused))

    def open(self) -> MetadataLog:
        log = MetadataLog.open(self.files.root, self.files, SystemRng(), log_bytes_per_snapshot=LOG_BYTES)
        if log.image != self.history[-1]:
            self.history.append(log.image)
        self.promise()
        return log

    def promise(self, *, refused_may_show: bool = False) -> None:
        self.files.note(Promise(len(self.history) - 1, refused_may_show))

    async def propose(self, log: MetadataLog) -> None:
        await log.propose(self.entry())
        self.history.append(log.image)
        self.promise()

    def written_by_a_killed_process(self, *, whole: bool) -> None:
        """Writes the bytes of one more entry, or half of them, without an fsync."""
        directory = os.path.join(self.files.root, DIRECTORY)
        newest = max(name for name in os.listdir(directory) if name.endswith(".log"))
        path = os.path.join(directory, newest)
        store, recovered = MetadataStore.open(self.files.root, OsFiles(), log_bytes_per_snapshot=1 << 40)
        store.close()
        frame = encode(
            Frame(recovered.term, recovered.index + 1, pb.MetadataBatch(records=self.entry()).SerializeToString())
        )
        fd = self.files.open(path)
        self.files.pwrite(fd, (frame if whole else frame[: len(frame) // 2],), os.path.getsize(path))
        self.files.close(fd)


async def workload(root: str) -> Run:
    run = Run(UnreliableRecorder(root), [MetadataImage()], [])
    # The files of a first start that was killed after it created its log.
    run.files.mkdir(os.path.join(root, DIRECTORY))
    run.files.close(run.files.open(os.path.join(root, DIRECTORY, f"{1:020}.log"), create=True))

    log = run.open()
    for _ in range(5):
        await run.propose(log)
    await asyncio.gather(*(log.propose(change(100 + number)) for number in range(3)))
    run.history.append(log.image)
    run.promise()

    entry = run.entry()
    run.refused.append(log.image.apply_batch(entry))
    run.promise(refused_may_show=True)
    run.files.disk.refuse = ("fsync", "append")
    with pytest.raises(StorageError):
        await log.propose(entry)
    await log.close()
    run.promise()

    log = run.open()
    run.files.disk.refuse = ("fsync_dir", "_begin_log")
    while run.files.disk.refuse is not None:
        await run.propose(log)
    await run.propose(log)
    await log.close()

    for whole in (True, False):
        run.written_by_a_killed_process(whole=whole)
        log = run.open()
        await run.propose(log)
        await log.close()
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return asyncio.run(workload(os.path.realpath(tmp_path_factory.mktemp("recorded"))))


def problem(run: Run, promise: Promise | None, tree: Tree, root: str) -> str | None:
    """The fault of the tree that this power loss left, or None."""
    materialise(tree, root)
    try:
        store, recovered = MetadataStore.open(root, OsFiles(), log_bytes_per_snapshot=LOG_BYTES)
    except (LogError, OSError) as error:
        return f"does not start: {error}"
    try:
        least = 0 if promise is None else promise.least
        allowed: Sequence[MetadataImage] = run.history[least:]
        if promise is not None and promise.refused_may_show:
            allowed = [*allowed, *run.refused]
        if recovered.image not in allowed:
            return f"recovered {recovered.image}, promised was {run.history[least]}"
        store.append(recovered.term + 1, pb.MetadataBatch(records=change(500)).SerializeToString())
    finally:
        store.close()
    store, again = MetadataStore.open(root, OsFiles(), log_bytes_per_snapshot=LOG_BYTES)
    store.close()
    return None if again.image == recovered.image.apply_batch(change(500)) else "the next entry was lost"


def first_problem(run: Run, root: Path, *, limit: int, drop: Collection[str] = ()) -> str | None:
    operations: Sequence[Operation] = run.files.operations
    for count, promise, trees in cuts(operations, drop=drop, limit=limit):
        for tree in trees:
            found = problem(run, promise, tree, str(root))
            if found is not None:
                return f"after operation {count} of {len(operations)}, {operations[count - 1]!r:.100}: {found}"
    return None


def test_the_run_reaches_the_intended_situations(run: Run) -> None:
    names = [site.split(":")[1] for site in sites(run.files.operations)]
    assert set(names) >= {
        "MetadataStore.open",
        "MetadataStore._read_log",
        "MetadataStore._begin_log",
        "MetadataStore.append",
        "MetadataStore.repair",
    }
    assert len(run.history) >= 12
    assert len(run.refused) == 1


def test_everything_acknowledged_survives_every_power_loss(run: Run, tmp_path: Path) -> None:
    assert first_problem(run, tmp_path / "disk", limit=6) is None


@pytest.mark.faults
def test_everything_acknowledged_survives_every_power_loss_in_many_states(run: Run, tmp_path: Path) -> None:
    assert first_problem(run, tmp_path / "disk", limit=100) is None


def test_no_fsync_may_be_missing(run: Run, tmp_path: Path) -> None:
    needless = [
        site
        for site in sites(run.files.operations)
        if first_problem(run, tmp_path / "disk", limit=12, drop=(site,)) is None
    ]
    assert needless == []
