"""The first record of a batch at or after a time."""

from __future__ import annotations

import pytest

from storage_tiers.records.batch import Codec
from storage_tiers.records.builder import NewRecord, build_batch
from storage_tiers.records.lookup import first_at_or_after
from storage_tiers.types import TimestampOffset

STAMPS = (50, 20, 70, 60, 70)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize(
    ("target", "found"), [(-1, (50, 0)), (50, (50, 0)), (51, (70, 2)), (70, (70, 2)), (71, None), (2**63 - 1, None)]
)
def test_the_first_record_at_or_after_a_time_is_found(codec: Codec, target: int, found: tuple[int, int] | None) -> None:
    batch = build_batch(
        [NewRecord(None, b"v", timestamp=at) for at in STAMPS], base_offset=1000, leader_epoch=6, codec=codec
    )
    expected = None if found is None else TimestampOffset(found[0], 1000 + found[1], 6)
    assert first_at_or_after(batch, target) == expected


def test_under_log_append_time_all_records_have_the_batchs() -> None:
    batch = build_batch(
        [NewRecord(None, b"v", timestamp=at) for at in STAMPS[:2]],
        base_offset=10,
        log_append_time=500,
        offset_deltas=[3, 4],
    )
    assert first_at_or_after(batch, 500) == TimestampOffset(500, 13, -1)
    assert first_at_or_after(batch, 501) is None
