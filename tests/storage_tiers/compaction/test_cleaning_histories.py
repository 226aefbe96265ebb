"""Random histories of a compacted log beside a dictionary: a key's newest committed value is never lost and never rises again,
whatever is cleaned, rolled, aborted, reopened or truncated in between."""

from __future__ import annotations

import random
import shutil
import tempfile

import pytest

from storage_tiers.hot.log import HotLog
from storage_tiers.hot.settings import LogSettings
from storage_tiers.records.batch import headers
from storage_tiers.records.builder import ControlKind
from storage_tiers.records.codecs import Codec
from tests.storage_tiers.compaction.support import batch, clean, closed, records, table, write
from tests.storage_tiers.hot.support import START_MS, marker, open_log, read_all

SETTINGS = LogSettings(segment_bytes=1500, index_interval_bytes=200)
KEYS = "abcdefgh"


class Life:
    """`told` is every committed record by offset, None for a tombstone."""

    def __init__(self, seed: int, directory: str) -> None:
        self.random = random.Random(seed)
        self.directory = directory
        self.log = self._open(clean=True, recovery_point=0)
        self.told: dict[int, tuple[str, str | None]] = {}
        self.open: dict[int, list[tuple[int, tuple[str, str | None]]]] = {}
        self.sequences = {7: 0, 8: 0}
        self.now_ms = START_MS
        self.cleaned = 0
        self.count = 0

    def _open(self, *, clean: bool, recovery_point: int) -> HotLog:
        return open_log(self.directory, settings=SETTINGS, clean=clean, recovery_point=recovery_point)

    def rows(self) -> list[tuple[str, str | None]]:
        made = []
        for _ in range(self.random.randint(1, 4)):
            self.count += 1
            made.append((self.random.choice(KEYS), self.random.choice((None, f"{self.count}", f"{self.count}" * 9))))
        return made

    def plain(self) -> None:
        rows, base = self.rows(), self.log.end_offset
        write(self.log, batch(*rows, codec=self.random.choice(list(Codec))))
        self.told.update((base + index, row) for index, row in enumerate(rows))

    def transactional(self) -> None:
        producer, rows, base = self.random.choice((7, 8)), self.rows(), self.log.end_offset
        write(self.log, batch(*rows, producer=(producer, 0, self.sequences[producer]), transactional=True))
        self.sequences[producer] += len(rows)
        self.open.setdefault(producer, []).extend((base + index, row) for index, row in enumerate(rows))

    def end(self) -> None:
        for producer in list(self.open):
            kind = self.random.choice(list(ControlKind))
            write(self.log, marker(kind, producer))
            if kind is ControlKind.COMMIT:
                self.told.update(self.open[producer])
            del self.open[producer]

    def clean(self) -> None:
        self.end()
        closed(self.log)
        if self.log.segment_count == 1:
            return
        self.now_ms += self.random.choice((1, 500, 5000))
        base = self.log.local_start_offset
        self.cleaned = clean(
            self.log,
            dirty_start=self.random.choice((base, self.cleaned)),
            now_ms=self.now_ms,
            delete_retention_ms=1000,
            drops_below=self.random.choice((0, 1 << 62, 1 << 62, 1 << 62, 1 << 62)),
            fences=[self.random.randint(0, self.log.end_offset)],
            most_keys=self.random.choice((4, 6, 100)),
        )

    def reopen(self) -> None:
        is_clean = self.random.random() < 0.5
        self.log.close(clean=is_clean)
        self.log = self._open(clean=is_clean, recovery_point=self.log.recovery_point)

    def newest(self) -> dict[bytes, bytes]:
        found: dict[str, str | None] = {}
        for offset in sorted(self.told):
            found.update([self.told[offset]])
        return {key.encode(): value.encode() for key, value in found.items() if value is not None}

    def check(self) -> None:
        self.end()
        assert table(self.log) == self.newest()
        aborted = self.log.reader.aborted_transactions(0, self.log.end_offset)
        for record in records(self.log, aborted=aborted):
            assert record.key is not None
            value = None if record.value is None else record.value.decode()
            assert self.told[record.offset] == (record.key.decode(), value)
        ends = [header.last_offset for _, header in headers(memoryview(read_all(self.log)))]
        assert ends == sorted(set(ends))


@pytest.mark.parametrize("seed", range(40))
def test_a_log_says_what_a_dictionary_says(seed: int) -> None:
    directory = tempfile.mkdtemp()
    try:
        life = Life(seed, directory)
        steps = [life.plain] * 6 + [life.transactional] * 4 + [life.end] * 2 + [life.clean] * 3 + [life.reopen]
        for _ in range(60):
            life.random.choice(steps)()
            life.check()
    finally:
        shutil.rmtree(directory)
