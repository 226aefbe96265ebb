"""A segment with more aborted transactions than a message to the tier process can name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from grpc_api.contract.log import Fetch, FetchPartition, Isolation
from grpc_api.contract.ready import settled
from service.broker.background.aborted_lists import MOST_IN_A_MESSAGE
from service.broker.partition.append_origin import AppendOrigin
from storage_tiers.clock import SystemClock
from storage_tiers.cold.process import protocol
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.records.batch import read_header
from storage_tiers.records.builder import ControlKind
from storage_tiers.types import TopicPartition
from tests.service.broker.background.cleaner.cleaning_support import by_hand, clean_bucket, evict
from tests.service.broker.background.cleaner.test_cleaning import COMPACTED, closed, led
from tests.service.broker.support import Running, manifest_of
from tests.storage_tiers.compaction.support import batch
from tests.storage_tiers.hot.support import marker
from tests.support.faulty_store import FaultyStore

MANY = 2 * MOST_IN_A_MESSAGE


def write(node: Running, data: bytes) -> None:
    led(node).append_validated(memoryview(data), read_header(data), origin=AppendOrigin.COORDINATOR)


async def test_all_aborted_transactions_of_a_segment_reach_the_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "MAX_FRAME_BYTES", 100 << 10)
    bucket = FaultyStore(MemoryStore(SystemClock()))
    configs = {**COMPACTED, "internal.segment.bytes": str(4 << 20), "local.retention.ms": "-1", "retention.ms": "-1"}
    async with by_hand(tmp_path / "data", bucket) as node:
        await node.create("t", configs=configs)
        for sequence in range(MANY):
            write(node, batch(("k", "aborted"), producer=(7, 0, sequence), transactional=True))
            write(node, marker(ControlKind.ABORT, 7))
        await node.append_batch("t", batch(("k", "kept")))
        await closed(node)
        await node.seal("t")
        (segment,) = (await manifest_of(led(node))).segments
        assert sum(row.length for row in segment.sections if row.name == "aborted") == MANY * 34
        directory = led(node).log.hot.directory
        assert not [name for name in os.listdir(directory) if name.endswith(".tmp")]
        await node.append_batch("t", batch(("k", "newest")))
        await node.seal("t")
        await node.append_batch("t", batch(("other", "newest")))
        await node.seal("t")
        await evict(node)
        wanted = FetchPartition(TopicPartition("t", 0), 0, 1 << 20)
        (answer,) = await settled(node.log.fetch(Fetch([wanted], 20_000, 1, 1 << 20, Isolation.READ_COMMITTED)))
        answer.release_all()
        assert answer.error is None and len(answer.aborted or ()) >= MANY // 2
        # The markers stay until their delete horizon. Their transaction index entries stay too, while the local log may still
        # hold the aborted records.
        assert await clean_bucket(node)
        assert not [name for name in os.listdir(directory) if name.endswith(".tmp")]
