"""Reads leader epochs from a log's batches, to rebuild the epoch history when its file is lost.

Reads headers only. Reading may run in any thread; `release` runs on the event loop, where descriptors are counted. The scan
does not find the epochs of batches that have left the disk; a sidecar in the bucket holds those.
"""

from __future__ import annotations

from collections.abc import Iterable

from storage_tiers.hot.leader_epochs import LeaderEpochs
from storage_tiers.hot.scan import read_batches
from storage_tiers.types import EpochEntry, SharedFile


def read_epochs(fd: int, position: int, size: int, epochs: LeaderEpochs) -> None:
    """Adds the epochs of the batches in [position, size) of an open log to `epochs`; stops at the first invalid batch."""
    for chunk in read_batches(fd, position, size):
        for _, _, base, _, epoch, _ in chunk.batches:
            if epoch > epochs.latest:
                epochs.assign(epoch, base)


class EpochScan:
    """Created by `LogReader.scan_epochs`. A span is (file, byte position to start at, size of the file in bytes)."""

    __slots__ = ("_spans",)

    def __init__(self, spans: Iterable[tuple[SharedFile, int, int]]) -> None:
        self._spans = list(spans)

    def after(self, epochs: Iterable[EpochEntry]) -> tuple[EpochEntry, ...]:
        """`epochs`, followed by the epochs of the batches. Blocking; OSError if the disk refuses."""
        known = LeaderEpochs(epochs)
        for file, position, size in self._spans:
            read_epochs(file.fd, position, size, known)
        return known.entries()

    def release(self) -> None:
        for file, _, _ in self._spans:
            file.release()
        self._spans = []
