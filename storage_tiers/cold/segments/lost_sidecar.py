"""Recovers the content of a lost sidecar whose segment is intact: leader epochs, aborted transactions, producers.

The index and the checks follow from the segment alone; `sidecar_builder` makes them. The rest comes from the neighbours'
sidecars and the segment's own batches. The list of aborted transactions is used only if it has the length and CRC-32C that
the manifest records for the section: a wrong list would show aborted records as committed.

The recovered producers may differ from the lost ones. They are the producers at the end of the previous segment, updated by
this segment's batches. Without the previous segment's sidecar they are only the producers that wrote in this segment. An
expired producer may be among them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from storage_tiers.cold.manifest.model import RemoteSegment
from storage_tiers.cold.segments import sidecar
from storage_tiers.cold.segments.sidecar import Sidecar
from storage_tiers.cold.segments.sidecar_builder import aborted_rows, epoch_rows
from storage_tiers.cold.stores.port import ObjectStore
from storage_tiers.errors import CorruptRecord, StorageError, TierCorrupt, TierObjectMissing
from storage_tiers.hot.leader_epochs import LeaderEpochs
from storage_tiers.hot.producer_state import ProducerStateManager
from storage_tiers.hot.scan import ScannedBatch, read_batches, replay
from storage_tiers.records.checksum import crc32c
from storage_tiers.types import AbortedTransaction, EpochEntry

READ_BACK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class SegmentState:
    """The sections of a sidecar that do not follow from its segment alone."""

    epochs: tuple[EpochEntry, ...]
    aborted: tuple[AbortedTransaction, ...]
    producer_state: bytes


@contextlib.contextmanager
def temporary() -> Iterator[str]:
    """A directory for copies of segments. StorageError if its disk refuses them."""
    try:
        with tempfile.TemporaryDirectory() as directory:
            yield directory
    except OSError as error:
        raise StorageError(
            f"cannot keep a copy of a segment in {tempfile.gettempdir()} ({error}); free space there, or name another "
            "directory in TMPDIR and restart; no manifest was changed"
        ) from error


async def download(store: ObjectStore, segment: RemoteSegment, path: Path) -> None:
    with path.open("wb") as file:
        for at in range(0, segment.length, READ_BACK_BYTES):
            size = min(READ_BACK_BYTES, segment.length - at)
            piece = (await store.get(segment.key, segment.position + at, size)).data
            await asyncio.to_thread(file.write, piece)


async def stored_state(store: ObjectStore, segment: RemoteSegment) -> SegmentState:
    """The state in the segment's sidecar. Raises TierObjectMissing or TierCorrupt."""
    held = sidecar.parse((await store.get(segment.sidecar_key)).data, segment.sidecar_key)
    return SegmentState(tuple(held.epochs), tuple(held.aborted), held.producer_state)


async def found_again(
    store: ObjectStore,
    segment: RemoteSegment,
    path: Path,
    neighbours: tuple[RemoteSegment | None, RemoteSegment | None],
    epochs: Sequence[EpochEntry],
) -> SegmentState | None:
    """The lost state; None if the neighbours' sidecars and the `epochs` that this node knows do not determine it. `path` is a
    copy of the segment."""
    before, after = [await _sidecar(store, each) for each in neighbours]
    return await asyncio.to_thread(_found_again, segment, path, before, after, epochs)


async def _sidecar(store: ObjectStore, segment: RemoteSegment | None) -> Sidecar | None:
    if segment is None:
        return None
    try:
        return sidecar.parse((await store.get(segment.sidecar_key)).data, segment.sidecar_key)
    except (TierObjectMissing, TierCorrupt):
        return None


def _found_again(
    segment: RemoteSegment, path: Path, before: Sidecar | None, after: Sidecar | None, known: Sequence[EpochEntry]
) -> SegmentState | None:
    state, epochs = _producers_of(before), LeaderEpochs(() if before is None else before.epochs)
    aborted = list(_replayed(path, state, epochs))
    if after is not None:
        # A transaction that began here may have ended in the next segment.
        late = (each for each in after.aborted if each.first_offset < segment.end <= each.last_offset)
        aborted += late
    histories = [epochs.entries(), *(_until(segment.end, some) for some in (after.epochs if after else (), known))]
    history = next((each for each in histories if _is_section(segment, sidecar.EPOCHS, epoch_rows(each))), None)
    if history is None and before is not None:
        history = histories[0]  # the lost history may have been cut at a log start
    if history is None or not _is_section(segment, sidecar.ABORTED, aborted_rows(aborted)):
        return None
    return SegmentState(history, tuple(aborted), state.state())


def _producers_of(before: Sidecar | None) -> ProducerStateManager:
    if before is None:
        return ProducerStateManager()
    try:
        return ProducerStateManager.restore(before.producer_state, now_ms=0)
    except CorruptRecord:
        return ProducerStateManager()


def _replayed(path: Path, state: ProducerStateManager, epochs: LeaderEpochs) -> Iterator[AbortedTransaction]:
    """The aborted transactions that ended in the segment. Updates `state` and `epochs` by the segment's batches."""
    with path.open("rb") as file:
        for chunk in read_batches(file.fileno(), 0, os.fstat(file.fileno()).st_size):
            _assign_new(epochs, chunk.batches)
            ended = replay(chunk, state, now_ms=0)
            yield from (AbortedTransaction(*each[:4]) for each in ended if each.aborted)


def _assign_new(epochs: LeaderEpochs, batches: Iterable[ScannedBatch]) -> None:
    for _, _, base, _, epoch, _ in batches:
        if epoch > epochs.latest:
            epochs.assign(epoch, base)


def _until(end: int, epochs: Iterable[EpochEntry]) -> tuple[EpochEntry, ...]:
    return tuple(each for each in epochs if each.start_offset < end)


def _is_section(segment: RemoteSegment, name: str, content: bytes) -> bool:
    """Whether the manifest has this length and CRC-32C of the section of that name."""
    return any(
        (each.length, each.crc32c) == (len(content), crc32c(content)) for each in segment.sections if each.name == name
    )
