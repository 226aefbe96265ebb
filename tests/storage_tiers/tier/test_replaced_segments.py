"""A consumer reads the bucket while compaction replaces two segments with one."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_tiers.records.batch import headers
from tests.storage_tiers.tier.support import batch, broker, read, taken
from tests.storage_tiers.tier.test_cold_reader import scanned


@pytest.mark.parametrize("is_swept", [False, True])
@pytest.mark.parametrize("begins", [True, False])
async def test_a_reader_within_a_segment_that_compaction_replaces_continues(
    tmp_path: Path, begins: bool, is_swept: bool
) -> None:
    """The consumer reads the old segments as long as their objects exist, then the new one. It needs no object for fetched
    chunks."""
    records = [batch(offset, size=200_000) for offset in range(60)]
    compacted = b"".join(records[offset] for offset in (3, 29, 31, 39))
    async with broker(tmp_path) as b:
        for base in range(0, 60, 20):
            old = await b.offload(b"".join(records[base : base + 20]), base, base + 20)
        reader = b.reader()
        if begins:
            assert records[0] in taken(await read(reader, lambda: b.manifest, 0, 300_000))
        await b.replace(compacted, old.segments[:2])
        if is_swept:
            await b.store.delete([key for each in old.segments[:2] for key in (each.key, each.sidecar_key)])
        data = await scanned(b, 500_000, reader, 1 if begins else 0)
        seen = [header.base_offset for _, header in headers(data)]
        assert seen == sorted(set(seen))
        assert set(seen) >= {29, 31, 39, *range(40, 60)}, "what nothing supersedes"
        assert data == b"".join(records[offset] for offset in seen)
        if not is_swept:
            assert seen == list(range(1 if begins else 0, 60))
            assert b.reloads == 0
        else:
            assert b.reloads == 1
            assert 25 not in seen, "of the second segment nothing was fetched"
