"""The last stable offset of a partition with a log: how far each isolation level reads, and which waiters a move wakes."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpc_api.contract.log import Fetch, Fetched, FetchPartition, Isolation
from service.broker.fetching.fetching import attempt
from service.broker.partition.partition import Partition
from service.broker.partition.state import ALL_STABLE, PartitionState
from service.lifecycle.lease import Lease
from storage_tiers.clock import SystemClock
from storage_tiers.errors import LeaderNotAvailable
from storage_tiers.hot.log import HotLog
from storage_tiers.hot.producer_state import ProducerStateManager
from storage_tiers.records.batch import read_header
from storage_tiers.records.builder import ControlKind
from storage_tiers.tiered_log import TieredLog
from storage_tiers.types import TopicPartition
from tests.storage_tiers.hot.support import batch_of, marker, open_log

T0 = TopicPartition("t", 0)
LEVELS = (Isolation.READ_UNCOMMITTED, Isolation.READ_COMMITTED, Isolation.LOG_END)


def partition_of(log: HotLog, *followers: int, kick: Callable[[Partition], None] = lambda _: None) -> Partition:
    state = PartitionState(leader_epoch=1, log_end=log.end_offset, high_watermark=log.end_offset)
    led = Partition(
        TieredLog(log, None),
        state,
        cluster_id="c",
        lease=Lease(),
        clock=SystemClock(),
        on_flush_needed=lambda _: None,
        on_roll=kick,
    )
    led.lead(1, followers)
    led.reconciled()
    return led


@pytest.fixture
def log(tmp_path: Path) -> Iterator[HotLog]:
    opened = open_log(tmp_path)
    yield opened
    opened.close(clean=False)


def append(led: Partition, batch: bytes) -> None:
    """Appends as a coordinator does, or a client whose transaction was verified."""
    data, header = memoryview(batch), read_header(batch)
    base = led.log.hot.appender.append(data, header, leader_epoch=1, now_ms=0)
    led._appended(base, header, -1)


def ends(led: Partition) -> tuple[int, ...]:
    return tuple(led.readable_end(level) for level in LEVELS)


def fetched(led: Partition, offset: int, isolation: Isolation) -> Fetched:
    wanted = [FetchPartition(T0, offset, 1 << 20)]
    taken = attempt(Fetch(wanted, 0, 1, 1 << 20, isolation), {T0: led}.__getitem__)
    taken.release()
    return taken.answers[0]


async def test_an_open_transaction_bounds_reads_of_committed_records(log: HotLog) -> None:
    led = partition_of(log)
    append(led, batch_of(2))
    append(led, batch_of(1, producer=(8, 0, 0), transactional=True))
    append(led, batch_of(3))
    assert ends(led) == (6, 2, 6)
    answer = fetched(led, 6, Isolation.READ_UNCOMMITTED)
    assert (answer.high_watermark, answer.last_stable_offset) == (6, 2)
    assert fetched(led, 2, Isolation.READ_COMMITTED).size == 0
    append(led, marker(ControlKind.COMMIT, 8))
    assert ends(led) == (7, 7, 7)
    assert fetched(led, 2, Isolation.READ_COMMITTED).size > 0


async def test_a_transaction_is_unstable_until_its_marker_is_below_the_high_watermark(log: HotLog) -> None:
    led = partition_of(log, 2)
    append(led, batch_of(1, producer=(8, 0, 0), transactional=True))
    append(led, marker(ControlKind.ABORT, 8))
    assert ends(led) == (0, 0, 2)
    led.state.follower_at(2, 1)
    led._advanced()
    assert ends(led) == (1, 0, 2)
    led.state.follower_at(2, 2)
    led._advanced()
    assert ends(led) == (2, 2, 2)


async def test_a_replica_reads_to_the_log_end(log: HotLog) -> None:
    led = partition_of(log, 2)
    append(led, batch_of(2))
    assert fetched(led, 0, Isolation.READ_UNCOMMITTED).size == 0
    assert fetched(led, 0, Isolation.LOG_END).size > 0


async def test_the_open_transactions_of_a_log_are_known_when_it_is_opened(log: HotLog) -> None:
    led = partition_of(log)
    append(led, batch_of(1))
    append(led, batch_of(1, producer=(8, 0, 0), transactional=True))
    assert ends(partition_of(log)) == (2, 1, 2)


async def test_readers_of_committed_records_wake_even_if_only_the_last_stable_offset_rises(log: HotLog) -> None:
    led = partition_of(log)
    append(led, batch_of(1, producer=(8, 0, 0), transactional=True))
    await asyncio.sleep(0)
    woken = asyncio.Event()
    led.waiters.add(woken.set)
    log.end.producers = ProducerStateManager()  # as after a truncation
    led.settle_transactions()
    assert ends(led) == (1, 1, 1)
    await asyncio.sleep(0)
    assert woken.is_set()
    woken.clear()
    led.settle_transactions()
    await asyncio.sleep(0)
    assert not woken.is_set()


async def test_a_log_that_the_buckets_replaces_has_none_of_its_open_transactions(log: HotLog) -> None:
    led = partition_of(log)
    append(led, batch_of(1, producer=(8, 0, 0), transactional=True))
    assert ends(led) == (1, 0, 1)
    led.recover(LeaderNotAvailable("may lack records"))
    log.truncate_fully_and_start_at(9, producer_state=ProducerStateManager().snapshot())
    led.begin_at(9)
    assert ends(led) == (9, 9, 9)


async def test_the_end_of_a_transaction_offloads_the_closed_segments_that_it_held_back(log: HotLog) -> None:
    kicked: list[Partition] = []
    led = partition_of(log, kick=kicked.append)
    append(led, batch_of(1, producer=(8, 0, 0), transactional=True))
    append(led, batch_of(1, producer=(9, 0, 0), transactional=True))
    log.roll()
    append(led, batch_of(1))
    kicked.clear()
    append(led, marker(ControlKind.COMMIT, 9))
    assert kicked == [], "the older transaction is open"
    append(led, marker(ControlKind.COMMIT, 8))
    assert kicked == [led]
    append(led, batch_of(1, producer=(8, 0, 1), transactional=True))
    append(led, marker(ControlKind.COMMIT, 8))
    assert kicked == [led], "the transaction held back no closed segment"


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from((7, 8, 9)), st.sampled_from(("plain", "batch", "end", "replicated"))), max_size=20
    )
)
@pytest.mark.parametrize("followers", [(), (2,)])
def test_an_append_leaves_nothing_to_settle(followers: tuple[int, ...], steps: list[tuple[int, str]]) -> None:
    async def run(directory: Path) -> None:
        log, sequences = open_log(directory), dict.fromkeys((7, 8, 9), 0)
        led = partition_of(log, *followers)
        for producer, step in steps:
            if step == "replicated":
                led.state.follower_at(2, led.state.log_end)
                led._advanced()
            elif step == "end":
                append(led, marker(ControlKind.COMMIT, producer))
            elif step == "batch":
                append(led, batch_of(1, producer=(producer, 0, sequences[producer]), transactional=True))
                sequences[producer] += 1
            else:
                append(led, batch_of(1))
            producers, first = led.log.hot.end.producers, led.state.first_unstable
            assert first == (ALL_STABLE if (found := producers.first_unstable_offset) is None else found)
            led.settle_transactions()
            assert led.state.first_unstable == first
        log.close(clean=False)

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(Path(directory)))


async def test_markers_beside_an_open_transaction_are_forgotten_once_they_are_replicated(log: HotLog) -> None:
    led = partition_of(log)
    append(led, batch_of(1, producer=(8, 0, 0), transactional=True))
    for number in range(3):
        append(led, batch_of(1, producer=(9, 0, number), transactional=True))
        append(led, marker(ControlKind.COMMIT, 9))
    assert len(log.end.producers._unreplicated) == 0
    assert ends(led) == (7, 0, 7)
