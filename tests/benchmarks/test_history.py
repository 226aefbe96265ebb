"""The synthetic manifests that the history benchmark measures are ones that a node could have committed."""

from __future__ import annotations

import pytest

from benchmarks.history import SEGMENTS, synthetic
from storage_tiers.cold.manifest.json import encode
from storage_tiers.cold.manifest.model import MAX_MANIFEST_BYTES


@pytest.mark.parametrize("count", SEGMENTS)
def test_a_synthetic_manifest_keeps_the_bound_and_names_every_segment(count: int) -> None:
    manifest, known = synthetic(count)
    assert len(encode(manifest)) <= MAX_MANIFEST_BYTES
    assert len(manifest.segments) + sum(page.count for page in manifest.pages) == count
    assert {page.key for page in manifest.pages} <= known.keys()
