"""An aborted transaction that spans whole segments of the bucket hides nothing that its producer writes later."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from service.broker.partition.append_origin import AppendOrigin
from service.fsck.bucket import FsckScope
from service.fsck.bucket import check_bucket as fsck
from storage_tiers.clock import SystemClock
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.records.batch import read_header
from storage_tiers.records.builder import ControlKind
from tests.service.broker.background.cleaner.cleaning_support import clean_bucket
from tests.service.broker.background.cleaner.test_cleaning import COMPACTED, EAGER, closed, led, put, table
from tests.service.broker.background.cleaner.test_cleaning_tiers import committed, in_bucket
from tests.service.broker.support import Running, running, until
from tests.storage_tiers.compaction.support import batch
from tests.storage_tiers.hot.support import marker
from tests.support.faulty_store import FaultyStore

PRODUCER = 7
#: A value so large that two such records fill a segment.
LARGE = "v" * 1300


def transactional(node: Running, sequence: int, key: str, value: str) -> None:
    made = batch((key, value), producer=(PRODUCER, 0, sequence), transactional=True)
    led(node).append_validated(memoryview(made), read_header(made), origin=AppendOrigin.COORDINATOR)


def ended(node: Running, kind: ControlKind) -> None:
    made = marker(kind, PRODUCER)
    led(node).append_validated(memoryview(made), read_header(made), origin=AppendOrigin.COORDINATOR)


def is_clean(node: Running, upto: int) -> bool:
    cold = node.node.broker.cleaning._cold
    assert cold is not None
    return cold.cleaned_to(led(node)) >= upto


async def test_offsets_committed_after_a_long_aborted_transaction_stay(tmp_path: Path) -> None:
    memory = MemoryStore(SystemClock())
    expected = {f"f{number}": LARGE for number in range(3)}
    async with running(tmp_path, FaultyStore(memory), broker={"log.cleaner.enable": "false"}) as node:
        await node.create("t", configs=COMPACTED)
        transactional(node, 0, "x", "aborted")
        await put(node, ("f0", LARGE))
        await closed(node)
        await put(node, ("f1", LARGE))  # a segment between the transaction's records and its marker: it never changes
        await closed(node)
        ended(node, ControlKind.ABORT)
        await put(node, ("f2", LARGE))
        await node.seal("t")
        cluster = node.node.cluster_id
    for life in range(9):  # each pass removes records that the previous pass has made removable
        async with running(tmp_path, FaultyStore(memory), broker=EAGER) as node:
            hot = led(node).log.hot
            hot.reconfigure(replace(hot.settings, local_retention_bytes=1))
            if life == 5:
                transactional(node, 1, "precious", "1")
                ended(node, ControlKind.COMMIT)
                expected["precious"] = "1"
            for part in "ab":
                expected[f"g{life}{part}"] = LARGE
                await put(node, (f"g{life}{part}", LARGE))
                await node.seal("t")
            await until(partial(is_clean, node, hot.end_offset - 1))
            assert expected.keys() <= table(await committed(node)).keys()
            assert in_bucket(memory, cluster) == expected
    report = fsck(memory.blocking(), FsckScope(), now_ms=SystemClock().unix_ms())
    assert [finding for finding in report.findings if finding.damage] == []


@pytest.mark.parametrize("follows", [ControlKind.COMMIT, ControlKind.ABORT])
async def test_an_aborted_transaction_whose_marker_was_lost_with_the_disk_stays_aborted(
    tmp_path: Path, follows: ControlKind
) -> None:
    """Only the sidecar of the transaction's own segment names it. After the take-over the producer continues at the marker's
    offset."""
    memory = MemoryStore(SystemClock())
    bucket = FaultyStore(memory)
    by_hand = {"log.cleaner.enable": "false"}
    async with running(tmp_path / "data", bucket, broker=by_hand) as node:
        await node.create("t", configs=COMPACTED)
        await put(node, ("k", "kept"), ("x", "kept"))
        transactional(node, 0, "k", "aborted")
        led(node).log.hot.roll()
        await put(node, ("x", "lost"))
        ended(node, ControlKind.ABORT)
        await node.node.work.flusher.flush(led(node))
        await until(lambda: led(node).log.tiered_end == 3)
        cluster = node.node.cluster_id
        bucket.down = True
    bucket.down = False
    async with running(tmp_path / "new", bucket, broker=by_hand, take_over=cluster) as node:
        await until(lambda: not led(node).is_recovering)
        transactional(node, 1, "y", "next")
        ended(node, follows)
        expected = {"k": "kept", "x": "kept"} | ({"y": "next"} if follows is ControlKind.COMMIT else {})
        for number in range(3):
            await put(node, (f"g{number}", LARGE))
            expected[f"g{number}"] = LARGE
            await node.seal("t")
        assert table(await committed(node)) == in_bucket(memory, cluster) == expected
        for _ in range(3):
            await clean_bucket(node)
            assert in_bucket(memory, cluster) == expected
    report = fsck(memory.blocking(), FsckScope(), now_ms=SystemClock().unix_ms())
    assert [finding for finding in report.findings if finding.damage] == []
