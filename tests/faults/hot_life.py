"""The life of a hot log under faults: a workload, and a plain model of its records and of what must survive.

`workload` covers everything that changes files: appends, rolls, flushes, checkpoints, truncations, eviction, clean and
unclean stops, a discarded log. `workload_after_damage` appends where recovery has cut the log.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from storage_tiers.hot.batch_write import BatchWrite
from storage_tiers.hot.checkpoints import (
    LOG_STARTS,
    RECOVERY_POINTS,
    read_offsets,
    take_clean_shutdown_marker,
    write_clean_shutdown_marker,
    write_offsets,
)
from storage_tiers.hot.data_dir import DataDirectory
from storage_tiers.hot.leader_epochs import LeaderEpochs
from storage_tiers.hot.log import HotLog
from storage_tiers.hot.producer_state import ProducerStateManager
from storage_tiers.hot.scan import end_transaction
from storage_tiers.hot.settings import LogSettings
from storage_tiers.records.batch import read_header
from storage_tiers.records.builder import ControlKind
from storage_tiers.records.decoder import decode_batch
from storage_tiers.types import AbortedTransaction, EpochEntry
from tests.faults.power_loss import Operation, RecordingFiles
from tests.storage_tiers.hot.support import (
    PARTITION,
    START_MS,
    append,
    batch_of,
    evict_below,
    marker,
    open_log,
    placed,
    read_all,
)
from tests.support.clock import SeededRng

SETTINGS = LogSettings(segment_bytes=900, index_interval_bytes=250)


# --- the model --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Placed:
    offset: int
    end: int
    content: bytes


@dataclass(frozen=True)
class Lineage:
    """One history of the log: its content if nothing of it is lost. A truncation begins another lineage."""

    batches: tuple[Placed, ...] = ()
    start: int = 0
    start_epochs: tuple[EpochEntry, ...] = ()
    start_state: bytes = ProducerStateManager().state()

    def with_batch(self, batch: bytes, offset: int, epoch: int) -> Lineage:
        content = placed(batch, offset, epoch)
        return replace(self, batches=(*self.batches, Placed(offset, read_header(content).next_offset, content)))

    def truncated(self, offset: int) -> Lineage:
        return replace(self, batches=tuple(each for each in self.batches if each.end <= offset))

    @cached_property
    def timestamps(self) -> list[tuple[int, int]]:
        """(offset, timestamp) of every record, markers among them."""
        found = []
        for each in self.batches:
            header = read_header(each.content)
            if header.control:
                found.append((each.offset, header.max_timestamp))
            else:
                found += [(record.offset, record.timestamp) for record in decode_batch(each.content)]
        return found

    @cached_property
    def _producers(self) -> dict[int, tuple[bytes, list[AbortedTransaction]]]:
        return {}

    def producers(self, end: int) -> tuple[bytes, list[AbortedTransaction]]:
        """The producer state at `end`, and the aborted transactions before it."""
        if end not in self._producers:
            self._producers[end] = self._replay(end)
        return self._producers[end]

    def _replay(self, end: int) -> tuple[bytes, list[AbortedTransaction]]:
        state, aborted = ProducerStateManager.restore(self.start_state, now_ms=0), []
        for each in self.batches:
            header = read_header(each.content)
            if each.end > end or header.producer_id < 0:
                continue
            if header.control:
                ended = end_transaction(memoryview(each.content), each.offset, state, now_ms=0)
                if ended is not None and ended.aborted:
                    aborted.append(AbortedTransaction(*ended[:4]))
            else:
                state.update(header, each.offset, now_ms=0)
        return state.state(), aborted

    def epochs(self, end: int) -> tuple[EpochEntry, ...]:
        history = LeaderEpochs(self.start_epochs)
        for each in self.batches:
            if each.end <= end:
                history.assign(read_header(each.content).leader_epoch, each.offset)
        return history.below(end)


@dataclass(frozen=True)
class Promise:
    """The state that must hold from a moment on. `flushed`: the log reaches at least this offset, in one of the lineages of
    `within`.

    `evicted`: everything below this offset may be gone. `exists`: the partition's directory is durable. `discarded`: the log
    was given up for another one; what is left of it is contiguous, and its owner requires no more of it.
    """

    lineages: tuple[Lineage, ...]
    within: tuple[Lineage, ...]
    flushed: int = 0
    evicted: int = 0
    log_start: int = 0
    exists: bool = False
    discarded: bool = False
    identity: str | None = None
    recovery_point: int = 0


class Run:
    """The workload, and its promise at each step."""

    def __init__(self, root: str) -> None:
        self.files = RecordingFiles(root)
        self.root = root
        self.lineage = Lineage()
        self.promise = Promise((self.lineage,), (self.lineage,))
        self.epoch = 1
        self.sequences: dict[int, Iterator[int]] = {}
        self.random = random.Random(5)
        self.log: HotLog

    # steps ------------------------------------------------------------------------------------------------------------
    def start(self, *, clean: bool = False) -> None:
        self.log = open_log(
            self.root,
            settings=SETTINGS,
            files=self.files,
            clean=clean,
            recovery_point=read_offsets(os.path.join(self.root, RECOVERY_POINTS)).get(PARTITION, 0),
            log_start_offset=read_offsets(os.path.join(self.root, LOG_STARTS)).get(PARTITION, 0),
        )
        self._promise(exists=True)

    def append(self, batch: bytes) -> None:
        base = self.log.end_offset
        self.lineage = self.lineage.with_batch(batch, base, self.epoch)
        # The promise precedes the write: any part of the batch may be there from its first byte on.
        lineages = (*self.promise.lineages[:-1], self.lineage)
        within = (*self.promise.within[:-1], self.lineage)
        self._promise(lineages=lineages, within=within)
        if base % 3:
            assert append(self.log, batch, epoch=self.epoch) == base
            return
        view, header = memoryview(batch), read_header(batch)
        write = self.log.appender.begin_write(view, header, now_ms=START_MS)
        write.run()
        if base % 4 == 0:
            write = self._interrupted(write, batch)
        assert self.log.appender.finish_write(write, view, header, leader_epoch=self.epoch, now_ms=START_MS) == base

    def _interrupted(self, write: BatchWrite, batch: bytes) -> BatchWrite:
        """Abandons the write of a thread, sometimes by a roll, and writes the batch again."""
        # No roll after `begin_anew`: names that no flush has made durable may be lost in any order here.
        if not self.promise.discarded and self.random.randrange(2):
            self.log.roll()
        else:
            self.log.appender.stop_write()
        assert not self.log.appender.is_writing(write)
        again = self.log.appender.begin_write(memoryview(batch), read_header(batch), now_ms=START_MS)
        again.run()
        return again

    def append_some(self, count: int) -> None:
        for _ in range(count):
            stamps = [START_MS + self.random.randrange(100_000) for _ in range(self.random.choice((1, 2)))]
            kind = self.random.randrange(5)
            if kind < 2:
                self.append(batch_of(len(stamps), value=b"v" * self.random.randrange(60), timestamps=stamps))
            else:
                producer = self.random.choice((71, 72))
                sequence = self._sequence(producer)
                self.append(batch_of(1, timestamps=stamps[:1], producer=(producer, 0, sequence)))

    def transaction(self, producer: int, kind: ControlKind) -> None:
        self.append(batch_of(1, producer=(producer, 0, self._sequence(producer)), transactional=True))
        self.append_some(1)
        self.append(marker(kind, producer, timestamp=START_MS + 50))

    def flush(self, *, checkpoint: bool = True) -> None:
        targets = self.log.begin_flush()
        targets.sync()
        self.log.finish_flush(targets)
        assert self.log.recovery_point == self.log.end_offset
        self._flushed()
        if checkpoint:
            self.checkpoint()

    def checkpoint(self) -> None:
        point = self.log.recovery_point
        write_offsets(self.files, os.path.join(self.root, RECOVERY_POINTS), {PARTITION: point})
        self._promise(recovery_point=point)

    def truncate(self, offset: int) -> None:
        self.lineage = self.lineage.truncated(offset)
        lineages = (*self.promise.lineages, self.lineage)
        flushed = min(self.promise.flushed, self._end())
        self._promise(lineages=lineages, within=lineages, flushed=flushed, recovery_point=0)
        self.log.truncate_to(offset)
        self.epoch += 1

    def raise_log_start(self, offset: int) -> None:
        self.log.raise_log_start(offset)
        write_offsets(self.files, os.path.join(self.root, LOG_STARTS), {PARTITION: offset})
        self._promise(log_start=offset)

    def evict(self, offset: int) -> None:
        self._promise(evicted=offset)
        evict_below(self.log, offset)

    def stop(self, *, clean: bool) -> None:
        self.log.close(clean=clean)
        if clean:
            self._flushed()
            self.checkpoint()
            write_clean_shutdown_marker(self.files, self.root)

    def restart(self, *, clean: bool) -> None:
        self.stop(clean=clean)
        assert take_clean_shutdown_marker(self.files, self.root) == clean
        self.start(clean=clean)
        assert read_all(self.log) == b"".join(
            each.content for each in self.lineage.batches if each.offset >= self.log.local_start_offset
        )

    def begin_anew(self, offset: int) -> None:
        state = self.lineage.producers(self._end())[0]
        epochs = (EpochEntry(1, 0), EpochEntry(self.epoch + 5, offset - 20))
        self.epoch += 6
        self.lineage = Lineage((), offset, epochs, state)
        lineages = (*self.promise.lineages, self.lineage)
        self._promise(lineages=lineages, within=lineages, flushed=0, recovery_point=0, discarded=True)
        self.log.truncate_fully_and_start_at(offset, epochs=epochs, producer_state=state)

    # ------------------------------------------------------------------------------------------------------------------
    def _sequence(self, producer: int) -> int:
        return next(self.sequences.setdefault(producer, itertools.count()))

    def _end(self) -> int:
        return self.lineage.batches[-1].end if self.lineage.batches else self.lineage.start

    def _flushed(self) -> None:
        self._promise(within=(self.lineage,), flushed=self._end())

    def _promise(self, **changes: object) -> None:
        self.promise = replace(self.promise, **changes)  # type: ignore[arg-type]
        self.files.note(self.promise)

    def identify(self) -> None:
        directory = DataDirectory.open(self.root, files=self.files, rng=SeededRng(3))
        self._promise(identity=directory.establish("cluster", 1).directory_id)
        directory.close()


def workload(root: str) -> list[Operation]:
    run = Run(root)
    run.identify()
    run.start()
    run.append(batch_of(1, producer=(70, 3, 9)))
    run.append_some(7)
    run.transaction(80, ControlKind.ABORT)
    run.flush(checkpoint=False)
    run.append_some(8)
    run.flush()
    run.transaction(81, ControlKind.COMMIT)
    run.append_some(14)
    run.epoch = 2
    run.append_some(8)
    run.flush()
    run.truncate(run.log.end_offset - 17)
    run.append_some(12)
    run.flush()
    run.epoch += 1
    run.append_some(3)
    run.log.roll()
    run.append_some(2)
    middle = run.log.segments()[3].base
    run.raise_log_start(middle)
    run.evict(middle)
    run.append_some(2)
    run.restart(clean=True)
    run.flush()
    run.log.roll()
    run.append_some(3)
    run.truncate(run.log.end_offset - 2)
    run.append_some(9)
    run.restart(clean=True)
    run.append_some(4)
    run.truncate(run.log.end_offset - 6)
    run.append_some(4)
    run.transaction(82, ControlKind.ABORT)
    run.append_some(3)
    run.flush(checkpoint=False)
    run.restart(clean=False)
    run.append_some(9)
    run.flush()
    run.begin_anew(run.log.end_offset + 100)
    run.append_some(8)
    run.flush()
    run.append_some(4)
    run.restart(clean=True)
    run.append_some(5)
    run.stop(clean=True)
    return run.files.operations


def workload_after_damage(root: str) -> list[Operation]:
    """Recovers a log with a bad batch before sound ones, and overwrites them with batches of the same size."""
    log, lineage = open_log(root, settings=SETTINGS), Lineage()
    for _ in range(5):
        batch = batch_of(1, value=b"old")
        lineage = lineage.with_batch(batch, append(log, batch, epoch=1), 1)
    path = log.segments()[0].path
    log.close(clean=False)
    with open(path, "r+b") as file:
        file.seek(2 * len(batch) + 70)
        file.write(b"!!")
    run = Run(root)
    run.lineage, run.epoch = lineage.truncated(2), 2
    run.promise = Promise((run.lineage,), (run.lineage,), flushed=2)
    run.start()
    for number in range(4):
        run.append(batch_of(1, value=b"%03d" % number))
    run.flush()
    run.stop(clean=False)
    return run.files.operations
