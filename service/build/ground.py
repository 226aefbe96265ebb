"""The parts that every builder of a node needs. They are built first and passed to each builder."""

from __future__ import annotations

from dataclasses import dataclass, field

from service.broker.partition.counts import AppendTotals
from service.configs.listeners import Listeners
from service.controller.membership import ClusterMembership
from service.lifecycle.ending import Ending
from service.lifecycle.readiness import Readiness
from service.metadata.following import Metadata
from service.metadata.log import MetadataLog
from service.process.descriptors import Descriptors, open_limit
from service.settings.node_settings import NodeSettings
from storage_tiers.clock import Clock, Rng
from storage_tiers.cold.process.launcher import TierLauncher
from storage_tiers.files import Files
from storage_tiers.hot.data_dir import DataDirectory


@dataclass(frozen=True, slots=True)
class Host:
    """The machine that a node runs on. `launcher` starts the tier process; None means the default, a separate process.
    `descriptors` holds the limit of open files, by default the current one."""

    files: Files
    clock: Clock
    rng: Rng
    launcher: TierLauncher | None = None
    descriptors: Descriptors = field(default_factory=lambda: Descriptors(open_limit()))


@dataclass(frozen=True, slots=True)
class Listening:
    """A node's addresses: `listeners` with their bound ports; `grpc` and `http` as HOST:PORT, None if not served."""

    listeners: Listeners
    grpc: str | None = None
    http: str | None = None


@dataclass(frozen=True, slots=True)
class Ground:
    """Settings, machine, readiness, data directory, metadata and append totals of one node."""

    settings: NodeSettings
    host: Host
    readiness: Readiness
    ending: Ending
    data: DataDirectory
    metadata: Metadata
    #: `metadata`, if this process is its own controller.
    own_log: MetadataLog | None = None
    #: This broker's membership in the cluster, if its controller is in another process.
    membership: ClusterMembership | None = None
    appended: AppendTotals = field(default_factory=AppendTotals)
