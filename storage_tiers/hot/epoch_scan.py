"""The leader epochs that a log's own batches tell: what the epoch history is made anew from where its file is lost.

Headers only. Reading may run in any thread; `release` gives the descriptors back on the event loop, where they are counted.
Not promised: anything of batches that have left the disk; a sidecar in the bucket tells of those.
"""

from __future__ import annotations

from collections.abc import Iterable

from storage_tiers.hot.leader_epochs import LeaderEpochs
from storage_tiers.hot.scan import read_batches
from storage_tiers.types import EpochEntry, SharedFile


def read_epochs(fd: int, position: int, size: int, epochs: LeaderEpochs) -> None:
    """Takes the epochs of the batches in [position, size) of an open log into `epochs`, up to the first that is none."""
    for chunk in read_batches(fd, position, size):
        for _, _, base, _, epoch, _ in chunk.batches:
            if epoch > epochs.latest:
                epochs.assign(epoch, base)


class EpochScan:
    """Made by `LogReader.scan_epochs`: some segments, each from a position on."""

    __slots__ = ("_spans",)

    def __init__(self, spans: Iterable[tuple[SharedFile, int, int]]) -> None:
        self._spans = list(spans)

    def after(self, epochs: Iterable[EpochEntry]) -> tuple[EpochEntry, ...]:
        """`epochs`, continued by what the batches say. Blocking; OSError if the disk refuses."""
        known = LeaderEpochs(epochs)
        for file, position, size in self._spans:
            read_epochs(file.fd, position, size, known)
        return known.entries()

    def release(self) -> None:
        for file, _, _ in self._spans:
            file.release()
        self._spans = []
