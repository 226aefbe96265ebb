"""A power loss at any moment of a hot log's life: what was flushed is there, and what is there was written.

One run (appends, rolls, flushes, checkpoints, truncations, eviction, clean and unclean stops, a discarded log) is cut after
each of its operations; each state that may be left is recovered and compared with a plain model of the run.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest

from storage_tiers.files import OsFiles
from storage_tiers.hot.checkpoints import (
    LOG_STARTS,
    RECOVERY_POINTS,
    read_offsets,
)
from storage_tiers.hot.data_dir import DataDirectory
from storage_tiers.hot.indexes import StoredOffsetIndex
from storage_tiers.hot.leader_epochs import LeaderEpochs
from storage_tiers.hot.log import HotLog
from storage_tiers.hot.producer_state import ProducerStateManager
from storage_tiers.records.batch import read_header
from tests.faults.hot_life import SETTINGS, Lineage, Promise, workload, workload_after_damage
from tests.faults.power_loss import Fsync, Note, Operation, Tree, cuts, materialise, sites
from tests.storage_tiers.hot.support import (
    PARTITION,
    open_log,
    read_all,
)
from tests.support.clock import SeededRng

#: States tried per cut: in the sample, and in the whole run.
SAMPLE, WHOLE = 3, 16
#: The tests of the whole run are split into this many, so that processes can share them.
PARTS = 4


# --- the comparison ---------------------------------------------------------------------------------------------------
class Violation(AssertionError):
    pass


def expect(holds: bool, what: str) -> None:
    if not holds:
        raise Violation(what)


def check(root: str, promise: Promise) -> None:
    """Recovers what is in `root` and compares it with the promise."""
    if promise.identity is not None:
        directory = DataDirectory.open(root, files=OsFiles(), rng=SeededRng(3))
        found = directory.identity()
        directory.close()
        expect(found is not None and found.directory_id == promise.identity, "the disk identity is another")
    log_start = read_offsets(os.path.join(root, LOG_STARTS)).get(PARTITION, 0)
    recovery_point = read_offsets(os.path.join(root, RECOVERY_POINTS)).get(PARTITION, 0)
    expect(log_start >= promise.log_start, f"log start is {log_start}, {promise.log_start} was promised")
    expect(recovery_point >= promise.recovery_point, f"recovery point fell to {recovery_point}")
    expect(not promise.exists or os.path.isdir(os.path.join(root, str(PARTITION))), "the partition is gone")
    clean = os.path.exists(os.path.join(root, ".kafka_cleanshutdown"))
    log = open_log(root, settings=SETTINGS, recovery_point=recovery_point, log_start_offset=log_start, clean=clean)
    try:
        check_log(log, promise)
    finally:
        log.close(clean=False)


def check_log(log: HotLog, promise: Promise) -> None:
    content = read_all(log)
    lineage = next(
        (each for each in promise.within if matches(log, content, each)),
        None,
    ) or next((each for each in promise.lineages if promise.flushed == 0 and matches(log, content, each)), None)
    if lineage is None:
        empty = not content and promise.flushed == 0
        expect(empty, f"[{log.local_start_offset}, {log.end_offset}) is no part of any history")
        return
    expect(log.end_offset >= promise.flushed, f"the log ends at {log.end_offset}, {promise.flushed} was flushed")
    if promise.flushed:
        needed = [each for each in lineage.batches if promise.evicted <= each.offset < promise.flushed]
        expect(not needed or log.local_start_offset <= needed[0].offset, "flushed batches are gone from the front")
    if not promise.discarded or lineage is promise.lineages[-1]:
        check_lookups(log, lineage)


def matches(log: HotLog, content: bytes, lineage: Lineage) -> bool:
    start, end = log.local_start_offset, log.end_offset
    there = [each for each in lineage.batches if each.offset >= start and each.end <= end]
    if content != b"".join(each.content for each in there):
        return False
    ends = {lineage.start, *(each.end for each in lineage.batches)}
    return start in ends and end in ends


def check_lookups(log: HotLog, lineage: Lineage) -> None:
    """Compares the log's indexes, epochs, producers and transactions with those of its history up to the log end."""
    start, end = log.local_start_offset, log.end_offset
    state, aborted = lineage.producers(end)
    expect(normal(log.end.producers.state()) == normal(state), "the producers' state is another")
    for segment in log.segments():
        expected = normal(lineage.producers(segment.base)[0])
        expect(
            normal(log.reader.state_at(segment.base)) == expected, f"the producers' state at {segment.base} is another"
        )
    expect(
        log.reader.aborted_transactions(start, end) == [each for each in aborted if each.last_offset >= start],
        "the aborted transactions are others",
    )
    history = LeaderEpochs(lineage.epochs(end))
    history.truncate_from_start(log.log_start_offset)
    expect(
        log.end.epochs.below(end) == history.below(end),
        f"epochs are {log.end.epochs.entries()}, not {history.entries()}",
    )
    visible = max(start, log.log_start_offset)
    records = [each for each in lineage.timestamps if visible <= each[0] < end]
    for target in sorted({timestamp for _, timestamp in records})[::5]:
        answer = log.offset_for_timestamp(target)
        first = next(each for each in records if each[1] >= target)
        expect(answer is not None and (answer.offset, answer.timestamp) == first, f"time {target} leads to {answer}")
    newest = log.max_timestamp()
    expect((newest.timestamp if newest else -1) == max((each[1] for each in records), default=-1), "max timestamp")
    check_stored_indexes(log)


def check_stored_indexes(log: HotLog) -> None:
    for segment in log.segments()[:-1]:
        index = StoredOffsetIndex(segment.path.replace(".log", ".index"), segment.base)
        if not os.path.exists(index.path):
            continue
        with open(segment.path, "rb") as file:
            content = file.read()
        for offset in range(segment.base, segment.end, 3):
            header = read_header(content, index.lookup(offset))
            expect(segment.base <= header.base_offset <= offset, f"{index.path} leads {offset} past its batch")


def normal(content: bytes) -> list[tuple[object, ...]]:
    state = ProducerStateManager.restore(content, now_ms=0)
    return sorted(
        (
            producer,
            each.epoch,
            [batch[:3] for batch in each.batches],
            each.transaction_start,
            each.coordinator_epoch,
        )
        for producer, each in state.producers.items()
    )


# --- the tests --------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module", params=[workload, workload_after_damage], ids=["life", "after damage"])
def operations(request: pytest.FixtureRequest) -> Iterator[list[Operation]]:
    root = tempfile.mkdtemp(dir=fast_directory())
    yield request.param(root)
    shutil.rmtree(root)


@pytest.fixture
def scratch() -> Iterator[str]:
    # Each recovery logs what it cut, which would be thousands of lines here.
    logging.getLogger("storage_tiers.hot").setLevel(logging.CRITICAL)
    root = tempfile.mkdtemp(dir=fast_directory())
    yield os.path.join(root, "disk")
    shutil.rmtree(root)
    logging.getLogger("storage_tiers.hot").setLevel(logging.NOTSET)


def fast_directory() -> str | None:
    """A place to build thousands of small trees: in memory, if the machine has such a file system."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def try_state(scratch: str, tree: Tree, promise: Promise, where: str) -> None:
    try:
        check(materialise(tree, scratch), promise)
    except Exception as error:
        raise Violation(f"{where}: {error!r}") from error


def sweep(
    operations: list[Operation], scratch: str, *, limit: int, step: int = 1, begin: int = 0, drop: tuple[str, ...] = ()
) -> int:
    """Tries the states after every `step`-th operation, the first of them being number `begin`. Returns how many it tried."""
    tried = 0
    # Before the first dropped fsync, nothing differs.
    first = min(
        (index for index, each in enumerate(operations) if isinstance(each, Fsync) and each.site in drop), default=0
    )
    for count, promise, states in cuts(operations, drop=drop, limit=limit):
        if count < first or promise is None or isinstance(operations[count - 1], Note) or count % step != begin:
            continue
        for index, tree in enumerate(states):
            try_state(scratch, tree, promise, f"after operation {count} {operations[count - 1]}, state {index}")
            tried += 1
    return tried


def test_after_sampled_power_losses_the_log_holds_all_flushed_records(
    operations: list[Operation], scratch: str
) -> None:
    assert sweep(operations, scratch, limit=SAMPLE, step=3) > len(operations) / 5


@pytest.mark.faults
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(PARTS))
def test_after_every_power_loss_the_log_holds_all_flushed_records(
    operations: list[Operation], scratch: str, part: int
) -> None:
    assert sweep(operations, scratch, limit=WHOLE, step=PARTS, begin=part) > len(operations) / PARTS / 2


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_fsync_is_needed(operations: list[Operation], scratch: str, part: int) -> None:
    """Sites of the short run that only the long run proves necessary are left to the long run."""
    short = len(operations) < 100
    asked = [site for site in sites(operations) if not short or "recovery" in site]
    assert asked
    assert [site for site in asked[part::PARTS] if not is_needed(operations, scratch, site)] == []


def is_needed(operations: list[Operation], scratch: str, site: str) -> bool:
    """Whether some state violates a promise once the fsyncs of `site` do nothing."""
    for limit in (3, WHOLE // 3, WHOLE):
        try:
            sweep(operations, scratch, limit=limit, drop=(site,))
        except Violation:
            return True
    return False
