"""Builds the guard of the data directory's home, before the first request to the store. The guard's `look` runs later, when the
directory's metadata has been read."""

from __future__ import annotations

from service.build.configs import NodeConfigs
from service.build.ground import Ground
from service.directory.home import HomeGuard


def build_home(ground: Ground, configs: NodeConfigs) -> HomeGuard:
    metadata, own_log = ground.metadata, ground.own_log
    return HomeGuard(
        ground.data.path,
        lambda: metadata.path,
        # A broker that follows a controller takes its metadata from the controller, not from its directory.
        lambda: 0 if own_log is None else own_log.last_index,
        ground.host.files,
        ground.host.clock,
        wait_ms=configs.broker.tidelog_store_claim_wait_ms,
        unclaimed=configs.broker.tidelog_store_unclaimed,
    )
