"""The contract's `Features`: the feature levels of the metadata."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from grpc_api.contract.features import Feature, FeatureUpdate
from service.metadata import features
from service.metadata.commands import UpdateFeatures
from service.metadata.controller import Commands
from service.metadata.following import Metadata
from storage_tiers import events

log = logging.getLogger(__name__)


class FeatureService:
    """The contract's `Features`: levels are set in the metadata log."""

    def __init__(self, metadata: Metadata, controller: Commands) -> None:
        self._metadata = metadata
        self._controller = controller

    def list(self) -> Sequence[Feature]:
        return features.features(self._metadata.image)

    async def update(self, updates: Sequence[FeatureUpdate], *, validate_only: bool) -> None:
        changes = await self._controller.execute(UpdateFeatures(tuple(updates), validate_only))
        for name, before, after in () if validate_only else changes:
            events.info(log, "feature.updated", feature=name, to_level=after, from_level=before)
