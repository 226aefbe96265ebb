"""Refuses to start a node without the store that holds its offloaded records.

Evicted records would be missing. A consumer at the offset of such a record would get OFFSET_OUT_OF_RANGE and, by default,
continue at the end and skip records that exist. The check reads only files, before any log is opened.

Not promised: that a partition without `tiered-manifest.json` is complete.
"""

from __future__ import annotations

import os

from storage_tiers.cold.manifest.model import Ids
from storage_tiers.cold.manifest.saved_manifest import FILE_NAME, read_manifest
from storage_tiers.errors import InvalidConfig, StorageError, TierCorrupt
from storage_tiers.hot import layout
from storage_tiers.hot.checkpoints import LOG_STARTS, read_offsets
from storage_tiers.hot.data_dir import DataDirectory, PartitionDirectory
from storage_tiers.types import TopicPartition


def check_no_store_needed(data: DataDirectory) -> None:
    """Raises InvalidConfig if readable records of a partition are only in an object store."""
    identity = data.identity()
    if identity is None:
        return
    starts = _log_starts(data.path)
    lacking = [each for each in data.partitions() if _lacks_records(each, identity.cluster_id, starts)]
    if lacking:
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        raise InvalidConfig(
            f"records of {lacking[0].partition}{more} are in an object store and no longer in {data.path}, but this start has "
            "no store; give the --store that the node had. Nothing was changed"
        )


def _lacks_records(directory: PartitionDirectory, cluster_id: str, starts: dict[TopicPartition, int]) -> bool:
    if directory.topic_id is None or not os.path.exists(os.path.join(directory.path, FILE_NAME)):
        return False
    partition = directory.partition
    log_start = starts.get(partition, 0)
    try:
        manifest = read_manifest(
            directory.path, Ids(cluster_id, partition.topic, directory.topic_id, partition.partition)
        )
    except TierCorrupt:
        manifest = None  # the log start is unknown
    if manifest is not None:
        log_start = max(log_start, manifest.log_start)
    files = filter(None, map(layout.parse_file, os.listdir(directory.path)))
    local_start = min((file.offset for file in files if file.suffix == layout.LOG), default=None)
    return local_start is not None and local_start > log_start


def _log_starts(data_dir: str) -> dict[TopicPartition, int]:
    try:
        return read_offsets(os.path.join(data_dir, LOG_STARTS))
    except StorageError:
        return {}  # the file is damaged; opening the logs reports and rebuilds it
