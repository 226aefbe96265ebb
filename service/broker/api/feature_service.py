"""The contract's `Features`: the levels of the metadata."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from grpc_api.contract.features import Feature, FeatureUpdate
from service.metadata import features
from service.metadata.log import MetadataLog
from storage_tiers import events

log = logging.getLogger(__name__)


class FeatureService:
    def __init__(self, metadata: MetadataLog, *, node_id: int) -> None:
        self._metadata = metadata
        self._node_id = node_id

    def list(self) -> Sequence[Feature]:
        return features.features(self._metadata.image)

    async def update(self, updates: Sequence[FeatureUpdate], *, validate_only: bool) -> None:
        before = self._metadata.proposed
        records = features.update(before, updates, self._node_id)
        if validate_only or not records:
            return
        await self._metadata.propose(records)
        for each in records:
            name, level = each.feature_level.name, each.feature_level.level
            events.info(log, "feature.updated", feature=name, to_level=level, from_level=features.current(before, name))
