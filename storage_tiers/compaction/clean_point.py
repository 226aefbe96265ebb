"""Records how far a log was cleaned, in a file beside its segments, and decides whether that record still holds.

Records below the clean point are not read for keys again. With a wrong clean point a tombstone would be removed while an older
value of its key stays. So the point names the log's segments and the leader epoch of the last clean record, and is valid only
for these. A log that was truncated, rebuilt from the bucket or restored from an older copy has other segments, or records of
another epoch in segments of the same sizes. Such a log is cleaned from its start again.

The bucket has a clean point of its own, which names a commit of the manifest instead. Later commits add segments above the
point, remove the oldest, or replace some by their compacted form. None of them makes records below the point dirty. A repair
may bring other records back, but it begins another line of commits, for which the point is not valid.

A log whose file is damaged or lost has no clean point. Kafka keeps the clean points of all partitions in
`cleaner-offset-checkpoint`, without such a check.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from typing import NamedTuple

from storage_tiers.cold.manifest.model import Manifest
from storage_tiers.files import Files, replace_file
from storage_tiers.policy.segments import SegmentView

FILE_NAME = "cleaner-checkpoint"
#: The file name of the bucket's clean point.
BUCKET_FILE_NAME = "bucket-cleaner-checkpoint"
#: Version 0 has no leader epoch, and is ignored.
_VERSION = 1
#: Version 0 names the bucket's segments, and is ignored.
_BUCKET_VERSION = 1


#: The leader epoch of the record at an offset.
EpochAt = Callable[[int], int]


class CleanPoint(NamedTuple):
    """`segments` are (base offset, size in bytes) of all segments that began below `offset`. `epoch` is the leader epoch of the
    record before `offset`."""

    offset: int
    segments: tuple[tuple[int, int], ...]
    epoch: int


def clean_point(segments: Iterable[SegmentView], offset: int, epoch_at: EpochAt) -> CleanPoint:
    return CleanPoint(offset, _below(segments, offset), epoch_at(offset - 1))


def cleaned_to(point: CleanPoint | None, segments: Iterable[SegmentView], epoch_at: EpochAt) -> int:
    """The offset up to which the log of these segments is clean; 0 if that is not known. The oldest segments of the
    point may have been deleted since."""
    if point is None or point.epoch != epoch_at(point.offset - 1):
        return 0
    found = _below(segments, point.offset)
    return point.offset if found and found == point.segments[-len(found) :] else 0


def write_clean_point(files: Files, directory: str, point: CleanPoint) -> None:
    """Writes the log's clean point. OSError if the disk refuses."""
    content = {"version": _VERSION, **point._asdict()}
    replace_file(files, os.path.join(directory, FILE_NAME), json.dumps(content).encode())


def was_bucket_cleaned(directory: str) -> bool:
    """Whether compaction may have removed records of the partition from the bucket."""
    return os.path.exists(os.path.join(directory, BUCKET_FILE_NAME))


def read_clean_point(directory: str) -> CleanPoint | None:
    """Reads the log's clean point. None if there is none or it cannot be read: the log is then cleaned from its start."""
    try:
        with open(os.path.join(directory, FILE_NAME), "rb") as file:
            found = json.loads(file.read())
        if found["version"] != _VERSION:
            return None
        segments = tuple((int(base), int(size)) for base, size in found["segments"])
        return CleanPoint(int(found["offset"]), segments, int(found["epoch"]))
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None


class BucketCleanPoint(NamedTuple):
    """The bucket was clean up to `offset` at this commit of its manifest."""

    offset: int
    line: str
    commit: int
    commit_id: str


def bucket_clean_point(manifest: Manifest, offset: int) -> BucketCleanPoint:
    return BucketCleanPoint(offset, manifest.line, manifest.commit, manifest.recent[-1].id if manifest.recent else "")


def bucket_cleaned_to(point: BucketCleanPoint | None, manifest: Manifest) -> int:
    """The offset up to which the bucket is clean; 0 if the manifest does not descend from the commit that the point names."""
    if point is None or point.line != manifest.line or point.commit > manifest.commit:
        return 0
    is_other = any(each.commit == point.commit and each.id != point.commit_id for each in manifest.recent)
    return 0 if is_other else point.offset


def write_bucket_clean_point(files: Files, directory: str, point: BucketCleanPoint) -> None:
    """Writes the bucket's clean point. OSError if the disk refuses."""
    content = {"version": _BUCKET_VERSION, **point._asdict()}
    replace_file(files, os.path.join(directory, BUCKET_FILE_NAME), json.dumps(content).encode())


def begin_bucket_clean_point(files: Files, directory: str) -> None:
    """Writes a point that declares nothing clean, unless the file exists. The file shows that records may be missing on
    purpose, so it must exist before the first record is removed. OSError if the disk refuses."""
    if not os.path.exists(os.path.join(directory, BUCKET_FILE_NAME)):
        write_bucket_clean_point(files, directory, BucketCleanPoint(0, "", 0, ""))


def read_bucket_clean_point(directory: str) -> BucketCleanPoint | None:
    """Reads the bucket's clean point. None if there is none or it cannot be read: the bucket is then cleaned from its start."""
    try:
        with open(os.path.join(directory, BUCKET_FILE_NAME), "rb") as file:
            found = json.loads(file.read())
        if found["version"] != _BUCKET_VERSION:
            return None
        return BucketCleanPoint(int(found["offset"]), str(found["line"]), int(found["commit"]), str(found["commit_id"]))
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None


def _below(segments: Iterable[SegmentView], offset: int) -> tuple[tuple[int, int], ...]:
    return tuple((each.base, each.size_bytes) for each in segments if each.base < offset)
