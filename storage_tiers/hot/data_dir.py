"""A data directory: one process at a time, one disk identity, one subdirectory per partition.

Invariants: an open `DataDirectory` holds the lock on its `.lock` file, which the kernel releases when the process ends.
`meta.properties` names cluster, node and disk; it is durable before the node writes anything else. A wiped disk gets a new
identity, so that a cluster notices that the replicas on it are gone.

The lock does not exclude another machine if the directory is on a shared file system that ignores locks.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import NamedTuple

from storage_tiers.clock import Rng
from storage_tiers.errors import DirectoryLocked, InconsistentTopicId, StorageError
from storage_tiers.files import Files, replace_file
from storage_tiers.hot import layout
from storage_tiers.types import TopicId, TopicPartition
from storage_tiers.uuids import random_uuid, uuid_text

LOCK_FILE = ".lock"
META_PROPERTIES = "meta.properties"
_META_VERSION = "1"


class Identity(NamedTuple):
    """The content of `meta.properties`. `directory_id` is 22 characters of URL-safe base64, as Kafka prints a Uuid
    (KIP-858)."""

    cluster_id: str
    node_id: int
    directory_id: str


class PartitionDirectory(NamedTuple):
    """One subdirectory. `topic_id` is None if `partition.metadata` is missing or damaged; `path` is absolute."""

    partition: TopicPartition
    topic_id: TopicId | None
    path: str


class DataDirectory:
    """Create it with `open`; `close` releases the lock."""

    def __init__(self, path: str, files: Files, rng: Rng, lock_fd: int) -> None:
        self.path = path
        self._files = files
        self._rng = rng
        self._lock_fd = lock_fd

    @classmethod
    def open(cls, path: str, *, files: Files, rng: Rng) -> DataDirectory:
        """Creates the directory if it is missing and locks it. DirectoryLocked if another process holds the lock, StorageError
        if a disk operation fails."""
        path = os.path.abspath(path)
        try:
            _make_directories(files, path)
            lock_fd = os.open(os.path.join(path, LOCK_FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StorageError(f"cannot use the data directory {path} ({error})") from error
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock_fd)
            raise DirectoryLocked(
                f"another process uses {path}; stop it, or give this one a --data-dir of its own"
            ) from error
        return cls(path, files, rng, lock_fd)

    def close(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    # --- identity -----------------------------------------------------------------------------------------------------
    def identity(self) -> Identity | None:
        """Reads the directory's identity; None for a new directory. StorageError if `meta.properties` is damaged."""
        path = os.path.join(self.path, META_PROPERTIES)
        try:
            with open(path, encoding="utf-8") as file:
                lines = file.read().splitlines()
        except FileNotFoundError:
            return None
        fields = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
        try:
            if fields["version"] != _META_VERSION:
                raise ValueError(f"version {fields['version']} is not {_META_VERSION}")
            return Identity(fields["cluster.id"], int(fields["node.id"]), fields["directory.id"])
        except (KeyError, ValueError) as error:
            raise StorageError(
                f"{path} is damaged ({error!r}); restore it from a copy: it names cluster, node and disk"
            ) from error

    def establish(self, cluster_id: str, node_id: int) -> Identity:
        """Returns the directory's identity. A new directory first gets one with a new disk id, durably.

        StorageError if it belongs to another cluster or node.
        """
        known = self.identity()
        if known is None:
            return self._write(Identity(cluster_id, node_id, uuid_text(random_uuid(self._rng))))
        if (known.cluster_id, known.node_id) != (cluster_id, node_id):
            raise StorageError(
                f"{self.path} belongs to node {known.node_id} of cluster {known.cluster_id}, not to node {node_id} of "
                f"{cluster_id}; use the right --data-dir, and the --node-id of its first start"
            )
        return known

    def _write(self, identity: Identity) -> Identity:
        content = (
            f"version={_META_VERSION}\ncluster.id={identity.cluster_id}\nnode.id={identity.node_id}\n"
            f"directory.id={identity.directory_id}\n"
        )
        try:
            replace_file(self._files, os.path.join(self.path, META_PROPERTIES), content.encode())
        except OSError as error:
            raise StorageError(f"cannot write {META_PROPERTIES} in {self.path} ({error})") from error
        return identity

    # --- partitions ---------------------------------------------------------------------------------------------------
    def partitions(self) -> list[PartitionDirectory]:
        """The partition directories, by name."""
        found = []
        for name in sorted(os.listdir(self.path)):
            partition = layout.parse_partition(name)
            path = os.path.join(self.path, name)
            if partition is not None and os.path.isdir(path):
                found.append(PartitionDirectory(partition, _known_topic_id(path), path))
        return found

    def mark_stray(self, directory: PartitionDirectory) -> str:
        """Adds `-stray` to the name of a directory of an unknown topic id and returns the new path. StorageError if that
        fails."""
        return rename_for_removal(self._files, self._rng, directory.path, directory.partition, layout.STRAY_SUFFIX)

    def set_aside(self) -> dict[tuple[TopicId, int], str]:
        """The paths of the `-stray` directories whose topic id is known, by topic id and partition."""
        found = {}
        for name in sorted(os.listdir(self.path)):
            number, path = layout.stray_number(name), os.path.join(self.path, name)
            if number is not None and (topic_id := _known_topic_id(path)) is not None:
                found[topic_id, number] = path
        return found

    def mark_deleted(self, directory: PartitionDirectory) -> str:
        """Renames the directory of a deleted topic for `remove_deleted` and returns its new path. StorageError if that
        fails."""
        return rename_for_removal(self._files, self._rng, directory.path, directory.partition, layout.DELETE_SUFFIX)

    def remove_deleted(self) -> list[str]:
        """Removes directories marked for deletion by an earlier run and returns their names. Slow: call it in a thread."""
        names = [name for name in os.listdir(self.path) if layout.is_deleted(name)]
        for name in names:
            remove_tree(self._files, os.path.join(self.path, name))
        return names


def read_topic_id(directory: str) -> TopicId | None:
    """The topic id in `partition.metadata` (version 0). None if the file is missing, StorageError if it is damaged."""
    path = os.path.join(directory, layout.PARTITION_METADATA)
    try:
        # A start reads the file twice for each partition; reading it in text mode would take four times as long.
        with open(path, "rb", buffering=0) as file:
            lines = file.read().decode("ascii").splitlines()
        fields = dict(line.split(": ", 1) for line in lines)
        if fields["version"] != "0":
            raise ValueError(f"version {fields['version']}")
        return TopicId.parse(fields["topic_id"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError) as error:
        raise StorageError(
            f"{path} is damaged ({error!r}) and nothing else names the topic of these records; restore it from a copy"
        ) from error


def _known_topic_id(directory: str) -> TopicId | None:
    try:
        return read_topic_id(directory)
    except StorageError:
        return None


def write_topic_id(files: Files, directory: str, topic_id: TopicId) -> None:
    """Writes `partition.metadata` durably. OSError if a disk operation fails."""
    content = f"version: 0\ntopic_id: {topic_id}".encode()
    replace_file(files, os.path.join(directory, layout.PARTITION_METADATA), content)


def establish_partition(files: Files, directory: str, partition: TopicPartition, topic_id: TopicId, base: int) -> None:
    """Creates `directory` durably with an empty segment at offset `base`, unless it exists. `partition.metadata` is written
    last. OSError if a disk operation fails, InconsistentTopicId if the directory belongs to another topic."""
    found = read_topic_id(directory)
    if found == topic_id:
        return
    if found is not None:
        raise InconsistentTopicId(f"{directory} belongs to topic id {found}, {partition} has {topic_id}; move it away")
    files.mkdir(directory)
    if not any(name.endswith(layout.LOG) for name in os.listdir(directory)):
        path = os.path.join(directory, layout.file_name(base, layout.LOG))
        files.close(files.open(path, create=True, truncate=True))
    write_topic_id(files, directory, topic_id)
    files.fsync_dir(os.path.dirname(directory))


def rename_for_removal(files: Files, rng: Rng, path: str, partition: TopicPartition, suffix: str) -> str:
    """Renames a partition's directory with a random token and `suffix`; returns the new path. StorageError if that fails."""
    target = os.path.join(os.path.dirname(path), layout.removal_name(partition, rng.token(16), suffix))
    try:
        files.rename(path, target)
    except OSError as error:
        raise StorageError(f"cannot rename {path} ({error}); repair or replace the disk") from error
    return target


def remove_tree(files: Files, path: str) -> None:
    """Removes a partition's directory, which contains only files. Does nothing if there is none; StorageError if removal
    fails."""
    try:
        for name in os.listdir(path):
            with contextlib.suppress(FileNotFoundError):
                files.unlink(os.path.join(path, name))
        files.rmdir(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(f"cannot remove {path} ({error}); remove it by hand") from error


def _make_directories(files: Files, path: str) -> None:
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    _make_directories(files, parent)
    files.mkdir(path)
    files.fsync_dir(parent)
