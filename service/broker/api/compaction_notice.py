"""Logs that a topic configured for compaction is compacted on the local disk only: nothing rewrites what the bucket holds."""

from __future__ import annotations

import logging

from service.configs.resolve import Resolver
from service.metadata.image import MetadataImage
from storage_tiers import events

log = logging.getLogger(__name__)


def say_not_compacted(configs: Resolver, image: MetadataImage, topic: str) -> None:
    """Logs the notice if the policy in force for `topic` compacts and its segments are offloaded."""
    settings = configs.log_settings(image, topic)
    if settings.cleanup_compact and settings.remote_storage_enable:
        kept = "until retention removes it" if settings.cleanup_delete else "for ever"
        events.warning(
            log,
            "topic.not_compacted",
            topic=topic,
            cleanup_policy=",".join(settings.cleanup_policy),
            effect=f"segments on the local disk are compacted, those in the bucket are not: each is kept {kept}",
        )
