"""The exchange of cleaned segments under power loss, after every operation on the disk: a start finds the old segments or the
new one, whole, and the newest value of each key in any case."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

import pytest

from storage_tiers.errors import LogError
from storage_tiers.hot.settings import LogSettings
from tests.faults.power_loss import RecordingFiles, cuts, materialise, sites
from tests.storage_tiers.compaction.support import batch, clean, closed, table, write
from tests.storage_tiers.hot.support import PARTITION, START_MS, open_log

SETTINGS = LogSettings(segment_bytes=2000, index_interval_bytes=100)
SEED = int(os.environ.get("TIDELOG_FAULT_SEED", "20240601"))
KEYS = 5


def record(number: int) -> bytes:
    return batch((f"k{number % KEYS}", f"{number}"), timestamps=[START_MS + number])


def recorded(root: Path) -> RecordingFiles:
    """A log whose first part is durable and is cleaned twice; after each cleaning segments begin where removed ones did."""
    files = RecordingFiles(str(root))
    log = open_log(root, settings=SETTINGS, files=files)
    for number in range(0, 12, 2):
        write(log, record(number), record(number + 1))
        closed(log)
    files.note(12)
    clean(log, files=files)
    files.note(12)
    files.note(0)
    log.truncate_to(8)
    for number in range(log.end_offset, 14):
        write(log, record(number), epoch=2)
        closed(log)
    files.note(14)
    clean(log, files=files, fences=(9,))
    log.close(clean=False)
    files.note(14)
    return files


def first_violation(files: RecordingFiles, place: Path, *, limit: int, drop: Collection[str] = ()) -> str | None:
    for count, promise, trees in cuts(files.operations, drop=drop, seed=SEED, limit=limit):
        if promise is None or promise == 0:
            continue  # nothing is promised before the first flush, or while the log is cut
        for tree in trees:
            wrong = check(Path(materialise(tree, str(place))), promise)
            if wrong is not None:
                return f"after operation {count}, {files.operations[count - 1]!r:.100}: {wrong}"
    return None


def check(root: Path, durable: int) -> str | None:
    try:
        log = open_log(root, settings=SETTINGS, recovery_point=durable)
        if log.end_offset < durable:
            return f"the log ends at {log.end_offset} of {durable}: {log.cuts}"
        expected = {f"k{number % KEYS}".encode(): f"{number}".encode() for number in range(durable)}
        found, newest = table(log), log.max_timestamp()
        log.close(clean=False)
    except LogError as error:
        return str(error)
    if found != expected:
        return f"{found} where {expected} was written"
    if newest is None or newest.timestamp != START_MS + log.end_offset - 1:
        return f"{newest} is said to be the newest record of {log.end_offset}"
    left = [name for name in os.listdir(root / str(PARTITION)) if name.endswith((".cleaned", ".swap"))]
    return f"{left} were left" if left else None


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> RecordingFiles:
    return recorded(Path(os.path.realpath(tmp_path_factory.mktemp("recorded"))))


@pytest.mark.parametrize("limit", [3, pytest.param(15, marks=[pytest.mark.faults, pytest.mark.timeout(600)])])
def test_no_power_loss_leaves_a_part_of_both(files: RecordingFiles, tmp_path: Path, limit: int) -> None:
    assert first_violation(files, tmp_path / "disk", limit=limit) is None


@pytest.mark.faults
def test_every_fsync_of_an_exchange_is_needed(files: RecordingFiles, tmp_path: Path) -> None:
    of_exchanges = [site for site in sites(files.operations) if "swap.py" in site or "rewriter.py" in site]
    assert len(of_exchanges) >= 4
    needless = [
        site for site in of_exchanges if first_violation(files, tmp_path / "disk", limit=15, drop=(site,)) is None
    ]
    assert needless == []
