"""Builds the guard of the data directory's home, before the first request to the store. Its `look` runs later, when the
directory's metadata has been read."""

from __future__ import annotations

from service.build.configs import NodeConfigs
from service.build.ground import Ground
from service.directory.home import HomeGuard


def build_home(ground: Ground, configs: NodeConfigs) -> HomeGuard:
    metadata = ground.metadata
    return HomeGuard(
        ground.data.path,
        lambda: metadata.path,
        lambda: metadata.last_index,
        ground.host.files,
        ground.host.clock,
        wait_ms=configs.broker.tidelog_store_claim_wait_ms,
        unclaimed=configs.broker.tidelog_store_unclaimed,
    )
