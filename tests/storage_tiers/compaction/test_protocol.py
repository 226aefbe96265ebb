"""Orders reach the cleaner process unchanged, whatever their length."""

from __future__ import annotations

import pytest

from storage_tiers.compaction.batches import LastRecord
from storage_tiers.compaction.protocol import ROWS_A_CALL, CleaningRequest, decode_request, encode_request
from storage_tiers.compaction.rewriter import CleaningJob, SourceSegment
from storage_tiers.types import AbortedTransaction


@pytest.mark.parametrize("rows", [0, 1, ROWS_A_CALL - 1, ROWS_A_CALL, 2 * ROWS_A_CALL + 1])
def test_an_order_arrives_as_it_was_sent(rows: int) -> None:
    cleaning = CleaningJob(
        directory="/data/t-0",
        segments=[SourceSegment(10 * n, 10 * n + 10, 1000 + n) for n in range(rows)],
        dirty_start=70,
        fences=[20, 30],
        aborted=[AbortedTransaction(n, n, n + 1, n + 2) for n in range(rows)],
        segment_bytes=1000,
        index_interval=100,
        is_remote=True,
    )
    producers = {n: LastRecord(n * 3, n) for n in range(rows)}
    request = CleaningRequest(
        cleaning=cleaning,
        producers=producers,
        now_ms=1,
        delete_retention_ms=2,
        drops_below=3,
        map_bytes=4,
        map_load=0.5,
        bytes_per_second=6.0,
        key=bytes(range(16)),
    )
    line = encode_request(request)
    assert line.index(b"\n") == len(line) - 1
    assert decode_request(line) == request
