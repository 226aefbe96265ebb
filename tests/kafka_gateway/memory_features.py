"""The contract's `Features` for a memory core: the product's rules over an image in memory."""

from __future__ import annotations

from collections.abc import Sequence

from grpc_api.contract.features import Feature, FeatureUpdate
from service.metadata import features
from service.metadata.image import MetadataImage


class MemoryFeatures:
    """Starts with a new cluster's levels. A test may replace `image`."""

    def __init__(self) -> None:
        self.image = MetadataImage().apply_batch(features.newest())

    def list(self) -> Sequence[Feature]:
        return features.features(self.image)

    async def update(self, updates: Sequence[FeatureUpdate], *, validate_only: bool) -> None:
        records = features.update(self.image, updates, 1)
        if not validate_only:
            self.image = self.image.apply_batch(records)
