"""What the parts of a node stand on: made before any of them, and handed to every builder."""

from __future__ import annotations

from dataclasses import dataclass, field

from service.broker.partition.counts import AppendTotals
from service.ending import Ending
from service.listeners import Listeners
from service.metadata.log import MetadataLog
from service.process.descriptors import Descriptors, open_limit
from service.readiness import Readiness
from service.settings import NodeSettings
from storage_tiers.clock import Clock, Rng
from storage_tiers.cold.process.launcher import TierLauncher
from storage_tiers.files import Files
from storage_tiers.hot.data_dir import DataDirectory


@dataclass(frozen=True, slots=True)
class Host:
    """What a node takes of the machine that it runs on. `launcher` starts the tier process, None: a process of its own.
    `descriptors` tells of the files that this process may open, by default as many as it may now."""

    files: Files
    clock: Clock
    rng: Rng
    launcher: TierLauncher | None = None
    descriptors: Descriptors = field(default_factory=lambda: Descriptors(open_limit()))


@dataclass(frozen=True, slots=True)
class Listening:
    """Where a node is reached: `listeners` have the ports that were taken, `grpc` and `http` are HOST:PORT, None for what is
    not served."""

    listeners: Listeners
    grpc: str | None = None
    http: str | None = None


@dataclass(frozen=True, slots=True)
class Ground:
    settings: NodeSettings
    host: Host
    readiness: Readiness
    ending: Ending
    data: DataDirectory
    metadata: MetadataLog
    appended: AppendTotals = field(default_factory=AppendTotals)
