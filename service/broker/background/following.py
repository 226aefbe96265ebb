"""Takes each change of the metadata over: partitions are opened and closed, topic files become due."""

from __future__ import annotations

import logging
from collections.abc import Callable

from service.broker.background.topic_files import TopicFiles
from service.broker.partition.assignment import Assignment
from service.metadata.image import Changes, MetadataImage
from service.metadata.log import MetadataLog
from storage_tiers import events
from storage_tiers.errors import LogError

log = logging.getLogger(__name__)


def follow(
    metadata: MetadataLog, assignment: Assignment, topic_files: TopicFiles, on_fatal: Callable[[LogError], None]
) -> None:
    """From now on, before who asked for a change is answered. A defect ends the node: it would serve what is not so."""

    def changed(image: MetadataImage, changes: Changes) -> None:
        try:
            assignment.follow(image, changes)
            topic_files.follow(image, changes)
        except Exception as error:  # noqa: BLE001 - said, and the node ends
            events.error(log, "metadata.not_followed", defect=error)
            on_fatal(LogError(f"the node cannot follow its metadata ({error!r}); start it again"))

    metadata.subscribe(changed)
