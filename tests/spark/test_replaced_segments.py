"""Readers of the bucket, without a node, while compaction replaces two segments with one: they see the state that they began
with as long as its objects exist, and afterwards get an error."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

import pyspark_tidelog
from grpc_api.sdk.cold import ColdBucket
from pyspark_tidelog.options import OptionError
from storage_tiers.errors import TierObjectMissing
from tests.spark.buckets import CLUSTER, Bucket, numbered, options

WHOLE = list(range(30))
#: Compaction of the first two segments leaves the records of these offsets.
LEFT = [3, 12, 19]
COMPACTED = [*LEFT, *range(20, 30)]


@pytest.fixture
def store(tmp_path: Path, bucket: Bucket) -> Path:
    bucket.publish("t", 1)
    for base in range(0, 30, 10):
        bucket.extend("t", numbered(base, 10, per_batch=1))  # commits 1 to 3
    return tmp_path / "store"


def compact(bucket: Bucket) -> int:
    """Replaces the first two segments with one; returns the number of the commit."""
    return bucket.replace("t", b"".join(numbered(offset, 1) for offset in LEFT), 0, 20).commit


def tables(store: Path, **more: str) -> pyspark_tidelog.Tables:
    return pyspark_tidelog.tables(["offset"], **options(store, "t", **more))


def rows(found: pyspark_tidelog.Tables) -> list[int]:
    offsets: list[int] = found.table().column("offset").to_pylist()
    return offsets


def rows_at(store: Path, commit: int) -> list[int]:
    return rows(tables(store, snapshotCommit=str(commit)))


def test_each_commit_shows_its_own_segments(bucket: Bucket, store: Path) -> None:
    compacted = compact(bucket)
    assert rows(tables(store)) == COMPACTED
    bucket.extend("t", numbered(30, 1))
    assert [rows_at(store, commit) for commit in (1, 2, 3)] == [WHOLE[:10], WHOLE[:20], WHOLE]
    assert [rows_at(store, commit) for commit in (compacted, compacted + 1)] == [COMPACTED, [*COMPACTED, 30]]
    bucket.sweep("t")
    with pytest.raises(OptionError, match="snapshotCommit 3 cannot be read: t-0: segments removed up to commit 4 have"):
        rows_at(store, 3)
    assert rows_at(store, compacted) == COMPACTED


def test_a_pin_keeps_its_segments(bucket: Bucket, store: Path) -> None:
    pinned = bucket.pin("t", "before").commit
    compact(bucket)
    bucket.sweep("t")
    assert rows_at(store, pinned) == WHOLE
    assert rows(tables(store)) == COMPACTED


def test_a_plan_from_before_a_replacement_reads_the_old_segments(bucket: Bucket, store: Path) -> None:
    planned = tables(store)
    compact(bucket)
    assert rows(planned) == WHOLE
    bucket.sweep("t")
    with pytest.raises(TierObjectMissing, match=r"offsets \[0, 10\) of t-0 were rewritten after commit 3"):
        rows(planned)


@pytest.mark.parametrize("is_swept", [False, True])
def test_a_reader_continues_in_the_new_segment_once_the_old_ones_are_gone(
    bucket: Bucket, store: Path, is_swept: bool
) -> None:
    messages = ColdBucket(bucket.store, CLUSTER).read("t")
    begun = [message.offset for message in islice(messages, 5)]
    compact(bucket)
    if is_swept:
        bucket.sweep("t")
    begun += [message.offset for message in messages]
    # The first segment was fetched whole.
    assert begun == ([*range(10), *COMPACTED[1:]] if is_swept else WHOLE)
