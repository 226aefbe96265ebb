"""The local log was compacted before the bucket was, and the node was killed: the bucket's segments are whole, and the
sidecars of later segments know fewer batches than the bucket holds.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from service.broker.background.cleaner.cleaning import Cleaning
from service.broker.partition.append_origin import AppendOrigin
from service.fsck.bucket import FsckScope, check_bucket
from storage_tiers.clock import SystemClock
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.hot.checkpoints import CLEAN_SHUTDOWN, RECOVERY_POINTS
from storage_tiers.records.batch import read_header
from storage_tiers.records.builder import ControlKind
from tests.service.broker.background.cleaner.test_cleaning import EAGER, cleaned_to, closed, led, put
from tests.service.broker.support import Running, running, until
from tests.storage_tiers.compaction.support import batch
from tests.storage_tiers.hot.support import marker
from tests.support.faulty_store import FaultyStore

CONFIGS = {"min.cleanable.dirty.ratio": "0.01", "retention.ms": "-1", "local.retention.ms": "-1"}
RESTS = {"log.cleaner.enable": "false"}
PRODUCER = 7


async def nothing_due(*_: object) -> None:
    return None


def append(node: Running, data: bytes) -> None:
    led(node).append_validated(memoryview(data), read_header(data), origin=AppendOrigin.COORDINATOR)


def produce(node: Running, key: str, sequence: int, *, transactional: bool = False) -> None:
    append(node, batch((key, f"{sequence}"), producer=(PRODUCER, 0, sequence), transactional=transactional))


@pytest.mark.parametrize("policy", ["topic", "broker"])
@pytest.mark.parametrize("transactional", [False, True])
async def test_a_bucket_is_sound_whose_local_log_was_compacted_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, transactional: bool
) -> None:
    """A topic's own configs do not name its cleanup policy if the policy is the broker's. The transaction is aborted in
    the next segment."""
    memory = MemoryStore(SystemClock())
    store = FaultyStore(memory)
    compacts = {**EAGER, "log.cleanup.policy": "compact"} if policy == "broker" else EAGER
    monkeypatch.setattr(Cleaning, "_remote", nothing_due)
    async with running(tmp_path, store, broker={**compacts, **RESTS}) as node:
        await node.create("t", configs=CONFIGS | ({"cleanup.policy": "compact"} if policy == "topic" else {}))
        for sequence, key in enumerate(("a", "b")):
            produce(node, key, sequence, transactional=transactional and sequence == 1)
            await put(node, (f"after {key}", "1"))  # compaction would keep a segment's last batch
            await closed(node)
        if transactional:
            append(node, marker(ControlKind.ABORT, PRODUCER))
        await put(node, ("b", "of no producer"))
        await closed(node)
        node.node.work.tiering.kick(led(node))
        superseding = led(node).log.hot.end_offset
        await until(lambda: (tier := led(node).log.tier) is not None and tier.end == superseding)
        store.down = True
        produce(node, "c", 2)  # so that compaction may remove the producer's batch before this one
    async with running(tmp_path, store, broker=compacts) as node:
        await until(lambda: cleaned_to(node) >= 5)
        assert led(node).log.hot.local_start_offset == 0
        assert b"1" not in [each.value for each in await node.read_all("t") if each.key == b"b"], (
            "it is superseded locally"
        )
    (tmp_path / RECOVERY_POINTS).write_text("0\n0\n")  # as after the kill of a node
    (tmp_path / CLEAN_SHUTDOWN).unlink()
    store.down = False
    async with running(tmp_path, store, broker={**compacts, **RESTS}) as node:
        await until(lambda: led(node).leads)
        await node.seal("t")
    report = check_bucket(memory.blocking(), FsckScope(), now_ms=SystemClock().unix_ms())
    assert report.segments == 4
    assert [finding for finding in report.findings if finding.damage] == []
