"""The identity of each partition's directory at the last checkpoint, to tell a copied or restored directory from the original.

    partition-directories: "0", the number of further lines, then one line for each partition:
    topic, partition, topic id; device, inode, birth (ns since 1970 or -) of the directory; the same of partition.metadata

An older copy of a directory is consistent in itself. If it ends above the last recovery point, nothing else on the disk shows
that records are missing. Invariants: a partition that must still be opened or compared keeps its known identity, so that a
later start compares it too. A partition that leads without the store to which it was tiered keeps its known identity, too. A
partition without a known identity (created since the last checkpoint) counts as the original.

Files that were overwritten in place are not noticed (`storage_tiers.hot.file_identity`).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from service.broker.partition.partition import Partition
from storage_tiers import events
from storage_tiers.cold.manifest.saved_manifest import FILE_NAME as SAVED_MANIFEST
from storage_tiers.files import Files, replace_file
from storage_tiers.hot.file_identity import FileIdentity, file_identity
from storage_tiers.hot.layout import PARTITION_METADATA
from storage_tiers.turns import Turn
from storage_tiers.types import TopicPartition

log = logging.getLogger(__name__)

FILE_NAME = "partition-directories"


class DirectoryIdentity(NamedTuple):
    """A partition's directory and its `partition.metadata` file as the file system knew them at the last checkpoint."""

    topic_id: str
    directory: FileIdentity
    metadata: FileIdentity


class DirectoryIdentities:
    """`moved` has the partitions whose directory differs from that of the last checkpoint, each with a text that names the
    difference."""

    def __init__(self, directory: str, files: Files) -> None:
        self._path = os.path.join(directory, FILE_NAME)
        self._files = files
        self._damaged = False
        self._known = self._read()
        self._now: dict[TopicPartition, DirectoryIdentity] = {}
        self.moved: dict[TopicPartition, str] = {}

    def note(self, partition: Partition, *, started: bool) -> None:
        """Notes an opened partition's directory. `started` is True if an earlier run may have opened the partition."""
        hot = partition.log.hot
        try:
            metadata = file_identity(os.path.join(hot.directory, PARTITION_METADATA))
            now = DirectoryIdentity(str(hot.topic_id), file_identity(hot.directory), metadata)
        except OSError:
            return  # without a known identity it counts as the original
        self._now[hot.partition] = now
        known = self._known.get(hot.partition)
        if not started or (known is None and not self._damaged) or (known and known.topic_id != now.topic_id):
            return
        if known is None:
            self.moved[hot.partition] = f"{self._path} is damaged: the earlier directory is unknown"
        elif known.directory != now.directory:
            self.moved[hot.partition] = f"another directory: {tuple(now.directory)}, not {tuple(known.directory)}"
        elif known.metadata != now.metadata:
            self.moved[hot.partition] = f"other files: {tuple(now.metadata)}, not {tuple(known.metadata)}"

    def say_moved(self) -> None:
        """Logs one line for all moved partitions, because a whole data directory may have been moved."""
        for partition, difference in self.moved.items():
            events.warning(
                log, "partitions.moved", first=str(partition), partitions=len(self.moved), difference=difference
            )
            return

    async def save(self, partitions: Sequence[Partition], unopened: Collection[TopicPartition], turn: Turn) -> None:
        """Writes the identities durably if any changed. `unopened` partitions keep theirs. If the file was damaged, it is not
        written before all partitions are opened and compared. Raises OSError if the disk refuses."""
        wanted = {key: self._known[key] for key in unopened if key in self._known}
        waits = bool(unopened)
        try:
            for partition in partitions:
                key, is_unasked = partition.partition, self._is_unasked(partition)
                waits = waits or is_unasked
                identity = self._known.get(key) if key in self.moved and is_unasked else self._now.get(key)
                if identity is not None:
                    wanted[key] = identity
                if turn.is_over:
                    await turn.rest()
        finally:
            turn.leave()
        if wanted == self._known or (self._damaged and waits):
            return
        await asyncio.get_running_loop().run_in_executor(None, self._write, wanted)
        self._known, self._damaged = wanted, False
        self.moved = {key: why for key, why in self.moved.items() if wanted.get(key) != self._now.get(key)}

    def _is_unasked(self, partition: Partition) -> bool:
        """Whether the store may hold more of the partition and has not answered yet."""
        if partition.is_recovering or partition.log.cold is not None or partition.partition not in self.moved:
            return partition.is_recovering
        return os.path.exists(os.path.join(partition.log.hot.directory, SAVED_MANIFEST))

    def _write(self, identities: Mapping[TopicPartition, DirectoryIdentity]) -> None:
        lines = [
            " ".join(
                (key.topic, str(key.partition), identity.topic_id, _text(identity.directory), _text(identity.metadata))
            )
            for key, identity in identities.items()
        ]
        replace_file(self._files, self._path, "\n".join(["0", str(len(lines)), *lines, ""]).encode())

    def _read(self) -> dict[TopicPartition, DirectoryIdentity]:
        try:
            with open(self._path, "rb") as file:
                version, count, *lines = file.read().decode("ascii").splitlines()
            if version != "0" or int(count) != len(lines):
                raise ValueError(f"version {version}, {len(lines)} lines where {count} are announced")
            return dict(map(_parsed, lines))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            events.error(log, "checkpoint.unusable", path=self._path, error=error)
            self._damaged = True
            return {}


def _text(identity: FileIdentity) -> str:
    return f"{identity.device} {identity.inode} {'-' if identity.born_ns is None else identity.born_ns}"


def _parsed(line: str) -> tuple[TopicPartition, DirectoryIdentity]:
    topic, number, topic_id, *identities = line.split(" ")
    device, inode, born, *second = identities
    return TopicPartition(topic, int(number)), DirectoryIdentity(
        topic_id, _identity(device, inode, born), _identity(*second)
    )


def _identity(device: str, inode: str, born: str) -> FileIdentity:
    return FileIdentity(int(device), int(inode), None if born == "-" else int(born))
