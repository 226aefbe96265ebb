"""Logs that were set aside because the metadata did not know their topic, and that are taken up again when the metadata has the
topic.

A controller that is started with an older data directory does not know the newest topics. Their records may exist on this disk
alone, so each broker sets their logs aside. When the newest metadata is back, the partition continues with the log that was
set aside. An empty log would assign its offsets a second time.

Invariant: a log is taken up only by the partition with its topic id and number, and never replaces another directory. A
partition that moves here begins with an empty log. A log whose `partition.metadata` is lost is not found.
"""

from __future__ import annotations

import logging
import os

from storage_tiers import events
from storage_tiers.errors import StorageError
from storage_tiers.files import Files
from storage_tiers.hot.data_dir import DataDirectory
from storage_tiers.types import TopicId, TopicPartition

log = logging.getLogger(__name__)


class SetAsideLogs:
    """The logs that this start and earlier ones have set aside. The constructor reads the data directory, which blocks."""

    def __init__(self, data: DataDirectory, files: Files) -> None:
        self._files = files
        self._paths = data.set_aside()

    def note(self, topic_id: TopicId, number: int, path: str) -> None:
        self._paths[topic_id, number] = path

    def holds(self, topic_id: TopicId, number: int) -> bool:
        """Whether the partition's log was set aside, even if it has been taken up since. That log was not closed cleanly."""
        return (topic_id, number) in self._paths

    def take_up(self, partition: TopicPartition, topic_id: TopicId, directory: str) -> None:
        """Renames the partition's log to `directory`, if it was set aside. Raises StorageError if the disk refuses.
        Blocking."""
        path = self._paths.get((topic_id, partition.partition))
        if path is None or os.path.exists(directory) or not os.path.isdir(path):
            return
        try:
            self._files.rename(path, directory)
        except OSError as error:
            raise StorageError(f"cannot rename {path} ({error}); repair or replace the disk") from error
        events.warning(log, "partition.taken_up", partition=partition, path=directory, renamed_from=path)
