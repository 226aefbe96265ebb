"""Applies each change of the metadata image: opens and closes partitions, and queues changed topic files."""

from __future__ import annotations

import logging
from collections.abc import Callable

from service.broker.background.topic_files import TopicFiles
from service.broker.partition.assignment import Assignment
from service.metadata.following import Metadata
from service.metadata.image import MetadataImage
from service.metadata.parts import Changes
from storage_tiers import events
from storage_tiers.errors import LogError

log = logging.getLogger(__name__)


def publish_to(
    metadata: Metadata, assignment: Assignment, topic_files: TopicFiles, on_fatal: Callable[[LogError], None]
) -> None:
    """Subscribes to `metadata`. Each change is applied before its request is answered. `on_fatal` is called on a defect,
    because the node would otherwise serve outdated state."""

    def changed(image: MetadataImage, changes: Changes) -> None:
        try:
            topic_files.apply(image, changes)
            assignment.apply(image, changes)
        except Exception as error:  # noqa: BLE001 - it is logged, and the node ends
            events.error(log, "metadata.not_applied", defect=error)
            on_fatal(LogError(f"the node cannot apply its metadata ({error!r}); start it again"))

    metadata.subscribe(changed)
