"""Restores a partition's facts from other files when one of its small files is damaged.

Invariants: a directory is accepted as a topic's only if another file there names the topic's id; a lost log start is restored
too low rather than too high. If the checkpoint of log starts is damaged, records that DeleteRecords hid in a log without a
bucket may reappear.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from service.broker.partition.partition import Partition
from storage_tiers import events
from storage_tiers.cold.manifest.model import Ids
from storage_tiers.cold.manifest.saved_manifest import FILE_NAME, read_manifest
from storage_tiers.errors import StorageError, TierCorrupt
from storage_tiers.hot.data_dir import read_topic_id, write_topic_id
from storage_tiers.hot.log import HotLog
from storage_tiers.hot.log_ground import LogGround

log = logging.getLogger(__name__)


def open_identified(open_log: Callable[[], HotLog], ground: LogGround, ids: Ids | None) -> HotLog:
    """Opens a log. If `partition.metadata`, which names its topic, is damaged, the saved manifest beside it names the topic
    instead. Blocking. Raises StorageError if neither names it, or the disk refuses."""
    try:
        return open_log()
    except StorageError:
        if not _identify(ground, ids):
            raise
    return open_log()


def _identify(ground: LogGround, ids: Ids | None) -> bool:
    """Restores the topic id in the directory. Returns False if its file was not damaged. Raises StorageError if no file names
    the topic."""
    directory, topic_id = ground.directory, ground.topic_id
    try:
        read_topic_id(directory)
        return False
    except StorageError as error:
        damaged = error
    except OSError:
        return False
    try:
        manifest = read_manifest(directory, ids) if ids is not None else None
    except TierCorrupt:
        manifest = None
    if manifest is None:
        raise StorageError(
            f"{damaged}. If these records belong to the topic with the id {topic_id}, write the two lines `version: 0` and "
            f"`topic_id: {topic_id}` into that file: the partition opens within seconds"
        ) from damaged
    try:
        write_topic_id(ground.files, directory, topic_id)
    except OSError as error:
        raise StorageError(f"cannot write {directory} ({error}); free space, or repair or replace the disk") from error
    events.warning(log, "partition.identified", path=directory, topic_id=str(topic_id))
    return True


def least_log_start(partition: Partition) -> int:
    """A lower bound of the log start offset, for a log whose checkpoint is lost. The epoch history begins at the log start.
    Records that were removed from the disk without being in the bucket were below the log start."""
    hot = partition.log.hot
    known = hot.end.epochs.entries()
    start = known[0].start_offset if known else 0
    never_tiered = not os.path.exists(os.path.join(hot.directory, FILE_NAME))
    if partition.log.cold is None or (never_tiered and not hot.settings.remote_storage_enable):
        start = max(start, hot.local_start_offset)
    return min(start, hot.end_offset)
