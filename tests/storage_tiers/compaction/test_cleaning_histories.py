"""Random histories of a compacted log, compared with a dictionary: a key's newest committed value is never lost, and an older
one never returns, whatever is cleaned, abandoned half-way, aborted, left open or reopened in between."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable

import pytest

from storage_tiers.compaction.batches import CleaningRules
from storage_tiers.compaction.clean_point import CleanPoint, clean_point, cleaned_to
from storage_tiers.compaction.cleaning_inputs import cleaning_of, last_records
from storage_tiers.compaction.rewriter import Rewriter, offset_map
from storage_tiers.files import OsFiles
from storage_tiers.hot.log import HotLog
from storage_tiers.hot.settings import LogSettings
from storage_tiers.records.batch import headers
from storage_tiers.records.builder import ControlKind
from storage_tiers.records.codecs import Codec
from storage_tiers.records.decoder import decode
from tests.storage_tiers.compaction.support import KEY, batch, closed, swap_in, write
from tests.storage_tiers.hot.support import START_MS, marker, open_log, read_all

SETTINGS = LogSettings(segment_bytes=1500, index_interval_bytes=200)
KEYS = "abcdefgh"


PRODUCERS = (7, 8, 9)
Row = tuple[str, str | None]


class Life:
    """`told` is every committed record by offset, None for a tombstone; `open` the records of each producer's transaction."""

    def __init__(self, seed: int, directory: str) -> None:
        self.random = random.Random(seed)
        self.directory = directory
        self.log = self._open(clean=True, recovery_point=0)
        self.told: dict[int, Row] = {}
        self.open: dict[int, list[tuple[int, Row]]] = {}
        self.sequences = dict.fromkeys(PRODUCERS, 0)
        self.now_ms = START_MS
        self.point: CleanPoint | None = None
        self.count = 0

    def _open(self, *, clean: bool, recovery_point: int) -> HotLog:
        return open_log(self.directory, settings=SETTINGS, clean=clean, recovery_point=recovery_point)

    # --- steps --------------------------------------------------------------------------------------------------------
    def rows(self) -> list[Row]:
        made = []
        for _ in range(self.random.randint(1, 4)):
            self.count += 1
            made.append((self.random.choice(KEYS), self.random.choice((None, f"{self.count}", f"{self.count}" * 9))))
        return made

    def plain(self) -> None:
        rows, base, producer = self.rows(), self.log.end_offset, self.random.choice(PRODUCERS)
        if producer in self.open:
            write(self.log, batch(*rows, codec=self.random.choice(list(Codec))))
        else:
            write(self.log, batch(*rows, producer=(producer, 0, self.sequences[producer])))
            self.sequences[producer] += len(rows)
        self.told.update((base + index, row) for index, row in enumerate(rows))

    def transactional(self) -> None:
        producer, rows, base = self.random.choice(PRODUCERS), self.rows(), self.log.end_offset
        write(self.log, batch(*rows, producer=(producer, 0, self.sequences[producer]), transactional=True))
        self.sequences[producer] += len(rows)
        self.open.setdefault(producer, []).extend((base + index, row) for index, row in enumerate(rows))

    def end(self) -> None:
        if not self.open:
            return
        producer, kind = self.random.choice(list(self.open)), self.random.choice(list(ControlKind))
        write(self.log, marker(kind, producer))
        if kind is ControlKind.COMMIT:
            self.told.update(self.open[producer])
        del self.open[producer]

    def clean(self) -> None:
        """Cleans as the broker does, mostly from the clean point, up to the last stable offset. One in five is given up
        half-way."""
        closed(self.log)
        self.now_ms += self.random.choice((1, 500, 5000))
        segments = self.log.durable_segments()
        end = max((each.end for each in segments if each.end <= self.last_stable), default=0)
        start = self.random.choice((0, *[cleaned_to(self.point, segments, self.log.epoch_at)] * 9))
        begin = cleaning_of(self.log, dirty_start=start, end=end, fences=[self.random.randint(0, self.log.end_offset)])
        if begin is None or (job := begin()).dirty_start >= end:
            return
        rewriter = Rewriter(OsFiles(), job, offset_map(self.random.choice((4, 6, 100)), 1 << 20, 0.5, KEY))
        reached = rewriter.read_keys()
        drops_below, gives_up = self.random.choice((0, *[1 << 62] * 5)), self.random.random() < 0.2
        rules = CleaningRules(
            self.now_ms, 1000, reached - 1, drops_below, last_records(self.log.end.producers.producers.items(), end)
        )
        for new in rewriter.rewrite(rules):
            if new is not None:
                if gives_up and self.random.random() < 0.5:
                    return
                assert swap_in(self.log, new)
        self.point = clean_point(self.log.durable_segments(), reached, self.log.epoch_at)

    def reopen(self) -> None:
        """Reopens the log after a clean stop or a crash; a crash may leave an older recovery point and lose some indexes."""
        is_clean, before = self.random.random() < 0.4, self.state()
        if not is_clean:
            self.log.flush()
        recovery_point = self.log.recovery_point
        self.log.close(clean=is_clean)
        if not is_clean:
            recovery_point = self.random.choice((recovery_point, self.random.randint(0, recovery_point)))
            for name in sorted(os.listdir(self.log.directory)):
                if name.endswith(".index") and self.random.random() < 0.1:
                    os.unlink(os.path.join(self.log.directory, name))
        self.log = self._open(clean=is_clean, recovery_point=recovery_point)
        assert self.log.cuts == ()
        assert self.state() == before

    # --- invariants after each step -----------------------------------------------------------------------------------
    def state(self) -> tuple[int, int | None, dict[int, int]]:
        """The log end offset, the first undecided offset, and the last sequence number of each producer."""
        state = self.log.end.producers
        sequences = {each: entry.batches[-1].last_sequence for each, entry in state.producers.items() if entry.batches}
        return self.log.end_offset, state.first_undecided_offset, sequences

    @property
    def last_stable(self) -> int:
        return min([self.log.end_offset, *(rows[0][0] for rows in self.open.values())])

    def check(self) -> None:
        last_stable = self.last_stable
        assert self.log.end.producers.first_undecided_offset == (last_stable if self.open else None)
        expected: dict[str, str] = {}
        for offset in sorted(self.told):
            if offset < last_stable:
                put(expected, *self.told[offset])
        content, found = read_all(self.log), dict[str, str]()
        for record in decode(content, aborted=tuple(self.log.reader.aborted_transactions(0, last_stable))):
            if record.offset < last_stable:
                assert record.key is not None
                row = (record.key.decode(), None if record.value is None else record.value.decode())
                assert self.told.get(record.offset) == row
                put(found, *row)
        assert found == expected
        ends = [header.last_offset for _, header in headers(memoryview(content))]
        assert ends == sorted(set(ends))


def put(table: dict[str, str], key: str, value: str | None) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


@pytest.mark.parametrize("seed", range(40))
def test_a_cleaned_log_agrees_with_a_dictionary(seed: int) -> None:
    directory = tempfile.mkdtemp()
    try:
        life = Life(seed, directory)
        steps: list[Callable[[], None]] = [*[life.plain] * 6, *[life.transactional] * 5, *[life.end] * 3]
        steps += [life.clean, life.clean, life.clean, life.reopen]
        for _ in range(80):
            life.random.choice(steps)()
            life.check()
    finally:
        shutil.rmtree(directory)
