"""Hypothesis strategies for records and batches, shared by the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from storage_tiers.records.batch import Codec
from storage_tiers.records.builder import NewRecord, build_batch

NOW_MS = 1_700_000_000_000

fields = st.none() | st.binary(max_size=80)
header_lists = st.lists(st.tuples(st.text(max_size=12), st.none() | st.binary(max_size=12)), max_size=4)
timestamps = st.integers(NOW_MS - 10**9, NOW_MS + 10**9) | st.sampled_from([-1, 0, 1 << 62])
records = st.builds(NewRecord, fields, fields, header_lists, timestamps)
record_lists = st.lists(records, min_size=1, max_size=30)
codecs = st.sampled_from(list(Codec))


@st.composite
def batches(draw: Callable[[st.SearchStrategy[object]], object]) -> bytes:
    """A valid batch as a client would send it."""
    chosen = draw(record_lists)
    codec = draw(codecs)
    assert isinstance(chosen, list)
    assert isinstance(codec, Codec)
    return build_batch(chosen, codec=codec)
