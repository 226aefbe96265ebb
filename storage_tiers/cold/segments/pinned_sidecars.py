"""Rewrites lost sidecars of pinned segments under their own keys.

A repair replaces a live segment that lacks its sidecar by a copy under new keys. A pin keeps the state of an earlier commit,
whose keys cannot change. So `lost_sidecar` recovers the sidecar's content, which is written only if every section has the
length and CRC-32C that the manifest names.

Invariants: no manifest is changed, and each key gets exactly the bytes that it had. Some sidecars cannot be recovered: if the
producers at a segment's end differ from the lost ones (`lost_sidecar`), nothing is written. A sidecar of the right length
counts as intact; `tidelog fsck` reads its bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from storage_tiers.cold.manifest.commit import CommitLoop
from storage_tiers.cold.manifest.lookup import LoadPage, state_at
from storage_tiers.cold.manifest.model import Manifest, Pin, RemoteSegment
from storage_tiers.cold.segments import sidecar_builder
from storage_tiers.cold.segments.lost_sidecar import download, found_again, temporary
from storage_tiers.cold.segments.segment_check import sidecar_bytes
from storage_tiers.cold.stores.port import ObjectStore
from storage_tiers.errors import CorruptRecord
from storage_tiers.types import EpochEntry


@dataclass(frozen=True, slots=True)
class PinnedSidecars:
    """Pinned segments that lack their sidecar, each with its pin. The sidecars of `restored` are (or would be) rewritten; those
    of `lost` cannot be recovered."""

    restored: tuple[tuple[RemoteSegment, Pin], ...] = ()
    lost: tuple[tuple[RemoteSegment, Pin], ...] = ()

    @property
    def summary(self) -> str:
        return "; ".join(
            f"the .idx of offsets [{segment.base}, {segment.end}), which the pin {pin.name} keeps, is written again"
            for segment, pin in self.restored
        )

    @property
    def refused(self) -> str:
        """The reason for a refusal; empty if no sidecar is lost."""
        if not self.lost:
            return ""
        segment, pin = self.lost[0]
        more = f", and {len(self.lost) - 1} more" if len(self.lost) > 1 else ""
        return (
            f"{segment.sidecar_key} is missing, or is not what was uploaded{more}: at the pin {pin.name} offsets "
            f"[{segment.base}, {segment.end}) cannot be read, and the .idx cannot be made again as it was; put it back, or "
            "remove the pin"
        )


async def restore_pinned(
    store: ObjectStore, loop: CommitLoop, manifest: Manifest, epochs: Sequence[EpochEntry], *, apply: bool
) -> PinnedSidecars:
    """Rewrites lost sidecars of pinned segments; without `apply` it only plans. `epochs` are the leader epochs that this node
    knows."""
    if not manifest.pins:
        return PinnedSidecars()
    sizes = {info.key: info.size async for info in store.list(manifest.ids.segments_prefix)}
    restored, lost = dict[str, tuple[RemoteSegment, Pin]](), dict[str, tuple[RemoteSegment, Pin]]()
    for pin in manifest.pins:
        segments = await loop.look(partial(_state_at, manifest, pin))
        for nth, segment in enumerate(segments):
            is_there = sizes.get(segment.key, -1) >= segment.position + segment.length
            if sizes.get(segment.sidecar_key) == sidecar_bytes(segment) or not is_there or segment.key in restored:
                continue
            data = await _found_again(store, segments, nth, epochs)
            if data is None:
                lost.setdefault(segment.key, (segment, pin))
                continue
            lost.pop(segment.key, None)
            restored[segment.key] = segment, pin
            if apply:
                await store.put(segment.sidecar_key, data)
    return PinnedSidecars(tuple(restored.values()), tuple(lost.values()))


def _state_at(manifest: Manifest, pin: Pin, load_page: LoadPage) -> list[RemoteSegment]:
    return state_at(manifest, load_page, pin.commit)


async def _found_again(
    store: ObjectStore, segments: Sequence[RemoteSegment], nth: int, epochs: Sequence[EpochEntry]
) -> bytes | None:
    segment = segments[nth]
    before = segments[nth - 1] if nth and segments[nth - 1].end == segment.base else None
    after = segments[nth + 1] if nth + 1 < len(segments) and segments[nth + 1].base == segment.end else None
    with temporary() as directory:
        path = Path(directory, "segment.log")
        await download(store, segment, path)
        try:
            state = await found_again(store, segment, path, (before, after), epochs)
            if state is None:
                return None
            built = await asyncio.to_thread(
                sidecar_builder.build,
                str(path),
                0,
                segment.length,
                base=segment.base,
                end=segment.end,
                aborted=state.aborted,
                epochs=state.epochs,
                producer_state=state.producer_state,
            )
        except CorruptRecord:
            return None
    is_same = (built.crc32c, built.sections) == (segment.crc32c, segment.sections)
    return built.data if is_same else None
