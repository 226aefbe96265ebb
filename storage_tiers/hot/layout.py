"""Names inside a data directory, as in Kafka.

`<data_dir>/<topic>-<partition>/` holds `<base offset, 20 digits>.log` and its companions. A directory to be removed ends in
`-delete` or `-stray`, a file in `.deleted`. A `.tmp` file is left by a crash before its rename. The files of a rewritten
segment end in `.cleaned` until they replace others. The next start removes all of these, with two exceptions: `-stray`, which
an operator may want to inspect, and the `.cleaned` files that a `.swap` names, because that swap was prepared and is completed.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from storage_tiers.types import TopicPartition

LOG = ".log"
OFFSET_INDEX = ".index"
TIME_INDEX = ".timeindex"
TRANSACTION_INDEX = ".txnindex"
SNAPSHOT = ".snapshot"
#: The batches that a snapshot omits (`earlier_batches`). Kafka does not know this file, and ignores it.
BATCHES = ".batches"
DELETED = ".deleted"
TEMPORARY = ".tmp"
CLEANED = ".cleaned"
SWAP = ".swap"
EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"

#: Files beside a `.log` that are useless without it.
COMPANIONS = (OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX)
#: Longest file name that common file systems allow, in bytes.
MAX_NAME = 255

_NUMBERED = re.compile(r"(\d{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot|\.batches)")
_PARTITION = re.compile(r"(.+)-(\d+)")
_REMOVAL_NAME = re.compile(r"(.+)-(\d+)\.[0-9a-f]+-(delete|stray)")


class NumberedFile(NamedTuple):
    """A file named by an offset; `suffix` includes its dot."""

    offset: int
    suffix: str


def file_name(offset: int, suffix: str) -> str:
    return f"{offset:020d}{suffix}"


def parse_file(name: str) -> NumberedFile | None:
    match = _NUMBERED.fullmatch(name)
    return NumberedFile(int(match[1]), match[2]) if match else None


def parse_partition(name: str) -> TopicPartition | None:
    """The partition whose directory is called `name`; None for any other name."""
    match = _PARTITION.fullmatch(name)
    if match is None or _REMOVAL_NAME.fullmatch(name):
        return None
    return TopicPartition(match[1], int(match[2]))


def is_deleted(name: str) -> bool:
    """Whether a partition directory was renamed for deletion."""
    return name.endswith(DELETE_SUFFIX) and _REMOVAL_NAME.fullmatch(name) is not None


def stray_number(name: str) -> int | None:
    """The partition's number, if its directory was set aside. Its topic's name may be truncated."""
    match = _REMOVAL_NAME.fullmatch(name)
    return int(match[2]) if match is not None and name.endswith(STRAY_SUFFIX) else None


def removal_name(partition: TopicPartition, token: bytes, suffix: str) -> str:
    """`<topic>-<partition>.<token>-delete` (or -stray). A long topic name is truncated to MAX_NAME bytes in total."""
    tail = f"-{partition.partition}.{token.hex()}{suffix}"
    return partition.topic[: MAX_NAME - len(tail)] + tail
