"""The swap of cleaned segments under power loss, after every operation on the disk: a start finds the old segments or the
new one, whole, and the newest value of each key in any case.

In a log with transactions, the transaction indexes are swapped, too: they name the aborted transactions whose markers stay, and
no others.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest

from storage_tiers.errors import LogError
from storage_tiers.files import Files
from storage_tiers.hot.log import HotLog
from storage_tiers.hot.settings import LogSettings
from storage_tiers.hot.swap import RewrittenSegment
from storage_tiers.records.batch import headers
from storage_tiers.records.builder import ControlKind
from storage_tiers.records.decoder import decode_control
from tests.faults.power_loss import RecordingFiles, cuts, materialise, sites
from tests.storage_tiers.compaction import support
from tests.storage_tiers.compaction.support import batch, clean, closed, table, write
from tests.storage_tiers.hot.support import PARTITION, START_MS, marker, open_log, read_all

SETTINGS = LogSettings(segment_bytes=2000, index_interval_bytes=100)
SEED = int(os.environ.get("TIDELOG_FAULT_SEED", "20240601"))
KEYS = 5
ABORTED, COMMITTED = 7, 8


class Promise(NamedTuple):
    """The state that a start must find: at least the log's end, the newest value of each key, and the newest timestamp (ms)."""

    end: int
    table: Mapping[bytes, bytes]
    newest: int


def promised(log: HotLog) -> Promise:
    newest = log.max_timestamp()
    assert newest is not None
    return Promise(log.end_offset, dict(table(log)), newest.timestamp)


def record(number: int, *, producer: int | None = None, value: str | None = None) -> bytes:
    sequences = None if producer is None else (producer, 0, number)
    pair = (f"k{number % KEYS}", value or f"{number}")
    return batch(pair, timestamps=[START_MS + number], producer=sequences, transactional=producer is not None)


def plain(root: Path) -> RecordingFiles:
    """A log whose first part is durable and is cleaned twice; after each cleaning segments begin where removed ones did."""
    files = RecordingFiles(str(root))
    log = open_log(root, settings=SETTINGS, files=files)
    for number in range(0, 12, 2):
        write(log, record(number), record(number + 1))
        closed(log)
    files.note(promised(log))
    clean(log, files=files)
    files.note(promised(log))
    files.note(None)
    log.truncate_to(8)
    for number in range(log.end_offset, 14):
        write(log, record(number), epoch=2)
        closed(log)
    files.note(promised(log))
    clean(log, files=files, fences=(9,))
    log.close(clean=False)
    return files


def write_transactions(log: HotLog) -> None:
    """Four closed segments; each has an aborted transaction and a committed one of the same key."""
    for number in range(4):
        write(log, record(number, producer=ABORTED, value="aborted"), marker(ControlKind.ABORT, ABORTED))
        write(log, record(number, producer=COMMITTED), marker(ControlKind.COMMIT, COMMITTED))
        write(log, record(number % 2, value=f"later {number}"))
        closed(log)
    write(log, batch(("last", ""), producer=(ABORTED, 0, 4)))  # else the last aborted batch stays, emptied
    log.flush()


def clean_transactions(log: HotLog, files: Files) -> None:
    """Cleans twice. The first cleaning leaves all markers of aborted transactions; the second finds that their data are
    gone."""
    clean(log, files=files, fences=(10,))
    clean(log, files=files, delete_retention_ms=1000)


def transactional(root: Path) -> RecordingFiles:
    files = RecordingFiles(str(root))
    log = open_log(root, settings=SETTINGS, files=files)
    write_transactions(log)
    files.note(promised(log))
    clean_transactions(log, files)
    log.close(clean=False)
    return files


def aborted(root: Path) -> RecordingFiles:
    """Records swaps that are prepared, but end before the new files have their names."""
    files = RecordingFiles(str(root))
    log = open_log(root, settings=SETTINGS, files=files)
    write_transactions(log)
    files.note(promised(log))

    def given_up(log: HotLog, new: RewrittenSegment) -> bool:
        swap = log.swapping.begin(new)
        assert swap is not None
        swap.prepare()
        swap.end()
        return True

    with mock.patch.object(support, "swap_in", given_up):
        clean(log, files=files, fences=(10,))
    log.close(clean=False)
    return files


def first_violation(files: RecordingFiles, place: Path, *, limit: int, drop: Collection[str] = ()) -> str | None:
    for count, promise, trees in cuts(files.operations, drop=drop, seed=SEED, limit=limit):
        if promise is None:
            continue  # nothing is promised before the first flush, or while the log is cut
        for tree in trees:
            wrong = check(Path(materialise(tree, str(place))), promise)
            if wrong is not None:
                return f"after operation {count}, {files.operations[count - 1]!r:.100}: {wrong}"
    return None


def check(root: Path, promise: Promise) -> str | None:
    try:
        log = open_log(root, settings=SETTINGS, recovery_point=promise.end)
        if log.end_offset < promise.end:
            return f"the log ends at {log.end_offset} of {promise.end}: {log.cuts}"
        found, newest = table(log), log.max_timestamp()
        indexed, markers = _indexed(log), _abort_markers(log)
        log.close(clean=False)
    except LogError as error:
        return str(error)
    if found != promise.table:
        return f"{found} where {promise.table} was written"
    if newest is None or newest.timestamp != promise.newest:
        return f"{newest} is said to be the newest record, not {promise.newest}"
    if indexed != markers:
        return f"the transaction indexes name the markers {indexed}, and the log has {markers}"
    left = [name for name in os.listdir(root / str(PARTITION)) if name.endswith((".cleaned", ".swap"))]
    return f"{left} were left" if left else None


def _indexed(log: HotLog) -> set[int]:
    """The offsets of the markers that the transaction indexes name."""
    return {each.last_offset for each in log.reader.aborted_transactions(log.local_start_offset, log.end_offset)}


def _abort_markers(log: HotLog) -> set[int]:
    """The abort markers of transactions whose data the last cleaning found."""
    content, found = memoryview(read_all(log)), set[int]()
    for at, header in headers(content):
        if header.control and header.count > 0 and not header.delete_horizon:
            decoded = decode_control(content[at : at + header.size])
            assert decoded is not None
            if decoded.kind is ControlKind.ABORT:
                found.add(header.base_offset)
    return found


LOGS = {"plain": plain, "transactional": transactional}


@pytest.fixture(scope="module", params=LOGS)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RecordingFiles:
    return LOGS[request.param](Path(os.path.realpath(tmp_path_factory.mktemp("recorded"))))


@pytest.mark.parametrize("limit", [3, pytest.param(15, marks=[pytest.mark.faults, pytest.mark.timeout(600)])])
def test_no_power_loss_leaves_a_mixture_of_old_and_new_segments(
    files: RecordingFiles, tmp_path: Path, limit: int
) -> None:
    assert first_violation(files, tmp_path / "disk", limit=limit) is None


@pytest.mark.parametrize("limit", [3, pytest.param(15, marks=[pytest.mark.faults, pytest.mark.timeout(600)])])
def test_a_swap_that_was_aborted_does_not_come_back_in_parts(tmp_path: Path, limit: int) -> None:
    recorded = Path(os.path.realpath(tmp_path)) / "recorded"
    recorded.mkdir()
    files = aborted(recorded)
    assert first_violation(files, tmp_path / "disk", limit=limit) is None


@pytest.mark.faults
def test_every_fsync_of_a_swap_is_needed(files: RecordingFiles, tmp_path: Path) -> None:
    of_swaps = [site for site in sites(files.operations) if "swap.py" in site or "rewriter.py" in site]
    assert len(of_swaps) >= 4
    needless = [site for site in of_swaps if first_violation(files, tmp_path / "disk", limit=15, drop=(site,)) is None]
    assert needless == []


def test_the_recorded_log_swaps_transaction_indexes(tmp_path: Path) -> None:
    log = open_log(tmp_path, settings=SETTINGS)
    write_transactions(log)
    before = _indexed(log)
    clean(log, fences=(10,))
    assert _indexed(log) == before == {1, 6, 11, 16}
    assert log.segment_count == 3
    clean(log, delete_retention_ms=1000)
    assert (_indexed(log), _abort_markers(log)) == (set(), set())
