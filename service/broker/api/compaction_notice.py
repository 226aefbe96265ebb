"""Logs that a topic configured for compaction is not compacted, because no log cleaner runs."""

from __future__ import annotations

import logging

from service.configs.resolve import Resolver
from service.metadata.image import MetadataImage
from storage_tiers import events

log = logging.getLogger(__name__)


def say_not_compacted(configs: Resolver, image: MetadataImage, topic: str) -> None:
    """Logs the notice if the policy in force for `topic` compacts."""
    settings = configs.log_settings(image, topic)
    if settings.cleanup_compact:
        kept = "until retention removes it" if settings.cleanup_delete else "for ever"
        events.warning(
            log,
            "topic.not_compacted",
            topic=topic,
            cleanup_policy=",".join(settings.cleanup_policy),
            effect=f"the log cleaner does not run yet: every record is kept {kept}",
        )
