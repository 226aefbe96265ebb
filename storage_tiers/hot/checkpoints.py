"""The files that one data directory keeps for all its partitions: three offset checkpoints and the clean-stop marker.

Formats are Kafka's (OffsetCheckpointFile version 0; CleanShutdownFileHandler): text, so that an operator can read them.
A checkpoint is replaced whole and atomically. A recovery point that is too low costs time at start and nothing else; a
log start that were lost would bring deleted records back, which is why `write_offsets` returns only once it is durable.
Damage, which only a disk can do to them, is an error for who reads; a node goes on with what else it knows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from storage_tiers.errors import StorageError
from storage_tiers.files import Files, replace_file
from storage_tiers.types import TopicPartition

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"


def write_offsets(files: Files, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Replaces the checkpoint at `path`. StorageError if the disk refuses: the old content then stands."""
    lines = [f"{partition.topic} {partition.partition} {offset}" for partition, offset in offsets.items()]
    try:
        replace_file(files, path, "\n".join(["0", str(len(lines)), *lines, ""]).encode())
    except OSError as error:
        raise StorageError(f"cannot write {path} ({error}); free space, or repair or replace the disk") from error


def read_offsets(path: str) -> dict[TopicPartition, int]:
    """The checkpoint at `path`; empty if there is none. StorageError if it is damaged, which replacing it never causes."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        return {}
    try:
        version, count, *lines = content.decode().splitlines()
        if version != "0" or int(count) != len(lines):
            raise ValueError(f"version {version}, {len(lines)} entries where {count} are announced")
        rows = (line.split(" ") for line in lines)
        return {TopicPartition(topic, int(partition)): int(offset) for topic, partition, offset in rows}
    except ValueError as error:
        raise StorageError(f"{path} is damaged ({error}); a node that starts makes it anew from its logs") from error


def mark_clean(files: Files, data_dir: str, *, broker_epoch: int = -1) -> None:
    """Says that every log of the directory was closed clean. Written last of all, once all else is durable.

    Not synced: a marker that a power loss takes away costs a recovery, and no record.
    """
    content = json.dumps({"version": 0, "brokerEpoch": broker_epoch}).encode()
    fd = files.open(os.path.join(data_dir, CLEAN_SHUTDOWN), create=True, truncate=True)
    try:
        files.pwrite(fd, (content,), 0)
    finally:
        files.close(fd)


def take_clean_mark(files: Files, data_dir: str) -> bool:
    """Whether the last run ended clean. The marker is gone, durably, when this returns: it is true of one start only."""
    path = os.path.join(data_dir, CLEAN_SHUTDOWN)
    if not os.path.exists(path):
        return False
    files.unlink(path)
    files.fsync_dir(data_dir)
    return True
