"""The files that one data directory keeps for all its partitions: three offset checkpoints and the clean-shutdown marker.

Formats are Kafka's (OffsetCheckpointFile version 0; CleanShutdownFileHandler): text that an operator can read. A checkpoint is
replaced whole and atomically. A recovery point that is too low only costs time at start. A lost log start would bring deleted
records back, so `write_offsets` returns only once the file is durable. Reading a damaged checkpoint raises an error. Only the
disk can damage one; the node then rebuilds the offsets from its logs.
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
    """Replaces the checkpoint at `path`. StorageError if the disk refuses; the old content then remains."""
    lines = [f"{partition.topic} {partition.partition} {offset}" for partition, offset in offsets.items()]
    try:
        replace_file(files, path, "\n".join(["0", str(len(lines)), *lines, ""]).encode())
    except OSError as error:
        raise StorageError(f"cannot write {path} ({error}); free space, or repair or replace the disk") from error


def read_offsets(path: str) -> dict[TopicPartition, int]:
    """The checkpoint at `path`; empty if it is missing. StorageError if it is damaged; an interrupted `write_offsets` never
    damages it."""
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
        raise StorageError(f"{path} is damaged ({error}); a starting node rebuilds it from its logs") from error


def write_clean_shutdown_marker(files: Files, data_dir: str, *, broker_epoch: int = -1) -> None:
    """Records that every log of the directory was closed cleanly. Write it last, once everything else is durable.

    The marker is not synced: losing it in a power loss costs a recovery and no record. OSError if the disk refuses.
    """
    content = json.dumps({"version": 0, "brokerEpoch": broker_epoch}).encode()
    fd = files.open(os.path.join(data_dir, CLEAN_SHUTDOWN), create=True, truncate=True)
    try:
        files.pwrite(fd, (content,), 0)
    finally:
        files.close(fd)


def take_clean_shutdown_marker(files: Files, data_dir: str) -> bool:
    """Whether the last run ended cleanly. Removes the marker durably, because it holds for one start only."""
    path = os.path.join(data_dir, CLEAN_SHUTDOWN)
    if not os.path.exists(path):
        return False
    files.unlink(path)
    files.fsync_dir(data_dir)
    return True
